package host

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/worker"
	"subjectbroker/worker/launch"
)

// patience is far longer than anything here takes on a loaded machine.
const patience = time.Minute

func TestMain(m *testing.M) {
	if handled, code := launch.Main(os.Args); handled {
		os.Exit(code)
	}
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "stub":
			os.Exit(stub(os.Args[2:]))
		case "host":
			if err := worker.Harden(); err != nil {
				os.Exit(1)
			}
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
			defer stop()
			code, err := Main(ctx, Config{Version: "9"})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			os.Exit(code)
		}
	}
	goleak.VerifyTestMain(m)
}

// home is a home of a broker, as far as a launch looks at it.
func home(t *testing.T) string {
	t.Helper()
	home, err := os.MkdirTemp("", "sb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	for _, dir := range []string{"run/broker", "run/operator"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "secret.key"), []byte("the key"), 0o600); err != nil {
		t.Fatal(err)
	}
	return home
}

// self is this test binary.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// stubStart runs the stub of this file.
func stubStart(t *testing.T, args ...string) *hostv1.Start {
	t.Helper()
	return &hostv1.Start{
		Server: "stub", Command: append([]string{self(t), "stub"}, args...), Home: home(t),
		Env: [][]byte{[]byte("PATH=/usr/local/bin:/usr/bin:/bin"), []byte("TOKEN=hush")},
	}
}

// needsConfinement skips, loudly, where the kernel gives no namespaces.
func needsConfinement(t *testing.T, start *hostv1.Start) {
	t.Helper()
	err := launch.Check(t.Context(), launch.Config{Home: start.GetHome(), NoBroker: true, Environ: []string{}})
	if unsupported, ok := errors.AsType[*launch.Unsupported](err); ok {
		t.Skipf("NOT TESTED: %v", unsupported)
	}
	start.Confine = true
}

// daemon is the other end of a host.
type daemon struct {
	t    *testing.T
	conn net.Conn
	out  *frame.Writer
	said chan *hostv1.HostResponse
	code chan int
}

// serve runs a host in this process.
func serve(t *testing.T, start *hostv1.Start, config Config) *daemon {
	t.Helper()
	ours, theirs := net.Pipe()
	d := attach(t, ours)
	go func() { d.code <- Run(context.WithoutCancel(t.Context()), theirs, config) }()
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Start{Start: start}})
	t.Cleanup(func() {
		ours.Close()
		for range d.said {
		}
		<-d.code
	})
	return d
}

func attach(t *testing.T, conn net.Conn) *daemon {
	d := &daemon{t: t, conn: conn, out: frame.NewWriter(conn), said: make(chan *hostv1.HostResponse), code: make(chan int, 2)}
	go func() {
		defer close(d.said)
		for {
			m := &hostv1.HostResponse{}
			if frame.ReadMessage(conn, m) != nil {
				return
			}
			d.said <- m
		}
	}()
	return d
}

func (d *daemon) send(m *hostv1.HostRequest) {
	d.t.Helper()
	if err := d.out.Write(m); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) call(c *hostv1.Call) {
	d.t.Helper()
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Call{Call: c}})
}

func (d *daemon) stop(grace time.Duration) {
	d.t.Helper()
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Stop{Stop: &hostv1.Stop{GraceMs: uint32(grace.Milliseconds())}}})
}

// next is what the host says next, log lines aside.
func (d *daemon) next() *hostv1.HostResponse {
	d.t.Helper()
	for {
		m := d.any()
		if m.GetLog() == nil {
			return m
		}
		d.t.Logf("log: %s", m.GetLog().GetLine())
	}
}

func (d *daemon) any() *hostv1.HostResponse {
	d.t.Helper()
	select {
	case m, ok := <-d.said:
		if !ok {
			d.t.Fatal("the host has hung up")
		}
		return m
	case <-time.After(patience):
		d.t.Fatal("the host says nothing")
	}
	return nil
}

// log waits for a line with part in it.
func (d *daemon) log(part string) {
	d.t.Helper()
	for {
		if line := d.any().GetLog(); line != nil && strings.Contains(string(line.GetLine()), part) {
			return
		}
	}
}

// greeted waits for Started and Listed.
func (d *daemon) greeted() (*hostv1.Started, *hostv1.Listed) {
	d.t.Helper()
	first := d.next()
	started := first.GetStarted()
	if started == nil {
		d.t.Fatalf("not started: %v", first)
	}
	return started, d.listed()
}

func (d *daemon) listed() *hostv1.Listed {
	d.t.Helper()
	all := &hostv1.Listed{}
	for {
		piece := d.next().GetListed()
		if piece == nil {
			d.t.Fatal("nothing was listed")
		}
		all.Instructions += piece.GetInstructions()
		all.Tools = append(all.Tools, piece.GetTools()...)
		if !piece.GetMore() {
			return all
		}
	}
}

// answer collects the pieces of the answer that comes next.
func (d *daemon) answer(id uint64) (object string, end hostv1.End) {
	d.t.Helper()
	var all []byte
	for {
		m := d.next()
		a := m.GetAnswer()
		if a == nil || a.GetId() != id {
			d.t.Fatalf("no answer to %d: %.200s", id, m.String())
		}
		if len(a.GetPiece()) > 256<<10 {
			d.t.Errorf("a piece of %d bytes", len(a.GetPiece()))
		}
		all = append(all, a.GetPiece()...)
		if !a.GetMore() {
			return string(all), a.GetEnd()
		}
	}
}

// ask calls a tool and returns the answer.
func (d *daemon) ask(tool, arguments string) (object string, end hostv1.End) {
	d.t.Helper()
	d.call(&hostv1.Call{Id: 1000, Tool: tool, Arguments: []byte(arguments)})
	return d.answer(1000)
}

func (d *daemon) ended() *hostv1.Ended {
	d.t.Helper()
	e := d.next().GetEnded()
	if e == nil {
		d.t.Fatal("it did not end")
	}
	return e
}

// stub is an MCP server that misbehaves as it is told.
func stub(args []string) int {
	mode := ""
	if len(args) > 0 {
		mode = args[0]
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := func(format string, values ...any) { fmt.Fprintf(os.Stdout, format+"\n", values...) }
	revision := ""
	tools := goldenTool
	fmt.Fprintln(os.Stderr, "stub is here")
	switch {
	case mode == "hostile":
		return hostileStub(args[1], in)
	case strings.HasPrefix(mode, "newer-touchy"):
		line, err := in.Peek(len(`{"jsonrpc":"2.0","id":1,"method":"initialize"`))
		if err != nil || bytes.Contains(line, []byte("initialize")) {
			in.ReadBytes('\n')
			return 4
		}
		return (&newer{}).serveStdio(in, false)
	case strings.HasPrefix(mode, "newer"):
		return (&newer{}).serveStdio(in, mode == "newer-mute")
	}
	if mode == "mute" {
		io.Copy(io.Discard, in)
		return 0
	}
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var m struct {
			ID     json.RawMessage
			Method string
			Params json.RawMessage
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return 9
		}
		switch m.Method {
		case "initialize":
			var asked struct{ ProtocolVersion string }
			_ = json.Unmarshal(m.Params, &asked)
			switch {
			case mode == "old" && asked.ProtocolVersion > "2024-11-05":
				out(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"too new: rm -rf /"}}`, m.ID)
				continue
			case mode == "exits":
				return 3
			case mode == "alien":
				asked.ProtocolVersion = "1999-01-01"
			}
			revision = asked.ProtocolVersion
			out(`{"result":{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"stub","version":"1"},"instructions":"Be \u00e9"},"jsonrpc":"2.0","id":%s}`, revision, m.ID)
		case "tools/list":
			if mode == "loop" {
				out(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[],"nextCursor":"again"}}`, m.ID)
				continue
			}
			if !bytes.Contains(m.Params, []byte(`"cursor":"p\"2"`)) {
				out(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[%s],"nextCursor":"p\"2"}}`, m.ID, tools)
				continue
			}
			out(`{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"twice"},{"name":"twice"},{"title":"no name"},7]}}`, m.ID)
		case "tools/call":
			if code := stubCall(m.ID, m.Params, out, &tools); code >= 0 {
				return code
			}
		case "notifications/cancelled":
			fmt.Fprintf(os.Stderr, "cancelled %s\n", m.Params)
		case "":
			fmt.Fprintf(os.Stderr, "answered %s", line)
		default:
			if mode == "touchy" && m.Method != "notifications/initialized" {
				return 5
			}
			if m.ID != nil {
				out(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
			}
		}
	}
}

// goldenTool is a tool as a server writes it, goldenObject how it arrives.
const (
	goldenTool   = `{"name":"golden","x-unknown":{"z":[1.0,1e3,12345678901234567890],"a":null},"inputSchema":{"type":"object","properties":{"q":{"type":"string"}}},"annotations":{"readOnlyHint":true},"description":"line\nline \u0041 é"}`
	goldenObject = `{"annotations":{"readOnlyHint":true},"description":"line\nline A é","inputSchema":{"properties":{"q":{"type":"string"}},"type":"object"},"name":"golden","x-unknown":{"a":null,"z":[1.0,1e3,12345678901234567890]}}`
	// goldenResult has what no library of ours knows, and arrives as it is.
	goldenResult = `{"content":[{"type":"x-new","n":1.50,"deep":{"b":1,"a":-0}},{"type":"text","text":"é\n\"\u0001"}],"structuredContent":{"z":12345678901234567890,"a":[]},"_meta":{"k":"v"},"x-unknown":[true,null]}`
)

func stubCall(id, params json.RawMessage, out func(string, ...any), tools *string) (exit int) {
	var c struct {
		Name      string
		Arguments struct {
			Bytes int
			Dir   string
		}
		Meta struct{ ProgressToken json.RawMessage } `json:"_meta"`
	}
	_ = json.Unmarshal(params, &c)
	result := func(text string) {
		quoted, _ := json.Marshal(text)
		out(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%s}]}}`, id, quoted)
	}
	switch c.Name {
	case "golden":
		out(` { "jsonrpc" : "2.0" , "id" : %s , "result" : %s } `, id, goldenResult)
	case "echo":
		result(string(params))
	case "fail":
		out(`{"jsonrpc":"2.0","id":%s,"error":{"code":-5,"message":"no","data":{"b":1,"a":2}}}`, id)
	case "iserror":
		out(`{"jsonrpc":"2.0","id":%s,"result":{"isError":true,"content":[]}}`, id)
	case "env":
		dir, _ := os.Getwd()
		entries, _ := os.ReadDir(".")
		result(fmt.Sprintf("%s|%s|%d", strings.Join(os.Environ(), ","), dir, len(entries)))
	case "limits": // as the server's own children have them
		said, err := exec.Command("sh", "-c", "ulimit -Sn; ulimit -Hn; ulimit -Hc; ulimit -Su 2>/dev/null || ulimit -Sp").Output()
		result(fmt.Sprint(string(said), err))
	case "write":
		if err := os.WriteFile("left behind", nil, 0o600); err != nil {
			result(err.Error())
		}
		dir, _ := os.Getwd()
		result(dir)
	case "read":
		content, err := os.ReadFile(c.Arguments.Dir)
		result(fmt.Sprint(string(content), err))
	case "progress":
		out(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":0.50,"x-new":{"b":1,"a":2}}}`, c.Meta.ProgressToken)
		out(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":99999,"progress":1}}`)
		result("done")
	case "asks":
		out(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		out(`{"jsonrpc":"2.0","id":7.5,"method":"roots/list"}`)
		result("asked")
	case "garbage":
		out("not JSON at all\n\n{\n[]\n[{\"jsonrpc\":\"2.0\"}]\n{\"jsonrpc\":\"2.0\",\"id\":424242,\"result\":{}}\n\xff\xfe\n{\"a\":1}")
		result("after")
	case "twin": // an answer that two readers could read differently
		out(`{"jsonrpc":"2.0","id":%s,"result":{"isError":false,"isError":true}}`, id)
	case "latin":
		out("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"text\":\"\xe9\"}}", id)
	case "both":
		out(`{"jsonrpc":"2.0","id":%s,"result":{},"error":{}}`, id)
	case "big", "bigger":
		fmt.Fprintf(os.Stdout, `{"result":{"content":[{"type":"text","text":"`)
		io.Copy(os.Stdout, io.LimitReader(endless{}, int64(c.Arguments.Bytes)))
		out(`"}]},"jsonrpc":"2.0","id":%s}`, id)
	case "endless":
		_, err := io.Copy(os.Stdout, endless{})
		fmt.Fprintln(os.Stderr, err)
		return 7
	case "anonymous":
		fmt.Fprint(os.Stdout, `{"id":[`, strings.Repeat(" ", c.Arguments.Bytes), "]}\n")
	case "die":
		return 3
	case "silent":
	case "flood":
		for i := range 2000 {
			fmt.Fprintf(os.Stderr, "%d %s\n", i, strings.Repeat("x", 5000))
		}
		result("flooded")
	case "change":
		*tools = strings.Replace(*tools, "golden", "changed", 1)
		out(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		result("changed")
	case "fork": // children in sessions of their own, that ignore what can be ignored
		var pids []string
		for range 3 {
			child := exec.Command("sh", "-c", `trap "" HUP TERM INT; (while :; do sleep 1; done) & echo up; while :; do sleep 1; done`, c.Arguments.Dir)
			child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			up, _ := child.StdoutPipe()
			if err := child.Start(); err != nil {
				result(err.Error())
				return -1
			}
			_, _ = up.Read(make([]byte, 3))
			pids = append(pids, strconv.Itoa(child.Process.Pid))
		}
		result(strings.Join(pids, " "))
	case "deaf": // reads nothing any more
		result("deaf")
		select {}
	}
	return -1
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// What a server says arrives as it was, but for its form.
func TestPassesOn(t *testing.T) {
	d := serve(t, stubStart(t), Config{Version: "9"})
	started, listed := d.greeted()
	if started.GetRevision() != revisions[0] {
		t.Errorf("revision %q", started.GetRevision())
	}
	var names, golden []string
	for _, tool := range listed.GetTools() {
		names = append(names, tool.GetName())
		golden = append(golden, string(tool.GetObject()))
	}
	if diff := cmp.Diff([]string{"golden", "echo"}, names); diff != "" || golden[0] != goldenObject || listed.GetInstructions() != "Be é" {
		t.Errorf("%s\n%s\n%s\n%q", diff, golden[0], goldenObject, listed.GetInstructions())
	}
	for _, tc := range []struct {
		tool, arguments, want string
		end                   hostv1.End
	}{
		{"golden", ``, goldenResult, hostv1.End_END_OK},
		{"echo", ` { "b" : 1.0 , "a" : "\u0041" } `, `{"content":[{"type":"text","text":"{\"name\":\"echo\",\"arguments\":{\"b\":1.0,\"a\":\"A\"}}"}]}`, hostv1.End_END_OK},
		{"echo", ``, `{"content":[{"type":"text","text":"{\"name\":\"echo\"}"}]}`, hostv1.End_END_OK},
		{"fail", `{}`, `{"code":-5,"message":"no","data":{"b":1,"a":2}}`, hostv1.End_END_ERROR},
		{"iserror", `{}`, `{"isError":true,"content":[]}`, hostv1.End_END_TOOL_ERROR},
		{"twin", `{}`, ``, hostv1.End_END_TRANSPORT},
		{"latin", `{}`, ``, hostv1.End_END_TRANSPORT},
		{"both", `{}`, ``, hostv1.End_END_TRANSPORT},
		{"echo", `{"a":1,"a":2}`, ``, hostv1.End_END_TRANSPORT},
		{"echo", `[]`, ``, hostv1.End_END_TRANSPORT},
		{"garbage", `{}`, `{"content":[{"type":"text","text":"after"}]}`, hostv1.End_END_OK},
		{"asks", `{}`, `{"content":[{"type":"text","text":"asked"}]}`, hostv1.End_END_OK},
	} {
		got, end := d.ask(tc.tool, tc.arguments)
		if got != tc.want || end != tc.end {
			t.Errorf("%s %s: %v\n got %s\nwant %s", tc.tool, tc.arguments, end, got, tc.want)
		}
	}
	d.stop(time.Second)
	if e := d.ended(); e.GetWhy() != "stopped" || e.GetCode() != 0 || e.GetDetail() != "the daemon stopped it; 6 lines of what it wrote were no messages" {
		t.Errorf("ended: %v", e)
	}
	if code := <-d.code; code != 0 {
		t.Errorf("exit code %d", code)
	}
	d.code <- 0
}

// A server's own questions are answered, in its own ids.
func TestAnswersTheServer(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 1, Tool: "asks"})
	d.log(`answered {"jsonrpc":"2.0","id":"p","result":{}}`)
	d.log(`answered {"jsonrpc":"2.0","id":7.5,"error":{"code":-32601,"message":"method not found"}}`)
}

func TestProgressAndMeta(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 77, Tool: "progress", Progress: true, Meta: []byte(`{"progressToken":"theirs"}`)})
	p := d.next().GetProgress()
	if p.GetId() != 77 || string(p.GetParams()) != `{"progress":0.50,"x-new":{"b":1,"a":2}}` {
		t.Errorf("progress: %v", p)
	}
	if got, _ := d.answer(77); !strings.Contains(got, "done") {
		t.Errorf("answer: %s", got)
	}
	d.call(&hostv1.Call{Id: 78, Tool: "progress"}) // nobody asked for it
	if got, _ := d.answer(78); !strings.Contains(got, "done") {
		t.Errorf("answer: %s", got)
	}
	d.call(&hostv1.Call{Id: 79, Tool: "echo", Meta: []byte(`{"progressToken":1,"trace":[1.0]}`)})
	if got, _ := d.answer(79); !strings.Contains(got, `\"_meta\":{\"trace\":[1.0]}`) {
		t.Errorf("meta: %s", got)
	}
}

// Arguments come in pieces, also those of calls between each other.
func TestPieces(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	long := strings.Repeat("a", 700<<10)
	arguments := `{"x":"` + long + `"}`
	for at := 0; at < len(arguments); at += 256 << 10 {
		part := arguments[at:min(len(arguments), at+256<<10)]
		d.call(&hostv1.Call{Id: 1, Tool: map[bool]string{true: "echo"}[at == 0], Arguments: []byte(part), More: at+len(part) < len(arguments)})
		if at == 0 {
			d.call(&hostv1.Call{Id: 2, Tool: "iserror"})
			if _, end := d.answer(2); end != hostv1.End_END_TOOL_ERROR {
				t.Errorf("between: %v", end)
			}
		}
	}
	if got, end := d.answer(1); end != hostv1.End_END_OK || !strings.Contains(got, long) {
		t.Errorf("%v, %d bytes", end, len(got))
	}
	// Too much of it fails once, and the rest means nothing.
	piece := bytes.Repeat([]byte("x"), 256<<10)
	for i := range 45 {
		d.call(&hostv1.Call{Id: 3, Tool: "echo", Arguments: piece, More: i < 44})
	}
	if _, end := d.answer(3); end != hostv1.End_END_TRANSPORT {
		t.Errorf("too long: %v", end)
	}
	if got, end := d.ask("golden", ""); got != goldenResult || end != hostv1.End_END_OK {
		t.Errorf("after: %v %s", end, got)
	}
}

func TestCancelled(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 5, Tool: "silent"})
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Cancel{Cancel: &hostv1.Cancel{Id: 5}}})
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Cancel{Cancel: &hostv1.Cancel{Id: 5}}})
	d.log(`cancelled {"requestId":4}`) // initialize and two pages came before
	for i, c := range []struct{ said, want string }{
		{`{"reason":"x","requestId":9,"zz":[1, 2]}`, `,"reason":"x","zz":[1,2]`},
		{`[1]`, ""},
		{`{"a":1}{"b":2}`, ""},
		{`{"a":1,"a":2}`, ""},
		{`{"reason":"` + strings.Repeat("r", 5<<10) + `"}`, ""},
	} {
		id := uint64(6 + i)
		d.call(&hostv1.Call{Id: id, Tool: "silent"})
		d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_Cancel{Cancel: &hostv1.Cancel{Id: id, Said: []byte(c.said)}}})
		d.log(fmt.Sprintf(`cancelled {"requestId":%d%s}`, 5+i, c.want))
	}
	if got, _ := d.ask("golden", ""); got != goldenResult {
		t.Errorf("after: %s", got)
	}
}

// A server that changes its mind is listed again.
func TestListedAgain(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 1, Tool: "change"})
	sawAnswer := false
	for {
		m := d.next()
		sawAnswer = sawAnswer || m.GetAnswer() != nil
		if listed := m.GetListed(); listed != nil {
			if listed.GetTools()[0].GetName() != "changed" {
				t.Errorf("listed: %v", listed)
			}
			break
		}
	}
	if !sawAnswer {
		d.answer(1)
	}
	d.send(&hostv1.HostRequest{Message: &hostv1.HostRequest_List{List: &hostv1.List{}}})
	if listed := d.listed(); len(listed.GetTools()) != 2 || listed.GetInstructions() != "Be é" {
		t.Errorf("asked for: %v", listed)
	}
}

// A line of any length is taken up to the limit, and what is beyond fails one
// call, whatever else is on its way.
func TestLongLines(t *testing.T) {
	start := stubStart(t)
	start.MaxLine = 1 << 20
	d := serve(t, start, Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 9, Tool: "silent"})
	if got, end := d.ask("big", `{"bytes":1000000}`); end != hostv1.End_END_OK || len(got) < 1000000 {
		t.Errorf("%v, %d bytes", end, len(got))
	}
	if got, end := d.ask("bigger", `{"bytes":1900000}`); end != hostv1.End_END_TRANSPORT || got != "" {
		t.Errorf("too long: %v, %d bytes", end, len(got))
	}
	if got, end := d.ask("golden", ""); got != goldenResult || end != hostv1.End_END_OK {
		t.Errorf("after: %v %s", end, got)
	}
	// Where nobody can say whose answer it was, nobody waits for ever.
	d.call(&hostv1.Call{Id: 10, Tool: "anonymous", Arguments: []byte(`{"bytes":2000000}`)})
	lost := map[uint64]hostv1.End{}
	for range 2 {
		a := d.next().GetAnswer()
		lost[a.GetId()] = a.GetEnd()
	}
	if diff := cmp.Diff(map[uint64]hostv1.End{9: hostv1.End_END_TRANSPORT, 10: hostv1.End_END_TRANSPORT}, lost); diff != "" {
		t.Error(diff)
	}
}

// A line without an end ends the server, whoever waits: nothing of it is kept, and
// the daemon hears why.
func TestEndlessLine(t *testing.T) {
	start := stubStart(t)
	start.MaxLine = 1 << 20
	d := serve(t, start, Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 9, Tool: "silent"})
	d.call(&hostv1.Call{Id: 10, Tool: "endless"})
	for range 2 {
		if a := d.next().GetAnswer(); a.GetEnd() != hostv1.End_END_TRANSPORT {
			t.Errorf("%v", a)
		}
	}
	if e := d.ended(); e.GetWhy() != "protocol" || !strings.HasPrefix(e.GetDetail(), "it wrote more than 1048576 bytes without an end of the line") {
		t.Errorf("%v", e)
	}
}

// What a server's logs hold arrives in lines of at most 4 KiB, and holds up no
// answer for good.
func TestFlood(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	d.call(&hostv1.Call{Id: 1, Tool: "flood"})
	for count := 0; ; {
		m := d.any()
		if line := m.GetLog(); line != nil {
			count++
			if len(line.GetLine()) > 4<<10 {
				t.Fatalf("a line of %d bytes", len(line.GetLine()))
			}
			if count > 2001 {
				t.Fatal("more lines than were written")
			}
			continue
		}
		if m.GetAnswer().GetEnd() != hostv1.End_END_OK {
			t.Errorf("%v", m)
		}
		return
	}
}

// A server that ends, or never begins, is told as such.
func TestEnds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		start func(*hostv1.Start)
		want  *hostv1.Ended
	}{
		{"exits at once", func(s *hostv1.Start) { s.Command = append(s.Command, "exits") }, &hostv1.Ended{Why: "exited", Detail: "the server exited with code 3", Code: 3}},
		{"speaks another language", func(s *hostv1.Start) { s.Command = append(s.Command, "alien") }, &hostv1.Ended{Why: "protocol", Detail: "it speaks no revision of MCP that is known here", Code: -1}},
		{"lists for ever", func(s *hostv1.Start) { s.Command = append(s.Command, "loop") }, &hostv1.Ended{Why: "protocol", Detail: "its list of tools leads back to the same page", Code: -1}},
		{"is not there", func(s *hostv1.Start) { s.Command = []string{"no-such-program"} }, &hostv1.Ended{Why: "refused", Code: -1}},
		{"says nothing", func(s *hostv1.Start) { s.Command = []string{"true"} }, &hostv1.Ended{Why: "exited", Detail: "the server exited with code 0"}},
		{"kills itself", func(s *hostv1.Start) { s.Command = []string{"sh", "-c", "kill -9 $$"} }, &hostv1.Ended{Why: "exited", Detail: "the server was ended by a signal", Code: -1}},
		{"neither", func(s *hostv1.Start) { s.Command = nil }, &hostv1.Ended{Why: "refused", Detail: "a server is either a command or a URL", Code: -1}},
		{"both", func(s *hostv1.Start) { s.Url = "https://localhost" }, &hostv1.Ended{Why: "refused", Detail: "a server is either a command or a URL", Code: -1}},
		{"plain http to others", func(s *hostv1.Start) { s.Command, s.Url = nil, "http://example.com/" }, &hostv1.Ended{Why: "refused", Detail: "http is for this machine alone: https for others", Code: -1}},
		{"a password in the URL", func(s *hostv1.Start) { s.Command, s.Url = nil, "https://a:b@example.com/" }, &hostv1.Ended{Why: "refused", Detail: "the URL holds a name or a password", Code: -1}},
	} {
		start := stubStart(t)
		tc.start(start)
		d := serve(t, start, Config{})
		got := d.ended()
		if tc.want.GetDetail() == "" {
			tc.want.Detail = got.GetDetail()
		}
		if got.GetWhy() != tc.want.GetWhy() || got.GetDetail() != tc.want.GetDetail() || got.GetCode() != tc.want.GetCode() || got.GetDetail() == "" {
			t.Errorf("%s: %v", tc.name, got)
		}
		if code := <-d.code; code != 1 {
			t.Errorf("%s: exit code %d", tc.name, code)
		}
		d.code <- 1
	}
}

// Older revisions are tried when the newest is refused.
func TestOlderRevision(t *testing.T) {
	d := serve(t, stubStart(t, "old"), Config{})
	started, _ := d.greeted()
	if started.GetRevision() != "2024-11-05" {
		t.Errorf("revision %q", started.GetRevision())
	}
}

// Calls that are open when the server dies are answered.
func TestDiesMidCall(t *testing.T) {
	d := serve(t, stubStart(t), Config{})
	d.greeted()
	for id := range uint64(5) {
		d.call(&hostv1.Call{Id: id + 1, Tool: "silent"})
	}
	d.call(&hostv1.Call{Id: 6, Tool: "die"})
	open := map[uint64]bool{}
	for range 6 {
		a := d.next().GetAnswer()
		if a.GetEnd() != hostv1.End_END_TRANSPORT || open[a.GetId()] {
			t.Errorf("answer: %v", a)
		}
		open[a.GetId()] = true
	}
	if e := d.ended(); e.GetWhy() != "exited" || e.GetCode() != 3 {
		t.Errorf("ended: %v", e)
	}
}

// Stop waits for open calls, but not for ever, and takes no notice of a server
// that does not want to end.
func TestStop(t *testing.T) {
	t.Run("patient", func(t *testing.T) {
		d := serve(t, stubStart(t), Config{})
		d.greeted()
		d.call(&hostv1.Call{Id: 1, Tool: "big", Arguments: []byte(`{"bytes":3000000}`)})
		d.stop(patience)
		if got, end := d.answer(1); end != hostv1.End_END_OK || len(got) < 3000000 {
			t.Errorf("%v, %d bytes", end, len(got))
		}
		if e := d.ended(); e.GetWhy() != "stopped" {
			t.Errorf("ended: %v", e)
		}
	})
	t.Run("stubborn", func(t *testing.T) {
		d := serve(t, stubStart(t), Config{})
		d.greeted()
		d.ask("deaf", "")
		d.call(&hostv1.Call{Id: 1, Tool: "echo", Arguments: []byte(`{"x":"` + strings.Repeat("a", 200<<10) + `"}`)})
		d.stop(time.Millisecond)
		if _, end := d.answer(1); end != hostv1.End_END_TRANSPORT {
			t.Errorf("%v", end)
		}
		if e := d.ended(); e.GetWhy() != "stopped" {
			t.Errorf("ended: %v", e)
		}
	})
}

// The server gets its environment, an empty folder that is gone afterwards, and
// none of what is around it.
func TestSurroundings(t *testing.T) {
	t.Setenv("SECRET_OF_OURS", "x")
	for _, confined := range []bool{false, true} {
		t.Run(fmt.Sprintf("confined %v", confined), func(t *testing.T) {
			start := stubStart(t)
			key := filepath.Join(start.GetHome(), "secret.key")
			want := []string{"confined"}
			if confined {
				needsConfinement(t, start)
			} else {
				start.Home = ""
				want = nil
			}
			d := serve(t, start, Config{})
			started, _ := d.greeted()
			if got := slices.DeleteFunc(started.GetConfinement(), func(w string) bool { return strings.HasPrefix(w, "not confined") || w == "undumpable" }); !slices.Equal(got, want) {
				t.Errorf("confinement: %q", started.GetConfinement())
			}
			got, _ := d.ask("env", "")
			var r struct{ Content []struct{ Text string } }
			if err := json.Unmarshal([]byte(got), &r); err != nil {
				t.Fatal(err)
			}
			parts := strings.Split(r.Content[0].Text, "|")
			if parts[0] != "PATH=/usr/local/bin:/usr/bin:/bin,TOKEN=hush" || parts[2] != "0" {
				t.Errorf("environment: %q", parts)
			}
			d.ask("write", "")
			if _, err := os.Stat(filepath.Join(parts[1], "left behind")); err != nil {
				t.Errorf("the folder is not where it should be: %v", err)
			}
			if got, _ := d.ask("read", `{"dir":"`+key+`"}`); strings.Contains(got, "the key") == confined {
				t.Errorf("the broker's key: %s", got)
			}
			d.stop(time.Second)
			d.ended()
			if _, err := os.Stat(parts[1]); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the folder is left: %v", err)
			}
		})
	}
}

// Without namespaces nothing runs that was to be confined.
func TestConfineRefuses(t *testing.T) {
	start := stubStart(t)
	start.Home, start.Confine = "", true
	d := serve(t, start, Config{})
	if e := d.ended(); e.GetWhy() != "refused" || !strings.Contains(e.GetDetail(), "does not provide") {
		t.Errorf("ended: %v", e)
	}
}
