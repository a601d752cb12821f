package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/mcpshim"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/worker"
)

// caller is somebody who calls tools of the memory, on one wire.
type caller struct {
	name        string
	call        func(tool, arguments string) string // what it answers, as JSON
	auths       int                                 // entries beside that of the call
	read, write []string                            // tenants that it reaches
}

// stdioShim is a shim of a subject on streams.
type stdioShim struct {
	t     *testing.T
	in    io.Writer
	lines *bufio.Reader
	n     int
	heard []string // notifications that came before an answer
}

func newStdioShim(t *testing.T, d *daemontest.Daemon, subject string) *stdioShim {
	t.Helper()
	fromUs, in := io.Pipe()
	out, toUs := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- mcpshim.Serve(t.Context(), mcpshim.Config{
			Worker: worker.Config{Places: d.Places, Subject: subject, Version: "test"}, In: fromUs, Out: toUs,
		})
		toUs.Close()
	}()
	s := &stdioShim{t: t, in: in, lines: bufio.NewReaderSize(out, 1<<20)}
	t.Cleanup(func() {
		in.Close()
		go func() { _, _ = io.Copy(io.Discard, s.lines) }()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask makes a request of what follows its id, and returns the answer.
func (s *stdioShim) ask(body string) string {
	s.t.Helper()
	s.n++
	if _, err := fmt.Fprintf(s.in, `{"jsonrpc":"2.0","id":%d,%s`+"\n", s.n, body); err != nil {
		s.t.Fatal(err)
	}
	for {
		line := s.next()
		if strings.Contains(line, fmt.Sprintf(`"id":%d,`, s.n)) {
			return line
		}
		s.heard = append(s.heard, line)
	}
}

func (s *stdioShim) next() string {
	s.t.Helper()
	line, err := s.lines.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return line
}

func (s *stdioShim) greet() { s.ask(strings.SplitN(hello, ",", 3)[2]) }

// call calls a tool and returns what it answers, as JSON.
func (s *stdioShim) call(tool, arguments string) string {
	s.t.Helper()
	return structured(s.t, answered{200, nil, s.ask(`"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}`)})
}

// P42 over every wire: what each of subjects and keys is answered by each of the six
// tools, for tenants that are granted, somebody's, nobody's and none named, is what a
// model says that knows nothing but grants and keys. Somebody's and nobody's are the
// same bytes up to the name, what is malformed is the same for everybody, and each call
// has one entry.
func TestMemoryMatrix(t *testing.T) {
	var offset atomic.Int64
	d := daemontest.StartWith(t, daemontest.Options{Now: func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }})
	for _, name := range []string{"acme", "beta", "other", "third"} {
		if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	d.AddSubject("scribe", "worker", "reader", "nobody")
	d.Grant("scribe", "memory.read:*")
	d.Grant("scribe", "memory.write:*")
	for _, capability := range []string{"memory.read:acme", "memory.read:beta", "memory.write:acme"} {
		d.Grant("worker", capability)
	}
	d.Grant("reader", "memory.read:*")
	d.Grant("reader", "memory.read:third", daemontest.Denying)

	f := stand(t, d, Limits{KeyRate: 1e6, AddressRate: 1e6}, nil)
	var callers []caller
	add := func(subject string, read, write []string) {
		shim := newStdioShim(t, d, subject)
		shim.greet()
		callers = append(callers, caller{subject + " on stdio", shim.call, 0, read, write})
	}
	within := func(all, tenants []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !slices.Contains(tenants, name) })
	}
	addKey := func(subject string, tenants, read, write []string) {
		_, key := mint(t, d, subject, tenants...)
		session, stateless := f.agent(key), f.agent(key)
		session.greet()
		read, write = within(read, tenants), within(write, tenants)
		callers = append(callers,
			caller{fmt.Sprintf("%s with a key of %q", subject, tenants), session.call, 1, read, write},
			caller{fmt.Sprintf("%s with a key of %q, stateless", subject, tenants), func(tool, arguments string) string {
				return structured(t, stateless.modern("tools/call", tool, `"name":"`+tool+`","arguments":`+arguments+`,`))
			}, 1, read, write})
	}
	all := []string{"acme", "beta", "other", "third"}
	add("scribe", all, all)
	scribe := callers[0]
	add("worker", []string{"acme", "beta"}, []string{"acme"})
	add("reader", []string{"acme", "beta", "other"}, nil)
	add("nobody", nil, nil)
	addKey("worker", []string{"acme"}, []string{"acme", "beta"}, []string{"acme"})
	addKey("worker", []string{"beta", "other"}, []string{"acme", "beta"}, []string{"acme"})
	addKey("worker", nil, []string{"acme", "beta"}, []string{"acme"})
	addKey("reader", []string{"other", "third"}, []string{"acme", "beta", "other"}, nil)
	addKey("nobody", []string{"acme"}, nil, nil)

	entries := map[string]string{"ghoul": "aaaaaaaaaaaaaaa2"} // by tenant; of the last there is none
	for _, tenant := range all {
		var got struct{ Entry struct{ EntryID string } }
		said := scribe.call("capture_knowledge", `{"tenant":"`+tenant+`","kind":"note","title":"needle of `+tenant+`","text":""}`)
		if err := json.Unmarshal([]byte(said), &got); err != nil || got.Entry.EntryID == "" {
			t.Fatal(said, err)
		}
		entries[tenant] = got.Entry.EntryID
	}

	type result struct {
		Decision, ReasonCode, Tool       string
		RequestedTenants, AllowedTenants []string
	}
	kinds := map[string]string{
		"search_knowledge": "memory.search", "browse_recent": "memory.browse", "knowledge_stats": "memory.stats",
		"read_entry": "memory.read", "history": "memory.history", "capture_knowledge": "memory.capture",
	}
	var expected []string // of the log
	one := func(c caller, tool, arguments string) (said string, got result) {
		t.Helper()
		offset.Add(int64(time.Minute)) // the budget for denials is full again
		said = c.call(tool, arguments)
		if err := json.Unmarshal([]byte(said), &got); err != nil {
			t.Fatal(said, err)
		}
		expected = append(append(expected, slices.Repeat([]string{"auth ALLOWED"}, c.auths)...), kinds[tool]+" "+got.ReasonCode)
		return said, got
	}
	malformed := map[string]string{}
	for _, c := range callers {
		seq := d.Settle()
		expected = nil
		// Tools about tenants.
		for tool, argument := range map[string]string{"search_knowledge": `"query":"needle"`, "browse_recent": `"limit":100`, "knowledge_stats": ``} {
			for _, named := range [][]string{nil, {"acme"}, {"beta"}, {"other"}, {"third"}, {"ghoul"}, {"acme", "beta"}, {"acme", "other"}, {"other", "acme", "ghoul"}} {
				arguments := argument
				if named != nil {
					names, _ := json.Marshal(named)
					arguments = strings.Trim(arguments+`,"tenants":`+string(names), ",")
				}
				said, got := one(c, tool, "{"+arguments+"}")
				outside := slices.DeleteFunc(slices.Sorted(slices.Values(named)), func(name string) bool { return slices.Contains(c.read, name) })
				want := result{Decision: "allow", ReasonCode: "ALLOWED"}
				scope := c.read
				switch {
				case len(outside) > 0:
					want = result{"deny", "TENANT_OUT_OF_SCOPE", tool, slices.Sorted(slices.Values(named)), c.read}
					scope = nil
				case len(c.read) == 0:
					want = result{Decision: "deny", ReasonCode: "ACCESS_DENIED"}
				case named != nil:
					scope = slices.Sorted(slices.Values(named))
				}
				if want.ReasonCode == "TENANT_OUT_OF_SCOPE" && want.AllowedTenants == nil { // said, too
					want.AllowedTenants = []string{}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: %s %s: %s", c.name, tool, arguments, diff)
				}
				if want.ReasonCode == "ALLOWED" && !hands(said, tool, scope, all) {
					t.Errorf("%s: %s %s: not of %q: %s", c.name, tool, arguments, scope, said)
				}
				if want.ReasonCode != "ALLOWED" && (strings.Contains(said, "needle") || strings.Contains(said, entries["acme"])) {
					t.Errorf("%s: %s %s: %s", c.name, tool, arguments, said)
				}
			}
			if !slices.Contains(c.read, "other") {
				foreign, _ := one(c, tool, strings.Replace(`{`+argument+`,"tenants":["other"]}`, "{,", "{", 1))
				unknown, _ := one(c, tool, strings.Replace(`{`+argument+`,"tenants":["ghoul"]}`, "{,", "{", 1))
				if strings.ReplaceAll(unknown, "ghoul", "other") != foreign {
					t.Errorf("%s: %s: of somebody's %s\nof nobody's %s", c.name, tool, foreign, unknown)
				}
			}
		}
		// Tools about an entry.
		for _, tool := range []string{"read_entry", "history"} {
			refused := map[string]bool{}
			for tenant, id := range entries {
				said, got := one(c, tool, `{"entryId":"`+id+`"}`)
				if slices.Contains(c.read, tenant) {
					if got.ReasonCode != "ALLOWED" || !strings.Contains(said, "needle of "+tenant) {
						t.Errorf("%s: %s of %s: %s", c.name, tool, tenant, said)
					}
					continue
				}
				if refused[said] = true; got.ReasonCode != "ACCESS_DENIED" {
					t.Errorf("%s: %s of %s: %s", c.name, tool, tenant, said)
				}
			}
			if len(refused) > 1 {
				t.Errorf("%s: %s: refusals differ: %v", c.name, tool, refused)
			}
		}
		// Capturing.
		for _, tenant := range append(all, "ghoul") {
			said, got := one(c, "capture_knowledge", fmt.Sprintf(`{"tenant":%q,"kind":"note","title":"of %s","text":""}`, tenant, c.name[:6]))
			want := result{Decision: "allow", ReasonCode: "ALLOWED"}
			if !slices.Contains(c.write, tenant) {
				want = result{"deny", "TENANT_OUT_OF_SCOPE", "capture_knowledge", []string{tenant}, c.write}
				if want.AllowedTenants == nil {
					want.AllowedTenants = []string{}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: capture in %s: %s%s", c.name, tenant, said, diff)
			}
		}
		// What is malformed is told nobody more about than anybody else.
		for tool, arguments := range map[string]string{
			"search_knowledge": `{"query":"needle","tenants":["acme","a/b"]}`, "browse_recent": `{"tenants":["other"],"before":"x"}`, "knowledge_stats": `{"tenants":["../x"]}`,
			"read_entry": `{"entryId":"` + entries["other"] + `x"}`, "history": `{"entryId":"` + strings.ToUpper(entries["acme"]) + `"}`,
			"capture_knowledge": `{"tenant":"other","kind":"rumour","title":"x","text":""}`,
		} {
			said, got := one(c, tool, arguments)
			if before, known := malformed[tool]; known && before != said || got.ReasonCode != "INVALID_ARGUMENT" {
				t.Errorf("%s: %s: %s, and to others %s", c.name, tool, said, before)
			}
			malformed[tool] = said
		}
		var log []string
		for _, e := range d.Since(seq) {
			if !strings.HasPrefix(e.Kind, "op.") && !strings.HasPrefix(e.Kind, "run.") {
				log = append(log, e.Kind+" "+e.ReasonCode)
			}
		}
		if diff := cmp.Diff(expected, log); diff != "" {
			t.Errorf("%s: the log: %s", c.name, diff)
		}
	}
}

// hands reports whether an answer is about all of a scope and nothing else.
func hands(said, tool string, scope, all []string) bool {
	for _, tenant := range all {
		of := "needle of " + tenant
		if tool == "knowledge_stats" {
			of = `{"tenant":"` + tenant + `"`
		}
		if strings.Contains(said, of) != slices.Contains(scope, tenant) || strings.Contains(said, `"`+tenant+`"`) != slices.Contains(scope, tenant) {
			return false
		}
	}
	return true
}
