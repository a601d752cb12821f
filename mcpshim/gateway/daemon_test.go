package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/agentkey"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// front is a gateway before a real daemon.
type front struct {
	t   *testing.T
	d   *daemontest.Daemon
	g   *Gateway
	url string

	mu       sync.Mutex
	troubles []string
}

// stand puts a gateway before d. It ends before the test does, with nothing left.
func stand(t *testing.T, d *daemontest.Daemon, limits Limits, secure *tls.Config) *front {
	t.Helper()
	f := &front{t: t, d: d}
	config, hangUp := Behind(worker.Config{Places: d.Places, Version: "test"}, "", func(reason wire.Reason, text string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.troubles = append(f.troubles, fmt.Sprintf("%s: %s", reason, text))
	})
	config.Limits = limits
	var err error
	if f.g, err = New(config); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + l.Addr().String() + "/mcp"
	if secure != nil {
		f.url = "https" + strings.TrimPrefix(f.url, "http")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.g.Serve(ctx, secure, l) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("it does not end")
		}
		hangUp()
		if held := f.g.held.Load(); held != 0 {
			t.Errorf("%d bytes are still counted as held", held)
		}
		if left := f.sessions(); left != 0 {
			t.Errorf("%d sessions are left", left)
		}
	})
	return f
}

func (f *front) sessions() int {
	f.g.mu.Lock()
	defer f.g.mu.Unlock()
	n := 0
	for _, of := range f.g.perKey {
		n += of
	}
	return n
}

func (f *front) trouble() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.troubles)
}

// mint makes an agent key.
func mint(t *testing.T, d *daemontest.Daemon, subject string, tenants ...string) (id string, key string) {
	t.Helper()
	minted, err := d.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: subject, Tenants: tenants})
	if err != nil {
		t.Fatal(err)
	}
	return minted.GetKey().GetKeyId(), string(minted.GetToken())
}

func revoke(t *testing.T, d *daemontest.Daemon, id string) {
	t.Helper()
	if _, err := d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: id}); err != nil {
		t.Fatal(err)
	}
}

// agent is a client of the gateway with a key.
type agent struct {
	f       *front
	key     string
	session string
	http    *http.Client
}

func (f *front) agent(key string) *agent {
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	return &agent{f: f, key: key, http: &http.Client{Transport: transport, Timeout: patience}}
}

func (a *agent) send(method, body string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequest(method, a.f.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + a.key, "Mcp-Session-Id": a.session, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
	} {
		if value != "" && value != "Bearer " {
			r.Header.Set(name, value)
		}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return a.http.Do(r)
}

// do asks and reads the whole answer.
func (a *agent) do(method, body string, headers ...string) answered {
	a.f.t.Helper()
	response, err := a.send(method, body, headers...)
	if err != nil {
		a.f.t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		a.f.t.Fatal(err)
	}
	return answered{response.StatusCode, response.Header, string(read)}
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"0"}}}`

// greet opens a session.
func (a *agent) greet() {
	a.f.t.Helper()
	a.session = ""
	got := a.do("POST", hello)
	a.session = got.header.Get("Mcp-Session-Id")
	if got.status != 200 || a.session == "" || !strings.Contains(got.body, `"protocolVersion":"2025-11-25"`) {
		a.f.t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	if got := a.do("POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`); got.status != 202 || got.body != "" {
		a.f.t.Fatalf("initialized: %d %s", got.status, got.body)
	}
}

// call calls a tool in a session and returns what it answers, as JSON.
func (a *agent) call(tool, arguments string) string {
	a.f.t.Helper()
	got := a.do("POST", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+`","arguments":`+arguments+`}}`)
	return structured(a.f.t, got)
}

// modern makes a request of the stateless era.
func (a *agent) modern(method, name, params string) answered {
	a.f.t.Helper()
	headers := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return a.do("POST", modernly(method, params), headers...)
}

func modernly(method, params string) string {
	return `{"jsonrpc":"2.0","id":"m","method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}`
}

func structured(t *testing.T, got answered) string {
	t.Helper()
	var answer struct {
		Result struct {
			StructuredContent json.RawMessage `json:"structuredContent"`
		}
	}
	if err := json.Unmarshal([]byte(got.body), &answer); got.status != 200 || err != nil || answer.Result.StructuredContent == nil {
		t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	return string(answer.Result.StructuredContent)
}

func reads(name string) string { return `{"resourceId":"` + name + `"}` }

// lone is a daemon with one subject, which may read a plan.
func lone(t *testing.T) *daemontest.Daemon {
	t.Helper()
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Put("plan", "the plan")
	d.Grant("worker", "read:plan")
	return d
}

// summary is entries in short.
func summary(entries []verify.Entry) (got []string) {
	for _, e := range entries {
		got = append(got, strings.TrimRight(fmt.Sprintf("%s %s %s %s", e.Kind, e.SubjectID, e.ReasonCode, e.Cause), " "))
	}
	return got
}

// A session from its beginning to its end, and what the log has of it: one auth for
// each request, and what each call is.
func TestGatewaySession(t *testing.T) {
	d := lone(t)
	_, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	a := f.agent(key)
	before := d.Seq()
	a.greet()
	got := a.do("POST", `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`)
	if got.status != 200 || !strings.Contains(got.body, `"name":"read_resource"`) || !strings.Contains(got.body, "worker") {
		t.Errorf("tools/list: %d %s", got.status, got.body)
	}
	if content := a.call("read_resource", reads("plan")); !strings.Contains(content, `"content":"the plan"`) {
		t.Error(content)
	}
	if content := a.call("read_resource", reads("other")); !strings.Contains(content, `"ACCESS_DENIED"`) {
		t.Error(content)
	}
	if content := a.call("explain_decision", reads("plan")); !strings.Contains(content, `"allow"`) {
		t.Error(content)
	}
	if content := a.call("capability_report", `{}`); !strings.Contains(content, `"keyed"`) {
		t.Error(content)
	}
	response, err := a.send("GET", "")
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	defer response.Body.Close()
	d.Put("more", "x")
	d.Grant("worker", "read:more")
	if said := events(t, response.Body, 1); said[0] != `{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{}}` {
		t.Errorf("changes: %q", said)
	}
	if got := a.do("DELETE", ""); got.status != 204 {
		t.Errorf("DELETE: %d %s", got.status, got.body)
	}
	if rest, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the stream after its session: %q %v", rest, err)
	}
	if got := a.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`); got.status != 404 {
		t.Errorf("after its end: %d", got.status)
	}
	wanted := slices.Concat(
		slices.Repeat([]string{"auth worker ALLOWED"}, 2), []string{"run.open worker ALLOWED"},
		slices.Repeat([]string{"auth worker ALLOWED"}, 8),
		[]string{"acquire worker ALLOWED", "acquire worker ACCESS_DENIED UNKNOWN_RESOURCE", "explain worker ALLOWED", "run.end worker RUN_ENDED CLOSED"},
	)
	slices.Sort(wanted)
	d.Await(before, func(e verify.Entry) bool { return e.Kind == "run.end" })
	d.Settle()
	log := summary(d.Since(before, "auth", "acquire", "explain", "run.open", "run.end", "flag", "call"))
	slices.Sort(log)
	if diff := cmp.Diff(wanted, log); diff != "" {
		t.Errorf("the log: %s", diff)
	}
	if told := f.trouble(); len(told) > 0 {
		t.Errorf("trouble: %q", told)
	}
}

// The stateless era: no session, one run for all requests of a key.
func TestGatewayStateless(t *testing.T) {
	d := lone(t)
	id, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	a := f.agent(key)
	before := d.Seq()
	if got := a.modern("server/discover", "", ""); got.status != 200 || !strings.Contains(got.body, `"2026-07-28"`) || got.header.Get("Mcp-Session-Id") != "" {
		t.Errorf("discover: %d %s", got.status, got.body)
	}
	if got := a.modern("tools/list", "", ""); got.status != 200 || !strings.Contains(got.body, `"cacheScope":"private"`) {
		t.Errorf("tools/list: %d %s", got.status, got.body)
	}
	if content := structured(t, a.modern("tools/call", "read_resource", `"name":"read_resource","arguments":{"resourceId":"plan"},`)); !strings.Contains(content, "the plan") {
		t.Error(content)
	}
	response, err := a.send("POST", modernly("subscriptions/listen", `"notifications":{"toolsListChanged":true,"resourcesListChanged":true},`),
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
	if err != nil || response.StatusCode != 200 {
		t.Fatal(response, err)
	}
	defer response.Body.Close()
	if said := events(t, response.Body, 1); !strings.Contains(said[0], "acknowledged") || !strings.Contains(said[0], `"io.modelcontextprotocol/subscriptionId":"m"`) {
		t.Errorf("listening: %q", said)
	}
	d.Put("more", "x")
	d.Grant("worker", "read:more")
	if said := events(t, response.Body, 1); !strings.Contains(said[0], "list_changed") || !strings.Contains(said[0], `"io.modelcontextprotocol/subscriptionId":"m"`) {
		t.Errorf("changes: %q", said)
	}
	d.Settle()
	log := summary(d.Since(before, "auth", "acquire", "run.open", "run.end"))
	slices.Sort(log)
	if want := []string{"acquire worker ALLOWED", "auth worker ALLOWED", "auth worker ALLOWED", "auth worker ALLOWED", "auth worker ALLOWED", "run.open worker ALLOWED"}; !slices.Equal(log, want) {
		t.Errorf("the log: %q", log)
	}
	revoke(t, d, id)
	if rest, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the stream after its key: %q %v", rest, err)
	}
	if got := a.modern("tools/list", "", ""); got.status != 401 || !strings.Contains(got.body, "revoked_key") {
		t.Errorf("afterwards: %d %s", got.status, got.body)
	}
}

// bearer puts a key into each request of a client that knows nothing of keys.
type bearer struct{ key string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return http.DefaultTransport.RoundTrip(r)
}

// The SDK's client, in both eras.
func TestGatewaySDKClient(t *testing.T) {
	d := lone(t)
	large := strings.Repeat("a line with \"quotes\", \\ and é\n", 1<<15) // about 1 MiB
	d.Put("large", large)
	d.Grant("worker", "read:large")
	_, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			changed := make(chan struct{}, 16)
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, &mcp.ClientOptions{
				ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { changed <- struct{}{} },
			})
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: f.url, HTTPClient: &http.Client{Transport: bearer{key}}},
				&mcp.ClientSessionOptions{ProtocolVersion: revision})
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			if got := session.InitializeResult().ProtocolVersion; got != revision {
				t.Errorf("they speak %s", got)
			}
			tools, err := session.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) < 4 {
				t.Fatalf("tools: %v, %v", tools, err)
			}
			got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_resource", Arguments: map[string]any{"resourceId": "large"}})
			if err != nil || got.IsError || got.StructuredContent.(map[string]any)["content"] != large {
				t.Fatalf("read_resource: %v, %v", got.IsError, err)
			}
			read, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sb://resource/plan"})
			if err != nil || read.Contents[0].Text != "the plan" {
				t.Errorf("resource: %+v, %v", read, err)
			}
			if revision == "2025-11-25" {
				d.Put("new", "x")
				d.Grant("worker", "read:new")
				select {
				case <-changed:
				case <-time.After(patience):
					t.Error("it does not hear of changes")
				}
			}
		})
	}
}

// What is wrong with a key, by a real daemon and as the log has it.
func TestGatewayKeys(t *testing.T) {
	d := lone(t)
	d.AddSubject("gone", "off")
	_, good := mint(t, d, "worker")
	revokedID, revoked := mint(t, d, "worker")
	revoke(t, d, revokedID)
	_, removed := mint(t, d, "gone")
	d.RemoveSubject("gone")
	_, disabled := mint(t, d, "off")
	d.SetEnabled("off", false)
	f := stand(t, d, Limits{Failures: 1e6}, nil)
	slip := []byte(good)
	slip[30] ^= 1
	for _, one := range []struct{ name, key, reason string }{
		{"none", "", "missing_token"}, {"a slip", string(slip), "malformed_token"},
		{"never minted", string(agentkey.New()), "unknown_key"}, {"40 zeros", "ak_live_" + strings.Repeat("0", 40), "unknown_key"},
		{"revoked", revoked, "revoked_key"}, {"of a subject that is gone", removed, "revoked_key"}, {"of a disabled subject", disabled, "revoked_key"},
	} {
		t.Run(one.name, func(t *testing.T) {
			a := f.agent(one.key)
			before := d.Seq()
			for _, ask := range []func() answered{
				func() answered {
					return a.do("POST", hello, "X-Forwarded-User", "worker", "x-custodian-principal", "worker")
				},
				func() answered { return a.modern("tools/list", "", "") },
				func() answered { return a.do("GET", "") },
			} {
				got := ask()
				if want := fmt.Sprintf("{\"error\":\"unauthorized\",\"reason\":%q}\n", one.reason); got.status != 401 || got.body != want {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
			if got := len(d.Since(before, "auth")); got != 3 {
				t.Errorf("%d entries", got)
			}
			var flags []string
			for _, e := range d.Since(before, "flag") {
				flags = append(flags, e.Cause)
			}
			slices.Sort(flags)
			if want := []string{"X_CUSTODIAN", "X_FORWARDED_USER"}; !slices.Equal(flags, want) {
				t.Errorf("flags %q", flags)
			}
			if opened := d.Since(before, "run.open"); len(opened) > 0 {
				t.Errorf("%d runs", len(opened))
			}
		})
	}
}

// Without the daemon nobody gets in; with it a session goes on, under another run.
func TestGatewayUnavailable(t *testing.T) {
	d := lone(t)
	_, key := mint(t, d, "worker")
	f := stand(t, d, Limits{}, nil)
	a := f.agent(key)
	a.greet()
	refused := func(reason string) {
		t.Helper()
		want := fmt.Sprintf("{\"error\":\"unavailable\",\"reason\":%q}\n", reason)
		for _, got := range []answered{
			a.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`), a.do("GET", ""), a.modern("tools/list", "", ""), f.agent(key).do("POST", hello),
			f.agent(string(agentkey.New())).do("POST", hello),
		} {
			if got.status != 503 || got.body != want || got.header.Get("Retry-After") == "" {
				t.Errorf("%d %s, want %s", got.status, got.body, want)
			}
		}
	}
	d.Lock()
	refused("vault_locked")
	slip := []byte(key)
	slip[30] ^= 1
	// That there is no key, or that it can be none, is known without the vault.
	if got := f.agent("").do("POST", hello); got.status != 401 || !strings.Contains(got.body, "missing_token") {
		t.Errorf("without a key, locked: %d %s", got.status, got.body)
	}
	if got := f.agent(string(slip)).do("POST", hello); got.status != 401 || !strings.Contains(got.body, "malformed_token") {
		t.Errorf("with what is no key, locked: %d %s", got.status, got.body)
	}
	d.Unlock()
	if content := a.call("read_resource", reads("plan")); !strings.Contains(content, "the plan") {
		t.Error(content)
	}
	d.Stop()
	refused("broker_unavailable")
	for _, none := range []string{"", string(slip)} { // nobody could write it down
		if got := f.agent(none).do("POST", hello); got.status != 503 || !strings.Contains(got.body, "broker_unavailable") {
			t.Errorf("without a key, and without a daemon: %d %s", got.status, got.body)
		}
	}
	d.Start()
	if content := a.call("read_resource", reads("plan")); !strings.Contains(content, "the plan") {
		t.Error(content)
	}
	if told := f.trouble(); len(told) != 2 { // once for each reason
		t.Errorf("trouble: %q", told)
	}
	d.Restart()
	stream, err := a.send("GET", "")
	if err != nil || stream.StatusCode != 200 {
		t.Fatal(stream, err)
	}
	stream.Body.Close()
	before := d.Settle()
	if content := a.call("read_resource", reads("plan")); !strings.Contains(content, "the plan") {
		t.Error(content)
	}
	if log := summary(d.Since(before, "auth", "acquire")); !slices.Equal(log, []string{"auth worker ALLOWED", "acquire worker ALLOWED"}) {
		t.Errorf("the log: %q", log)
	}
}

// Revoking a key, or disabling its subject, ends streams and the next request; a
// session is nobody else's.
func TestGatewayRevocation(t *testing.T) {
	d := lone(t)
	d.AddSubject("other")
	_, theirs := mint(t, d, "other")
	f := stand(t, d, Limits{}, nil)
	for name, end := range map[string]func(id string){
		"revoked":  func(id string) { revoke(t, d, id) },
		"disabled": func(string) { d.SetEnabled("worker", false) },
	} {
		t.Run(name, func(t *testing.T) {
			d.SetEnabled("worker", true)
			id, key := mint(t, d, "worker")
			_, second := mint(t, d, "worker")
			a := f.agent(key)
			a.greet()
			for _, thief := range []string{theirs, second} {
				b := f.agent(thief)
				b.session = a.session
				for _, method := range []string{"POST", "GET", "DELETE"} {
					if got := b.do(method, `{"jsonrpc":"2.0","id":2,"method":"ping"}`); got.status != 404 {
						t.Errorf("%s with another key: %d %s", method, got.status, got.body)
					}
				}
			}
			stream, err := a.send("GET", "")
			if err != nil || stream.StatusCode != 200 {
				t.Fatal(stream, err)
			}
			defer stream.Body.Close()
			end(id)
			if rest, err := io.ReadAll(stream.Body); err != nil {
				t.Errorf("the stream: %q %v", rest, err)
			}
			for range 2 {
				if got := a.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`); got.status != 401 || !strings.Contains(got.body, "revoked_key") {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
		})
	}
}

// A key that expires takes its sessions along, with their streams, and what has none.
func TestGatewayExpiry(t *testing.T) {
	var step atomic.Int64
	d := daemontest.StartWith(t, daemontest.Options{Now: func() time.Time { return time.Now().Add(time.Duration(step.Load())) }})
	d.AddSubject("worker")
	minted, err := d.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "worker", TtlSeconds: 3600})
	if err != nil {
		t.Fatal(err)
	}
	f := stand(t, d, Limits{}, nil)
	a, lasting := f.agent(string(minted.GetToken())), f.agent("")
	_, lasting.key = mint(t, d, "worker")
	var streams []io.Reader
	for _, one := range []*agent{a, lasting} {
		one.greet()
		stream, err := one.send("GET", "")
		if err != nil || stream.StatusCode != 200 {
			t.Fatal(stream, err)
		}
		defer stream.Body.Close()
		streams = append(streams, stream.Body)
		if got := one.modern("tools/list", "", ""); got.status != 200 {
			t.Fatal(got.status, got.body)
		}
	}
	step.Store(int64(2 * time.Hour))
	if rest, err := io.ReadAll(streams[0]); err != nil {
		t.Errorf("its stream: %q %v", rest, err)
	}
	for name, got := range map[string]answered{
		"in its session": a.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`), "a stream": a.do("GET", ""),
		"without a session": a.modern("tools/list", "", ""), "a new session": a.do("POST", hello),
	} {
		if want := "{\"error\":\"unauthorized\",\"reason\":\"expired_key\"}\n"; got.status != 401 || got.body != want {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := lasting.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`); got.status != 200 {
		t.Errorf("a key that lasts: %d %s", got.status, got.body)
	}
	eventually(t, "only the other's sessions are left", func() bool { return f.sessions() == 2 })
	eventually(t, "its runs ended", func() bool { return len(d.Since(0, "run.end")) >= 2 })
	ended := d.Since(0, "run.end")
	for _, e := range ended {
		if e.Cause != "KEY_EXPIRED" {
			t.Errorf("a run ended with %s", e.Cause)
		}
	}
	if len(ended) != 2 {
		t.Errorf("%d runs ended", len(ended))
	}
}

// No key is anywhere but with its client: not in the home, not in what is said.
func TestGatewayKeepsNoKey(t *testing.T) {
	d := lone(t)
	_, key := mint(t, d, "worker")
	unknown := string(agentkey.New())
	f := stand(t, d, Limits{}, nil)
	a := f.agent(key)
	a.greet()
	a.call("read_resource", reads("plan"))
	a.modern("tools/list", "", "")
	f.agent(unknown).do("POST", hello)
	f.agent(key+"x").do("POST", hello, "X-Custodian-Principal", key)
	d.Stop()
	a.do("POST", `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	d.Start()
	marker := []byte("the plan")
	seen := map[string]bool{}
	look := func(where string, content []byte) {
		for _, secret := range []string{key, unknown} {
			for at := 0; at+20 <= len(secret); at += 7 {
				if at+20 > len(agentkey.Prefix) && bytes.Contains(content, []byte(secret[max(at, len(agentkey.Prefix)):at+20])) {
					t.Errorf("%s holds a part of a key", where)
				}
			}
		}
		seen[where] = bytes.Contains(content, []byte("worker"))
	}
	err := filepath.WalkDir(d.Home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		look(path, content)
		if bytes.Contains(content, marker) {
			t.Errorf("%s holds content in the clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	look("the daemon's messages", []byte(d.Messages()))
	look("what the gateway said", []byte(strings.Join(f.trouble(), "\n")))
	found := false // the log says worker: what is looked for would be found
	for _, is := range seen {
		found = found || is
	}
	if !found || len(f.trouble()) == 0 {
		t.Errorf("nothing was looked at: %v", seen)
	}
}
