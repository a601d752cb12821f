package peer_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/peer"
	"subjectbroker/worker/workertest"
)

// nobody is a uid without rights.
const nobody = 65534

// inTree is a command in user, pid and mount namespaces of its own.
func inTree(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}, // else an ordinary uid has none after exec
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
	}
	return cmd
}

// leaveOut skips in the words that testreport names at the end.
func leaveOut(t *testing.T, why string) {
	t.Helper()
	t.Skipf("suite left out: launch: %s", why)
}

// The namespaces of an undumpable process in a tree can be read by the uid that
// made the tree, also when it is not root, and also when the process is in a
// further user and pid namespace below. Those of an undumpable process outside
// cannot: that is what undumpable means.
func TestNamespacesOfTheUndumpable(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // whom nothing stops: somebody else must try
		dir, err := os.MkdirTemp("", "sb")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		raw, err := os.ReadFile(self)
		if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		if err := workertest.WriteProgram(filepath.Join(dir, "peer.test"), raw); err != nil {
			t.Fatal(err)
		}
		self = filepath.Join(dir, "peer.test")
	}
	for _, c := range []struct{ what, want string }{
		{"outside", "plain, namespaces 0, hidden true"},
		{"tree", "unattributed, namespaces 1, first in it true"},
		{"nested", "unattributed, namespaces 2, first in it true"},
	} {
		t.Run(c.what, func(t *testing.T) {
			home := t.TempDir()
			cmd := exec.CommandContext(t.Context(), self, "observe", c.what)
			cmd.Env = append(os.Environ(), "TMPDIR="+home)
			if os.Geteuid() == 0 {
				if err := errors.Join(os.Chmod(filepath.Dir(home), 0o755), os.Chown(home, nobody, nobody)); err != nil {
					t.Fatal(err)
				}
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			}
			out, err := cmd.CombinedOutput()
			if err != nil && cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 77 {
				leaveOut(t, "there can be no namespaces here: "+string(out))
			}
			if err != nil || string(out) != c.want {
				t.Errorf("%v: it sees %q, want %q", err, out, c.want)
			}
		})
	}
}

// observe lets an undumpable process connect, and tells what it is seen as.
func observe(what string) int {
	said, err := observed(what)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		fmt.Println(err)
		return 77
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Print(said)
	return 0
}

func observed(what string) (said string, err error) {
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	inner, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return "", err
	}
	defer inner.Close()
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(self, "undumpable", path)
	switch what {
	case "tree":
		cmd = inTree(cmd)
	case "nested":
		cmd = inTree(exec.Command(self, "nest", path))
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if err := inner.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	conn, err := inner.AcceptUnix()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it is undumpable
		return "", err
	}
	p, err := peer.Accept(conn)
	if err != nil {
		return "", err
	}
	defer p.Close()
	said = fmt.Sprintf("%s, namespaces %d", p.Class, len(p.Namespaces))
	if what == "outside" {
		_, err := peer.NamespacesOf(p.PID)
		return said + fmt.Sprintf(", hidden %v", errors.Is(err, fs.ErrPermission)), nil
	}
	ns, err := peer.NamespacesOf(int32(cmd.Process.Pid))
	if err != nil {
		return "", err
	}
	return said + fmt.Sprintf(", first in it %v", ns.First && ns.PID == p.Namespaces[len(p.Namespaces)-1]), nil
}

// undumpable connects and waits.
func undumpable(path string) int {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return 1
	}
	if _, err := conn.Write([]byte{0}); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// nest is undumpable one level further down.
func nest(path string) int {
	self, err := os.Executable()
	if err != nil {
		return 1
	}
	// Whose ids are mapped is written below /proc, so it must be this tree's.
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := inTree(exec.Command(self, "undumpable", path))
	cmd.Stdin = os.Stdin
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// A kernel that does not say which process connected: the pid is asked for it.
func TestOldKernel(t *testing.T) {
	inner, path := listen(t, func(*peer.Peer) error { return nil }, func(*peer.Peer) {})
	l := inner.(peer.Listener)
	peer.OldKernel(&l)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "connect", path)
	stdin, err := child.StdinPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, p := accept(t, l)
	defer conn.Close()
	if int(p.PID) != child.Process.Pid || p.Start == 0 || !p.Alive() || p.Class != peer.Plain {
		t.Errorf("the child %d is seen as %+v, alive %v", child.Process.Pid, p.Key(), p.Alive())
	}
	_ = stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	if p.Alive() {
		t.Error("it is dead and passes for alive")
	}

	// One that is gone when it is asked for cannot be told.
	gone := exec.Command(self, "leave", path)
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	last, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer last.Close()
	conn, p = accept(t, l)
	defer conn.Close()
	if int(p.PID) != os.Getpid() {
		t.Errorf("the first that is let in is %d, want %d: the one before was gone", p.PID, os.Getpid())
	}
}
