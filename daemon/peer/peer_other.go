//go:build !linux

package peer

import (
	"errors"
	"net"

	"golang.org/x/sys/unix"
)

// process tells liveness by asking for the pid; weaker than a pidfd.
type process struct{ pid int }

func (p process) alive() bool { return unix.Kill(p.pid, 0) == nil }

func (process) close() {}

func (p *Peer) identify(conn *net.UnixConn, _ bool) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Xucred
	var pid int
	var credErr, pidErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		pid, pidErr = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	})
	if err = errors.Join(err, credErr, pidErr); err != nil {
		return err
	}
	p.UID, p.PID, p.Class = cred.Uid, int32(pid), Plain
	p.process = process{pid}
	return nil
}

func command(int32) string { return "" }
