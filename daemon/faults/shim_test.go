//go:build linux

package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
)

// An agent behind sb-mcp goes on reading while the daemon dies and comes back.
// It is answered every time, gets right content or a reason, and there are as
// many entries as contents.
func TestKilledBehindShim(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "killed behind the agent's shim")
	w := newWorld(t, s, nil, daemontest.Options{})
	w.populate()
	agent := newAgent(t, w.Home)
	received, unavailable := 0, 0
	for range rounds(t, 15) {
		killed := make(chan struct{})
		timer := time.AfterFunc(20*time.Millisecond+rand.N(30*time.Millisecond), func() {
			defer close(killed)
			w.Kill()
		})
		for dead := false; !dead; {
			switch text := agent.read("note"); {
			case strings.Contains(text, `"content":"`+hello+`"`):
				received++
			case strings.Contains(text, "BROKER_UNAVAILABLE"), strings.Contains(text, "RUN_ENDED"):
				unavailable++
				dead = true
			default:
				s.lost(t, "the agent was answered %s", text)
				dead = true
			}
		}
		if timer.Stop() {
			t.Fatal("the shim gave up before the daemon was killed")
		}
		<-killed
		s.add(kills, 1)
		w.Start()
		for text := ""; !strings.Contains(text, `"content":"`+hello+`"`) && !t.Failed(); text = agent.read("note") {
			if text != "" && !strings.Contains(text, "BROKER_UNAVAILABLE") && !strings.Contains(text, "RUN_ENDED") {
				s.lost(t, "after the return the agent was answered %s", text)
			}
		}
		received++
	}
	entries := 0
	for _, e := range w.entries() {
		if e.Kind == "acquire" && e.Decision == "allow" {
			entries++
		}
	}
	if entries < received {
		s.lost(t, "the agent received %d contents, the log has %d", received, entries)
	}
	if unavailable == 0 {
		t.Error("the agent never noticed")
	}
	s.add(answers, received)
}

// agent speaks MCP to a shim.
type agent struct {
	t  *testing.T
	in io.Writer
	// out are the lines that the shim says.
	out *bufio.Scanner
	id  int
}

func newAgent(t *testing.T, home string) *agent {
	t.Helper()
	cmd := exec.Command(program(t, "sb-mcp"), "--subject", "worker", "--home", home)
	cmd.Env = []string{"HOME=" + home}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	a := &agent{t: t, in: in, out: bufio.NewScanner(out)}
	a.out.Buffer(nil, 1<<20)
	a.call("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"faults","version":"1"}}`)
	_, err = io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	must(t, err)
	return a
}

// call makes one call and returns its answer.
func (a *agent) call(method, params string) string {
	a.t.Helper()
	a.id++
	_, err := fmt.Fprintf(a.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", a.id, method, params)
	must(a.t, err)
	for a.out.Scan() {
		var answer struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		must(a.t, json.Unmarshal(a.out.Bytes(), &answer))
		if answer.ID == a.id {
			return string(answer.Result) + string(answer.Error)
		}
	}
	a.t.Fatalf("the shim ended: %v", a.out.Err())
	return ""
}

// read reads a resource and returns the structured answer.
func (a *agent) read(name string) string {
	a.t.Helper()
	return a.call("tools/call", fmt.Sprintf(`{"name":"read_resource","arguments":{"resourceId":%q}}`, name))
}
