package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"subjectbroker/proto/agentkey"
)

const aPing = `{"jsonrpc":"2.0","id":1,"method":"x"}`

// Whatever a good key asks for counts for it, and the daemon is asked no more often
// than that: also about sessions that there are not, methods and messages that mean
// nothing, and sessions beyond those that it may have.
func TestKeyRateOfWhatIsRefused(t *testing.T) {
	for name, ask := range map[string]func(s *served) answered{
		"no such session": func(s *served) answered { return s.do("POST", "/mcp", aPing, "Mcp-Session-Id", "x") },
		"a method":        func(s *served) answered { return s.do("PUT", "/mcp", aPing) },
		"no session":      func(s *served) answered { return s.do("POST", "/mcp", aPing) },
		"one too many": func(s *served) answered {
			return s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
		},
	} {
		s := start(t, Limits{KeyRate: 1e-6, KeySessions: 1})
		s.open() // the burst is one
		s.said()
		for range 3 {
			if got := ask(s); got.status != 429 {
				t.Errorf("%s: %d", name, got.status)
			}
		}
		if told := s.said(); len(told) > 0 {
			t.Errorf("%s: the daemon was asked: %q", name, told)
		}
	}
}

// Beyond the sessions that a key may have no run is opened for it.
func TestNoRunWithoutAPlace(t *testing.T) {
	s := start(t, Limits{KeySessions: 1})
	s.open()
	s.said()
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`); got.status != 429 {
		t.Errorf("%d", got.status)
	}
	if told := s.said(); len(told) != 1 || !strings.HasPrefix(told[0], "check good") {
		t.Errorf("%q", told)
	}
}

// An address that has used up its measure has others wait, and a key from there that
// is good, and that nobody has seen yet, gets in.
func TestAFreshKeyInAFlood(t *testing.T) {
	s := start(t, Limits{AddressRate: 20, Failures: 1e-6})
	for range 2*20 + 1 {
		if got := s.do("POST", "/mcp", "{}", "Authorization", "Bearer "+string(agentkey.New())); got.status != 401 && got.status != 429 {
			t.Fatalf("%d", got.status)
		}
	}
	s.open()
}

// blocking holds every question about a key that is not known until it is let go.
type blocking struct {
	*fakeKeys
	hold chan struct{}

	mu   sync.Mutex
	now  int
	most int
}

func (b *blocking) enter(key []byte) {
	if b.ids[string(key)] != "" {
		return
	}
	b.mu.Lock()
	b.now++
	b.most = max(b.most, b.now)
	b.mu.Unlock()
	<-b.hold
	b.mu.Lock()
	b.now--
	b.mu.Unlock()
}

func (b *blocking) Open(ctx context.Context, key []byte, p Presented) (Run, error) {
	b.enter(key)
	return b.fakeKeys.Open(ctx, key, p)
}

func (b *blocking) Check(ctx context.Context, key []byte, p Presented) error {
	b.enter(key)
	return b.fakeKeys.Check(ctx, key, p)
}

// However many keys are presented that nobody knows, the daemon is asked about few at
// once, and a key that has been good does not stand in line with them.
func TestManyStrangersAtOnce(t *testing.T) {
	s := start(t, Limits{Failures: 1e6})
	keys := &blocking{fakeKeys: s.keys, hold: make(chan struct{})}
	s.g.config.Keys = keys
	id := s.open()
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			headers := []string{"Authorization", "Bearer " + string(agentkey.New())}
			if i%2 == 0 {
				headers = append(headers, "Mcp-Session-Id", "x")
			}
			if got, err := s.try("POST", "/mcp", aPing, headers...); err != nil || got.status != 401 {
				t.Errorf("%v %d", err, got.status)
			}
		})
	}
	eventually(t, "some are asked about, and all others wait", func() bool {
		keys.mu.Lock()
		defer keys.mu.Unlock()
		s.g.rates.mu.Lock()
		defer s.g.rates.mu.Unlock()
		return keys.now == strangersEach && s.g.rates.waiting == 40-strangersEach
	})
	if got := s.do("POST", "/mcp", aPing, "Mcp-Session-Id", id); got.status != 200 {
		t.Errorf("the good key: %d", got.status)
	}
	close(keys.hold)
	all.Wait()
	if keys.most != strangersEach {
		t.Errorf("%d at once, want %d", keys.most, strangersEach)
	}
	s.g.rates.mu.Lock()
	defer s.g.rates.mu.Unlock()
	if s.g.rates.waiting != 0 || len(s.g.rates.queues) != 0 || len(s.g.rates.turns) != 0 {
		t.Errorf("left: %d waiting, %d queues, %d turns", s.g.rates.waiting, len(s.g.rates.queues), len(s.g.rates.turns))
	}
}

// Of whom nothing is known nothing is read.
func TestNothingIsReadOfStrangers(t *testing.T) {
	s := start(t, Limits{Failures: 1e6})
	for _, one := range []struct {
		key  agentkey.Key
		want string
	}{{agentkey.New(), " 401 "}, {goodKey, " 100 "}} {
		for _, more := range []string{"X-A: b", "Mcp-Session-Id: x", "Mcp-Protocol-Version: 2026-07-28"} {
			want := one.want
			if strings.HasPrefix(more, "Mcp-Session") && want == " 100 " {
				want = " 404 "
			}
			_, from := s.raw(head("POST", "/mcp", string(one.key), more, "Content-Length: 60000", "Expect: 100-continue") + "\r\n")
			if line, err := from.ReadString('\n'); err != nil || !strings.Contains(line, want) {
				t.Errorf("%s: %q %v, want%s", more, line, err, want)
			}
		}
	}
}

// A message that opens no session leaves no run and no place of one behind.
func TestNothingIsLeftOfABadOpening(t *testing.T) {
	s := start(t, Limits{KeySessions: 1})
	for _, body := range []string{aPing, "{", "[]", strings.Repeat(" ", maxOpening+1)} {
		s.g.rates.doubt(hashOf(goodKey)) // for the first time, each time
		if got := s.do("POST", "/mcp", body); got.status != 400 && got.status != 413 {
			t.Errorf("%.20q: %d", body, got.status)
		}
	}
	s.keys.mu.Lock()
	for _, run := range s.keys.runs {
		if !isOver(run) {
			t.Error("a run is open")
		}
	}
	s.keys.mu.Unlock()
	s.open()
}

// Whoever has all connections of an address, or all there are, with nothing open on
// them keeps nobody out; nobody loses one that he needs.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const most = 6
	for name, limits := range map[string]Limits{
		"of one address": {AddressConnections: most, Failures: 1e6},
		"of all":         {Connections: most, Failures: 1e6},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, limits)
			id := s.open()
			s.http.CloseIdleConnections()
			stream, from := s.raw(head("GET", "/mcp", string(goodKey), "Mcp-Session-Id: "+id) + "\r\n")
			if line, err := from.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
				t.Fatal(line, err)
			}
			proven, fromProven := s.raw("")
			ask := func() int {
				fmt.Fprint(proven, head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(aPing)))+"\r\n"+aPing)
				return status(t, fromProven)
			}
			if got := ask(); got != 200 {
				t.Fatal(got)
			}
			var idle []net.Conn
			for i := range 5 * most {
				request := []string{"", "GET /mcp HTT", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", head("POST", "/mcp", string(agentkey.New()), "Content-Length: 0") + "\r\n"}[i%4]
				conn, answers := s.raw(request)
				if strings.HasSuffix(request, "\r\n\r\n") {
					if got := status(t, answers); got != 200 && got != 401 {
						t.Errorf("%.10s: %d", request, got)
					}
				}
				idle = append(idle, conn)
			}
			if got := s.do("POST", "/mcp", aPing, "Mcp-Session-Id", id); got.status != 200 {
				t.Errorf("a new connection: %d", got.status)
			}
			s.http.CloseIdleConnections()
			if got := ask(); got != 200 {
				t.Errorf("the one that was there: %d", got)
			}
			s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":2,"method":"change"}`, "Mcp-Session-Id", id)
			if line, err := from.ReadString('\n'); err != nil {
				t.Errorf("the stream: %q %v", line, err)
			}
			stream.Close()
			for _, conn := range idle {
				conn.Close()
			}
		})
	}
}

// When every connection is needed, one more is refused.
func TestNeededConnectionsStay(t *testing.T) {
	s := start(t, Limits{AddressConnections: 2})
	id := s.open()
	s.http.CloseIdleConnections()
	s.g.mu.Lock()
	session := s.g.sessions[id]
	s.g.mu.Unlock()
	for i := range 2 {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"s%d","method":"slow"}`, i)
		s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(body))) + "\r\n" + body)
		eventually(t, "it has asked: before that its connection may be taken", func() bool {
			session.mu.Lock()
			defer session.mu.Unlock()
			return session.streams > i
		})
	}
	if got, err := http.Get(s.url + "/healthz"); err == nil {
		got.Body.Close()
		t.Errorf("one too many: %d", got.StatusCode)
	}
	session.mu.Lock()
	defer session.mu.Unlock()
	if session.streams != 2 {
		t.Errorf("%d are open", session.streams)
	}
}

// A key that has all its sessions gets one more in place of the one that was left
// unused for longest, but not of one that somebody uses.
func TestTheOneThatWasLeftMakesRoom(t *testing.T) {
	s := start(t, Limits{KeySessions: 2, Left: 1})
	used, left := s.open(), s.open()
	asked := func(id string) int { return s.do("POST", "/mcp", aPing, "Mcp-Session-Id", id).status }
	s.settles(used)
	s.settles(left)
	if got := asked(used); got != 200 {
		t.Fatalf("%d", got)
	}
	s.settles(used)
	third := s.open()
	if got := asked(left); got != 404 {
		t.Errorf("the one that was left: %d", got)
	}
	for what, id := range map[string]string{"the one that was used": used, "the new one": third} {
		if got := asked(id); got != 200 {
			t.Errorf("%s: %d", what, got)
		}
	}
	for _, id := range []string{used, third} {
		s.stream("GET", "", "Mcp-Session-Id", id)
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`); got.status != 429 {
		t.Errorf("while all are used: %d", got.status)
	}
}
