package host

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// site is a Streamable HTTP server that misbehaves as it is told.
type site struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	requests []string            // method, RPC method, session and revision
	pushes   chan string         // what the GET stream says
	status   map[string]int      // by RPC method, instead of an answer
	resumed  map[string][]string // events by Last-Event-ID
	noGet    bool
	stream   bool // answers come as events
	headers  []http.Header
	instead  http.Handler  // of all that
	newest   string        // revision beyond which it refuses
	parts    bool          // lets go of the connection before it answers
	hang     chan struct{} // closed when a call is there that is never answered; let is closed when it is given up
	let      chan struct{}
}

func newSite(t *testing.T, start func(*httptest.Server)) *site {
	t.Helper()
	s := &site{t: t, pushes: make(chan string), status: map[string]int{}, resumed: map[string][]string{}}
	s.Server = httptest.NewUnstartedServer(s)
	start(s.Server)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *site) start() *hostv1.Start {
	return &hostv1.Start{Server: "site", Url: s.URL + "/mcp?key=inurl", Headers: []*hostv1.Header{{Name: "Authorization", Value: []byte("Bearer hush")}}}
}

func (s *site) note(line string, headers http.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, line)
	s.headers = append(s.headers, headers.Clone())
}

func (s *site) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *site) replace(handler http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instead = handler
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	instead, newest := s.instead, s.newest
	s.mu.Unlock()
	if instead != nil {
		instead.ServeHTTP(w, r)
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	body, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(body, &m)
	s.note(strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, m.Method, r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version"))), r.Header)
	s.mu.Lock()
	status, stream, noGet, parts, hang := s.status[m.Method], s.stream, s.noGet, s.parts, s.hang
	resumed := s.resumed[r.Header.Get("Last-Event-Id")]
	s.mu.Unlock()
	switch {
	case r.Method == http.MethodGet && resumed != nil:
		s.events(w, resumed...)
		return
	case r.Method == http.MethodGet && noGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodGet:
		s.events(w)
		for {
			select {
			case event := <-s.pushes:
				s.events(w, event)
			case <-r.Context().Done():
				return
			}
		}
	case status >= 300 && status < 400:
		http.Redirect(w, r, "/elsewhere", status)
		return
	case status != 0:
		w.WriteHeader(status)
		return
	case parts && m.Method == "tools/call":
		s.events(w, "id: e1\nretry: 5\ndata:\n\n")
		return
	case hang != nil && m.Method == "tools/call":
		close(hang)
		<-r.Context().Done()
		close(s.let)
		return
	case newest != "" && m.Method == "initialize" && !strings.Contains(string(m.Params), newest):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"too new"}}`, m.ID)
		return
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	case m.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "session-1")
	}
	answer, before := s.answer(m.ID, m.Method, m.Params)
	if !stream {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, answer)
		return
	}
	s.events(w, append(before, "event: message\r\ndata: "+answer+"\r\n\r\n")...)
}

func (s *site) events(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, event := range events {
		io.WriteString(w, event)
	}
	w.(http.Flusher).Flush()
}

func (s *site) answer(id json.RawMessage, method string, params json.RawMessage) (answer string, before []string) {
	result := func(r string) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, r) }
	switch method {
	case "initialize":
		return result(`{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}`), nil
	case "tools/list":
		return result(`{"tools":[` + goldenTool + `]}`), nil
	}
	var c struct {
		Name      string
		Arguments struct{ Bytes int }
		Meta      struct{ ProgressToken json.RawMessage } `json:"_meta"`
	}
	_ = json.Unmarshal(params, &c)
	switch c.Name {
	case "golden":
		return result(goldenResult), nil
	case "progress":
		return result(`{}`), []string{
			": a comment\nid: 1\nevent: other\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n",
			"data: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/progress\",\ndata:\"params\":{\"progressToken\":" + string(c.Meta.ProgressToken) + ",\"progress\":1}}\n\n",
		}
	case "big":
		return result(`{"text":"` + strings.Repeat("x", c.Arguments.Bytes) + `"}`), nil
	case "wrong":
		return `{"jsonrpc":"2.0","id":424242,"result":{}}`, nil
	}
	return result(`{}`), nil
}

func plainHTTP(s *httptest.Server) { s.Start() }

func TestRemote(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream %v", stream), func(t *testing.T) {
			s := newSite(t, plainHTTP)
			s.stream = stream
			d := serve(t, s.start(), Config{})
			started, listed := d.greeted()
			if started.GetRevision() != "2025-06-18" || len(listed.GetTools()) != 1 || string(listed.GetTools()[0].GetObject()) != goldenObject {
				t.Errorf("%v %v", started, listed)
			}
			if got, end := d.ask("golden", `{}`); got != goldenResult || end != hostv1.End_END_OK {
				t.Errorf("%v %s", end, got)
			}
			if got, end := d.ask("big", `{"bytes":3000000}`); end != hostv1.End_END_OK || len(got) != 3000000+11 {
				t.Errorf("%v %d bytes", end, len(got))
			}
			if got, end := d.ask("wrong", `{}`); end != hostv1.End_END_TRANSPORT {
				t.Errorf("%v %s", end, got)
			}
			if stream {
				d.call(&hostv1.Call{Id: 7, Tool: "progress", Progress: true})
				if p := d.next().GetProgress(); p.GetId() != 7 || string(p.GetParams()) != `{"progress":1}` {
					t.Errorf("progress: %v", p)
				}
				d.answer(7)
			}
			s.pushes <- "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n"
			d.listed()
			d.stop(time.Second)
			if e := d.ended(); e.GetWhy() != "stopped" {
				t.Errorf("ended: %v", e)
			}
			seen := s.seen()
			if diff := cmp.Diff([]string{"POST initialize", "POST notifications/initialized session-1 2025-06-18"}, seen[:2]); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, want := range []string{"POST tools/list session-1 2025-06-18", "POST tools/call session-1 2025-06-18", "GET  session-1 2025-06-18", "DELETE  session-1 2025-06-18"} {
				if !slices.Contains(seen, want) {
					t.Errorf("no %q in %q", want, seen)
				}
			}
			for i, h := range s.headers {
				if h.Get("Authorization") != "Bearer hush" {
					t.Errorf("%s came without the header", seen[i])
				}
			}
		})
	}
}

// A stream that the server lets go of is taken up where it was.
func TestRemoteResumes(t *testing.T) {
	s := newSite(t, plainHTTP)
	s.noGet = true
	d := serve(t, s.start(), Config{})
	d.greeted()
	s.mu.Lock()
	s.stream = true
	s.resumed["e1"] = []string{"id: e2\nretry: 5\ndata:\n\n"}
	s.resumed["e2"] = []string{"data: {\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"late\":true}}\n\n"}
	s.mu.Unlock()
	s.mu.Lock()
	s.parts = true
	s.mu.Unlock()
	if got, end := d.ask("golden", ``); got != `{"late":true}` || end != hostv1.End_END_OK {
		t.Errorf("%v %s", end, got)
	}
}

// What stands between us and an answer is told in words that hold no secret, and
// no secret goes anywhere else.
func TestRemoteRefused(t *testing.T) {
	other := newSite(t, plainHTTP)
	for _, tc := range []struct {
		name    string
		arrange func(*site, *hostv1.Start)
		why     string
		detail  string
	}{
		{"nobody there", func(s *site, _ *hostv1.Start) { s.Close() }, "unreachable", "it cannot be reached: connection refused"},
		{"not let in", func(s *site, _ *hostv1.Start) { s.status["initialize"] = 401 }, "unreachable", "it does not let us in (HTTP 401)"},
		{"broken", func(s *site, _ *hostv1.Start) { s.status["initialize"] = 500 }, "unreachable", "it answered with HTTP 500"},
		{"redirects", func(s *site, _ *hostv1.Start) { s.status["initialize"] = 307 }, "unreachable", "it redirects to another place, which is not followed"},
		{"redirects to another host", func(s *site, _ *hostv1.Start) {
			s.replace(http.RedirectHandler(other.URL, http.StatusPermanentRedirect))
		}, "unreachable", "it redirects to another place, which is not followed"},
		{"a page", func(s *site, _ *hostv1.Start) {
			s.replace(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
		}, "unreachable", "its answer is neither JSON nor a stream of events"},
		{"no JSON", func(s *site, _ *hostv1.Start) {
			s.replace(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				io.WriteString(w, "{")
			}))
		}, "unreachable", "what it answered is no answer"},
		{"too much", func(s *site, start *hostv1.Start) { start.MaxLine = 50 }, "unreachable", "its answer is longer than the limit"},
		{"a bad session", func(s *site, _ *hostv1.Start) {
			s.replace(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Mcp-Session-Id", "a b") }))
		}, "unreachable", "it gave its session a name that cannot be sent back"},
		{"a bad header", func(s *site, start *hostv1.Start) { start.Headers[0].Value = []byte("hush\nX: y") }, "unreachable", "it cannot be reached"},
	} {
		s := newSite(t, plainHTTP)
		start := s.start()
		tc.arrange(s, start)
		d := serve(t, start, Config{})
		var said strings.Builder
		for {
			m := d.any()
			said.WriteString(m.String())
			if e := m.GetEnded(); e != nil {
				if e.GetWhy() != tc.why || !strings.HasPrefix(e.GetDetail(), tc.detail) {
					t.Errorf("%s: %v", tc.name, e)
				}
				break
			}
		}
		if strings.Contains(said.String(), "hush") || strings.Contains(said.String(), "inurl") {
			t.Errorf("%s: a secret was told: %s", tc.name, said.String())
		}
	}
	if seen := other.seen(); len(seen) != 0 {
		t.Errorf("another host was asked: %q", seen)
	}
}

// A refusal in words of MCP is one, whatever HTTP says of it: an older revision is
// tried.
func TestRemoteOlderRevision(t *testing.T) {
	s := newSite(t, plainHTTP)
	s.noGet = true
	s.mu.Lock()
	s.newest = "2025-03-26"
	s.mu.Unlock()
	d := serve(t, s.start(), Config{})
	d.greeted()
	asked := 0
	for _, line := range s.seen() {
		if line == "POST initialize" {
			asked++
		}
	}
	if asked != 3 {
		t.Errorf("%d attempts, want 3: %q", asked, s.seen())
	}
}

// A session that the server has forgotten is over.
func TestRemoteSessionEnds(t *testing.T) {
	s := newSite(t, plainHTTP)
	s.noGet = true
	d := serve(t, s.start(), Config{})
	d.greeted()
	s.mu.Lock()
	s.status["tools/call"] = 404
	s.mu.Unlock()
	if _, end := d.ask("golden", ``); end != hostv1.End_END_TRANSPORT {
		t.Errorf("%v", end)
	}
	if e := d.ended(); e.GetWhy() != "exited" || e.GetDetail() != "the server has ended the session" {
		t.Errorf("ended: %v", e)
	}
}

// Many calls at once, large ones among them.
func TestRemoteConcurrent(t *testing.T) {
	s := newSite(t, plainHTTP)
	d := serve(t, s.start(), Config{})
	d.greeted()
	go func() {
		for id := range uint64(20) {
			d.call(&hostv1.Call{Id: id + 1, Tool: "big", Arguments: []byte(`{"bytes":600000}`)})
		}
	}()
	sizes := map[uint64]int{}
	for done := 0; done < 20; {
		a := d.next().GetAnswer()
		sizes[a.GetId()] += len(a.GetPiece())
		if !a.GetMore() {
			done++
			if a.GetEnd() != hostv1.End_END_OK || sizes[a.GetId()] != 600011 {
				t.Errorf("%v, %d bytes", a.GetEnd(), sizes[a.GetId()])
			}
		}
	}
}

// A certificate counts for the name in the URL; http goes to this machine alone,
// whatever a name leads to.
func TestRemoteCertificates(t *testing.T) {
	s := newSite(t, func(server *httptest.Server) {
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // strangers hang up
		server.StartTLS()
	})
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	d := serve(t, s.start(), Config{roots: roots})
	d.greeted()
	strangers := serve(t, s.start(), Config{roots: x509.NewCertPool()})
	if e := strangers.ended(); e.GetWhy() != "unreachable" || e.GetDetail() != "its certificate is not accepted" {
		t.Errorf("ended: %v", e)
	}
	for address, ok := range map[string]bool{"127.0.0.1:80": true, "[::1]:80": true, "192.0.2.1:80": false, "[2001:db8::1]:80": false, "0.0.0.0:80": false} {
		if err := onlyLoopback("tcp", address, nil); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Nobody waits for a call that was cancelled, the connection neither.
func TestRemoteCancelled(t *testing.T) {
	s := newSite(t, plainHTTP)
	s.noGet = true
	d := serve(t, s.start(), Config{})
	d.greeted()
	begun, let := make(chan struct{}), make(chan struct{})
	s.mu.Lock()
	s.hang, s.let = begun, let
	s.mu.Unlock()
	d.call(&hostv1.Call{Id: 1, Tool: "golden"})
	<-begun
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Cancel{Cancel: &hostv1.Cancel{Id: 1}}})
	<-let
}
