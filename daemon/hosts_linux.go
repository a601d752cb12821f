package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/peer"
)

// hostConn is our end of the pair of sockets.
type hostConn = net.Conn

// startHost starts sb-mcp host, with nothing but one end of a pair of sockets and a
// stderr of ours: no environment, a session of its own, and a signal that ends it
// when the daemon dies. When it ends, all of its session does, and what left that.
func startHost(program string, left *strays) (child *hostChild, err error) {
	if err := left.begin(); err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "sbd"), os.NewFile(uintptr(fds[1]), "host")
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	stderr, said, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	defer said.Close()
	cmd := &exec.Cmd{
		Path: program, Args: []string{"sb-mcp", "host"}, Env: []string{}, Dir: "/", Stderr: said, ExtraFiles: []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	child = &hostChild{conn: conn, stderr: stderr, gone: make(chan struct{}), kill: func() { _ = cmd.Process.Kill() }}
	started := make(chan error, 1)
	go func() {
		// The signal comes when this thread dies, not when the daemon does: so it is
		// this goroutine's until the process is gone.
		runtime.LockOSThread()
		err := left.start(cmd)
		started <- err
		if err != nil {
			return
		}
		defer close(child.gone)
		reapHost(cmd, left)
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(err, conn.Close(), stderr.Close())
	}
	child.pid = int32(cmd.Process.Pid)
	if p, err := peer.Lookup(child.pid); err == nil { // else it has ended already
		child.start = p.Start
	}
	return child, nil
}

// reapHost waits for the end of a host, and ends what is left of its session before
// the kernel may give its number to another one. What left the session it ends then.
func reapHost(cmd *exec.Cmd, left *strays) {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	peer.EndSession(int32(pid))
	left.wait(cmd) // how it ended is known from what it said
	left.end()
}
