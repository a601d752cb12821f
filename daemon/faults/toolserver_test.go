//go:build linux

package faults

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// serverRole FILE is how this program is an MCP server on standard input and
// output. It writes down in FILE what it did, before it answers, and nobody else
// writes there: this is what judges how often a call was made. Its tools:
//
//	ok    nothing that counts
//	hit   writes down its argument id; with hold, answers when FILE.id.go is there
//	leak  keeps memory and a descriptor for ever
const serverRole = "tool-server"

func serverMain(file string) int {
	record, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 1
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	answer := func(id json.RawMessage, result any) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
	}
	var kept [][]byte
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments struct {
					ID   string
					Hold bool
				}
			}
		}
		if err := json.Unmarshal(in.Bytes(), &q); err != nil || q.ID == nil {
			continue
		}
		switch q.Method {
		case "initialize":
			answer(q.ID, map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "counts", "version": "1"}})
		case "tools/list":
			tools := []any{}
			for _, name := range []string{"ok", "hit", "leak"} {
				tools = append(tools, map[string]any{"name": name, "inputSchema": map[string]any{"type": "object"}})
			}
			answer(q.ID, map[string]any{"tools": tools})
		case "tools/call":
			args := q.Params.Arguments
			text := map[string]any{"content": []any{map[string]any{"type": "text", "text": "did " + q.Params.Name + " " + args.ID}}}
			switch q.Params.Name {
			case "hit":
				if _, err := record.WriteString(args.ID + "\n"); err != nil {
					return 1
				}
			case "leak":
				kept = append(kept, bytes.Repeat([]byte{1}, 64<<10))
				if _, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0); err != nil {
					return 1
				}
			}
			if !args.Hold {
				answer(q.ID, text)
				continue
			}
			go func() {
				for {
					if _, err := os.Stat(file + "." + args.ID + ".go"); err == nil {
						break
					}
					time.Sleep(5 * time.Millisecond)
				}
				answer(q.ID, text)
			}()
		default:
			answer(q.ID, map[string]any{})
		}
	}
	runtime.KeepAlive(kept)
	return 0
}

// toolWorld is a world with an MCP server, which is hosted under the name hosted
// and can be wrapped under the name wrapped.
type toolWorld struct {
	*world
	self, file string
}

func newToolWorld(t *testing.T, s *score) *toolWorld {
	t.Helper()
	return newToolWorldOn(t, s, nil)
}

// newToolWorldOn is the same on a disk.
func newToolWorldOn(t *testing.T, s *score, d *disk) *toolWorld {
	t.Helper()
	mcp := program(t, "sb-mcp")
	// sbd looks for sb-mcp beside itself.
	beside := filepath.Join(filepath.Dir(mcp), "sbd")
	if err := os.Link(daemontest.Program(t), beside); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	self, err := os.Executable()
	must(t, err)
	w := &toolWorld{self: self, file: filepath.Join(t.TempDir(), "record")}
	w.world = newWorld(t, s, d, daemontest.Options{Wrap: []string{"sh", "-c", `shift; exec "$0" "$@"`, beside}})
	w.Authenticate()
	must(t, w.serve("hosted"))
	_, err = w.Operator().TrustServer(t.Context(), &operatorv1.TrustServerRequest{Name: "hosted"})
	must(t, err)
	return w
}

// admit makes subjects that may call everything, under the same rules around both
// servers; no rules: none.
func (w *toolWorld) admit(rules string, subjects ...string) {
	w.t.Helper()
	w.AddSubject(subjects...)
	document := "version: 1\npolicies:\n"
	for _, subject := range subjects {
		for _, server := range []string{"hosted", "wrapped"} {
			w.Grant(subject, "call:"+server+"/*")
			document += fmt.Sprintf("  - {subject: %s, server: %s, %s}\n", subject, server, rules)
		}
	}
	if rules == "" {
		return
	}
	_, err := w.Operator().Apply(w.t.Context(), &operatorv1.ApplyRequest{Document: []byte(document)})
	must(w.t, err)
}

// done is how often the server did what an id stands for.
func (w *toolWorld) done(id string) (times int) {
	w.t.Helper()
	raw, err := os.ReadFile(w.file)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if line == id+"\n" {
			times++
		}
	}
	return times
}

// servers are the processes of the server, whoever runs them.
func (w *toolWorld) servers() (pids []int) {
	entries, err := os.ReadDir("/proc")
	must(w.t, err)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		raw, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if words := strings.Split(string(raw), "\x00"); len(words) > 2 && words[0] == w.self && words[1] == serverRole && words[2] == w.file {
			pids = append(pids, pid)
		}
	}
	return pids
}

// host is the process that runs the server for a subject; 0: none.
func (w *toolWorld) host(subject string) int {
	w.t.Helper()
	got, err := w.Operator().GetServer(w.t.Context(), &operatorv1.GetServerRequest{Name: "hosted"})
	must(w.t, err)
	for _, p := range got.GetServer().GetProcesses() {
		if p.GetSubject() == subject {
			return int(p.GetPid())
		}
	}
	return 0
}

// eventually waits for something that must happen.
func eventually(t *testing.T, what string, happens func() bool) {
	t.Helper()
	for until := time.Now().Add(daemontest.Patience); !happens(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("it does not happen: %s", what)
		}
	}
}

// card is the request that waits for a person about an id; nil: there is none.
func (w *toolWorld) card(id string) *operatorv1.Approval {
	w.t.Helper()
	list, err := w.Operator().ListApprovals(w.t.Context(), &operatorv1.ListApprovalsRequest{})
	must(w.t, err)
	for _, a := range list.GetApprovals() {
		if a.GetState() == "pending" && strings.Contains(string(a.GetArguments()), strconv.Quote(id)) {
			return a
		}
	}
	return nil
}

// caller is an agent that calls tools over sb-mcp, as many at once as it likes.
type caller struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	prefix string
	ended  chan struct{}

	mu      sync.Mutex
	id      int
	waiting map[int]chan string
}

// call starts an agent for a subject whose tools are on a server, by its name.
func (w *toolWorld) call(subject, server string) *caller {
	w.t.Helper()
	c := &caller{t: w.t, ended: make(chan struct{}), waiting: map[int]chan string{}}
	args := []string{"--subject", subject, "--home", w.Home}
	if server == "wrapped" {
		args = append([]string{"wrap", "--server", server}, append(args, "--", w.self, serverRole, w.file)...)
	} else {
		c.prefix = server + "_"
	}
	c.cmd = exec.Command(program(w.t, "sb-mcp"), args...)
	c.cmd.Env = []string{"HOME=" + w.Home, "PATH=" + os.Getenv("PATH")}
	var err error
	c.in, err = c.cmd.StdinPipe()
	must(w.t, err)
	out, err := c.cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, c.cmd.Start())
	go c.read(out)
	w.t.Cleanup(c.kill)
	c.wait(c.send("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"faults","version":"1"}}`))
	_, err = io.WriteString(c.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	must(w.t, err)
	return c
}

func (c *caller) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var answer struct {
			ID            int
			Result, Error json.RawMessage
		}
		if json.Unmarshal(lines.Bytes(), &answer) != nil {
			continue // of the server, with an id of its own
		}
		c.mu.Lock()
		if one := c.waiting[answer.ID]; one != nil {
			one <- string(answer.Result) + string(answer.Error)
			delete(c.waiting, answer.ID)
		}
		c.mu.Unlock()
	}
	_ = c.cmd.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.ended)
	for _, one := range c.waiting {
		close(one)
	}
	c.waiting = nil
}

// send asks; nothing comes when the shim ends first.
func (c *caller) send(method, params string) <-chan string {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := make(chan string, 1)
	if c.waiting == nil {
		close(answer)
		return answer
	}
	c.id++
	c.waiting[c.id] = answer
	_, _ = fmt.Fprintf(c.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", c.id, method, params) // it may have been killed
	return answer
}

// tool calls a tool.
func (c *caller) tool(name, args string) <-chan string {
	return c.send("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, c.prefix+name, args))
}

// wait is the answer; empty when the shim ended before it.
func (c *caller) wait(answer <-chan string) string {
	c.t.Helper()
	select {
	case text := <-answer:
		return text
	case <-time.After(2 * daemontest.Patience):
		c.t.Fatal("no answer comes")
		return ""
	}
}

// warm makes calls until one is answered as it should be: servers that were killed
// come back after a while.
func (c *caller) warm() {
	c.t.Helper()
	eventually(c.t, "a call is answered", func() bool { return strings.Contains(c.wait(c.tool("ok", "{}")), "did ok") })
}

// close ends it as an agent does, kill at once.
func (c *caller) close() {
	_ = c.in.Close()
	select {
	case <-c.ended:
	case <-time.After(daemontest.Patience):
		c.t.Error("sb-mcp does not end with its input")
		c.kill()
	}
}

func (c *caller) kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// size is what a process holds.
type size struct {
	descriptors int
	threads     int
	kilobytes   int // resident
}

func sizeOf(t *testing.T, pid int) (s size) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	s.descriptors = len(open)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if words := strings.Fields(line); len(words) > 1 {
			switch words[0] {
			case "VmRSS:":
				s.kilobytes, err = strconv.Atoi(words[1])
			case "Threads:":
				s.threads, err = strconv.Atoi(words[1])
			}
			must(t, err)
		}
	}
	return s
}

// family are a process and all its descendants.
func family(t *testing.T, pid int) []int {
	t.Helper()
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, task := range tasks {
			raw, _ := os.ReadFile(task)
			for word := range strings.FieldsSeq(string(raw)) {
				child, err := strconv.Atoi(word)
				must(t, err)
				all = append(all, child)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
