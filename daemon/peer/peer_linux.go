package peer

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process tells liveness by a pidfd.
type process struct{ pidfd int }

func (p process) alive() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 0
	}
}

func (p process) close() { _ = unix.Close(p.pidfd) }

func (p *Peer) identify(conn *net.UnixConn, pidfdOpen bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var credErr, fdErr error
	pidfd := -1
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if fdErr = unix.ENOPROTOOPT; !pidfdOpen {
			pidfd, fdErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD) // Linux 6.5
		}
	})
	if err = errors.Join(err, credErr); err != nil {
		return err
	}
	p.UID, p.PID, p.Class = cred.Uid, cred.Pid, Plain
	hidden := cred.Pid <= 0 // in a pid namespace that we cannot see into
	if fdErr != nil {       // kernels before 6.5: open it, then make sure that it is the same process
		if hidden {
			return errors.New("the kernel does not say which process connected")
		}
		if pidfd, err = unix.PidfdOpen(int(cred.Pid), 0); err != nil {
			return fmt.Errorf("opening pid %d: %w", cred.Pid, err)
		}
	}
	unix.CloseOnExec(pidfd)
	p.process = process{pidfd}
	if hidden {
		p.Foreign, p.Class = true, Unattributed
		return nil
	}
	if err := p.readFacts(); err != nil {
		p.process.close()
		return errors.Join(errors.New("the process that connected is gone"), err)
	}
	return nil
}

// readFacts reads what /proc says about the peer, and makes sure that it was
// about the process that the pidfd holds.
func (p *Peer) readFacts() error {
	before, err := readStat(p.PID)
	if err != nil {
		return err
	}
	status, err := readStatus(p.PID)
	if err != nil {
		return err
	}
	p.Start = before.start
	if len(status.pids) != 1 {
		p.Foreign, p.Class = true, Unattributed
		p.Namespaces, _ = pidNamespaces(p.PID) // what is missing is nobody's
	}
	after, err := readStat(p.PID)
	if err != nil {
		return err
	}
	if after.start != before.start || !p.process.alive() {
		return ErrChanged
	}
	return nil
}

func command(pid int32) string {
	if pid <= 0 {
		return ""
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/cmdline")
	if err != nil {
		return ""
	}
	return printable(bytes.TrimRight(raw, "\x00"))
}
