package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"subjectbroker/proto/agentkey"
)

// patience bounds what has to happen, not how soon.
const patience = time.Minute

// fakeKeys knows keys by their text.
type fakeKeys struct {
	mu      sync.Mutex
	ids     map[string]string // by key
	refused map[string]Reason
	down    error
	runs    []*fakeRun
	told    []string // one line for each question
}

type fakeRun struct {
	keys *fakeKeys
	id   string
	over chan struct{}
	end  func()
}

func (k *fakeKeys) tell(format string, args ...any) {
	k.told = append(k.told, fmt.Sprintf(format, args...))
}

func (k *fakeKeys) judge(key []byte) (string, error) {
	if k.down != nil {
		return "", k.down
	}
	if reason := k.refused[string(key)]; reason != "" {
		return "", &Refused{reason}
	}
	if id := k.ids[string(key)]; id != "" {
		return id, nil
	}
	return "", &Refused{UnknownKey}
}

func (k *fakeKeys) Open(_ context.Context, key []byte, p Presented) (Run, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, err := k.judge(key)
	k.tell("open %s %s %v %v", id, p.Route, p.Flags, err)
	if err != nil {
		return nil, err
	}
	run := &fakeRun{keys: k, id: id, over: make(chan struct{})}
	run.end = sync.OnceFunc(func() { close(run.over) })
	k.runs = append(k.runs, run)
	return run, nil
}

func (k *fakeKeys) Check(_ context.Context, key []byte, p Presented) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, err := k.judge(key)
	k.tell("check %s %s %v %v", id, p.Route, p.Flags, err)
	return err
}

func (k *fakeKeys) Report(_ context.Context, reason Reason, p Presented) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tell("report %s %s %v", reason, p.Route, p.Flags)
	return k.down
}

func (r *fakeRun) KeyID() string         { return r.id }
func (r *fakeRun) Over() <-chan struct{} { return r.over }
func (r *fakeRun) Dismissed() bool       { return false }
func (r *fakeRun) Close()                { r.end() }
func (r *fakeRun) Authenticate(_ context.Context, key []byte, p Presented) error {
	r.keys.mu.Lock()
	defer r.keys.mu.Unlock()
	id, err := r.keys.judge(key)
	r.keys.tell("authenticate %s for %s %s %v %v", id, r.id, p.Route, p.Flags, err)
	if err == nil && id != r.id {
		return ErrOtherKey
	}
	return err
}

// echo is a shim that answers each request with its params, and obeys a few methods.
func echo(ctx context.Context, open func(context.Context) (Run, error), repeated Repeated, in io.Reader, out io.Writer) error {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		whole := fmt.Appendf(nil, format+"\n", args...)
		_, _ = out.Write(whole[:len(whole)/2]) // pieces, as a buffered writer has them
		_, _ = out.Write(whole[len(whole)/2:])
	}
	if _, err := open(ctx); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 32<<20)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return err
		}
		var p struct {
			RequestID json.RawMessage `json:"requestId"`
			Meta      struct {
				ProgressToken json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
			Bytes int
		}
		_ = json.Unmarshal(m.Params, &p)
		switch {
		case m.Method == "slow": // answered by nobody until it is cancelled
		case m.Method == "progress":
			say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, p.Meta.ProgressToken)
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case m.Method == "subscriptions/listen":
			say(`{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, m.ID)
		case m.Method == "change":
			say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			say(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case m.Method == "notifications/cancelled":
			say(`{"jsonrpc":"2.0","id":%s,"result":{"cancelled":true}}`, p.RequestID)
		case m.Method == "large":
			say(`{"jsonrpc":"2.0","id":%s,"result":%q}`, m.ID, strings.Repeat("x", p.Bytes))
		case m.Method == "repeated":
			values, ok := repeated(m.ID, "mcp-param-region")
			say(`{"jsonrpc":"2.0","id":%s,"result":"%s %t"}`, m.ID, strings.Join(values, ","), ok)
		case m.Method == "mismatch":
			say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32020,"message":"a header"}}`, m.ID)
		case m.Method == "fail":
			say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		case len(m.ID) > 0:
			if m.Params == nil {
				m.Params = json.RawMessage("null")
			}
			say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, m.Params)
		}
	}
	return lines.Err()
}

// served is a gateway that is listened to.
type served struct {
	t    *testing.T
	g    *Gateway
	keys *fakeKeys
	url  string
	http *http.Client
}

var goodKey, otherKey = agentkey.New(), agentkey.New()

func start(t *testing.T, limits Limits) *served {
	t.Helper()
	keys := &fakeKeys{ids: map[string]string{string(goodKey): "good", string(otherKey): "other"}, refused: map[string]Reason{}}
	g, err := New(Config{Keys: keys, Session: echo, Limits: limits, Log: func(text string) { t.Log(text) }})
	if err != nil {
		t.Fatal(err)
	}
	// What nobody reads is soon more than the kernel takes.
	small := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		err := conn.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 64<<10)
		})
		return errors.Join(err, failed)
	}}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Serve(ctx, nil, l) }()
	transport := &http.Transport{}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("it does not end")
		}
		if held := g.held.Load(); held != 0 {
			t.Errorf("%d bytes are still counted as held", held)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.sessions)+len(g.shared)+len(g.perKey) != 0 {
			t.Errorf("left: %d sessions, %d shared, %v", len(g.sessions), len(g.shared), g.perKey)
		}
	})
	return &served{t: t, g: g, keys: keys, url: "http://" + l.Addr().String(), http: &http.Client{Transport: transport, Timeout: patience}}
}

// said is what the keys were asked, without what came before.
func (s *served) said() []string {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	told := s.keys.told
	s.keys.told = nil
	return told
}

type answered struct {
	status int
	header http.Header
	body   string
}

// do asks; headers come in pairs, and a pair of Authorization and nothing leaves
// the key out.
func (s *served) do(method, path, body string, headers ...string) answered {
	s.t.Helper()
	got, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return got
}

func (s *served) request(method, path, body string, headers ...string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+string(goodKey))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		switch {
		case headers[i] == "Host":
			r.Host = headers[i+1]
		case headers[i+1] == "":
			r.Header.Del(headers[i])
		default:
			r.Header[headers[i]] = append([]string(nil), strings.Split(headers[i+1], "\x00")...)
		}
	}
	return r
}

func (s *served) try(method, path, body string, headers ...string) (answered, error) {
	s.t.Helper()
	response, err := s.http.Do(s.request(method, path, body, headers...))
	if err != nil {
		return answered{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	return answered{response.StatusCode, response.Header, string(read)}, err
}

// open opens a session and returns its id.
func (s *served) open(headers ...string) string {
	s.t.Helper()
	got := s.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, headers...)
	id := got.header.Get("Mcp-Session-Id")
	if got.status != http.StatusOK || id == "" {
		s.t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	return id
}

var errDown = errors.New("a secret reason")
