package client

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who is at the other end.
func peerOf(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var cred *unix.Xucred
	var pid int
	var credErr, pidErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
		pid, pidErr = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	}); err != nil {
		return peer{}, err
	}
	if credErr != nil {
		return peer{}, os.NewSyscallError("getsockopt", credErr)
	}
	if pidErr != nil {
		return peer{}, os.NewSyscallError("getsockopt", pidErr)
	}
	return peer{uid: int(cred.Uid), pid: pid}, nil
}

// activated says whether pid is launchd, which listens for what it starts.
func activated(pid int) bool { return pid == 1 }
