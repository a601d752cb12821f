package client

import (
	"bytes"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// peerOf asks the kernel who called listen on the other end.
func peerOf(conn *net.UnixConn) (peer, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return peer{}, err
	}
	if credErr != nil {
		return peer{}, os.NewSyscallError("getsockopt", credErr)
	}
	return peer{uid: int(cred.Uid), pid: int(cred.Pid)}, nil
}

// activated says whether pid is a service manager: under socket activation it
// is the manager who called listen, not the daemon that it hands the socket to.
func activated(pid int) bool {
	if pid == 1 {
		return true
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return err == nil && string(bytes.TrimSpace(name)) == "systemd"
}
