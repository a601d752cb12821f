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

// bareShim is a connected run, until its stdin ends.
func bareShim(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err == nil {
		defer conn.Close()
		_, err = brokerv1.NewBrokerServiceClient(conn).OpenRun(ctx, daemontest.Claim("worker"))
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

// The guard lasts as long as the shim is connected, also for a connection that
// was there before.
func TestGuardFollowsTheShim(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{Guard: true})
	d.AddSubject("worker")
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "two-faced", d.Home)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = daemontest.Patience
	out, err := cmd.Output()
	must(t, err)
	equal(t, "before, while and after its shim was connected", strings.TrimSpace(string(out)), "ALLOWED ACCESS_DENIED OPERATOR_REFUSED ALLOWED")
}

// twoFaced is an operator's connection of an agent that starts a shim meanwhile.
func twoFaced(home string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	conn, err := client.Operator(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
	if err != nil {
		return 1
	}
	defer conn.Close()
	status := func() *wire.Error {
		_, err := operatorv1.NewOperatorServiceClient(conn).Status(ctx, &operatorv1.StatusRequest{})
		if err == nil {
			return &wire.Error{Reason: wire.Allowed}
		}
		return wire.FromError(err)
	}
	words := []string{string(status().Reason)}
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	child := exec.Command(self, "shim", home)
	hold, err := child.StdinPipe()
	if err != nil {
		return 1
	}
	out, err := child.StdoutPipe()
	if err != nil || child.Start() != nil {
		return 1
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return 1
	}
	refused := status()
	words = append(words, string(refused.Reason), refused.Cause)
	hold.Close()
	_ = child.Wait()
	after := status()
	for ; after.Reason != wire.Allowed && ctx.Err() == nil; after = status() { // its end is noticed soon, not at once
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(strings.Join(append(words, string(after.Reason)), " "))
	return 0
}
