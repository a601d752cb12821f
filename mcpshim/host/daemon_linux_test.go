package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/mcpshim"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/client"
)

// agent is a client of a shim, with raw lines.
type agent struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader

	greeting string
}

func newAgent(t *testing.T, d *daemontest.Daemon, subject string) *agent {
	t.Helper()
	inReader, inWriter := io.Pipe()
	outReader, outWriter := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- mcpshim.Serve(context.WithoutCancel(t.Context()), mcpshim.Config{
			Worker: worker.Config{Places: client.Places{Home: d.Home, SocketDir: d.SocketDir}, Subject: subject, Version: "1"},
			In:     inReader, Out: outWriter, Trouble: func(reason wire.Reason, text string) { t.Logf("trouble: %s: %s", reason, text) },
		})
		outWriter.Close()
	}()
	a := &agent{t: t, in: inWriter, out: bufio.NewReader(outReader)}
	t.Cleanup(func() {
		inWriter.Close()
		go io.Copy(io.Discard, outReader)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	a.greeting = a.ask("initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"0"}}`)
	return a
}

// ask returns the answer as it came, from result or error on.
func (a *agent) ask(method, params string) string {
	a.t.Helper()
	if _, err := fmt.Fprintf(a.in, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`+"\n", method, params); err != nil {
		a.t.Fatal(err)
	}
	for {
		line, err := a.out.ReadString('\n')
		if err != nil {
			a.t.Fatal(err)
		}
		if rest, ok := strings.CutPrefix(line, `{"jsonrpc":"2.0","id":1,`); ok {
			return strings.TrimSuffix(rest, "}\n")
		}
	}
}

func (a *agent) call(tool, arguments string) string {
	a.t.Helper()
	return a.ask("tools/call", `{"name":"`+tool+`","arguments":`+arguments+`}`)
}

// From an agent's line through shim, daemon and host to a server and back, with
// nothing changed that is not ours to change.
func TestThroughTheDaemon(t *testing.T) {
	path := program(t)
	t.Cleanup(func() { sweep(os.TempDir(), os.Geteuid(), time.Now().Add(2*staleAfter)) }) // what a killed host left
	d := daemontest.StartWith(t, daemontest.Options{HostProgram: path})
	d.AddSubject("worker", "other")
	d.PutKind("token", "secret", "hush-hush")
	d.Grant("worker", "use:token")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	operator := d.Operator()
	for name, mode := range map[string]string{"one": "", "two": "", "new": "newer"} {
		_, err := operator.AddServer(ctx, &operatorv1.AddServerRequest{
			Server: &operatorv1.Server{
				Name: name, Command: []string{path, "stub", mode}, Env: map[string]string{"TOKEN": "${secret:token}"},
			},
			Subjects: []string{"worker"},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := operator.TrustServer(ctx, &operatorv1.TrustServerRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	a := newAgent(t, d, "worker")
	for _, want := range []string{`The server \"one\" says of its tools, which are named one_… here:\n> Be é`, `\n> Be new`} {
		if !strings.Contains(a.greeting, want) {
			t.Errorf("no %s in %s", want, a.greeting)
		}
	}
	if got := a.call("new_echo", `{"a":1.0}`); !strings.Contains(got, `"arguments":{"a":1.0}`) {
		t.Errorf("a server of the era without sessions: %s", got)
	}
	listed := a.ask("tools/list", `{}`)
	for _, name := range []string{"one", "two"} {
		if want := strings.Replace(goldenObject, `"name":"golden"`, `"name":"`+name+`_golden"`, 1); !strings.Contains(listed, want) {
			t.Errorf("no %s in %s", want, listed)
		}
		if got := a.call(name+"_golden", `{}`); got != `"result":`+goldenResult {
			t.Errorf("%s: %s", name, got)
		}
	}
	const denied = `"result":{"content":[{"type":"text","text":"access denied. Ask the person who runs this agent."}],"isError":true}`
	for _, tool := range []string{"one_env", "one_absent", "three_golden"} { // not offered, not there, no server
		if got := a.call(tool, `{}`); got != denied {
			t.Errorf("%s: %s", tool, got)
		}
	}
	if got := a.call("one_echo", `{"b":1.0,"a":12345678901234567890}`); !strings.Contains(got, `\"arguments\":{\"b\":1.0,\"a\":12345678901234567890}`) {
		t.Errorf("echo: %s", got)
	}
	if got := a.call("one_golden", `{"x":"`+strings.Repeat("y", 3<<20)+`"}`); got != `"result":`+goldenResult {
		t.Errorf("a large call: %.300s", got)
	}
	// Somebody else has nothing to do with it, and cannot tell.
	b := newAgent(t, d, "other")
	if got := b.ask("tools/list", `{}`); strings.Contains(got, "_golden") {
		t.Errorf("listed for another subject: %s", got)
	}
	if strings.Contains(b.greeting, "The server") {
		t.Errorf("instructions for another subject: %s", b.greeting)
	}
	if got := b.call("one_golden", `{}`); got != denied {
		t.Errorf("called by another subject: %s", got)
	}
	// A host that is killed is another one at the next call.
	got, err := operator.GetServer(ctx, &operatorv1.GetServerRequest{Name: "one"})
	if err != nil || len(got.GetServer().GetProcesses()) == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, p := range got.GetServer().GetProcesses() {
		if p.GetPid() > 0 {
			if err := syscall.Kill(int(p.GetPid()), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		got := a.call("one_golden", `{}`)
		if got == `"result":`+goldenResult {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("after the host was killed: %s", got)
		}
	}
	var log []string
	for _, entry := range d.Entries("call") {
		raw, _ := json.Marshal(entry)
		log = append(log, string(raw))
	}
	if all := strings.Join(log, "\n"); strings.Contains(all, "hush") || strings.Contains(all, "12345678901234567890") || len(log) < 7 {
		t.Errorf("the log:\n%s", all)
	}
}
