package daemon_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// tree is what an agent of a test does: it starts a shim through a wrapper, and
// then tries to be the operator.
type tree struct {
	Home    string
	Wrapper []string // before the shim's own command line
	Idle    bool     // no shim is started
}

// eagerAgent is the agent. It prints how each of its attempts ended.
func eagerAgent(arg string) int {
	var do tree
	self, err := os.Executable()
	if err == nil {
		err = json.Unmarshal([]byte(arg), &do)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if !do.Idle {
		shim := exec.Command(self, "shim", do.Home)
		if len(do.Wrapper) > 0 {
			shim = exec.Command(do.Wrapper[0], append(do.Wrapper[1:], self, "shim", do.Home)...)
		}
		shim.Stderr = os.Stderr
		hold, err := shim.StdinPipe()
		if err != nil {
			return 1
		}
		out, err := shim.StdoutPipe()
		if err != nil || shim.Start() != nil {
			return 1
		}
		defer shim.Wait()
		defer hold.Close()
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
			fmt.Fprintln(os.Stderr, "the shim is not ready:", line, err)
			return 1
		}
	}
	for _, way := range []struct {
		name string
		cmd  *exec.Cmd
	}{
		{"itself", nil},
		{"a child", exec.Command(self, "status", do.Home)},
		{"a shell", exec.Command("sh", "-c", `"$0" status "$1"; exit $?`, self, do.Home)},
		{"a session", exec.Command("setsid", "--wait", self, "status", do.Home)},
		{"a command on a terminal", onTerminal(exec.Command("bash", "-c", `"$0" status "$1"; exit $?`, self, do.Home), "")},
		{"a person's shell", onTerminal(exec.Command("bash", "--norc", "-i"), self+" status "+do.Home+"; exit $?\n")},
	} {
		code := 0
		if way.cmd == nil {
			code = operatorStatus(do.Home)
		} else {
			_ = way.cmd.Run()
			code = way.cmd.ProcessState.ExitCode()
		}
		fmt.Printf("%s: %d\n", way.name, code)
	}
	return 0
}

// onTerminal makes a command the leader of the session of a terminal on which
// somebody types.
func onTerminal(cmd *exec.Cmd, typed string) *exec.Cmd {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		panic(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		panic(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		panic(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	go io.Copy(io.Discard, master)
	_, _ = io.WriteString(master, typed)
	return cmd
}

// bareShim is a connected shim, with a run if it gets one, until its stdin ends.
func bareShim(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err == nil {
		defer conn.Close()
		_, err = brokerv1.NewBrokerServiceClient(conn).OpenRun(ctx, daemontest.Claim("worker"))
		if e := wire.FromError(err); e != nil && e.Reason == wire.AccessDenied {
			err = nil // it stays connected, as a shim does
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// Issue §5: an agent whose shim is connected is no operator, whatever stands
// between it and its shim or between it and the operator's socket; a person is
// one wherever the terminal is. Real processes throughout.
func TestGuardAgainstEagerAgents(t *testing.T) {
	node := filepath.Join(t.TempDir(), "npx-cli.js")
	must(t, os.WriteFile(node, []byte(`const c = require("child_process").spawn(process.argv[2], process.argv.slice(3), {stdio: "inherit"}); c.on("exit", (code) => process.exit(code))`), 0o644))
	const denied, done = wire.ExitDenied, wire.ExitDone
	refused := []string{"itself", "a child", "a shell", "a session", "a command on a terminal"}
	for name, tc := range map[string]struct {
		guard bool
		do    tree
		want  int // of refused; a person's shell is let in always
	}{
		"shim alone":         {true, tree{}, denied},
		"shim in a shell":    {true, tree{Wrapper: []string{"sh", "-c", `"$0" "$@"; exit $?`}}, denied},
		"shim in npx":        {true, tree{Wrapper: []string{"node", node}}, denied},
		"npx in shells":      {true, tree{Wrapper: []string{"env", "A=b", "bash", "-c", `sh -c 'node "$0" "$@"; exit $?' "$0" "$@"; exit $?`, node}}, denied},
		"no shim":            {true, tree{Idle: true}, done},
		"the guard is off":   {false, tree{}, done},
		"off, through shell": {false, tree{Wrapper: []string{"sh", "-c", `"$0" "$@"; exit $?`}}, done},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("node"); err != nil && strings.Contains(strings.Join(tc.do.Wrapper, " "), "node") {
				daemontest.LeaveOut(t, "a shim in npx", "there is no node here")
			}
			d := daemontest.StartWith(t, daemontest.Options{Guard: tc.guard})
			d.AddSubject("worker")
			tc.do.Home = d.Home
			arg, err := json.Marshal(tc.do)
			must(t, err)
			self, err := os.Executable()
			must(t, err)
			code, stdout, stderr := daemontest.Exit(t, exec.Command(self, "eager-agent", string(arg)))
			equal(t, "the agent: "+stderr, code, 0)
			want := ""
			for _, way := range refused {
				want += fmt.Sprintf("%s: %d\n", way, tc.want)
			}
			equal(t, "attempts", stdout, want+fmt.Sprintf("a person's shell: %d\n", done))
			// Whoever started the agent is not its child, and the agent is gone.
			equal(t, "the vault", d.Status().GetVaultState(), "unlocked")
			if refusals := d.Entries("authz"); tc.want == denied {
				equal(t, "refusals in the log", len(refusals), len(refused))
				equal(t, "their cause", refusals[0].Cause, "OPERATOR_REFUSED")
			} else {
				equal(t, "refusals in the log", len(refusals), 0)
			}
			ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
			defer cancel()
			known, err := d.Operator().GetOperator(ctx, &operatorv1.GetOperatorRequest{})
			must(t, err)
			equal(t, "guard", known.GetGuard(), tc.guard)
		})
	}
}

// The guard lasts as long as the shim is connected, whatever has become of its
// runs, also for a connection that was there before.
func TestGuardFollowsTheShim(t *testing.T) {
	for name, do := range map[string]func(context.Context, operatorv1.OperatorServiceClient) error{
		"its run goes on": func(context.Context, operatorv1.OperatorServiceClient) error { return nil },
		"its subject is disabled": func(ctx context.Context, c operatorv1.OperatorServiceClient) error {
			_, err := c.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: new(bool)})
			return err
		},
		"its subject is removed": func(ctx context.Context, c operatorv1.OperatorServiceClient) error {
			_, err := c.RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: "worker"})
			return err
		},
		"its run is ended": func(ctx context.Context, c operatorv1.OperatorServiceClient) error {
			runs, err := c.ListRuns(ctx, &operatorv1.ListRunsRequest{})
			if err == nil {
				_, err = c.EndRun(ctx, &operatorv1.EndRunRequest{RunId: runs.GetRuns()[0].GetRunId()})
			}
			return err
		},
		"the vault is locked": func(ctx context.Context, c operatorv1.OperatorServiceClient) error {
			_, err := c.Lock(ctx, &operatorv1.LockRequest{})
			return err
		},
		"panic": func(ctx context.Context, c operatorv1.OperatorServiceClient) error {
			_, err := c.Panic(ctx, &operatorv1.PanicRequest{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.StartWith(t, daemontest.Options{Guard: true})
			d.AddSubject("worker")
			agent := startTwoFaced(t, d)
			equal(t, "before its shim", agent.next(), "ALLOWED ")
			equal(t, "while its shim is connected", agent.next(), "ACCESS_DENIED OPERATOR_REFUSED")
			must(t, do(t.Context(), d.Operator()))
			equal(t, "after that", agent.next(), "ACCESS_DENIED OPERATOR_REFUSED")
			equal(t, "after its shim", agent.next(), "ALLOWED ")
			d.Unlock()
		})
	}
}

// A shim that gets no run is one all the same: its agent would else give it one.
func TestGuardCountsShimsWithoutARun(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{Guard: true})
	agent := startTwoFaced(t, d)
	equal(t, "before its shim", agent.next(), "ALLOWED ")
	equal(t, "while its shim is connected, which is nobody", agent.next(), "ACCESS_DENIED OPERATOR_REFUSED")
	agent.next()
	equal(t, "after its shim", agent.next(), "ALLOWED ")
}

// agent is a process that tries to be the operator whenever it is told to go on.
type agent struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func startTwoFaced(t *testing.T, d *daemontest.Daemon) agent {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "two-faced", d.Home)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	return agent{t, in, bufio.NewReader(out)}
}

// next is how its next attempt ended.
func (a agent) next() string {
	a.t.Helper()
	_, err := io.WriteString(a.in, "\n")
	must(a.t, err)
	line, err := a.out.ReadString('\n')
	must(a.t, err)
	return strings.TrimSuffix(line, "\n")
}

// twoFaced is an operator's connection of an agent that starts a shim meanwhile:
// one attempt before, two while it is connected, and one after.
func twoFaced(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	conn, err := client.Operator(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err != nil {
		return 1
	}
	defer conn.Close()
	orders := bufio.NewReader(os.Stdin)
	attempt := func() wire.Error {
		_, err := operatorv1.NewOperatorServiceClient(conn).Status(ctx, &operatorv1.StatusRequest{})
		if err == nil {
			return wire.Error{Reason: wire.Allowed}
		}
		return *wire.FromError(err)
	}
	told := func(before func() bool, attempt func() wire.Error) bool {
		if _, err := orders.ReadString('\n'); err != nil || !before() {
			return false
		}
		e := attempt()
		fmt.Println(e.Reason, e.Cause)
		return true
	}
	ready := func() bool { return true }
	if !told(ready, attempt) {
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	child := exec.Command(self, "shim", home)
	hold, err := child.StdinPipe()
	if err != nil {
		return 1
	}
	defer hold.Close()
	connected := func() bool {
		out, err := child.StdoutPipe()
		if err != nil || child.Start() != nil {
			return false
		}
		_, err = bufio.NewReader(out).ReadString('\n')
		return err == nil
	}
	ended := func() bool {
		hold.Close()
		return child.Wait() == nil
	}
	inTheEnd := func() wire.Error { // its end is noticed soon, not at once
		e := attempt()
		for ; e.Reason != wire.Allowed && ctx.Err() == nil; e = attempt() {
			time.Sleep(10 * time.Millisecond)
		}
		return e
	}
	if told(connected, attempt) && told(ready, attempt) && told(ended, inTheEnd) {
		return 0
	}
	return 1
}
