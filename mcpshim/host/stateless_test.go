package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/stateless"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

const boundTool = `{"inputSchema":{"properties":{"deep":{"properties":{"n":{"type":"integer","x-mcp-header":"N"}},"type":"object"},"region":{"type":"string","x-mcp-header":"Region"}},"type":"object"},"name":"bound"}`

// newer is a server of the era without sessions alone, which is strict about it.
type newer struct {
	mu      sync.Mutex
	changed bool     // it has another tool
	listens []string // ids of streams of changes
}

// answer is the answer to a request, or the error.
func (n *newer) answer(method string, params json.RawMessage) (result, failure string) {
	var p struct {
		Name string
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(params, &p)
	switch {
	case method == "initialize":
		return "", `{"code":-32601,"message":"method not found"}`
	case string(p.Meta[keyRevision]) != `"2026-07-28"` || string(p.Meta[keyCapabilities]) != `{}` || !strings.Contains(string(p.Meta[keyClientInfo]), `"subject-broker"`):
		return "", `{"code":-32602,"message":"no _meta"}`
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch method {
	case "server/discover":
		return `{"resultType":"complete","supportedVersions":["2027-01-01","2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"instructions":"Be new"}`, ""
	case "tools/list":
		if n.changed {
			return `{"resultType":"complete","tools":[{"name":"other"}],"ttlMs":0,"cacheScope":"private"}`, ""
		}
		return `{"resultType":"complete","tools":[{"name":"echo"},` + boundTool + `]}`, ""
	case "tools/call":
		switch p.Name {
		case "asks":
			return `{"resultType":"input_required","inputRequests":{}}`, ""
		case "change":
			n.changed = true
		}
		return `{"resultType":"complete","content":[],"saw":` + string(params) + `}`, ""
	}
	return "", `{"code":-32601,"message":"method not found"}`
}

// serveStdio speaks over the standard streams; with mute it says nothing to
// initialize.
func (n *newer) serveStdio(from io.Reader, mute bool) int {
	in := bufio.NewScanner(from)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if json.Unmarshal(in.Bytes(), &m) != nil {
			return 9
		}
		switch {
		case m.Method == methodListen:
			fmt.Printf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{"toolsListChanged":true}}}`+"\n", m.ID)
			n.listens = append(n.listens, string(m.ID))
			continue
		case m.ID == nil, mute && m.Method == "initialize":
			fmt.Fprintln(os.Stderr, "heard", m.Method)
			continue
		}
		before := n.changed
		result, failure := n.answer(m.Method, m.Params)
		if failure != "" {
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":%s}`+"\n", m.ID, failure)
			continue
		}
		if n.changed != before {
			for _, id := range n.listens {
				fmt.Printf(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`+"\n", id)
			}
		}
		fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", m.ID, result)
	}
	return 0
}

// ServeHTTP is strict about the headers, and answers initialize as refuse says.
func (n *newer) serveHTTP(refuse func(w http.ResponseWriter, id json.RawMessage), seen func(method string, headers http.Header)) http.Handler {
	changes := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &m)
		var raw struct{ Params json.RawMessage }
		_ = json.Unmarshal(body, &raw)
		seen(strings.TrimSpace(r.Method+" "+m.Method), r.Header)
		if m.Method == "initialize" {
			refuse(w, m.ID)
			return
		}
		if r.Header.Get("Mcp-Protocol-Version") != "2026-07-28" || r.Header.Get("Mcp-Method") != m.Method || r.Header.Get("Mcp-Name") != m.Params.Name ||
			r.Header.Get("Mcp-Session-Id") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if m.Method == methodListen {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			select {
			case <-changes:
				io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\",\"params\":{}}\n\n")
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			case <-r.Context().Done():
			}
			return
		}
		result, failure := n.answer(m.Method, raw.Params)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "not in this era")
		if failure != "" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, failure)
			return
		}
		if m.Params.Name == "change" {
			changes <- struct{}{}
		}
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	})
}

// checkNewer is what holds for any server of that era.
func checkNewer(t *testing.T, d *daemon) {
	t.Helper()
	started, listed := d.greeted()
	if started.GetRevision() != stateless.Revision || listed.GetInstructions() != "Be new" || len(listed.GetTools()) != 2 {
		t.Fatalf("%v %v", started, listed)
	}
	d.call(&hostv1.Call{
		Id: 5, Tool: "echo", Arguments: []byte(`{"a":1.0}`), Progress: true,
		Meta: []byte(`{"mine":1,"io.modelcontextprotocol/protocolVersion":"1999-01-01","progressToken":"theirs"}`),
	})
	got, end := d.answer(5)
	if end != hostv1.End_END_OK || !strings.Contains(got, `"arguments":{"a":1.0}`) || !strings.Contains(got, `"mine":1`) || strings.Contains(got, "1999") || strings.Contains(got, "theirs") {
		t.Errorf("%v %s", end, got)
	}
	if err := canon.Check([]byte(got)); err != nil {
		t.Errorf("%v: %s", err, got)
	}
	if got, end := d.ask("asks", `{}`); end != hostv1.End_END_TRANSPORT || got != "" {
		t.Errorf("a result that is none: %v %s", end, got)
	}
	d.call(&hostv1.Call{Id: 6, Tool: "bound", Arguments: []byte(`{"region":"å b","deep":{"n":3.0}}`)})
	if got, end := d.answer(6); end != hostv1.End_END_OK {
		t.Errorf("%v %s", end, got)
	}
	d.call(&hostv1.Call{Id: 7, Tool: "change", Arguments: []byte(`{}`)})
	for answered, listed := false, false; !answered || !listed; { // in any order, over HTTP
		m := d.next()
		if a := m.GetAnswer(); a != nil {
			answered = true
			if a.GetId() != 7 || a.GetEnd() != hostv1.End_END_OK {
				t.Errorf("change: %v", a)
			}
		}
		if l := m.GetListed(); l != nil {
			listed = true
			if len(l.GetTools()) != 1 || l.GetTools()[0].GetName() != "other" || l.GetInstructions() != "Be new" {
				t.Errorf("listed again: %v", l)
			}
		}
	}
}

// A server that does not know initialize is spoken to in the era without sessions,
// also when it only holds its tongue.
func TestStateless(t *testing.T) {
	t.Run("refuses initialize", func(t *testing.T) {
		checkNewer(t, serve(t, stubStart(t, "newer"), Config{}))
	})
	t.Run("says nothing to initialize", func(t *testing.T) {
		checkNewer(t, serve(t, stubStart(t, "newer-mute"), Config{silence: 50 * time.Millisecond}))
	})
}

// A server that knows initialize never hears of the other era, so that one that ends
// at a word that it does not know goes on; one that ends at initialize is started
// once more, and hears of that era alone.
func TestEndsAtAStrangeWord(t *testing.T) {
	d := serve(t, stubStart(t, "touchy"), Config{})
	if started, _ := d.greeted(); started.GetRevision() != revisions[0] {
		t.Errorf("revision %q", started.GetRevision())
	}
	checkNewer(t, serve(t, stubStart(t, "newer-touchy"), Config{}))
}

func TestStatelessRemote(t *testing.T) {
	for _, tc := range []struct {
		name   string
		refuse func(w http.ResponseWriter, id json.RawMessage)
	}{
		{"as the revision says", func(w http.ResponseWriter, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, id)
		}},
		{"with another revision", func(w http.ResponseWriter, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}}`, id)
		}},
		{"as an answer", func(w http.ResponseWriter, id json.RawMessage) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, id)
		}},
		{"in words of HTTP", func(w http.ResponseWriter, _ json.RawMessage) { http.Error(w, "Bad Request", http.StatusBadRequest) }},
		{"without words", func(w http.ResponseWriter, _ json.RawMessage) { w.WriteHeader(http.StatusMethodNotAllowed) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t, plainHTTP)
			var mu sync.Mutex
			var methods []string
			params := map[string]string{}
			s.replace((&newer{}).serveHTTP(tc.refuse, func(method string, headers http.Header) {
				mu.Lock()
				defer mu.Unlock()
				methods = append(methods, method)
				for _, name := range []string{"Mcp-Param-Region", "Mcp-Param-N"} {
					if value := headers.Get(name); value != "" {
						params[name] = value
					}
				}
				if headers.Get("Authorization") != "Bearer hush" {
					t.Errorf("%s without its header", method)
				}
			}))
			d := serve(t, s.start(), Config{})
			checkNewer(t, d)
			mu.Lock()
			defer mu.Unlock()
			for _, method := range methods {
				if method == "GET" || method == "DELETE" || strings.Contains(method, "notifications/") {
					t.Errorf("a %s in the era without sessions: %q", method, methods)
				}
			}
			if diff := cmp.Diff(map[string]string{"Mcp-Param-N": "3", "Mcp-Param-Region": "=?base64?w6UgYg==?="}, params); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Arguments that a tool wants to see in headers stand there, and in no other way.
func TestBindings(t *testing.T) {
	s := &session{}
	s.bind([]*hostv1.Tool{{Name: "bound", Object: []byte(boundTool)}, {Name: "bad", Object: []byte(`{"inputSchema":{"properties":{"a":{"x-mcp-header":"A\r\nAuthorization"},"b":{"x-mcp-header":7}}}}`)}})
	for _, tc := range []struct {
		tool, arguments string
		want            [][2]string
	}{
		{"bound", `{"region":"eu","deep":{"n":3.0}}`, [][2]string{{"Mcp-Param-N", "3"}, {"Mcp-Param-Region", "eu"}}},
		{"bound", `{"region":"å\r\nX: y","deep":{"n":1.5}}`, [][2]string{{"Mcp-Param-Region", "=?base64?w6UNClg6IHk=?="}}},
		{"bound", `{"region":null,"deep":[]}`, nil},
		{"bound", `{"region":"` + strings.Repeat("x", stateless.MaxHeaderValue) + `","deep":{"n":true}}`, [][2]string{{"Mcp-Param-N", "true"}}},
		{"bad", `{"a":"x","b":"y"}`, nil},
		{"none", `{"region":"eu"}`, nil},
	} {
		got := s.headersOfCall(&hostv1.Call{Tool: tc.tool, Arguments: []byte(tc.arguments)})[3:]
		if len(got) == 0 {
			got = nil
		}
		if len(got) == 2 && got[0][0] > got[1][0] { // a schema has no order
			got[0], got[1] = got[1], got[0]
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s %.60s: %s", tc.tool, tc.arguments, diff)
		}
	}
}

// The SDK's own server, made to know that era alone, is hosted.
func TestStatelessOfTheSDK(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "new", Version: "1"}, &mcp.ServerOptions{Instructions: "Be new"})
	type in struct {
		Region string `json:"region"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "hello", Description: "says hello"}, func(_ context.Context, _ *mcp.CallToolRequest, a in) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello " + a.Region}}}, nil, nil
	})
	server.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
			if method == "initialize" {
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no"}
			}
			return next(ctx, method, r)
		}
	})
	s := newSite(t, plainHTTP)
	s.replace(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true}))
	d := serve(t, s.start(), Config{})
	if started, listed := d.greeted(); started.GetRevision() != stateless.Revision || len(listed.GetTools()) != 1 || listed.GetInstructions() != "Be new" {
		t.Fatalf("%v %v", started, listed)
	}
	if got, end := d.ask("hello", `{"region":"you"}`); end != hostv1.End_END_OK || !strings.Contains(got, "hello you") {
		t.Errorf("%v %s", end, got)
	}
}
