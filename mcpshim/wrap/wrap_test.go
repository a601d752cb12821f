package wrap

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

// quickRace keeps a stub that was built with the race detector from sleeping a
// second before it ends.
const quickRace = "GORACE=atexit_sleep_ms=0"

// talk is a client's end of a wrapped stub.
type talk struct {
	t       *testing.T
	in      io.WriteCloser
	out     *bufio.Reader
	log     string
	signals chan os.Signal
	ended   chan struct{}
	code    int
	session *session

	mu       sync.Mutex
	troubles []string
}

// wrapStub wraps a stub for the subject worker, under the broker b.
func wrapStub(t *testing.T, b *workertest.Broker, adjust ...func(*Config, *session)) *talk {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inReader, in := io.Pipe()
	outReader, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{t: t, in: in, out: bufio.NewReader(outReader), log: filepath.Join(t.TempDir(), "log"), signals: make(chan os.Signal, 1), ended: make(chan struct{})}
	config := Config{
		Worker: worker.Config{Places: b.Places, Subject: "worker", Version: "test"}, Server: "stub", Command: []string{self},
		Environ: []string{stubLog + "=" + k.log, stubPages + `=[{"name":"a"},{"name":"b"}]`, quickRace}, In: inReader, Out: out, Signals: k.signals, Stderr: os.Stderr,
		Trouble: func(text string) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.troubles = append(k.troubles, text)
		},
	}
	k.session = newSession(config)
	for _, change := range adjust {
		change(&config, k.session)
	}
	go func() {
		defer close(k.ended)
		defer out.Close()
		code, err := k.session.serve(context.Background(), config)
		if err != nil {
			t.Errorf("serve: %v", err)
		}
		k.code = code
	}()
	t.Cleanup(func() {
		in.Close()
		<-k.ended
		inReader.Close()
		outReader.Close()
	})
	return k
}

func environ(pairs ...string) func(*Config, *session) {
	return func(c *Config, _ *session) { c.Environ = append(c.Environ, pairs...) }
}

func (k *talk) send(lines ...string) {
	k.t.Helper()
	for _, line := range lines {
		if _, err := io.WriteString(k.in, line+"\n"); err != nil {
			k.t.Fatal(err)
		}
	}
}

func (k *talk) next() string {
	k.t.Helper()
	line, err := k.out.ReadString('\n')
	if err != nil {
		k.t.Fatalf("reading: %v", err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (k *talk) ask(line string) string {
	k.t.Helper()
	k.send(line)
	return k.next()
}

// close ends the client's input and returns the rest of the output.
func (k *talk) close() (rest string, code int) {
	k.in.Close()
	return k.rest()
}

func (k *talk) rest() (rest string, code int) {
	all, _ := io.ReadAll(k.out)
	<-k.ended
	return string(all), k.code
}

// seen are the lines that the stub got.
func (k *talk) seen() []string {
	content, err := os.ReadFile(k.log)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

func tool(id, name string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + name + `"}}`
}

// broker is a fake that allows the subject worker everything but the tool
// "forbidden", blocks "blocked" and has a person asked for "gated".
func broker(t *testing.T) *workertest.Broker {
	t.Helper()
	b := workertest.Start(t)
	b.Allow("worker")
	b.OnCall(judgeByName)
	return b
}

func judgeByName(ctx context.Context, _ *brokerv1.RelayOpen, c *brokerv1.RelayCall, tell func(*brokerv1.RelayResponse)) *brokerv1.RelayVerdict {
	switch {
	case c.GetTool() == "forbidden":
		return &brokerv1.RelayVerdict{Message: "access denied. " + askAPerson, ReasonCode: "ACCESS_DENIED", Next: askAPerson}
	case c.GetTool() == "blocked":
		return &brokerv1.RelayVerdict{Code: -32000, Message: "blocked by BudgetPolicy", Policy: "BudgetPolicy", Action: "block", ReasonCode: "POLICY_BLOCKED", Next: "n"}
	case c.GetTool() == "killing":
		return &brokerv1.RelayVerdict{Code: -32000, Message: "killed", Policy: "DeniedToolsPolicy", Action: "kill", ReasonCode: "POLICY_BLOCKED", Next: "n"}
	case c.GetTool() == "pending":
		return &brokerv1.RelayVerdict{
			Code: -32001, Message: "APPROVAL_PENDING id=x1", Policy: "ApprovalPolicy", Action: "request_approval", ReasonCode: "APPROVAL_PENDING", Next: "n", ApprovalId: "x1",
		}
	case c.GetTool() == "replayed":
		return &brokerv1.RelayVerdict{Replay: []byte(`{"content":["before"]}`)}
	case c.GetTool() == "refailed":
		return &brokerv1.RelayVerdict{Replay: []byte(`{"code":-1,"message":"before"}`), ReplayError: true}
	case c.GetTool() == "approved":
		return &brokerv1.RelayVerdict{Forward: true, Approved: true}
	case c.GetTool() == "gated":
		tell(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.GetId(), ApprovalId: "x2"}}})
		<-ctx.Done()
		return nil
	case c.GetTool() == "" && c.GetMethod() != "custom/allowed":
		return &brokerv1.RelayVerdict{Code: -32000, Message: "blocked by MethodPolicy", Policy: "MethodPolicy", Action: "block", ReasonCode: "POLICY_BLOCKED"}
	}
	return &brokerv1.RelayVerdict{Forward: true}
}

// What the client asks, what it gets, and what the server sees of it.
func TestLines(t *testing.T) {
	b := broker(t)
	for _, tc := range []struct {
		name, line, answer string
		server             string // empty: nothing
	}{
		{
			"allowed", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":1.0},"line":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`,
		},
		{
			"written again",
			" { \"params\" : {\"_meta\":{\"k\" : [1.50, 1e3]},\"arguments\":{ \"z\":-0,\"a\":\"\\u0041\\/\\ud83d\\ude00\", \"n\" : 9007199254740993 },\"name\":\"\\u0061\",\"more\":null} ,\r \"x\":{ \"y\":1.0},\"method\":\" Tools/CALL \", \"id\":\"\\u0041 b\",\"jsonrpc\":\"2.0\"}",
			`{"jsonrpc":"2.0","id":"\u0041 b","result":{"content":[],"structuredContent":{"n":1.0},"line":{"params":{"_meta":{"k":[1.50,1e3]},"arguments":{"z":-0,"a":"A/😀","n":9007199254740993},"name":"a","more":null},"x":{"y":1.0},"method":"tools/call","id":"\u0041 b","jsonrpc":"2.0"}}}`,
			`{"params":{"_meta":{"k":[1.50,1e3]},"arguments":{"z":-0,"a":"A/😀","n":9007199254740993},"name":"a","more":null},"x":{"y":1.0},"method":"tools/call","id":"\u0041 b","jsonrpc":"2.0"}`,
		},
		{
			"the older name", `{"jsonrpc":"2.0","id":1,"method":"CALL_TOOL","params":{"name":"a"}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":1.0},"line":{"jsonrpc":"2.0","id":1,"method":"call_tool","params":{"name":"a"}}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"call_tool","params":{"name":"a"}}`,
		},
		{
			"no permission", tool("1", "forbidden"),
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"access denied. Ask the person who runs this agent."}],"isError":true}}`, "",
		},
		{
			"no permission, in the newer era", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"forbidden","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"access denied. Ask the person who runs this agent."}],"isError":true,"resultType":"complete"}}`, "",
		},
		{
			"blocked", tool("1.5", "blocked"),
			`{"jsonrpc":"2.0","id":1.5,"error":{"code":-32000,"message":"blocked by BudgetPolicy","data":{"policy":"BudgetPolicy","action":"block","reasonCode":"POLICY_BLOCKED","next":"n"}}}`, "",
		},
		{
			"pending", tool("1", "pending"),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"APPROVAL_PENDING id=x1","data":{"policy":"ApprovalPolicy","action":"request_approval","reasonCode":"APPROVAL_PENDING","next":"n","approvalId":"x1"}}}`, "",
		},
		{"replayed", tool("1", "replayed"), `{"jsonrpc":"2.0","id":1,"result":{"content":["before"]}}`, ""},
		{"an error replayed", tool("1", "refailed"), `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"before"}}`, ""},
		{"no name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: a call names a tool"}}`, ""},
		{"no parameters", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: a call names a tool"}}`, ""},
		{"a number for a name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: the tool's name is not a string"}}`, ""},
		{"a list of arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":[]}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: the arguments are not an object"}}`, ""},
		{"null for arguments", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":null}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: the arguments are not an object"}}`, ""},
		{"parameters in a list", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["a"]}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: not an object"}}`, ""},
		{"a key twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":1,"\u0078":2}}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"invalid request: a key stands twice in one object"}}`, ""},
		{"a name in another case", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Name":"forbidden"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"invalid params: a key is written in another case"}}`, ""},
		{"a method in another case", `{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{"name":"forbidden"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"invalid request: a key is written in another case"}}`, ""},
		{"an answer with a method in another case", `{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: a key is written in another case"}}`, ""},
		{"a malformed answer", `{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: a key stands twice in one object"}}`, ""},
		{"a call without an id", `{"jsonrpc":"2.0","method":"Tools/call","params":{"name":"a"}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: a call of a tool needs an id"}}`, ""},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: not UTF-8"}}`, ""},
		{"no JSON", `{`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: not JSON"}}`, ""},
		{"a batch", `[` + tool("1", "a") + `]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: batches are not supported"}}`, ""},
		{"deep", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: nested too deeply"}}`, ""},
		{
			"a method that nobody knows", `{"jsonrpc":"2.0","id":1,"method":"custom/other"}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"blocked by MethodPolicy","data":{"policy":"MethodPolicy","action":"block","reasonCode":"POLICY_BLOCKED","next":""}}}`, "",
		},
		{
			"a method that policy lists", `{"jsonrpc":"2.0","id":1,"method":"Custom/Allowed"}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":1.0},"line":{"jsonrpc":"2.0","id":1,"method":"Custom/Allowed"}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"Custom/Allowed"}`,
		},
		{
			"a harmless method", `{"jsonrpc":"2.0","id":1,"method":" RESOURCES/templates/List","params":{ "a":"\u0041" }}`,
			`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":1.0},"line":{"jsonrpc":"2.0","id":1,"method":"resources/templates/list","params":{"a":"\u0041"}}}}`,
			`{"jsonrpc":"2.0","id":1,"method":"resources/templates/list","params":{"a":"\u0041"}}`,
		},
		{
			"a request with a notification's name", `{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"blocked by MethodPolicy","data":{"policy":"MethodPolicy","action":"block","reasonCode":"POLICY_BLOCKED","next":""}}}`, "",
		},
		{"an error of the server", tool("1", "failing"), `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"kept":1.0}}}`, tool("1", "failing")},
		{
			"a setup", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`,
			`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"0"},"instructions":"be kind","unknown":{"kept":1.0}}}`,
			`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`,
		},
		{"an answer that says a thing twice", tool("1", "double"), `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"internal error: the server's answer is malformed"}}`, tool("1", "double")},
		{"an id that the server writes otherwise", tool("1.0", "normal"), `{"id":1.0,"jsonrpc":"2.0","result":{"content":[]}}`, tool("1.0", "normal")},
		{"a text that the server writes otherwise", tool(`"\u0061"`, "normal"), `{"id":"\u0061","jsonrpc":"2.0","result":{"content":[]}}`, tool(`"\u0061"`, "normal")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := wrapStub(t, b)
			if diff := cmp.Diff(tc.answer, k.ask(tc.line)); diff != "" {
				t.Error(diff)
			}
			if rest, code := k.close(); rest != "" || code != 0 {
				t.Errorf("the rest is %q, the code %d", rest, code)
			}
			if diff := cmp.Diff(tc.server, strings.Join(k.seen(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever the pieces in which a session arrives, it is the same session.
func TestSplit(t *testing.T) {
	b := broker(t)
	session := tool("1", "a") + "\r\n\n" + tool("2", "forbidden") + "\n{\n" + tool(`"é"`, "b") + "\n[]\n" + tool("4", "blocked")
	answers := func(pieces ...string) ([]string, []string) {
		k := wrapStub(t, b)
		for _, piece := range pieces {
			if _, err := io.WriteString(k.in, piece); err != nil {
				t.Fatal(err)
			}
		}
		rest, code := k.close()
		if code != 0 {
			t.Errorf("code %d", code)
		}
		lines := strings.Split(rest, "\n")
		slices.Sort(lines)
		return lines, k.seen()
	}
	wantAnswers, wantSeen := answers(session)
	if len(wantAnswers) != 7 || len(wantSeen) != 2 {
		t.Fatalf("%q, %q", wantAnswers, wantSeen)
	}
	for at := 1; at < len(session); at += 5 { // at every byte: the cases, and below
		gotAnswers, gotSeen := answers(session[:at], session[at:])
		if !slices.Equal(gotAnswers, wantAnswers) || !slices.Equal(gotSeen, wantSeen) {
			t.Fatalf("at %d: %q, %q", at, gotAnswers, gotSeen)
		}
	}
	k := wrapStub(t, b) // and byte by byte
	for _, c := range []byte(session) {
		if _, err := k.in.Write([]byte{c}); err != nil {
			t.Fatal(err)
		}
	}
	rest, _ := k.close()
	lines := strings.Split(rest, "\n")
	slices.Sort(lines)
	if !slices.Equal(lines, wantAnswers) || !slices.Equal(k.seen(), wantSeen) {
		t.Errorf("byte by byte: %q, %q", lines, k.seen())
	}
}

// Calls reach the server in their order, and one that waits for a person holds up
// nothing; when its client gives up, it never happens.
func TestOrderAndCancel(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b, func(_ *Config, s *session) { s.tick = 1 })
	k.send(`{"jsonrpc":"2.0","id":"g","method":"tools/call","params":{"name":"gated","_meta":{"progressToken":"p\u0041"}}}`)
	if got := k.next(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p\u0041","progress":0.000001,"message":"A person`) {
		t.Errorf("progress: %s", got)
	}
	var want []string
	for i := range 60 {
		line := tool(string(rune('0'+i/10))+".5"+string(rune('0'+i%10)), "a")
		want = append(want, line)
		k.send(line)
	}
	answered := 0
	for answered < len(want) {
		if strings.Contains(k.next(), `"result"`) {
			answered++
		}
	}
	k.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u0067","reason":"enough"}}`)
	workertest.Eventually(t, "the cancellation", func() bool { return slices.Contains(b.Relayed(), "cancel") })
	rest, _ := k.close()
	if strings.Contains(rest, `"id":"g"`) {
		t.Errorf("answered: %s", rest)
	}
	if diff := cmp.Diff(want, k.seen()); diff != "" {
		t.Error(diff)
	}
}

// A forwarded call is cancelled at the server, by the id that the server knows.
func TestCancelForwarded(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b)
	k.send(tool("1.0", "silent"))
	workertest.Eventually(t, "the call", func() bool { return slices.Contains(k.seen(), tool("1.0", "silent")) })
	k.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"r","requestId":1}}`)
	if rest, code := k.close(); rest != "" || code != 0 {
		t.Errorf("the rest is %q, code %d", rest, code)
	}
	want := []string{tool("1.0", "silent"), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"reason":"r","requestId":1.0}}`}
	if diff := cmp.Diff(want, k.seen()); diff != "" {
		t.Error(diff)
	}
	if got := b.Relayed(); !slices.Contains(got, "outcome CANCELLED ") {
		t.Errorf("the broker heard %q", got)
	}
}

// How calls end is reported: at once, or with the answer when it was approved.
func TestOutcomes(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b)
	for _, name := range []string{"a", "failing", "sorry", "approved", "double"} {
		k.ask(tool("1", name))
	}
	k.send(tool("2", "silent"), tool("3", "die"))
	answers := []string{k.next(), k.next()}
	slices.Sort(answers)
	for i, id := range []string{"2", "3"} {
		want := `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":-32000,"message":"The server has ended; its answer will not come. Ask the person who runs this agent.","data":{"reasonCode":"INTERNAL_ERROR","next":"Ask the person who runs this agent."}}}`
		if diff := cmp.Diff(want, answers[i]); diff != "" {
			t.Error(diff)
		}
	}
	if _, code := k.rest(); code != 7 {
		t.Errorf("code %d", code)
	}
	var outcomes []string
	for _, said := range b.Relayed() {
		if strings.HasPrefix(said, "outcome") {
			outcomes = append(outcomes, said)
		}
	}
	want := []string{
		"outcome OK  delivered", "outcome ERROR  delivered", "outcome TOOL_ERROR  delivered",
		`outcome OK {"content":[],"structuredContent":{"n":1.0},"line":` + tool("1", "approved") + `} delivered`,
		"outcome TRANSPORT ", "outcome TRANSPORT ", "outcome TRANSPORT ",
	}
	if diff := cmp.Diff(want, outcomes); diff != "" {
		t.Error(diff)
	}
}

// What the server says beside answers passes, what is no message does not, and
// nobody hears an answer twice.
func TestServerLines(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b)
	if got := k.ask(tool("1", "noisy")); got != `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1.0},"unknown":[ 1 ]}` {
		t.Errorf("the notification: %s", got)
	}
	if got := k.next(); got != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
		t.Errorf("the answer: %s", got)
	}
	if got := k.ask(tool("2", "twice")); got != `{"jsonrpc":"2.0","id":2,"result":{"content":[]}}` {
		t.Errorf("once: %s", got)
	}
	if got := k.ask(tool("3", "asking")); got != `{"jsonrpc":"2.0","id":"s1","method":"sampling/createMessage","params":{"x":1.0}}` {
		t.Errorf("its question: %s", got)
	}
	if got := k.ask(`{ "jsonrpc":"2.0","id":"s1", "result":{"z":1.0,"a":"\u0041"}}`); !strings.Contains(got, `{\"jsonrpc\":\"2.0\",\"id\":\"s1\",\"result\":{\"z\":1.0,\"a\":\"\\u0041\"}}`) {
		t.Errorf("the client's answer: %s", got)
	}
	if got := k.ask(tool("5", "returning")); got != `{"jsonrpc":"2.0","method":"notifications/message","params":{"a":{"jsonrpc":"2.0","id":5,"result":{}}}}` {
		t.Errorf("an answer inside a notification: %q", got)
	}
	k.next()
	if got := k.ask(tool("4", "long")); len(got) < 3<<20 {
		t.Errorf("the long one: %d bytes", len(got))
	}
	k.send(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}`)
	k.close()
	if got := k.seen()[len(k.seen())-1]; got != `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}` {
		t.Errorf("an error about nothing: %s", got)
	}
	if !slices.ContainsFunc(k.troubles, func(text string) bool { return strings.HasPrefix(text, "8 lines of the server were dropped") }) {
		t.Errorf("troubles: %q", k.troubles)
	}
}

// The list is what may be called, once the server is trusted; the broker learns
// all pages of it.
func TestList(t *testing.T) {
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	pages := environ(stubPages + `=[{"name":"a","x": 1.0},{"name":"b"},{"name":"c"},{"name":"c"}]`)
	t.Run("not trusted", func(t *testing.T) {
		b := broker(t)
		k := wrapStub(t, b, pages)
		k.ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
		k.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if got := k.ask(list); got != `{"jsonrpc":"2.0","id":1,"result":{ "tools":[{"name":"a","x": 1.0},{"name":"b"},{"name":"c"},{"name":"c"}],"_meta":{"x": 1.50}}}` {
			t.Errorf("got %s", got)
		}
		workertest.Eventually(t, "the list at the broker", func() bool { return len(b.Listed()) == 1 })
		if listed := b.Listed(); len(listed[0].GetTools()) != 2 || string(listed[0].GetTools()[0].GetObject()) != `{"name":"a","x":1.0}` || listed[0].GetInstructions() != "be kind" {
			t.Errorf("listed: %v", listed)
		}
		b.Trust(workertest.Named("b", "c")...)
		if got := k.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
			t.Errorf("after trust: %s", got)
		}
		if got := k.ask(list); got != `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"b"}],"_meta":{"x":1.50}}}` {
			t.Errorf("trusted: %s", got)
		}
	})
	t.Run("pages", func(t *testing.T) {
		b := broker(t)
		b.Trust(workertest.Named("a", "c")...)
		k := wrapStub(t, b, environ(stubPages+"=[{\"name\":\"a\"},{\"name\":\"b\"}]\n[{\"name\":\"c\"}]\n[]"))
		for _, step := range [][2]string{
			{list, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a"}],"nextCursor":"page1","_meta":{"x":1.50}}}`},
			{`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"\u0070age1"}}`, `{"jsonrpc":"2.0","id":1,"result":{ "tools":[{"name":"c"}],"nextCursor":"page2","_meta":{"x": 1.50}}}`},
			{`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"page2"}}`, `{"jsonrpc":"2.0","id":1,"result":{ "tools":[],"_meta":{"x": 1.50}}}`},
		} {
			if got := k.ask(step[0]); got != step[1] {
				t.Errorf("%s: got %s", step[0], got)
			}
		}
		if got := b.Relayed(); !slices.Contains(got, "listed a b c") || len(b.Listed()) != 1 {
			t.Errorf("the broker heard %q", got)
		}
	})
	t.Run("without a broker", func(t *testing.T) {
		b := workertest.New(t)
		b.Allow("worker")
		b.OnCall(judgeByName)
		k := wrapStub(t, b)
		k.ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`)
		k.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if got := k.ask(list); got != `{"jsonrpc":"2.0","id":1,"result":{"tools":[],"_meta":{"x":1.50}}}` {
			t.Errorf("got %s", got)
		}
		if got := k.ask(tool("2", "a")); !strings.Contains(got, `"code":-32000,"message":"the broker cannot be reached. Ask the person who runs this agent.","data":{"reasonCode":"BROKER_UNAVAILABLE","next":"Ask the person who runs this agent."}`) {
			t.Errorf("a call: %s", got)
		}
		b.Start()
		if got := k.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
			t.Errorf("once it is there: %s", got)
		}
		if got := k.ask(tool("2", "a")); !strings.Contains(got, `"result"`) {
			t.Errorf("a call: %s", got)
		}
		if got := k.seen(); slices.Contains(got[:len(got)-1], tool("2", "a")) {
			t.Errorf("the server saw %q", got)
		}
	})
	t.Run("malformed", func(t *testing.T) {
		b := broker(t)
		for _, pages := range []string{`[{"name":"a","name":"b"}]`, `{"name":"a"}`, `[{"name":"a","Name":"b"}]`, `[{"name":1}]`, `[1]`, `[],"Tools":[{"name":"x"}]`} {
			k := wrapStub(t, b, environ(stubPages+"="+pages))
			if got := k.ask(list); got != `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"internal error: the server's answer is malformed"}}` {
				t.Errorf("%s: %s", pages, got)
			}
		}
	})
}

// What a broker that knows nothing any more is told: what the server offers, before
// it judges another call.
func TestReconnect(t *testing.T) {
	b := broker(t)
	b.Trust(workertest.Named("a")...)
	k := wrapStub(t, b)
	k.ask(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	k.ask(tool("2", "a"))
	b.Stop()
	if got := k.ask(tool("3", "a")); !strings.Contains(got, "BROKER_UNAVAILABLE") {
		t.Errorf("without a broker: %s", got)
	}
	before := len(b.Relayed())
	b.Start()
	workertest.Eventually(t, "a call", func() bool { return strings.Contains(k.ask(tool("4", "a")), `"result"`) })
	said := b.Relayed()[before:]
	listed := slices.Index(said, "listed a b")
	if listed < 0 || listed > slices.IndexFunc(said, func(s string) bool { return strings.HasPrefix(s, "call") }) {
		t.Errorf("the broker heard %q", said)
	}
}

// Policy ends the session: everything that is open is answered, the server ends.
func TestKill(t *testing.T) {
	for name, kill := range map[string]func(*talk, *workertest.Broker){
		"by a verdict": func(k *talk, _ *workertest.Broker) { k.send(tool("3", "killing")) },
		"by itself":    func(_ *talk, b *workertest.Broker) { b.Kill("killed", "DeniedToolsPolicy") },
	} {
		t.Run(name, func(t *testing.T) {
			b := broker(t)
			k := wrapStub(t, b)
			k.send(tool("1", "silent"), tool("2", "gated"))
			workertest.Eventually(t, "the calls", func() bool { return len(k.seen()) == 1 && len(b.Relayed()) == 3 })
			kill(k, b)
			rest, code := k.rest()
			if code != 1 {
				t.Errorf("code %d", code)
			}
			lines := strings.Split(strings.TrimSuffix(rest, "\n"), "\n")
			for _, line := range lines {
				if !strings.Contains(line, `"error":{"code":-32000,"message":"killed","data":{"policy":"DeniedToolsPolicy","action":"kill","reasonCode":"POLICY_BLOCKED"`) {
					t.Errorf("answer %s", line)
				}
			}
			if want := 2 + strings.Count(name, "verdict"); len(lines) != want {
				t.Errorf("%d answers, want %d", len(lines), want)
			}
		})
	}
}

// The server ends with its code, by our signals, or because it has to.
func TestEnds(t *testing.T) {
	b := broker(t)
	for _, tc := range []struct {
		name string
		end  func(*talk)
		code int
	}{
		{"its own", func(k *talk) { k.send(tool("1", "die")) }, 7},
		{"the client's last line", func(k *talk) { k.in.Close() }, 0},
		{"a signal", func(k *talk) { k.signals <- syscall.SIGTERM }, 128 + 15},
		{"another signal", func(k *talk) { k.signals <- syscall.SIGHUP }, 128 + 1},
		{"its output is closed", func(k *talk) { k.send(tool("1", "closing")) }, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k := wrapStub(t, b)
			k.ask(tool("0", "a"))
			tc.end(k)
			if _, code := k.rest(); code != tc.code {
				t.Errorf("code %d, want %d", code, tc.code)
			}
		})
	}
}

func TestInUse(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b)
	k.send(tool("1", "silent"))
	if got := k.ask(tool("1.0", "a")); got != `{"jsonrpc":"2.0","id":1.0,"error":{"code":-32600,"message":"invalid request: the id is in use"}}` {
		t.Errorf("got %s", got)
	}
	k.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
}

func TestTooLong(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b, func(c *Config, _ *session) { c.MaxLine, c.MaxServerLine = 200, 2<<20 })
	if got := k.ask(tool("1", strings.Repeat("a", 200))); got != `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: the line is too long"}}` {
		t.Errorf("got %s", got)
	}
	k.send(tool("2", "long"))
	if got := k.ask(tool("3", "sorry")); got != `{"jsonrpc":"2.0","id":3,"result":{"content":[],"isError":true}}` {
		t.Errorf("got %s", got)
	}
	k.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
}

// A server whose line has no end is ended, whatever it is doing, and those who wait are
// told.
func TestEndlessLine(t *testing.T) {
	b := broker(t)
	k := wrapStub(t, b, func(c *Config, _ *session) { c.MaxServerLine = 1 << 20 })
	k.send(tool("1", "silent"), tool("2", "endless"))
	lines := []string{k.next(), k.next()}
	slices.Sort(lines)
	for i, id := range []string{"1", "2"} {
		if !strings.HasPrefix(lines[i], `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32000,"message":"The server has ended; its answer will not come. `) {
			t.Errorf("got %s", lines[i])
		}
	}
	if _, code := k.rest(); code != 128+9 {
		t.Errorf("code %d", code)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.troubles) == 0 || k.troubles[0] != "the server was ended: it wrote more than 2097152 bytes without an end of the line" {
		t.Errorf("told: %q", k.troubles)
	}
}

// The instructions of a server that was trusted are what was trusted, or they are
// withheld; those of one that was not pass as they are.
func TestInstructions(t *testing.T) {
	const (
		ask      = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`
		whole    = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"0"},"instructions":"be kind","unknown":{"kept":1.0}}}`
		withheld = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"stub","version":"0"},"unknown":{"kept":1.0}}}`
	)
	for _, tc := range []struct {
		name    string
		arrange func(*workertest.Broker)
		environ string
		want    string
		told    string
	}{
		{"never trusted", func(*workertest.Broker) {}, "", whole, ""},
		{"as trusted", func(b *workertest.Broker) {
			b.Trust(workertest.Named("a")...)
			b.Instruct(map[string]string{"stub": "be kind"})
		}, "", whole, ""},
		{"changed", func(b *workertest.Broker) {
			b.Trust(workertest.Named("a")...)
			b.Instruct(map[string]string{"stub": "be good"})
		}, "", withheld, "the server's instructions are not what was trusted, and are withheld: see sbctl server diff stub"},
		{"only tools were trusted", func(b *workertest.Broker) { b.Trust(workertest.Named("a")...) }, "", withheld,
			"the server's instructions are not what was trusted, and are withheld: see sbctl server diff stub"},
		{"in another case too", func(b *workertest.Broker) {
			b.Trust(workertest.Named("a")...)
			b.Instruct(map[string]string{"stub": "be kind"})
		}, stubMore + `=,"Instructions":"be bad"`, withheld, "the server's instructions are not what was trusted, and are withheld: see sbctl server diff stub"},
		{"without a daemon", func(b *workertest.Broker) { b.Stop() }, "", withheld, "the server's instructions are withheld: sbd does not say whether they are trusted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := broker(t)
			tc.arrange(b)
			k := wrapStub(t, b, environ(tc.environ))
			if got := k.ask(ask); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			told := slices.DeleteFunc(slices.Clone(k.troubles), func(text string) bool { return !strings.Contains(text, "instructions") })
			if strings.Join(told, "\n") != tc.told {
				t.Errorf("told: %q", k.troubles)
			}
		})
	}
}

func TestEnviron(t *testing.T) {
	all := []string{
		"PATH=/bin", "HOME=/h", "USER=u", "LANG=C", "LC_ALL=C", "TERM=t", "TMPDIR=/t", "SB_HOME=x", "AGENT_BRAKE_X=1", "AWS_SECRET=s", "MINE=1=2", "LOGNAME=u", "LC_=1", "PATHS=1", "odd",
	}
	want := []string{"PATH=/bin", "HOME=/h", "USER=u", "LANG=C", "LC_ALL=C", "TERM=t", "TMPDIR=/t", "MINE=1=2", "LC_=1"}
	if diff := cmp.Diff(want, Environ(all, []string{"MINE", "ABSENT"})); diff != "" {
		t.Error(diff)
	}
	for _, name := range []string{"", "A=B", "SB_HOME", "AGENT_BRAKE_"} {
		if CheckName(name) == nil {
			t.Errorf("%q may be passed on", name)
		}
	}
	b := broker(t)
	k := wrapStub(t, b)
	var got struct{ Result struct{ Content []string } }
	if err := json.Unmarshal([]byte(k.ask(tool("1", "environment"))), &got); err != nil {
		t.Fatal(err)
	}
	for _, pair := range got.Result.Content {
		if !strings.HasPrefix(pair, "STUB_") && pair != quickRace {
			t.Errorf("the server has %s", pair)
		}
	}
}

func TestRefusedRelay(t *testing.T) {
	b := broker(t)
	b.RefuseRelays(wire.AccessDenied)
	k := wrapStub(t, b)
	// As a denied call is told.
	if got := k.ask(tool("1", "a")); got != `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"access denied. Ask the person who runs this agent."}],"isError":true}}` {
		t.Errorf("got %s", got)
	}
}

func TestNotStarted(t *testing.T) {
	in, out := io.Pipe()
	defer out.Close()
	config := Config{Worker: worker.Config{Subject: "worker"}, Server: "s", Command: []string{"/no/such/program"}, In: in, Out: io.Discard}
	if _, err := Serve(t.Context(), config); err == nil {
		t.Error("started")
	}
	config.Server = ""
	if _, err := Serve(t.Context(), config); err == nil {
		t.Error("without a name")
	}
}
