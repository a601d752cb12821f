package peer_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/peer"
)

// start starts a shell that says something and then waits for its input to end.
func start(t *testing.T, script string, args ...string) (*exec.Cmd, io.WriteCloser, string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	// A session of its own: the leader of ours may live outside our pid namespace,
	// where the kernel calls it 0.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, stdin, strings.TrimSpace(line)
}

func TestAncestry(t *testing.T) {
	// A shell in a shell, that keeps what it was told in its command line.
	outer, _, said := start(t, `sh -c 'echo $$; read x' "$1"; :`, "a mark\n")
	pid, err := strconv.ParseInt(said, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	line, err := peer.Ancestry(int32(pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(line) < 3 || line[0].PID != int32(pid) || int(line[1].PID) != outer.Process.Pid || int(line[2].PID) != os.Getpid() {
		t.Fatalf("the line is %+v", line)
	}
	if top := line[len(line)-1]; top.Parent != 0 {
		t.Errorf("it ends at %+v, which has a parent", top)
	}
	inner := line[0]
	if inner.Name != "sh" || inner.UID != uint32(os.Geteuid()) || !strings.Contains(inner.Command, `a mark\u000a`) ||
		int(inner.Session) != outer.Process.Pid {
		t.Errorf("the inner shell is %+v", inner)
	}
	if !inner.Same() {
		t.Error("it is not the same any more")
	}
	inner.Start++
	if inner.Same() {
		t.Error("another one of its pid passes for it")
	}
	asked := 0
	short, err := peer.AncestryTo(int32(pid), func(p peer.Process) bool {
		asked++
		return int(p.PID) == outer.Process.Pid
	})
	if err != nil || len(short) != 2 || asked != 2 || short[0] != line[0] || short[1] != line[1] {
		t.Errorf("as far as the outer shell it is %+v after %d questions, %v", short, asked, err)
	}
	if _, err := peer.Ancestry(0); err == nil {
		t.Error("there are ancestors of nobody")
	}
}

func TestHold(t *testing.T) {
	cmd, _, _ := start(t, "echo; read x")
	held, err := peer.Hold(int32(cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if held.Wait(ctx) {
		t.Error("it has ended before it was told to")
	}
	ended := make(chan bool, 1)
	go func() { ended <- held.Wait(t.Context()) }()
	if err := held.Kill(); err != nil {
		t.Fatal(err)
	}
	if !<-ended || held.Alive() {
		t.Error("it goes on")
	}
	// Nobody has waited for it yet: it is there, and has ended.
	if _, err := peer.Hold(int32(cmd.Process.Pid)); !errors.Is(err, peer.ErrEnded) {
		t.Errorf("what nobody waited for: %v, want %v", err, peer.ErrEnded)
	}
	_ = cmd.Wait()
	if _, err := peer.Hold(int32(cmd.Process.Pid)); !errors.Is(err, peer.ErrEnded) {
		t.Errorf("what is gone: %v, want %v", err, peer.ErrEnded)
	}
	if err := held.Kill(); err != nil {
		t.Errorf("ending it again: %v", err)
	}
	var none peer.Held
	if none.Alive() || !none.Wait(t.Context()) || none.Kill() == nil {
		t.Error("there is somebody where nobody is held")
	}
}

// What is left of a session ends, in whatever process group, and what is in another
// one goes on.
func TestEndSession(t *testing.T) {
	script := `sh -c 'echo $$; exec sleep 1000' & sh -c 'set -m; sleep 1000 & echo $!' ; setsid sh -c 'echo $$; exec sleep 1000' & wait`
	cmd := exec.Command("sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var pids []int32
	lines := bufio.NewReader(stdout)
	for range 3 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.ParseInt(strings.TrimSpace(line), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, int32(pid))
		t.Cleanup(func() { _ = syscall.Kill(int(pid), syscall.SIGKILL) })
	}
	leader := int32(cmd.Process.Pid)
	within := map[bool]int{}
	var outside []int32
	for _, pid := range pids {
		p, err := peer.Lookup(pid)
		if err != nil {
			t.Fatal(err)
		}
		within[p.Session == leader]++
		if p.Session != leader {
			outside = append(outside, pid)
		}
	}
	if within[true] != 2 || within[false] != 1 {
		t.Fatalf("of %v, %v are in the session", pids, within)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	held, err := peer.Hold(leader) // nobody has waited for it yet
	if err == nil {
		held.Wait(t.Context())
		held.Close()
	}
	peer.EndSession(leader)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, pid := range pids {
		held, err := peer.Hold(pid)
		switch outsider := slices.Contains(outside, pid); {
		case outsider && (err != nil || !held.Alive()):
			t.Errorf("process %d of another session has ended: %v", pid, err)
		case !outsider && err == nil:
			held.Wait(ctx) // who was killed may take a moment to end
			if held.Alive() {
				t.Errorf("process %d goes on", pid)
			}
		}
		held.Close()
	}
	_ = cmd.Wait()
}
