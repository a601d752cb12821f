package gateway

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// The shared memory over HTTP: what a key reaches are its tenants, as far as the
// subject's grants do; a request for another one is refused whole, whether there is
// one of that name or not.
func TestGatewayMemory(t *testing.T) {
	d := lone(t)
	for _, name := range []string{"acme", "beta"} {
		if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
		d.Grant("worker", "memory.read:"+name)
		d.Grant("worker", "memory.write:"+name)
	}
	_, acme := mint(t, d, "worker", "acme")
	_, both := mint(t, d, "worker", "acme", "beta")
	_, none := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	a, b, c := f.agent(acme), f.agent(both), f.agent(none)
	for _, one := range []*agent{a, b, c} {
		one.greet()
	}
	capture := func(who *agent, tenant string) string {
		return who.call("capture_knowledge", `{"tenant":"`+tenant+`","kind":"note","title":"a note of `+tenant+`","text":"needle"}`)
	}
	for _, tenant := range []string{"acme", "beta"} {
		if got := capture(b, tenant); !strings.Contains(got, `"allow"`) {
			t.Fatal(got)
		}
	}
	found := func(who *agent, arguments string) string {
		t.Helper()
		got := who.call("search_knowledge", arguments)
		return fmt.Sprintf("%v %v %v", strings.Contains(got, "a note of acme"), strings.Contains(got, "a note of beta"), strings.Contains(got, "TENANT_OUT_OF_SCOPE"))
	}
	for _, one := range []struct {
		who             *agent
		arguments, want string
	}{
		{a, `{"query":"needle"}`, "true false false"},
		{b, `{"query":"needle"}`, "true true false"},
		{b, `{"query":"needle","tenants":["beta"]}`, "false true false"},
		{a, `{"query":"needle","tenants":["beta"]}`, "false false true"},
		{a, `{"query":"needle","tenants":["acme","beta"]}`, "false false true"},
		{a, `{"query":"needle","tenants":["nowhere"]}`, "false false true"},
		{c, `{"query":"needle"}`, "false false false"},
		{c, `{"query":"needle","tenants":["acme"]}`, "false false true"},
	} {
		if got := found(one.who, one.arguments); got != one.want {
			t.Errorf("%s: %s, want %s", one.arguments, got, one.want)
		}
	}
	foreign := a.call("search_knowledge", `{"query":"needle","tenants":["beta"]}`)
	unknown := a.call("search_knowledge", `{"query":"needle","tenants":["atta"]}`)
	if strings.ReplaceAll(unknown, "atta", "beta") != foreign || !strings.Contains(foreign, `"allowedTenants":["acme"]`) {
		t.Errorf("foreign %s\nunknown %s", foreign, unknown)
	}
	if got := capture(a, "beta"); !strings.Contains(got, "TENANT_OUT_OF_SCOPE") {
		t.Error(got)
	}
	stateless := structured(t, a.modern("tools/call", "search_knowledge", `"name":"search_knowledge","arguments":{"query":"needle"},`))
	if !strings.Contains(stateless, "a note of acme") || strings.Contains(stateless, "beta") {
		t.Error(stateless)
	}
}

// Half of a surrogate pair is no character: it is refused by argument and rule, on every
// wire, and nothing is kept in its place.
func TestHalfOfAPair(t *testing.T) {
	var offset atomic.Int64
	d := daemontest.StartWith(t, daemontest.Options{Now: func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }})
	if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: "acme"}); err != nil {
		t.Fatal(err)
	}
	d.AddSubject("worker")
	d.Grant("worker", "memory.read:acme")
	d.Grant("worker", "memory.write:acme")
	_, key := mint(t, d, "worker", "acme")
	f := stand(t, d, Limits{}, nil)
	shim, session, stateless := newStdioShim(t, d, "worker"), f.agent(key), f.agent(key)
	shim.greet()
	session.greet()
	for wire, call := range map[string]func(tool, arguments string) string{
		"stdio": shim.call, "a session": session.call,
		"stateless": func(tool, arguments string) string {
			return structured(t, stateless.modern("tools/call", tool, `"name":"`+tool+`","arguments":`+arguments+`,`))
		},
	} {
		const note = `"tenant":"acme","kind":"note"`
		for _, one := range []struct{ tool, arguments, argument string }{
			{"capture_knowledge", `{` + note + `,"title":"x","text":"a\ud800b"}`, "text"},
			{"capture_knowledge", `{` + note + `,"title":"\udc00","text":""}`, "title"},
			{"capture_knowledge", `{` + note + `,"title":"x","text":"","tags":["ok","\ud83d\u0041"]}`, "tags"},
			{"search_knowledge", `{"query":"a \ud800"}`, "query"},
			{"read_entry", `{"entryId":"\ud800"}`, "entryId"},
		} {
			offset.Add(int64(time.Minute)) // the budget for denials is full again
			got := call(one.tool, one.arguments)
			if !strings.Contains(got, `"reasonCode":"INVALID_ARGUMENT","argument":"`+one.argument+`"`) || !strings.Contains(got, "surrogate pair") {
				t.Errorf("%s: %s %s: %s", wire, one.tool, one.arguments, got)
			}
		}
		if got := call("capture_knowledge", `{`+note+`,"title":"whole on `+wire+`","text":"\ud83d\ude80"}`); !strings.Contains(got, `"allow"`) { // the control
			t.Errorf("%s: %s", wire, got)
		}
		if got := call("browse_recent", `{"limit":1}`); !strings.Contains(got, "🚀") || strings.Contains(got, "\ufffd") {
			t.Errorf("%s: %s", wire, got)
		}
	}
}

// Ids of every shape come back as they were sent.
func TestGatewayIDs(t *testing.T) {
	d := lone(t)
	_, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	a := f.agent(key)
	a.greet()
	for _, id := range []string{`1`, `"1"`, `-1`, `1.50`, `1e3`, `9007199254740993`, `"\u00e9\n"`, `"é"`, `""`, `"` + strings.Repeat("x", 1000) + `"`} {
		got := a.do("POST", `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`)
		if got.status != 200 || !strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":`+id+`,"result":`) {
			t.Errorf("%s: %d %s", id, got.status, got.body)
		}
	}
	for _, bad := range []string{`null`, `true`, `{}`, `[1]`} {
		if got := a.do("POST", `{"jsonrpc":"2.0","id":`+bad+`,"method":"ping"}`); got.status != 400 || !strings.Contains(got.body, `"error"`) {
			t.Errorf("%s: %d %s", bad, got.status, got.body)
		}
	}
	for _, body := range []string{``, `[]`, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", `{"jsonrpc":"2.0","id":1,"method":"ping"} x`} {
		if got := a.do("POST", body); got.status != 400 || !strings.Contains(got.body, `"error"`) {
			t.Errorf("%q: %d %s", body, got.status, got.body)
		}
	}
}

// As many sessions as a gateway is for: none fails, and nothing is left of them.
func TestGatewayManySessions(t *testing.T) {
	const sessions = 200
	d := lone(t)
	var keys []string
	for range 4 {
		_, key := mint(t, d, "worker")
		keys = append(keys, key)
	}
	f := stand(t, d, Limits{KeyRate: 1e6, AddressRate: 1e6}, nil)
	probe := f.agent(keys[0])
	probe.greet()
	if got := probe.do("DELETE", ""); got.status != 204 {
		t.Fatal(got.status)
	}
	probe.http.CloseIdleConnections()
	base := quiet() // what the probe has left ends meanwhile
	agents := make([]*agent, sessions)
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range agents {
		agents[i] = f.agent(keys[i%len(keys)])
		all.Go(func() {
			<-begin
			agents[i].try(t)
		})
	}
	close(begin)
	all.Wait()
	if open := f.sessions(); open != sessions && !t.Failed() {
		t.Errorf("%d sessions are open", open)
	}
	for _, a := range agents {
		all.Go(func() {
			if response, err := a.send("DELETE", ""); err != nil || response.StatusCode != 204 {
				t.Errorf("DELETE: %v %v", response, err)
			} else {
				response.Body.Close()
			}
			a.http.CloseIdleConnections()
		})
	}
	all.Wait()
	if got := settled(base + 20); got > base+20 {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, before %d\n%s", got, base, stacks[:runtime.Stack(stacks, true)])
	}
	eventually(t, "no session is left", func() bool { return f.sessions() == 0 })
	if told := f.trouble(); len(told) > 0 {
		t.Errorf("trouble: %q", told)
	}
}

// try opens a session and reads in it; it may be called from any goroutine.
func (a *agent) try(t *testing.T) {
	for _, body := range []string{hello, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_resource","arguments":{"resourceId":"plan"}}}`} {
		response, err := a.send("POST", body)
		if err != nil {
			t.Error(err)
			return
		}
		if id := response.Header.Get("Mcp-Session-Id"); id != "" {
			a.session = id
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if response.StatusCode != 200 && response.StatusCode != 202 {
			t.Errorf("%d %s %v", response.StatusCode, answer, err)
			return
		}
	}
}

// settled is how many goroutines there are once they are at most so many, or do not
// become so few.
func settled(most int) int {
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > most && time.Now().Before(deadline); {
		time.Sleep(25 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

// A session that is open has one stream of changes, for its shim and for what
// notices that its key was revoked.
func TestGatewayOneStream(t *testing.T) {
	d := lone(t)
	_, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	const sessions = 5
	for range sessions {
		a := f.agent(key)
		a.greet()
		a.call("read_resource", reads("plan"))
	}
	for range sessions {
		f.agent(key).modern("tools/list", "", "") // these share one
	}
	streams := func() int {
		stacks := make([]byte, 8<<20)
		return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "daemon.broker.Watch(")
	}
	eventually(t, "one stream for each run", func() bool { return streams() == sessions+1 })
	time.Sleep(1200 * time.Millisecond) // a shim that is not told that it is watched asks again after a second
	if got := streams(); got != sessions+1 {
		t.Errorf("%d streams of %d runs", got, sessions+1)
	}
}

// Sessions leave nothing: with streams, without, closed by the client or by the
// revocation of their key.
func TestGatewaySessionsLeaveNothing(t *testing.T) {
	d := lone(t)
	f := stand(t, d, Limits{KeyRate: 1e6, AddressRate: 1e6}, nil)
	round := func(each int) {
		var all sync.WaitGroup
		for i := range 6 {
			id, key := mint(t, d, "worker")
			all.Go(func() {
				for range each {
					a := f.agent(key)
					defer a.http.CloseIdleConnections()
					a.try(t)
					if i%2 == 0 {
						response, err := a.send("GET", "")
						if err != nil {
							t.Error(err)
							return
						}
						defer response.Body.Close()
					}
					if i%3 > 0 {
						response, err := a.send("DELETE", "")
						if err != nil {
							t.Error(err)
							return
						}
						response.Body.Close()
					}
				}
				if i%3 == 0 {
					revoke(t, d, id)
				}
			})
		}
		all.Wait()
		eventually(t, "all sessions are gone", func() bool { return f.sessions() == 0 })
	}
	round(2)
	goroutines, files := quiet(), descriptors(t)
	round(50)
	if got := settled(goroutines + 20); got > goroutines+20 {
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines, before %d\n%s", got, goroutines, stacks[:runtime.Stack(stacks, true)])
	}
	eventually(t, "descriptors are closed", func() bool { return descriptors(t) <= files+10 })
}

// quiet waits until the number of goroutines nearly stays, and returns it.
func quiet() int {
	n := runtime.NumGoroutine()
	for same, rounds := 0, 0; same < 8 && rounds < 200; rounds++ {
		time.Sleep(25 * time.Millisecond)
		now := runtime.NumGoroutine()
		if same++; now < n-2 || now > n+2 {
			n, same = now, 0
		}
	}
	return n
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// descriptors is how many files and sockets this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
