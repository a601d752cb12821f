package mcpshim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// What a server says of a tool, and answers, has in it what no library of ours
// knows. It arrives as it is, byte for byte.
const (
	goldenTool   = `{"annotations":{"readOnlyHint":true,"x-new":[1.50]},"description":"é <&>\n","inputSchema":{"properties":{"q":{"type":"string"}},"type":"object"},"name":"golden","x-unknown":{"a":null,"z":12345678901234567890}}`
	goldenResult = `{"content":[{"type":"x-new","n":1.50,"deep":{"b":1,"a":-0}},{"type":"text","text":"é\n\"\u0001"}],"structuredContent":{"z":12345678901234567890,"a":[]},"_meta":{"k":"v"},"x-unknown":[true,null]}`
	goldenError  = `{"code":-5,"message":"no","data":{"b":1.0,"a":2},"x-unknown":1}`
)

func serverTools(objects ...string) (tools []*brokerv1.ServerTool) {
	for _, object := range objects {
		var named struct{ Name string }
		_ = json.Unmarshal([]byte(object), &named)
		tools = append(tools, &brokerv1.ServerTool{Name: named.Name, Object: []byte(object)})
	}
	return tools
}

// judged says one verdict, and then what follows it.
func judged(call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse), verdict *brokerv1.RelayVerdict, after ...*brokerv1.RelayResponse) *brokerv1.RelayVerdict {
	verdict.Id = call.GetId()
	tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: verdict}})
	for _, message := range after {
		tell(message)
	}
	return nil
}

func forward() *brokerv1.RelayVerdict {
	return &brokerv1.RelayVerdict{Forward: true, ReasonCode: string(wire.Allowed)}
}

func piece(call *brokerv1.RelayCall, text string, more bool, end worker.RelayEnd) *brokerv1.RelayResponse {
	return &brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{
		Id: call.GetId(), Piece: []byte(text), More: more, End: brokerv1.RelayEnd(end),
	}}}
}

func progressOf(call *brokerv1.RelayCall, params string) *brokerv1.RelayResponse {
	return &brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Progress{Progress: &brokerv1.RelayProgress{Id: call.GetId(), Params: []byte(params)}}}
}

// judge answers calls as their tool's name says.
func judge(ctx context.Context, open *brokerv1.RelayOpen, call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
	switch call.GetTool() {
	case "golden":
		return judged(call, tell, forward(), piece(call, goldenResult[:20], true, worker.EndOK), piece(call, goldenResult[20:], false, worker.EndOK))
	case "empty":
		return judged(call, tell, forward(), piece(call, `{}`, false, worker.EndOK))
	case "typed":
		return judged(call, tell, forward(), piece(call, `{"resultType":"other"}`, false, worker.EndOK))
	case "iserror":
		return judged(call, tell, forward(), piece(call, `{"isError":true,"content":[]}`, false, worker.EndToolError))
	case "error":
		return judged(call, tell, forward(), piece(call, goldenError, false, worker.EndError))
	case "dead":
		return judged(call, tell, forward(), piece(call, "", false, worker.EndTransport))
	case "twolines":
		return judged(call, tell, forward(), piece(call, "{}\n{\"jsonrpc\":\"2.0\",\"method\":\"x\"}", false, worker.EndOK))
	case "spread":
		return judged(call, tell, forward(), piece(call, "{\"a\":\n1}", false, worker.EndOK))
	case "where":
		text, _ := json.Marshal(fmt.Sprintf("%s %s %s %v", open.GetServer(), call.GetArguments(), call.GetMeta(), call.GetProgress()))
		return judged(call, tell, forward(), piece(call, `{"content":[{"type":"text","text":`+string(text)+`}]}`, false, worker.EndOK))
	case "progress":
		return judged(call, tell, forward(), progressOf(call, `{"progress":0.50,"x-new":{"b":1,"a":2}}`), progressOf(call, `{}`), progressOf(call, "{}\n{}"), piece(call, `{}`, false, worker.EndOK))
	case "hidden":
		return &brokerv1.RelayVerdict{Message: "access denied. Ask the person who runs this agent.", ReasonCode: string(wire.AccessDenied), Next: nextStep}
	case "blocked":
		return &brokerv1.RelayVerdict{Code: -32000, Message: "blocked by BudgetPolicy (block).", Policy: "BudgetPolicy", Action: "block", ReasonCode: string(wire.PolicyBlocked), Next: nextStep}
	case "pending":
		return &brokerv1.RelayVerdict{Code: -32001, Message: "APPROVAL_PENDING id=abc", Policy: "ApprovalPolicy", Action: "request_approval", ReasonCode: string(wire.ApprovalPending), Next: "Ask.", ApprovalId: "abc"}
	case "replay":
		return &brokerv1.RelayVerdict{Replay: []byte(goldenResult)}
	case "replayerror":
		return &brokerv1.RelayVerdict{Replay: []byte(goldenError), ReplayError: true}
	case "slow":
		tell(nil)
		<-ctx.Done()
		return nil
	case "large":
		judged(call, tell, forward())
		tell(piece(call, `{"text":"`, true, worker.EndOK))
		chunk := strings.Repeat("x", 256<<10)
		for range 40 { // 10 MiB
			tell(piece(call, chunk, true, worker.EndOK))
		}
		tell(piece(call, `"}`, false, worker.EndOK))
		return nil
	}
	return &brokerv1.RelayVerdict{Message: "access denied. Ask the person who runs this agent.", ReasonCode: string(wire.AccessDenied), Next: nextStep}
}

func hostedBroker(t *testing.T, servers ...string) *workertest.Broker {
	b := workertest.Start(t)
	b.Allow("worker")
	b.Trust(serverTools(goldenTool, `{"inputSchema":{"type":"object"},"name":"where"}`)...)
	b.SetServers(servers...)
	b.OnCall(judge)
	return b
}

const missingGrant = `{"content":[{"type":"text","text":"access denied. Ask the person who runs this agent."}],"isError":true}`

// Hosted tools are listed as their servers describe them, and called so that what
// they answer arrives as it is.
func TestHosted(t *testing.T) {
	b := hostedBroker(t, "hub", "list", "read")
	c := start(t, b, "worker")
	c.greet()
	line := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for _, server := range []string{"hub", "list", "read"} {
		if want := strings.Replace(goldenTool, `"name":"golden"`, `"name":"`+server+`_golden"`, 1); !strings.Contains(line, want) {
			t.Errorf("no %s in %s", want, line)
		}
	}
	var listed struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(line), &listed); err != nil || len(listed.Result.Tools) != 4+3*2 || strings.Contains(line, "ticket") {
		t.Errorf("%v: %s", err, line)
	}
	for _, tc := range []struct{ name, arguments, want string }{
		{"hub_golden", `{}`, `"result":` + goldenResult},
		{"hub_empty", `{}`, `"result":{}`},
		{"hub_iserror", `{}`, `"result":{"isError":true,"content":[]}`},
		{"hub_error", `{}`, `"error":` + goldenError},
		{"hub_replay", `{}`, `"result":` + goldenResult},
		{"hub_replayerror", `{}`, `"error":` + goldenError},
		{"hub_where", ` { "b" : 1.0 , "a" : "\u0041" } `, `"result":{"content":[{"type":"text","text":"hub {\"b\":1.0,\"a\":\"A\"}  false"}]}`},
		{"list_where", `null`, `"result":{"content":[{"type":"text","text":"list {}  false"}]}`},
		{"hub_where_else", `{}`, `"result":` + missingGrant},
		{"hub_hidden", `{}`, `"result":` + missingGrant},
		{"hub_blocked", `{}`, `"error":{"code":-32000,"message":"blocked by BudgetPolicy (block).","data":{"policy":"BudgetPolicy","action":"block","reasonCode":"POLICY_BLOCKED","next":"Ask the person who runs this agent."}}`},
		{"hub_pending", `{}`, `"error":{"code":-32001,"message":"APPROVAL_PENDING id=abc","data":{"policy":"ApprovalPolicy","action":"request_approval","reasonCode":"APPROVAL_PENDING","next":"Ask.","approvalId":"abc"}}`},
		{"hub_dead", `{}`, `"result":{"content":[{"type":"text","text":"The server of this tool did not answer. Whether it did what was asked is not known. Ask the person who runs this agent."}],"isError":true}`},
		{"hub_twolines", `{}`, `"result":{"content":[{"type":"text","text":"The server of this tool gave an answer that cannot be passed on. Ask the person who runs this agent."}],"isError":true}`},
		{"hub_spread", `{}`, `"result":{"content":[{"type":"text","text":"The server of this tool gave an answer that cannot be passed on. Ask the person who runs this agent."}],"isError":true}`},
		{"hub_golden", `[]`, `"error":{"code":-32602,"message":"invalid params: the arguments are not an object"}`},
		{"hub_golden", `"x"`, `"error":{"code":-32602,"message":"invalid params: the arguments are not an object"}`},
	} {
		got := c.ask(`{"jsonrpc":"2.0","id":1.50,"method":"tools/call","params":{"name":"` + tc.name + `","arguments":` + tc.arguments + `}}`)
		if want := `{"jsonrpc":"2.0","id":1.50,` + tc.want + `}`; got != want {
			t.Errorf("%s %s:\n got %s\nwant %s", tc.name, tc.arguments, got, want)
		}
	}
	if got, _ := c.call("capability_report", `{}`); !strings.Contains(got, `"Each call of a tool of a hosted server is judged and recorded before the server sees it."`) {
		t.Errorf("capability_report: %s", got)
	}
	// Ours stay ours, whatever a server is called.
	if got, isError := c.call("list_resources", `{}`); got != `{"resources":[],"reasonCode":"ALLOWED"}` || isError {
		t.Errorf("list_resources: %s", got)
	}
	// What can be no hosted tool's name is the SDK's to refuse.
	for _, name := range []string{"nothing", "Hub_golden", "hub_", "_golden", "-a_b", strings.Repeat("a", 33) + "_b"} {
		if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `"}}`); !strings.Contains(got, `"code":-32602`) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A server that is not there is denied in the words of a tool that is not there.
func TestHostedUnknownServer(t *testing.T) {
	b := hostedBroker(t)
	c := start(t, b, "worker")
	c.greet()
	b.RefuseRelays(wire.AccessDenied)
	for _, tc := range []struct {
		reason wire.Reason
		want   string
	}{
		{wire.AccessDenied, `"result":` + missingGrant},
		{wire.VaultLocked, `"error":{"code":-32000,"message":"the vault is locked. Ask the person who runs this agent.","data":{"reasonCode":"VAULT_LOCKED","next":"Ask the person who runs this agent."}}`},
	} {
		b.RefuseRelays(tc.reason)
		got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nobody_golden"}}`)
		if want := `{"jsonrpc":"2.0","id":1,` + tc.want + `}`; got != want {
			t.Errorf("%s:\n got %s\nwant %s", tc.reason, got, want)
		}
	}
	b.Stop()
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nobody_golden"}}`); !strings.Contains(got, `"code":-32000,"message":"the broker cannot be reached. `) {
		t.Errorf("without a daemon: %s", got)
	}
}

// Before anything was listed, a call finds its server all the same.
func TestHostedUnlisted(t *testing.T) {
	b := hostedBroker(t, "hub")
	c := start(t, b, "worker")
	c.greet()
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_golden"}}`
	c.send(call)
	for answers, told := 0, false; answers < 3 || !told; {
		switch line := c.next(); {
		case strings.Contains(line, "notifications/tools/list_changed"):
			told = true
		case line == `{"jsonrpc":"2.0","id":1,"result":`+goldenResult+`}`:
			if answers++; answers < 3 {
				c.send(call)
			}
		default:
			t.Fatalf("got %s", line)
		}
	}
}

// In the era without sessions a result says of what type it is, and what is
// between the client and us does not go to the server.
func TestHostedStateless(t *testing.T) {
	b := hostedBroker(t, "hub")
	c := start(t, b, "worker")
	line := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`)
	if want := strings.Replace(goldenTool, `"name":"golden"`, `"name":"hub_golden"`, 1); !strings.Contains(line, want) || !strings.Contains(line, `"cacheScope":"private"`) {
		t.Errorf("no %s in %s", want, line)
	}
	for name, want := range map[string]string{
		"golden": `"result":{"resultType":"complete",` + goldenResult[1:],
		"empty":  `"result":{"resultType":"complete"}`,
		"typed":  `"result":{"resultType":"other"}`,
		"error":  `"error":` + goldenError,
		"hidden": `"result":` + strings.TrimSuffix(missingGrant, "}") + `,"resultType":"complete"}`,
		"where":  `"result":{"resultType":"complete","content":[{"type":"text","text":"hub {} {\"trace\":[1.0]} false"}]}`,
	} {
		params := strings.TrimSuffix(meta, "}") + `,"trace":[1.0]}`
		got := c.ask(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"hub_` + name + `",` + params + `}}`)
		if want := `{"jsonrpc":"2.0","id":"x",` + want + `}`; got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

// Where headers repeat arguments, they say what the arguments say, or the call is
// not made. Over streams nothing is repeated.
func TestHostedRepeated(t *testing.T) {
	b := hostedBroker(t, "hub")
	b.Trust(serverTools(`{"inputSchema":{"properties":{"region":{"type":"string","x-mcp-header":"Region"}},"type":"object"},"name":"where"}`)...)
	said := map[string][]string{`"eu"`: {"eu"}, `"us"`: {"us"}, `"two"`: {"eu", "eu"}}
	over := start(t, b, "worker", func(c *Config) {
		c.Repeated = func(id []byte, header string) ([]string, bool) {
			if header != "Mcp-Param-Region" {
				return nil, string(id) != `"session"`
			}
			return said[string(id)], string(id) != `"session"`
		}
	})
	for id, want := range map[string]bool{`"eu"`: true, `"us"`: false, `"two"`: false, `"none"`: false, `"session"`: true} {
		call := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"hub_where","arguments":{"region":"eu"},` + meta + `}}`
		got := over.ask(call)
		if made := strings.Contains(got, `{\"region\":\"eu\"}`); made != want || !made && !strings.Contains(got, `"error":{"code":-32020,"message":"the header Mcp-Param-Region is not`) {
			t.Errorf("%s: %s", id, got)
		}
	}
	streams := start(t, b, "worker")
	if got := streams.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_where","arguments":{"region":"eu"},` + meta + `}}`); !strings.Contains(got, `"result"`) {
		t.Errorf("over streams: %s", got)
	}
}

// Progress comes with the client's token, before the answer and not after it.
func TestHostedProgress(t *testing.T) {
	b := hostedBroker(t, "hub")
	c := start(t, b, "worker")
	c.greet()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_progress","_meta":{"progressToken":"to\u006ben"}}}`)
	var got []string
	for len(got) < 3 {
		if line := c.next(); !strings.Contains(line, "list_changed") {
			got = append(got, line)
		}
	}
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"to\u006ben","progress":0.50,"x-new":{"b":1,"a":2}}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"to\u006ben"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// Who did not ask gets none.
	if got := c.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"hub_progress"}}`); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Errorf("got %s", got)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"hub_where","_meta":{"progressToken":7}}}`); !strings.Contains(got, "true") {
		t.Errorf("got %s", got)
	}
}

// A call that waits holds up no other, of whatever server; cancelled it is
// cancelled at the daemon, and not answered.
func TestHostedCancelled(t *testing.T) {
	b := hostedBroker(t, "hub", "other")
	c := start(t, b, "worker")
	c.greet()
	c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for i := range 10 {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"slow %d","method":"tools/call","params":{"name":"hub_slow"}}`, i))
	}
	for _, server := range []string{"hub", "other"} {
		if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + server + `_empty"}}`); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("got %s", got)
		}
	}
	for i, beside := range []string{
		"", `,"reason":"x","zz":[1, 2]`, `,"_meta":{"io.modelcontextprotocol/protocolVersion":"1"}`, `,"reason":"` + strings.Repeat("r", 5<<10) + `"`,
		"", "", "", "", "", "",
	} {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow %d"%s}}`, i, beside))
	}
	workertest.Eventually(t, "ten cancels", func() bool {
		cancels, why := 0, 0
		for _, line := range b.Relayed() {
			switch line {
			case "cancel":
				cancels++
			case `cancel {"reason":"x","zz":[1,2]}`:
				why++
			}
		}
		return cancels == 9 && why == 1
	})
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_empty"}}`); got != `{"jsonrpc":"2.0","id":1,"result":{}}` {
		t.Errorf("got %s", got)
	}
	// The ids are free again.
	if got := c.ask(`{"jsonrpc":"2.0","id":"slow 1","method":"tools/call","params":{"name":"hub_empty"}}`); got != `{"jsonrpc":"2.0","id":"slow 1","result":{}}` {
		t.Errorf("got %s", got)
	}
}

// Many calls at once, of two servers.
func TestHostedConcurrent(t *testing.T) {
	b := hostedBroker(t, "hub", "other")
	c := start(t, b, "worker")
	c.greet()
	go func() {
		for i := range 200 {
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s_golden"}}`, i, []string{"hub", "other"}[i%2]))
		}
	}()
	seen := map[string]bool{}
	for range 200 {
		line := c.nextAnswer()
		id, rest, _ := strings.Cut(strings.TrimPrefix(line, `{"jsonrpc":"2.0","id":`), ",")
		if rest != `"result":`+goldenResult+`}` || seen[id] {
			t.Fatalf("got %s", line)
		}
		seen[id] = true
	}
}

// The client hears when the tools are others, and only then.
func TestHostedListChanged(t *testing.T) {
	b := hostedBroker(t)
	c := start(t, b, "worker")
	c.greet()
	const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{}}`
	list := func() string { return c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`) }
	if got := list(); strings.Contains(got, "golden") {
		t.Errorf("listed before there is one: %s", got)
	}
	b.SetServers("hub")
	if got := c.next(); got != changed {
		t.Errorf("got %s", got)
	}
	if got := list(); !strings.Contains(got, "hub_golden") {
		t.Errorf("not listed: %s", got)
	}
	b.Trust(serverTools(`{"inputSchema":{},"name":"new"}`, `{"inputSchema":{},"name":"`+strings.Repeat("n", 60)+`"}`, `{"inputSchema":{},"name":"`+strings.Repeat("m", 61)+`"}`)...)
	if got := c.next(); got != changed {
		t.Errorf("got %s", got)
	}
	if got := list(); strings.Contains(got, "golden") || !strings.Contains(got, "hub_new") || !strings.Contains(got, "hub_nnn") || strings.Contains(got, "hub_mmm") {
		t.Errorf("not the new ones: %s", got)
	}
	b.SetServers("hub") // the same again
	b.SetServers()
	if got := c.next(); got != changed {
		t.Errorf("got %s", got)
	}
	if got := list(); strings.Contains(got, "hub_") {
		t.Errorf("still listed: %s", got)
	}
}

// A daemon that comes late is told of, with the tools that it has.
func TestHostedLateDaemon(t *testing.T) {
	b := workertest.New(t)
	b.Allow("worker")
	b.Trust(serverTools(goldenTool)...)
	b.SetServers("hub")
	b.OnCall(judge)
	c := start(t, b, "worker")
	c.greet()
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); strings.Contains(got, "golden") {
		t.Fatalf("listed without a daemon: %s", got)
	}
	b.Start()
	for !strings.Contains(c.next(), "notifications/tools/list_changed") {
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); !strings.Contains(got, "hub_golden") {
		t.Errorf("not listed: %s", got)
	}
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_golden"}}`); !strings.Contains(got, goldenResult) {
		t.Errorf("got %s", got)
	}
	b.Stop()
	b.Start()
	workertest.Eventually(t, "a call after the daemon came back", func() bool {
		return strings.Contains(c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_golden"}}`), goldenResult)
	})
}

// What is in flight when the input ends is answered first.
func TestHostedDrains(t *testing.T) {
	b := hostedBroker(t, "hub")
	open := make(chan struct{})
	b.OnCall(func(ctx context.Context, o *brokerv1.RelayOpen, call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		<-open
		return judge(ctx, o, call, tell)
	})
	c := start(t, b, "worker")
	c.greet()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_golden"}}`)
	workertest.Eventually(t, "the call is there", func() bool { return len(b.Relayed()) > 1 })
	c.in.Close()
	close(open)
	if got := c.nextAnswer(); !strings.Contains(got, goldenResult) {
		t.Errorf("got %s", got)
	}
	if err := <-c.done; err != nil {
		t.Error(err)
	}
}

// A stop does not wait for a server that may never answer; the agent is not told that
// the broker is away, which it is not. The control is TestHostedDrains.
func TestHostedStopped(t *testing.T) {
	b := hostedBroker(t, "hub")
	c := start(t, b, "worker")
	c.greet()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_slow"}}`)
	workertest.Eventually(t, "the call is there", func() bool { return len(b.Relayed()) > 1 })
	c.cancel()
	if got := c.nextAnswer(); !strings.Contains(got, cutOff) || !strings.Contains(got, `"isError":true`) || strings.Contains(got, string(wire.BrokerUnavailable)) {
		t.Errorf("got %s", got)
	}
	if err := <-c.done; err != nil {
		t.Error(err)
	}
}

// What is in flight when the client is gone is not waited for: its server may never
// answer. The control is TestHostedDrains.
func TestHostedAbandoned(t *testing.T) {
	b := hostedBroker(t, "hub")
	in, client, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	done := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() {
		defer close(done)
		_ = Serve(ctx, Config{Worker: worker.Config{Places: b.Places, Subject: "worker", Version: "1.2.3"}, In: in, Out: out})
	}()
	fmt.Fprintln(client, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_slow"}}`)
	workertest.Eventually(t, "the call is there", func() bool { return len(b.Relayed()) > 1 })
	if _, err := bufio.NewReader(answers).ReadString('\n'); err != nil { // that there are tools: nothing more is written by itself
		t.Error(err)
	}
	client.Close()
	answers.Close()
	<-done
	if ctx.Err() != nil {
		t.Error("it waits for an answer that nobody reads")
	}
}

// A large answer passes whole.
func TestHostedLarge(t *testing.T) {
	b := hostedBroker(t, "hub")
	c := start(t, b, "worker")
	c.greet()
	if got := c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_large"}}`); len(got) < 10<<20 || strings.Count(got, "x") != 10<<20+1 { // and that of the key
		t.Errorf("%d bytes", len(got))
	}
}

// A large call passes whole, up to 10 MiB of arguments.
func TestHostedLargeCall(t *testing.T) {
	b := hostedBroker(t, "hub")
	sizes := make(chan int, 1)
	b.OnCall(func(ctx context.Context, o *brokerv1.RelayOpen, call *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
		sizes <- len(call.GetArguments())
		return judge(ctx, o, call, tell)
	})
	c := start(t, b, "worker")
	c.greet()
	ask := func(size int) string {
		return c.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hub_empty","arguments":{"x":"` + strings.Repeat("a", size-8) + `"}}}`)
	}
	if got := ask(10 << 20); got != `{"jsonrpc":"2.0","id":1,"result":{}}` || <-sizes != 10<<20 {
		t.Errorf("got %.300s", got)
	}
	if got := ask(10<<20 + 1); !strings.Contains(got, `"code":-32602,"message":"the arguments are too large. `) {
		t.Errorf("got %.300s", got)
	}
}

// The SDK's own client lists and calls them like any.
func TestHostedSDKClient(t *testing.T) {
	b := hostedBroker(t, "hub")
	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(t.Context(), Config{Worker: worker.Config{Places: b.Places, Subject: "worker", Version: "1"}, In: inReader, Out: outWriter})
		outWriter.Close()
	}()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "0"}, nil).Connect(t.Context(), &mcp.IOTransport{Reader: outReader, Writer: inWriter}, nil)
	if err != nil {
		t.Fatal(err)
	}
	tools, err := session.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 6 || tools.Tools[4].Name != "hub_golden" {
		t.Errorf("tools: %v, %v", tools, err)
	}
	got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "hub_where", Arguments: map[string]any{"a": 1}})
	if err != nil || got.IsError || !strings.Contains(got.Content[0].(*mcp.TextContent).Text, `hub {"a":1}`) {
		t.Errorf("call: %v, %v", got, err)
	}
	session.Close()
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
