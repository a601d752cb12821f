package client

import (
	"bytes"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// checkNamespace says whether the process that listens at the other end, pid to
// us, lives in our own pid namespace. One that we see in a namespace below ours
// is in a launch or a container: the launch of a subject may write wherever its
// uid may write, so it can put a home of its own, with a lock that names it, in
// the place of the broker's.
//
// The kernel's handle on the listener is asked where there is one, because a
// listener may be gone, and its pid somebody else's by now. Before Linux 6.5
// only the pid is left to ask.
func checkNamespace(conn *net.UnixConn, pid int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	handle := -1
	var handleErr error
	if err := raw.Control(func(fd uintptr) {
		handle, handleErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return err
	}
	about := "/proc/" + strconv.Itoa(pid) + "/status"
	switch {
	case handleErr == nil:
		defer unix.Close(handle)
		unix.CloseOnExec(handle)
		about = "/proc/self/fdinfo/" + strconv.Itoa(handle)
	case !errors.Is(handleErr, unix.ENOPROTOOPT):
		return os.NewSyscallError("getsockopt", handleErr) // it is gone
	}
	return checkPIDs(about, pid)
}

// checkPIDs reads the pids that a process has in each namespace from ours down
// to its own: one, and that which the kernel told us, where it is ours.
func checkPIDs(path string, pid int) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		list, found := strings.CutPrefix(string(line), "NSpid:")
		if !found {
			continue
		}
		pids := strings.Fields(list)
		switch {
		case len(pids) == 1 && pids[0] == strconv.Itoa(pid):
			return nil
		case len(pids) > 1:
			return errors.New("it lives in another pid namespace, such as that of a launch or of a container")
		case len(pids) == 1 && pids[0] == "-1":
			return errors.New("it is gone")
		}
		break
	}
	return errors.New("/proc does not say in which pid namespace it lives")
}
