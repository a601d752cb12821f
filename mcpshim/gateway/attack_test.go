package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"subjectbroker/proto/agentkey"
)

// raw sends bytes on a connection of its own and returns what comes back, with the
// connection still open.
func (s *served) raw(text string) (net.Conn, *bufio.Reader) {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// status is that of the answer; 0: the connection was closed without one.
func status(t *testing.T, from *bufio.Reader) int {
	t.Helper()
	response, err := http.ReadResponse(from, nil)
	if err != nil {
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Errorf("nothing comes: %v", err)
		}
		return 0
	}
	_, _ = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	return response.StatusCode
}

// head is the beginning of a request.
func head(method, path, key string, more ...string) string {
	lines := []string{method + " " + path + " HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", "Accept: application/json, text/event-stream"}
	if key != "" {
		lines = append(lines, "Authorization: Bearer "+key)
	}
	return strings.Join(append(lines, more...), "\r\n") + "\r\n"
}

// Who sends a body slowly, or without end, is cut off, whoever he is; nothing is kept
// of it.
func TestSlowBodies(t *testing.T) {
	s := start(t, Limits{Slow: 300 * time.Millisecond, Body: 100 << 10, Failures: 1e6})
	id := s.open()
	for _, one := range []struct {
		name, request string
		want          []int
	}{
		{"a known session", head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, "Content-Length: 1000") + "\r\n{", []int{408}},
		{"an opening", head("POST", "/mcp", string(goodKey), "Content-Length: 1000") + "\r\n{", []int{408}},
		{"an unknown key", head("POST", "/mcp", string(agentkey.New()), "Mcp-Session-Id: "+id, "Content-Length: 1000") + "\r\n{", []int{401, 0}},
		{"no key", head("POST", "/mcp", "", "Content-Length: 1000") + "\r\n{", []int{401, 0}},
		{"a GET", head("GET", "/mcp", "", "Content-Length: 1000") + "\r\n{", []int{401, 0}},
		{"another host", head("POST", "/mcp", "", "Content-Length: 1000", "Origin: http://evil.example") + "\r\n{", []int{403, 0}},
	} {
		_, from := s.raw(one.request)
		got := status(t, from)
		ok := false
		for _, want := range one.want {
			ok = ok || got == want
		}
		if !ok {
			t.Errorf("%s: %d, want one of %v", one.name, got, one.want)
		}
	}
	patient := start(t, Limits{Body: 100 << 10}) // what is sent fast is fast also where the machine is slow
	_, from := patient.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+patient.open(), "Transfer-Encoding: chunked") +
		"\r\n" + strings.Repeat("1000\r\n"+strings.Repeat(" ", 0x1000)+"\r\n", 40))
	if got := status(t, from); got != 413 {
		t.Errorf("without end: %d", got)
	}
	// Byte by byte it does not go on for ever either.
	conn, from := s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, "Content-Length: 100000") + "\r\n{")
	go func() {
		for {
			if _, err := conn.Write([]byte(" ")); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	if got := status(t, from); got != 408 && got != 0 {
		t.Errorf("byte by byte: %d", got)
	}
	if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
		t.Errorf("afterwards: %d", got.status)
	}
}

// Who sends headers slowly, or one byte after the other, is cut off and is told
// nothing; who sends them at once is not, with the same limit.
func TestSlowHeaders(t *testing.T) {
	s := start(t, Limits{SlowHeader: 300 * time.Millisecond})
	body := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	whole := head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+s.open(), fmt.Sprintf("Content-Length: %d", len(body))) + "\r\n" + body
	eventually(t, "at once it is answered", func() bool { // a busy machine may take longer than the limit
		_, from := s.raw(whole)
		got := status(t, from)
		if got != 200 && got != 0 {
			t.Errorf("at once: %d", got)
		}
		return got == 200
	})
	_, from := s.raw(whole[:40])
	if got := status(t, from); got != 0 && got != 400 {
		t.Errorf("a part and no more: %d", got)
	}
	conn, from := s.raw("")
	go func() {
		for i := range len(whole) {
			if _, err := io.WriteString(conn, whole[i:i+1]); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond) // longer in all than the limit, many times over
		}
	}()
	if got := status(t, from); got != 0 && got != 400 {
		t.Errorf("byte by byte: %d", got)
	}
}

// Large bodies of many clients at once are held within the limit: of those that are not
// whole yet some are refused. Where there is room none is.
func TestHeldBodies(t *testing.T) {
	const clients = 8
	for _, one := range []struct {
		held    int64
		refuses bool
	}{{4 << 20, true}, {64 << 20, false}} {
		s := start(t, Limits{Held: one.held, Body: 2 << 20, Slow: 12 * time.Second, KeyRate: 1e6, AddressRate: 1e6})
		id := s.open()
		body := func(i int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"x","params":{"a":"%s"}}`, i, strings.Repeat("a", 1<<20))
		}
		var refused atomic.Int64
		ends := make(chan struct{}) // closed when the ends of the bodies may be sent
		var all sync.WaitGroup
		for i := range clients {
			text := body(i)
			conn, from := s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(text))) + "\r\n")
			all.Go(func() {
				_, _ = io.WriteString(conn, text[:len(text)-1]) // who is refused is not read to the end
				<-ends
				_, _ = io.WriteString(conn, text[len(text)-1:])
			})
			all.Go(func() {
				switch got := status(t, from); got {
				case 200:
				case 503, 0: // who still writes may see the end of the connection only
					refused.Add(1)
				default:
					t.Errorf("%d", got)
				}
			})
		}
		eventually(t, "they are read, or refused", func() bool {
			held := s.g.held.Load()
			if held > one.held+clients*32<<10 { // each may have read a piece more
				t.Errorf("%d bytes are held, of at most %d", held, one.held)
			}
			return refused.Load() > 0 || held >= clients*(1<<20)
		})
		close(ends)
		all.Wait()
		if (refused.Load() > 0) != one.refuses {
			t.Errorf("%d may be held: %d of %d are refused", one.held, refused.Load(), clients)
		}
		if got := s.do("POST", "/mcp", body(99), "Mcp-Session-Id", id); got.status != 200 {
			t.Errorf("afterwards: %d", got.status)
		}
	}
}

// Headers that one reader takes for one thing and another for another.
func TestAmbiguousHeaders(t *testing.T) {
	s := start(t, Limits{Failures: 1e6, KeyRate: 1e6})
	id, other := s.open(), s.open("Authorization", "Bearer "+string(otherKey))
	const ping = `{"jsonrpc":"2.0","id":1,"method":"x"}`
	length := fmt.Sprintf("Content-Length: %d", len(ping))
	key := string(goodKey)
	for _, one := range []struct {
		name, request string
		want          int
	}{
		{"as it has to be", head("POST", "/mcp", key, "Mcp-Session-Id: "+id, length), 200},
		{"with a query", head("POST", "/mcp?x=1", key, "Mcp-Session-Id: "+id, length), 200},
		{"two sessions", head("POST", "/mcp", key, "Mcp-Session-Id: "+id, "Mcp-Session-Id: "+other, length), 400},
		{"a list of sessions", head("POST", "/mcp", key, "Mcp-Session-Id: "+id+", "+other, length), 404},
		{"two revisions", head("POST", "/mcp", key, "Mcp-Session-Id: "+id, "Mcp-Protocol-Version: 2025-11-25", "Mcp-Protocol-Version: 2025-11-25", length), 400},
		{"two keys", head("POST", "/mcp", key, "authorization: Bearer "+string(otherKey), "Mcp-Session-Id: "+id, length), 401},
		{"a key in two lines", head("POST", "/mcp", "", "Authorization: Bearer", " "+key, "Mcp-Session-Id: "+id, length), 200},
		{"a key under another name", head("POST", "/mcp", "", "X_Authorization: Bearer "+key, "Mcp-Session-Id: "+id, length), 401},
		{"a name with a space", head("POST", "/mcp", "", "Authorization : Bearer "+key, "Mcp-Session-Id: "+id, length), 400},
		{"two hosts", head("POST", "/mcp", key, "Host: 127.0.0.1", "Mcp-Session-Id: "+id, length), 400},
		{"a host in the line", head("POST", "http://evil.example/mcp", key, "Mcp-Session-Id: "+id, length), 403},
		{"two lengths", head("POST", "/mcp", key, "Mcp-Session-Id: "+id, length, "Content-Length: 5"), 400},
		{"a length and chunks", head("POST", "/mcp", key, "Mcp-Session-Id: "+id, "Content-Length: 1000", "Transfer-Encoding: identity"), 501},
		{"/mcp/", head("POST", "/mcp/", key, length), 404},
		{"//mcp", head("POST", "//mcp", key, length), 404},
		{"/MCP", head("POST", "/MCP", key, length), 404},
		{"/%6dcp", head("POST", "/%6dcp", key, "Mcp-Session-Id: "+id, length), 404}, // the same path to some readers
		{"/x/../mcp", head("POST", "/x/../mcp", key, length), 404},
		{"HEAD", head("HEAD", "/mcp", key), 405},
		{"PUT", head("PUT", "/mcp", key, length), 405},
		{"OPTIONS", head("OPTIONS", "/mcp", ""), 401},
		{"OPTIONS of everything", head("OPTIONS", "*", ""), 404},
		{"TRACE", head("TRACE", "/mcp", key), 405},
	} {
		body := ping
		if !strings.Contains(one.request, length) {
			body = ""
		}
		_, from := s.raw(one.request + "Connection: close\r\n\r\n" + body)
		line, err := from.ReadString('\n')
		if want := fmt.Sprintf(" %d ", one.want); err != nil || !strings.Contains(line, want) {
			t.Errorf("%s: %q %v, want%s", one.name, line, err, want)
		}
	}
}

// Of clients that do not take what they asked for, the others notice nothing, and
// nothing stays of them.
func TestClientsThatDoNotRead(t *testing.T) {
	s := start(t, Limits{Slow: 500 * time.Millisecond, Unsent: 1 << 20, KeyRate: 1e6})
	id := s.open()
	const large = `{"jsonrpc":"2.0","id":"n%d","method":"large","params":{"bytes":8000000}}`
	for i := range 3 {
		body := fmt.Sprintf(large, i)
		s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(body))) + "\r\n" + body)
	}
	for range 3 {
		if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
	s.settles(id)
}

// settles waits until nobody has anything open in a session.
func (s *served) settles(id string) {
	s.t.Helper()
	s.g.mu.Lock()
	session := s.g.sessions[id]
	s.g.mu.Unlock()
	eventually(s.t, "nothing is open, and nobody waits", func() bool {
		session.mu.Lock()
		defer session.mu.Unlock()
		return session.streams == 0 && len(session.requests) == 0
	})
}

// Connections that are torn, half-closed or left take what was on them with them.
func TestTornConnections(t *testing.T) {
	s := start(t, Limits{KeyRate: 1e6})
	id := s.open()
	slow := `{"jsonrpc":"2.0","id":"t%d","method":"slow"}`
	for i := range 20 {
		body := fmt.Sprintf(slow, i)
		conn, _ := s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(body))) + "\r\n" + body)
		if i%2 == 0 {
			_ = conn.(*net.TCPConn).SetLinger(0)
		}
		conn.Close()
	}
	conn, from := s.raw(head("GET", "/mcp", string(goodKey), "Mcp-Session-Id: "+id) + "\r\n")
	if line, err := from.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatal(line, err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(from); err != nil {
		t.Errorf("half-closed: %v", err)
	}
	s.settles(id)
	if got := s.do("POST", "/mcp", fmt.Sprintf(slow[:len(slow)-6]+`x"}`, 1), "Mcp-Session-Id", id); got.status != 200 {
		t.Errorf("the id of one that was torn: %d %s", got.status, got.body)
	}
}

// A storm of requests and withdrawals ends with nothing open.
func TestCancelStorm(t *testing.T) {
	s := start(t, Limits{KeyRate: 1e6, AddressRate: 1e6})
	id := s.open()
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 20 {
				name := fmt.Sprintf(`"%d-%d"`, worker, i)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					got, err := s.try("POST", "/mcp", `{"jsonrpc":"2.0","id":`+name+`,"method":"slow"}`, "Mcp-Session-Id", id)
					if err != nil || got.status != 202 && got.status != 200 {
						t.Errorf("%v %d %s", err, got.status, got.body)
					}
				}()
				for over := false; !over; {
					select {
					case <-ended:
						over = true
					default:
						got, err := s.try("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+name+`}}`, "Mcp-Session-Id", id)
						if over = err != nil || got.status != 202; over {
							t.Errorf("%v %d", err, got.status)
						}
					}
				}
				<-ended
			}
		})
	}
	all.Wait()
	s.settles(id)
}

// Two who begin at once get two sessions, and a session is not begun twice.
func TestTwoOpenings(t *testing.T) {
	s := start(t, Limits{})
	ids := make(chan string, 8)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			got, err := s.try("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
			if err != nil || got.status != 200 {
				t.Errorf("%v %d", err, got.status)
			}
			ids <- got.header.Get("Mcp-Session-Id")
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for range 8 {
		id := <-ids
		if id == "" || seen[id] {
			t.Errorf("the session %q", id)
		}
		seen[id] = true
	}
}

// A flood of keys that nobody knows does not keep a good one out that comes from the
// same address.
func TestFloodBesideAGoodKey(t *testing.T) {
	s := start(t, Limits{AddressRate: 1e-6})
	id := s.open() // the burst is one
	for range 3 {
		if got := s.do("POST", "/mcp", "{}", "Authorization", "Bearer "+string(agentkey.New())); got.status != 429 {
			t.Errorf("a bad key: %d", got.status)
		}
		if got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"x"}`, "Mcp-Session-Id", id); got.status != 200 {
			t.Errorf("the good key: %d %s", got.status, got.body)
		}
	}
}

// Who asks on and on and reads nothing is hung up on, also without a key.
func TestAskingWithoutReading(t *testing.T) {
	s := start(t, Limits{Slow: 300 * time.Millisecond, Failures: 1e6, AddressRate: 1e6})
	for name, request := range map[string]string{
		"another path": "GET /x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"no key":       "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"health":       "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
	} {
		conn, _ := s.raw("")
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		many := strings.Repeat(request, 1000)
		for {
			if _, err := io.WriteString(conn, many); err != nil {
				if ne, ok := err.(net.Error); ok && ne.Timeout() {
					t.Errorf("%s: its connection is kept", name)
				}
				break
			}
		}
	}
}

// An address with TLS speaks HTTP/2 also beside a socket without.
func TestTLSBesideASocket(t *testing.T) {
	inside := httptest.NewUnstartedServer(nil)
	inside.StartTLS()
	defer inside.Close()
	for round := range 4 {
		g, err := New(Config{Keys: &fakeKeys{}, Session: echo})
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "s")
		unix, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Serve(ctx, &tls.Config{Certificates: inside.TLS.Certificates}, tcp, unix) }()
		overSocket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}
		overTLS := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
		for _, one := range []struct {
			transport *http.Transport
			url       string
			major     int
		}{{overSocket, "http://localhost/healthz", 1}, {overTLS, "https://" + tcp.Addr().String() + "/healthz", 2}} {
			got, err := (&http.Client{Transport: one.transport, Timeout: patience}).Get(one.url)
			if err != nil {
				t.Errorf("round %d: %s: %v", round, one.url, err)
				continue
			}
			got.Body.Close()
			if got.StatusCode != 200 || got.ProtoMajor != one.major {
				t.Errorf("round %d: %s: %d over %s", round, one.url, got.StatusCode, got.Proto)
			}
			one.transport.CloseIdleConnections()
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// After a body in chunks nothing else is read on its connection: a proxy that goes by
// a length beside it would have somebody else's request begin there.
func TestNothingAfterChunks(t *testing.T) {
	s := start(t, Limits{Failures: 1e6})
	id := s.open()
	const next = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
	chunked := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(aPing), aPing)
	for _, one := range []struct {
		name, request string
		statuses      string
	}{
		{"a length", head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(aPing))) + "\r\n" + aPing, "200 200 0"},
		{"chunks", head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, "Transfer-Encoding: chunked") + "\r\n" + chunked, "200 0 0"},
		{"both", head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, "Content-Length: 6", "Transfer-Encoding: chunked") + "\r\n" + chunked, "200 0 0"},
		{"both, without a key", head("POST", "/mcp", "", "Content-Length: 6", "Transfer-Encoding: chunked") + "\r\n" + chunked, "401 0 0"},
		{"both, elsewhere", head("POST", "/", "", "Content-Length: 6", "Transfer-Encoding: chunked") + "\r\n" + chunked, "404 0 0"},
		{"no chunks", head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, "Transfer-Encoding: chunked") + "\r\nzz\r\n", "400 0 0"},
	} {
		_, from := s.raw(one.request + next)
		if got := fmt.Sprint(status(t, from), status(t, from), status(t, from)); got != one.statuses {
			t.Errorf("%s: %s, want %s", one.name, got, one.statuses)
		}
	}
}

// A client that closes its half of the connection when it has asked is told that
// nothing came, and not nothing.
func TestHalfClosed(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	const slow = `{"jsonrpc":"2.0","id":1,"method":"slow"}`
	conn, from := s.raw(head("POST", "/mcp", string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(slow))) + "\r\n" + slow)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := status(t, from); got != 408 {
		t.Errorf("%d", got)
	}
	s.settles(id)
}

// Another spelling of a path is another path: what guards one before the gateway may
// not know that they are the same.
func TestAnotherSpelling(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	for path, want := range map[string]int{"/mcp": 200, "/mcp?a=b": 200, "/%6dcp": 404, "/mcp%2f": 404, "/mcp/": 404, "//mcp": 404, "/x/../mcp": 404} {
		request := head("POST", path, string(goodKey), "Mcp-Session-Id: "+id, fmt.Sprintf("Content-Length: %d", len(aPing))) + "\r\n" + aPing
		if _, from := s.raw(request); status(t, from) != want {
			t.Errorf("%s is not answered with %d", path, want)
		}
	}
	if _, from := s.raw("GET /%68ealthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); status(t, from) != 404 {
		t.Error("/%68ealthz is found")
	}
}

// A progress token is said again with each piece of progress, and is no larger than an
// id.
func TestProgressTokens(t *testing.T) {
	s := start(t, Limits{})
	id := s.open()
	for token, want := range map[string]int{
		`1`: 200, `"a"`: 200, `"` + strings.Repeat("a", 4000) + `"`: 200, `null`: 200,
		`{"a":1}`: 400, `[1]`: 400, `true`: 400, `"` + strings.Repeat("a", 5000) + `"`: 400,
	} {
		got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"progress","params":{"_meta":{"progressToken":`+token+`}}}`, "Mcp-Session-Id", id)
		if got.status != want {
			t.Errorf("%.10s: %d %.200s", token, got.status, got.body)
		}
	}
}

// Where more requests are open than may be, the connection with most of them goes:
// first one that has shown no good key, and none that has only one.
func TestBusiestConnectionMakesRoom(t *testing.T) {
	type opened struct {
		address  string
		good     bool
		requests int
		goes     bool
	}
	for name, tt := range map[string]struct {
		limits Limits
		conns  []opened
	}{
		"as many as there may be":         {Limits{Requests: 8, AddressRequests: 4}, []opened{{"a", false, 4, false}, {"b", false, 4, false}}},
		"too many of one address":         {Limits{Requests: 80, AddressRequests: 4}, []opened{{"a", false, 2, false}, {"b", false, 3, false}, {"a", false, 3, true}}},
		"there those of good keys do not": {Limits{Requests: 80, AddressRequests: 4}, []opened{{"a", true, 9, false}, {"a", false, 4, false}, {"a", true, 3, false}}},
		"too many of all":                 {Limits{Requests: 8, AddressRequests: 8}, []opened{{"a", true, 5, false}, {"b", false, 3, true}, {"c", false, 1, false}}},
		"of good keys alone":              {Limits{Requests: 8, AddressRequests: 8}, []opened{{"a", true, 3, false}, {"b", true, 5, true}, {"c", false, 1, false}}},
		"one each":                        {Limits{Requests: 2, AddressRequests: 1}, []opened{{"a", false, 1, false}, {"a", false, 1, false}, {"a", true, 1, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRates(tt.limits.withDefaults())
			var conns []*countedConn
			var done []func()
			for _, one := range tt.conns {
				ours, theirs := net.Pipe()
				defer theirs.Close()
				c := &countedConn{Conn: ours, rates: r, address: one.address, good: one.good}
				conns = append(conns, c)
				if !r.enter(c) {
					t.Fatal("it is not let in")
				}
				for range one.requests {
					done = append(done, c.ask())
				}
			}
			for i, c := range conns {
				r.mu.Lock()
				gone := !r.conns[c]
				r.mu.Unlock()
				if gone != tt.conns[i].goes {
					t.Errorf("%+v has gone: %t", tt.conns[i], gone)
				}
			}
			for _, end := range done {
				end()
			}
			if r.asking != 0 || len(r.strangers) != 0 {
				t.Errorf("%d and %v are counted when all have ended", r.asking, r.strangers)
			}
			for i, c := range conns {
				if !tt.conns[i].goes {
					c.Close()
				}
			}
		})
	}
}

// A client of HTTP/2 that does not end its headers is hung up on, and one connection
// takes no more than it was told.
func TestHTTP2Bounds(t *testing.T) {
	inside := httptest.NewUnstartedServer(nil)
	inside.StartTLS()
	defer inside.Close()
	g, err := New(Config{Keys: &fakeKeys{}, Session: echo, Limits: Limits{SlowHeader: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx, &tls.Config{Certificates: inside.TLS.Certificates}, l) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience)) // that of a connection always works
	const settings, headers = 4, 1
	frame := func(kind byte, stream uint32, payload string) string {
		n := len(payload)
		return string(binary.BigEndian.AppendUint32([]byte{byte(n >> 16), byte(n >> 8), byte(n), kind, 0}, stream)) + payload
	}
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(settings, 0, "")+frame(headers, 1, "\x82")); err != nil { // :method: GET, and no end of headers
		t.Fatal(err)
	}
	told := map[uint16]uint32{}
	for from := bufio.NewReader(conn); ; {
		var start [9]byte
		if _, err := io.ReadFull(from, start[:]); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Error("headers that do not end keep their connection")
			}
			break
		}
		payload := make([]byte, int(start[0])<<16|int(start[1])<<8|int(start[2]))
		if _, err := io.ReadFull(from, payload); err != nil {
			break
		}
		for ; start[3] == settings && len(payload) >= 6; payload = payload[6:] {
			told[binary.BigEndian.Uint16(payload)] = binary.BigEndian.Uint32(payload[2:])
		}
	}
	for id, want := range map[uint16]uint32{3: streamsOfConnection, 4: unreadOfConnection, 5: frameSize} {
		if told[id] != want {
			t.Errorf("setting %d is %d, want %d", id, told[id], want)
		}
	}
}
