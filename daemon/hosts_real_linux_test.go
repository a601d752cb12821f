package daemon_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// realHost builds sb-mcp beside sbd, in a folder of its own.
func realHost(t *testing.T) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sbd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir+"/", "subjectbroker/cmd/sb-mcp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building sb-mcp: %v\n%s", err, out)
	}
	must(t, os.Link(daemontest.Program(t), filepath.Join(dir, "sbd")))
	return dir
}

// mcpServer is an MCP server on stdio. Its tools say what an agent could get out of
// a server:
//
//	env    its environment
//	knock  what becomes of it on the broker's sockets, whose places are the argument
//	open   what it has open
//	escape starts a process that becomes nobody's and kills the host; see flight
//	leave  starts a process that leaves the session and has no parent, and says where a file grows while that lives
func mcpServer(string) int {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var q struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Arguments map[string]string
			}
		}
		if err := json.Unmarshal(in.Bytes(), &q); err != nil || q.ID == nil {
			continue
		}
		var result any = map[string]any{}
		switch q.Method {
		case "initialize":
			result = map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "test", "version": "0"}}
		case "tools/list":
			tools := []any{}
			for _, name := range []string{"env", "knock", "leave", "escape", "open"} {
				tools = append(tools, map[string]any{"name": name, "description": name, "inputSchema": map[string]any{"type": "object"}})
			}
			result = map[string]any{"tools": tools}
		case "tools/call":
			text := ""
			switch q.Params.Name {
			case "env":
				text = strings.Join(os.Environ(), "\n")
			case "knock":
				text = knocked(q.Params.Arguments["places"])
			case "open":
				text = openFiles()
			case "escape":
				text = startEscape(q.Params.Arguments["flight"])
			case "leave":
				cmd := exec.Command("/bin/sh", "-c", `while :; do echo x >> "$1"; sleep 0.05; done`, "sh", q.Params.Arguments["file"])
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
				text = fmt.Sprint(cmd.Start())
			}
			result = map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}}
		}
		_ = out.Encode(map[string]any{"jsonrpc": "2.0", "id": q.ID, "result": result})
	}
	return 0
}

// text is the text of an answer.
func text(t *testing.T, e ended) string {
	t.Helper()
	var result struct{ Content []struct{ Text string } }
	if err := json.Unmarshal([]byte(e.answer), &result); err != nil || len(result.Content) != 1 {
		t.Fatalf("the answer is %s: %v", e, err)
	}
	return result.Content[0].Text
}

// With the real program in between: the server has its secret, nothing else of the
// broker's, and does not outlive a daemon that is killed, whatever it did to.
func TestRealHost(t *testing.T) {
	const secret = "marker-5d0b-of-a-real-server"
	dir := realHost(t)
	left, inherited := leftOpen(t)
	d := daemontest.Launch(t, daemontest.Options{Wrap: []string{"sh", "-c", `shift; exec "$0"/sbd "$@"`, dir}, Files: []*os.File{left}})
	d.AddSubject("worker")
	d.PutKind("token", "secret", secret)
	d.Grant("worker", "use:token")
	_, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{
		Server: &operatorv1.Server{
			Name: "real", Command: []string{self(t), "mcp-server", "-"}, Env: map[string]string{"TOKEN": "${secret:token}"},
		},
		Subjects: []string{"worker"},
	})
	must(t, err)
	equal(t, "trusted", strings.Join(trust(t, d, "real"), ", "), "env new, escape new, knock new, leave new, open new")
	stream := hostedRelay(t, d.Open("worker"), "real")
	env := text(t, stream.call("env", `{}`))
	if !strings.Contains(env, "TOKEN="+secret) || strings.Contains(env, "SB_") {
		t.Errorf("its environment is %s", env)
	}
	places, err := json.Marshal(d.Places)
	must(t, err)
	args, err := json.Marshal(map[string]string{"places": string(places)})
	must(t, err)
	if got := text(t, stream.call("knock", string(args))); strings.Contains(got, "ALLOWED") {
		t.Errorf("on the broker's sockets: %s", got)
	}
	equal(t, "from outside", knocked(string(places)), "operator ALLOWED, broker ALLOWED")

	got := text(t, stream.call("open", `{}`))
	for i, one := range strings.Fields(got) { // the runtime opens files of its own
		if _, link, _ := strings.Cut(one, "="); link == inherited || i > 2 && !strings.HasPrefix(link, "/") && !strings.HasPrefix(link, "anon_inode:") {
			t.Errorf("it has open %s", got)
		}
	}

	file := filepath.Join(t.TempDir(), "grows")
	t.Cleanup(func() {
		for _, pid := range writers(file) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	args, err = json.Marshal(map[string]string{"file": file})
	must(t, err)
	equal(t, "starting what stays", text(t, stream.call("leave", string(args))), "<nil>")
	grown := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	eventually(t, "it runs", func() bool { return grown() > 4 })
	host := process(t, d, "real", "worker")
	confined := slices.Contains(host.GetConfinement(), "confined")
	d.Kill()
	eventually(t, "the host dies", func() bool { return !alive(host.GetPid()) })
	if confined {
		eventually(t, "what its server left dies, too", func() bool { return len(writers(file)) == 0 })
	}
	for _, what := range []string{string(d.RawLog()), d.Messages()} {
		if strings.Contains(what, secret) {
			t.Error("the secret is in a log")
		}
	}
	d.Start()
	if !confined {
		daemontest.LeaveOut(t, "hosts", fmt.Sprintf("there can be no namespaces here: %v", host.GetConfinement()))
	}
}

// writers returns the processes that were told to write to a file.
func writers(file string) (pids []int) {
	names, _ := os.ReadDir("/proc")
	for _, entry := range names {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		raw, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline")
		if strings.Contains(string(raw), "\x00"+file) {
			pids = append(pids, pid)
		}
	}
	return pids
}
