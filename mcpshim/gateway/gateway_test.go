package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/proto/agentkey"
	"subjectbroker/proto/wire"
)

// What is wrong with a key is one of five words, and the same whatever is asked for.
func TestUnauthorized(t *testing.T) {
	s := start(t, Limits{Failures: 1e6})
	revoked, expired := agentkey.New(), agentkey.New()
	s.keys.refused[string(revoked)], s.keys.refused[string(expired)] = RevokedKey, ExpiredKey
	slip := []byte(string(goodKey))
	slip[20] ^= 1
	for _, one := range []struct {
		name, authorization string
		want                Reason
	}{
		{"nothing", "", MissingToken},
		{"only spaces", "   ", MissingToken},
		{"another scheme", "Basic " + string(goodKey), MalformedToken},
		{"no scheme", string(goodKey), MalformedToken},
		{"nothing after the scheme", "Bearer ", MalformedToken},
		{"another prefix", "Bearer sk_" + string(goodKey), MalformedToken},
		{"a slip", "Bearer " + string(slip), MalformedToken},
		{"two in one", "Bearer " + string(goodKey) + " " + string(otherKey), MalformedToken},
		{"two headers", "Bearer " + string(goodKey) + "\x00Bearer " + string(goodKey), MalformedToken},
		{"40 zeros", "Bearer ak_live_" + strings.Repeat("0", 40), UnknownKey},
		{"never minted", "Bearer " + string(agentkey.New()), UnknownKey},
		{"revoked", "Bearer " + string(revoked), RevokedKey},
		{"expired", "Bearer " + string(expired), ExpiredKey},
	} {
		t.Run(one.name, func(t *testing.T) {
			for _, ask := range []struct{ method, body, session string }{
				{"POST", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, ""},
				{"POST", `not json`, ""},
				{"POST", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "nobody's"},
				{"GET", "", "nobody's"}, {"DELETE", "", "nobody's"}, {"PUT", "", ""}, {"OPTIONS", "", ""},
			} {
				s.said()
				got := s.do(ask.method, "/mcp", ask.body, "Authorization", one.authorization, "Mcp-Session-Id", ask.session)
				if want := fmt.Sprintf("{\"error\":\"unauthorized\",\"reason\":%q}\n", one.want); got.status != 401 || got.body != want {
					t.Errorf("%s: %d %s", ask.method, got.status, got.body)
				}
				if challenge := got.header.Get("WWW-Authenticate"); !strings.HasPrefix(challenge, "Bearer realm=") ||
					strings.Contains(challenge, "invalid_token") == (one.want == MissingToken) {
					t.Errorf("%s: %q", ask.method, challenge)
				}
				if told := s.said(); len(told) != 1 {
					t.Errorf("%s: the daemon was asked %d times: %q", ask.method, len(told), told)
				}
			}
		})
	}
	if id := s.open(); id == "" { // the same with a key that is good
		t.Error("no session")
	}
}

// Where the key cannot be judged nobody gets in, and hears no inner word.
func TestUnavailable(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	for _, one := range []struct {
		down   error
		reason string
	}{
		{errDown, "broker_unavailable"},
		{wire.Deny(wire.BrokerUnavailable), "broker_unavailable"},
		{wire.Deny(wire.VaultLocked), "vault_locked"},
		{wire.Deny(wire.AuditFailed), "audit_failed"},
		{wire.Deny(wire.InternalError), "broker_unavailable"},
		{wire.Deny(wire.AccessDenied), "broker_unavailable"},
	} {
		s.keys.mu.Lock()
		s.keys.down = one.down
		s.keys.mu.Unlock()
		for _, headers := range [][]string{{}, {"Mcp-Session-Id", id}, {"Authorization", ""}, {"Mcp-Session-Id", "nobody's"}} {
			got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, headers...)
			if want := fmt.Sprintf("{\"error\":\"unavailable\",\"reason\":%q}\n", one.reason); got.status != 503 || got.body != want || got.header.Get("Retry-After") == "" {
				t.Errorf("%v with %q: %d %s", one.down, headers, got.status, got.body)
			}
		}
	}
}

// A session is the key's that opened it, and ends with it.
func TestSession(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	echo := `{"jsonrpc":"2.0","id":1.50,"method":"x","params":{"a":[1,2e3],"z":"é","a2":{}}}`
	got := s.do("POST", "/mcp", echo, "Mcp-Session-Id", id)
	if want := `{"jsonrpc":"2.0","id":1.50,"result":{"a":[1,2e3],"z":"é","a2":{}}}`; got.status != 200 || got.body != want {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if kind := got.header.Get("Content-Type"); kind != "application/json" {
		t.Error(kind)
	}
	s.said()
	for _, method := range []string{"POST", "GET", "DELETE"} {
		for _, one := range [][2]string{{id, string(otherKey)}, {"nobody's", string(otherKey)}, {"nobody's", string(goodKey)}} {
			got := s.do(method, "/mcp", echo, "Mcp-Session-Id", one[0], "Authorization", "Bearer "+one[1])
			if got.status != 404 || got.body != "{\"error\":\"session_not_found\"}\n" {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
		if told := s.said(); len(told) != 3 {
			t.Errorf("%s: %q", method, told)
		}
	}
	if got := s.do("POST", "/mcp", echo, "Mcp-Session-Id", id); got.status != 200 {
		t.Fatalf("the session did not live through it: %d", got.status)
	}
	if got := s.do("DELETE", "/mcp", "", "Mcp-Session-Id", id); got.status != 204 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := s.do("POST", "/mcp", echo, "Mcp-Session-Id", id); got.status != 404 {
		t.Fatalf("after its end: %d", got.status)
	}
	if got := s.do("POST", "/mcp", echo); got.status != 400 || !strings.Contains(got.body, "session_required") {
		t.Fatalf("without a session: %d %s", got.status, got.body)
	}
}

// A run that is over takes the session's streams with it. The next request brings
// another run of the same key, or ends the session.
func TestRunOver(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	stream := s.stream("GET", "", "Mcp-Session-Id", id)
	s.keys.runs[0].end()
	if rest, err := io.ReadAll(stream); err != nil || len(rest) > 0 {
		t.Fatalf("the stream: %q %v", rest, err)
	}
	s.said()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if told := s.said(); !slices.Equal(told, []string{"open good stateful [] <nil>"}) {
		t.Fatalf("%q", told)
	}
	s.keys.runs[1].end()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id, "Authorization", "Bearer "+string(otherKey)); got.status != 404 {
		t.Fatalf("another key's run: %d %s", got.status, got.body)
	}
	s.keys.mu.Lock()
	s.keys.refused[string(goodKey)] = RevokedKey
	s.keys.mu.Unlock()
	for range 2 {
		if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 401 || !strings.Contains(got.body, "revoked_key") {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
}

// stream asks for a stream of events and returns its body once it has begun.
func (s *served) stream(method, body string, headers ...string) io.Reader {
	s.t.Helper()
	response, err := s.http.Do(s.request(method, "/mcp", body, headers...))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { response.Body.Close() })
	if kind := response.Header.Get("Content-Type"); response.StatusCode != 200 || kind != "text/event-stream" {
		s.t.Fatalf("%d %s", response.StatusCode, kind)
	}
	return response.Body
}

// events are the messages of a stream, so many of them.
func events(t *testing.T, stream io.Reader, n int) []string {
	t.Helper()
	var got []string
	lines := bufio.NewScanner(stream)
	for len(got) < n && lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			got = append(got, data)
		}
	}
	if len(got) < n {
		t.Fatalf("only %q: %v", got, lines.Err())
	}
	return got
}

// Ids and progress tokens come back as they were written, however many clients of a
// key use the same ones.
func TestOwnNumbers(t *testing.T) {
	s := start(t, Limits{})
	modern := []string{"Mcp-Protocol-Version", "2026-07-28"}
	ask := func(id, method, more string) string {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"` + more + `}}}`
	}
	stream := s.stream("POST", ask(`"7"`, "progress", `,"progressToken":"7"`), append(modern, "Mcp-Method", "progress")...)
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"7","progress":1}}`,
		`{"jsonrpc":"2.0","id":"7","result":{}}`,
	}
	if diff := cmp.Diff(want, events(t, stream, 2)); diff != "" {
		t.Error(diff)
	}
	first := s.stream("POST", ask("7", "subscriptions/listen", ""), append(modern, "Mcp-Method", "subscriptions/listen")...)
	second := s.stream("POST", ask("7", "subscriptions/listen", ""), append(modern, "Mcp-Method", "subscriptions/listen")...)
	for _, one := range []io.Reader{first, second} {
		got := events(t, one, 1)
		if want := `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`; got[0] != want {
			t.Error(got[0])
		}
	}
	if opened := len(s.keys.runs); opened != 1 {
		t.Errorf("%d runs for one key", opened)
	}
}

// What is said of the revision, the method and the name outside and inside of a
// message is the same.
func TestHeadersAgree(t *testing.T) {
	s := start(t, Limits{})
	const revision = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	for _, one := range []struct {
		name, body string
		headers    []string
		status     int
		code       string
	}{
		{"as it has to be", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a b",` + revision + `}}`,
			[]string{"Mcp-Method", "tools/call", "Mcp-Name", "a b"}, 200, ""},
		{"in base64", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"é",` + revision + `}}`,
			[]string{"Mcp-Method", "resources/read", "Mcp-Name", "=?base64?w6k=?="}, 200, ""},
		{"another method", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a",` + revision + `}}`,
			[]string{"Mcp-Method", "tools/list", "Mcp-Name", "a"}, 400, "-32020"},
		{"another name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a",` + revision + `}}`,
			[]string{"Mcp-Method", "tools/call", "Mcp-Name", "b"}, 400, "-32020"},
		{"no name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a",` + revision + `}}`,
			[]string{"Mcp-Method", "tools/call"}, 400, "-32020"},
		{"no method", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + revision + `}}`, nil, 400, "-32020"},
		{"no revision inside", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, []string{"Mcp-Method", "ping"}, 400, "-32602"},
		{"an unknown revision", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, []string{"Mcp-Protocol-Version", "2031-01-01"}, 400, "-32022"},
		{"an unknown revision inside", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}`,
			[]string{"Mcp-Method", "ping"}, 400, "-32020"},
		{"an unknown revision in both", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}`,
			[]string{"Mcp-Protocol-Version", "2031-01-01", "Mcp-Method", "ping"}, 400, "-32022"},
		{"initialize is of another era", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + revision + `}}`,
			[]string{"Mcp-Method", "initialize"}, 404, "-32601"},
		{"a header repeats an argument", `{"jsonrpc":"2.0","id":1,"method":"repeated","params":{` + revision + `}}`,
			[]string{"Mcp-Method", "repeated", "mcp-param-region", "eu", "Mcp-Param-Zone", "z"}, 200, `"eu true"`},
		{"no header repeats an argument", `{"jsonrpc":"2.0","id":1,"method":"repeated","params":{` + revision + `}}`,
			[]string{"Mcp-Method", "repeated"}, 200, `" true"`},
		{"a mismatch has its status", `{"jsonrpc":"2.0","id":1,"method":"mismatch","params":{` + revision + `}}`, []string{"Mcp-Method", "mismatch"}, 400, "-32020"},
		{"an error has its status", `{"jsonrpc":"2.0","id":1,"method":"fail","params":{` + revision + `}}`, []string{"Mcp-Method", "fail"}, 404, "-32601"},
	} {
		t.Run(one.name, func(t *testing.T) {
			got := s.do("POST", "/mcp", one.body, append([]string{"Mcp-Protocol-Version", "2026-07-28"}, one.headers...)...)
			if got.status != one.status || !strings.Contains(got.body, one.code) {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	id := s.open()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"repeated"}`, "Mcp-Session-Id", id, "Mcp-Param-Region", "eu"); !strings.Contains(got.body, `" false"`) {
		t.Errorf("in a session: %s", got.body)
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{`+revision+`}}`, "Mcp-Session-Id", id); got.status != 400 || !strings.Contains(got.body, "-32020") {
		t.Errorf("a revision inside only: %d %s", got.status, got.body)
	}
}

// Nobody gets in by saying who he is, and that he tried is told.
func TestPrincipals(t *testing.T) {
	s := start(t, Limits{})
	s.open("x-custodian-principal", "boss", "X-Forwarded-User", "boss", "X-SB-Subject", "boss", "x_sb_run", "boss", "X-Requested-With", "x")
	if told, want := s.said(), []string{"open good stateful [x-custodian- x-forwarded-user x-sb-] <nil>"}; !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
	s.do("POST", "/mcp", "{}", "Authorization", "", "X-Remote-User", "boss")
	if told, want := s.said(), []string{"report missing_token stateful [x-remote-]"}; !slices.Equal(told, want) {
		t.Errorf("%q, want %q", told, want)
	}
}

// A page that leads here by a foreign name, or from a foreign place, gets nothing.
func TestForeign(t *testing.T) {
	s := start(t, Limits{})
	for _, one := range []struct {
		headers []string
		status  int
	}{
		{[]string{"Host", "localhost:1"}, 200},
		{[]string{"Host", "LOCALHOST."}, 200},
		{[]string{"Host", "[::1]:99"}, 200},
		{[]string{"Host", "evil.example"}, 403},
		{[]string{"Host", "127.0.0.1.evil.example"}, 403},
		{[]string{"Host", "localhost.evil.example:80"}, 403},
		{[]string{"Origin", "http://localhost:3000"}, 200},
		{[]string{"Origin", "http://evil.example"}, 403},
		{[]string{"Origin", "null"}, 403},
		{[]string{"Origin", "file://localhost"}, 403},
		{[]string{"Origin", "http://localhost\x00http://evil.example"}, 403},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-origin"}, 200},
	} {
		s.said()
		got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, one.headers...)
		if got.status != one.status {
			t.Errorf("%q: %d %s", one.headers, got.status, got.body)
		}
		if want := `{"error":"forbidden","reason":"` + map[bool]string{true: "host", false: "origin"}[one.headers[0] == "Host"] + `"}`; one.status == 403 && strings.TrimSpace(got.body) != want {
			t.Errorf("%q: %s", one.headers, got.body)
		}
		if told := s.said(); (len(told) == 0) != (one.status == 403) {
			t.Errorf("%q: %q", one.headers, told)
		}
	}
}

// A flood of bad keys is told to come later; the good key goes on from the same
// address.
func TestFlood(t *testing.T) {
	s := start(t, Limits{Failures: 1e-6, AddressRate: 1e6, KeyRate: 1e6})
	counts := map[int]int{}
	for range 3 * failuresAtOnce {
		got := s.do("POST", "/mcp", "{}", "Authorization", "Bearer "+string(agentkey.New()))
		counts[got.status]++
		if got.status == 429 && got.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if want := map[int]int{401: failuresAtOnce, 429: 2 * failuresAtOnce}; !cmp.Equal(counts, want) {
		t.Error(cmp.Diff(want, counts))
	}
	s.said()
	if got := s.do("POST", "/mcp", "{}", "Authorization", "Bearer rubbish"); got.status != 429 {
		t.Errorf("%d", got.status)
	}
	if told := s.said(); len(told) != 0 {
		t.Errorf("what cannot be a key was asked about: %q", told)
	}
	s.open()
}

// What is too much of one key is told to come later, and does not count for another.
func TestKeyRate(t *testing.T) {
	s := start(t, Limits{KeyRate: 1e-6})
	id := s.open() // the burst is one
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 429 {
		t.Errorf("%d", got.status)
	}
	s.open("Authorization", "Bearer "+string(otherKey))
}

// Sessions, requests, bodies: each has its end.
func TestLimits(t *testing.T) {
	s := start(t, Limits{KeySessions: 2, Streams: 2, Body: 100 << 10, Header: 4 << 10, Unsent: 1 << 10})
	id := s.open()
	s.open()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`); got.status != 429 || !strings.Contains(got.body, `"reason":"sessions"`) {
		t.Errorf("a third session: %d %s", got.status, got.body)
	}
	s.open("Authorization", "Bearer "+string(otherKey))
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":"`+strings.Repeat("a", 100<<10)+`"}}`, "Mcp-Session-Id", id); got.status != 413 {
		t.Errorf("a large body: %d", got.status)
	}
	if got := s.do("POST", "/mcp", strings.Repeat(" ", maxOpening+1), "Authorization", "Bearer "+string(otherKey)); got.status != 413 {
		t.Errorf("a large opening: %d", got.status)
	}
	if got, err := s.try("GET", "/mcp", "", "X-Long", strings.Repeat("a", 16<<10)); err == nil && got.status != 431 {
		t.Errorf("a large header: %d", got.status)
	}
	for _, one := range []struct {
		headers []string
		status  int
	}{
		{[]string{"Content-Type", "text/plain"}, 415}, {[]string{"Content-Encoding", "gzip"}, 415}, {[]string{"Accept", "text/html"}, 406},
	} {
		if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, append(one.headers, "Mcp-Session-Id", id)...); got.status != one.status || !strings.Contains(got.body, `"hint":"`) || !strings.Contains(got.body, one.headers[0]) {
			t.Errorf("%q: %d %s", one.headers, got.status, got.body)
		}
	}
	if got := s.do("POST", "/elsewhere", ""); got.status != 404 || !strings.Contains(got.body, "/mcp") {
		t.Errorf("another path: %d %s", got.status, got.body)
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Authorization", "Bearer x", "Mcp-Session-Id", id); got.status != 401 || strings.Contains(got.body, "hint") {
		t.Errorf("of a key nothing more is said: %d %s", got.status, got.body)
	}
	// Answers larger than what one session may leave lying come one after the other.
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			got, err := s.try("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":"l%d","method":"large","params":{"bytes":1000000}}`, i), "Mcp-Session-Id", id)
			if err != nil || got.status != 200 || len(got.body) < 1000000 {
				t.Errorf("%v %d %d", err, got.status, len(got.body))
			}
		})
	}
	all.Wait()
}

// A request that is withdrawn is not waited for, and what stands in its place may
// have its id.
func TestCancel(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":5,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
		t.Fatal(got.status)
	}
	ended := make(chan answered, 1)
	go func() {
		for {
			got, err := s.try("POST", "/mcp", `{"jsonrpc":"2.0","id":5,"method":"slow"}`, "Mcp-Session-Id", id)
			if err != nil {
				t.Error(err)
			}
			if got.status != 400 { // else one of those below has the id
				ended <- got
				return
			}
		}
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":5,"method":"x"}`, "Mcp-Session-Id", id)
		if got.status == 400 && strings.Contains(got.body, "the id is in use") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the slow request never came")
		}
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`, "Mcp-Session-Id", id); got.status != 202 {
		t.Fatal(got.status)
	}
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it is still waited for")
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":5,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
}

// Changes wait for who listens; of two who do the later one does.
func TestListen(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	change := func() {
		t.Helper()
		if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":5,"method":"change"}`, "Mcp-Session-Id", id); got.status != 200 {
			t.Fatal(got.status)
		}
	}
	change()
	change()
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	first := s.stream("GET", "", "Mcp-Session-Id", id)
	if got := events(t, first, 1); got[0] != changed {
		t.Fatal(got)
	}
	second := s.stream("GET", "", "Mcp-Session-Id", id)
	if rest, err := io.ReadAll(first); err != nil || strings.Contains(string(rest), "data:") {
		t.Fatalf("%q %v", rest, err)
	}
	change()
	if got := events(t, second, 1); got[0] != changed {
		t.Fatal(got)
	}
}

func TestHealth(t *testing.T) {
	s := start(t, Limits{})
	if got := s.do("GET", "/healthz", "", "Authorization", "", "Host", "a-probe"); got.status != 200 || got.body != "up\n" {
		t.Errorf("%d %q", got.status, got.body)
	}
	s.g.mu.Lock()
	s.g.config.Up = nil
	s.g.draining = true
	s.g.mu.Unlock()
	if got := s.do("GET", "/healthz", "", "Authorization", ""); got.status != 503 || got.body != "down\n" {
		t.Errorf("%d %q", got.status, got.body)
	}
	if told := s.said(); len(told) != 0 {
		t.Errorf("%q", told)
	}
	if got := s.do("GET", "/", ""); got.status != http.StatusNotFound {
		t.Errorf("%d", got.status)
	}
}
