package clients

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// eras are the two ways of using the gateway, by the SDK that each is tried with.
var eras = []string{"sessions", "requests"}

// script is a client made with a TypeScript SDK: see typescript.mjs.
type script struct {
	in   io.WriteCloser
	next int

	mu      sync.Mutex
	changed chan struct{}  // closed when something came
	answers map[int]answer // by id
	notes   []note         // that nobody has waited for
	said    *bytes.Buffer  // on standard error
	ended   error          // what its output ended with
}

type answer struct {
	ID     int
	Result object
	Error  string
	Note   string
	Text   string
}

type note struct{ method, text string }

func (h *house) script(t *testing.T, era, url, key string, env ...string) *script {
	t.Helper()
	driver, err := filepath.Abs("typescript.mjs")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{changed: make(chan struct{}), answers: map[int]answer{}, said: &bytes.Buffer{}}
	cmd := exec.CommandContext(t.Context(), h.node(), driver, h.npm, era, url)
	cmd.Env, cmd.Stderr = h.env(append(env, "SB_AGENT_KEY="+key)...), s.said
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			var got answer
			if err == nil {
				err = json.Unmarshal(line, &got)
			}
			s.mu.Lock()
			switch {
			case err != nil:
				s.ended = err
			case got.Note != "":
				s.notes = append(s.notes, note{got.Note, got.Text})
			default:
				s.answers[got.ID] = got
			}
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		s.in.Close()
		<-done
		_ = cmd.Wait() // it is killed when the test is over
		if t.Failed() && s.said.Len() > 0 {
			t.Logf("the client said:\n%s", s.said)
		}
	})
	return s
}

// until waits for something that there has to be, and takes it.
func (s *script) until(t *testing.T, what string, there func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for {
		s.mu.Lock()
		changed, ended := s.changed, s.ended
		found := there()
		s.mu.Unlock()
		if found {
			return
		}
		if ended != nil {
			t.Fatalf("%s: the client ended: %v\n%s", what, ended, s.said)
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%s: nothing came but %q", what, s.notes)
		}
	}
}

// begin sends a command and does not wait.
func (s *script) begin(t *testing.T, what string, args object) (id int) {
	t.Helper()
	s.next++
	line := object{"id": s.next, "do": what}
	for name, value := range args {
		line[name] = value
	}
	if _, err := io.WriteString(s.in, encode(line)+"\n"); err != nil {
		t.Fatal(err)
	}
	return s.next
}

// end is the answer to a command.
func (s *script) end(t *testing.T, what string, id int) (got answer) {
	t.Helper()
	s.until(t, what, func() (there bool) {
		got, there = s.answers[id]
		return there
	})
	return got
}

// do has it do something that must go well.
func (s *script) do(t *testing.T, what string, args object) object {
	t.Helper()
	got := s.end(t, what, s.begin(t, what, args))
	if got.Error != "" {
		t.Fatalf("%s: %s", what, got.Error)
	}
	return got.Result
}

// fails has it do something that must not go well, and whose error says so.
func (s *script) fails(t *testing.T, want, what string, args object) {
	t.Helper()
	if got := s.end(t, what, s.begin(t, what, args)); !strings.Contains(got.Error, want) {
		t.Errorf("%s: %q %v, want %q", what, got.Error, got.Result, want)
	}
}

// hears waits until it is told something.
func (s *script) hears(t *testing.T, method string) (text string) {
	t.Helper()
	s.until(t, method, func() bool {
		at := slices.IndexFunc(s.notes, func(n note) bool { return n.method == method })
		if at < 0 {
			return false
		}
		text = s.notes[at].text
		s.notes = slices.Delete(s.notes, at, at+1)
		return true
	})
	return text
}

// names are the names of what was listed under a member.
func names(list object, member string) (all []string) {
	entries, _ := list[member].([]any)
	for _, entry := range entries {
		one, _ := entry.(object)
		name, _ := one["name"].(string)
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// TestTypeScript: a client of either SDK gets over HTTP what one gets on standard
// input, hears of changes, and loses it with its key.
func TestTypeScript(t *testing.T) {
	h := newHouse(t)
	h.must(t, "sbctl", "tenant", "add", "acme")
	g := h.gateway(t)
	program := h.stub(t)
	t.Run("eras", func(t *testing.T) {
		for _, era := range eras {
			t.Run(era, func(t *testing.T) {
				t.Parallel()
				subject, second, server := "s-"+era, "second-"+era, era
				h.must(t, "sbctl", "subject", "add", subject)
				h.must(t, "sbctl", "grant", subject, "read:greeting")
				h.must(t, "sbctl", "grant", subject, "memory.read:acme")
				h.must(t, "sbctl", "grant", subject, "memory.write:acme")
				key := h.key(t, subject, "--tenant", "acme", "--name", "first-"+era)
				s := h.script(t, era, g.url, key)
				hello := s.do(t, "connect", nil)
				if session := hello["session"]; (session != "") != (era == "sessions") || !strings.Contains(encode(hello), "subject-broker") {
					t.Errorf("connected: %v", hello)
				}
				if era == "requests" {
					s.do(t, "listen", nil)
				}

				own := []string{"browse_recent", "capability_report", "capture_knowledge", "explain_decision", "history", "knowledge_stats", "list_resources", "read_entry", "read_resource", "search_knowledge"}
				if got := names(s.do(t, "tools", nil), "tools"); !slices.Equal(got, own) {
					t.Errorf("tools: %q", got)
				}
				if got := s.do(t, "read", object{"uri": "sb://resource/greeting"}); !strings.Contains(encode(got), greeting) {
					t.Errorf("resources/read: %v", got)
				}
				if got := s.do(t, "call", object{"name": "read_resource", "arguments": object{"resourceId": "greeting"}}); !strings.Contains(encode(got), greeting) {
					t.Errorf("read_resource: %v", got)
				}
				s.do(t, "call", object{"name": "capture_knowledge", "arguments": object{"tenant": "acme", "kind": "note", "title": "from " + era, "text": greeting}})
				if got := encode(s.do(t, "call", object{"name": "search_knowledge", "arguments": object{"query": "世界"}})); !strings.Contains(got, greeting) || !strings.Contains(got, "from "+era) {
					t.Errorf("search_knowledge: %v", got)
				}

				h.must(t, "sbctl", "secret", "put", second, "--from-file", filepath.Join(h.home, "greeting.txt"))
				h.must(t, "sbctl", "grant", subject, "read:"+second)
				s.hears(t, "notifications/resources/list_changed")
				if got := encode(s.do(t, "resources", nil)); !strings.Contains(got, "sb://resource/"+second) {
					t.Errorf("after the change: %s", got)
				}
				h.must(t, "sbctl", "server", "add", server, "--subject", subject, "--", program, stubArgument, "test")
				h.must(t, "sbctl", "server", "trust", server, "--yes")
				s.hears(t, "notifications/tools/list_changed")
				if got := names(s.do(t, "tools", nil), "tools"); !slices.Contains(got, server+"_tool_with_progress") {
					t.Errorf("after the server came: %q", got)
				}
				s.do(t, "call", object{"name": server + "_tool_with_progress", "arguments": object{}, "progress": true})
				for _, want := range []string{"0/100", "50/100", "100/100"} {
					if got := s.hears(t, "progress"); got != want {
						t.Errorf("it is at %s, want %s", got, want)
					}
				}

				// A tool that wants an argument in a header, too: without sessions the client sees to that.
				s.do(t, "call", object{"name": server + "_headers", "arguments": object{"region": greeting}})
				s.do(t, "call", object{"name": server + "_headers", "arguments": object{}})

				// Another key, if a good one, is not this session's.
				other := h.key(t, subject)
				s.do(t, "key", object{"key": other})
				if era == "sessions" {
					s.fails(t, "session_not_found", "resources", nil)
				} else if got := names(s.do(t, "tools", nil), "tools"); slices.Contains(got, "search_knowledge") {
					t.Errorf("a key without a tenant has a memory: %q", got)
				}
				s.do(t, "key", object{"key": key})
				s.do(t, "resources", nil)

				// With its key its stream ends, without a request.
				h.must(t, "sbctl", "agent-key", "revoke", "first-"+era, "--yes")
				if era == "requests" {
					s.hears(t, "closed")
				} else {
					for !strings.Contains(s.hears(t, "error"), "Unauthorized") { // it has asked for another
					}
				}
				s.fails(t, "revoked_key", "resources", nil)
				s.do(t, "close", nil)

				// What the client ends is over in the daemon too.
				s = h.script(t, era, g.url, other)
				s.do(t, "connect", nil)
				s.do(t, "resources", nil)
				if era == "sessions" {
					if !h.open(t, subject) {
						t.Error("the run of a session is not open")
					}
					s.do(t, "terminate", nil)
					for range 300 {
						if !h.open(t, subject) {
							break
						}
						time.Sleep(50 * time.Millisecond)
					}
					if h.open(t, subject) {
						t.Error("the session was deleted and its run is open")
					}
				}
			})
		}
	})
	log := h.must(t, "sbctl", "audit", "list", "-o", "json")
	if !strings.Contains(log, `"auth"`) || strings.Contains(log, "ak_live_") {
		t.Error("the log has a key, or no authentications")
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(h.home, ".local"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if files++; bytes.Contains(content, []byte("ak_live_")) {
			t.Errorf("%s has a key", path)
		}
		return err
	})
	if err != nil || files == 0 {
		t.Errorf("the home: %d files, %v", files, err)
	}
}

// open says whether a subject has an open run.
func (h *house) open(t *testing.T, subject string) bool {
	t.Helper()
	var listed struct {
		Items []struct{ SubjectID, Ended string }
	}
	if err := json.Unmarshal([]byte(h.must(t, "sbctl", "runs", "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	for _, run := range listed.Items {
		if run.SubjectID == subject && run.Ended == "" {
			return true
		}
	}
	return false
}
