package launch

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// checkStdio refuses standard descriptors that would lead the command past a
// cover: what can be opened from them is not what stands at its path inside,
// and who is connected already does not connect again. Files, pipes, terminals
// and sockets without a name are what programs are started with.
func checkStdio(cfg Config, stdio [3]*os.File) error {
	sockets := cmp.Or(cfg.SocketDir, filepath.Join(cfg.Home, "run"))
	hidden := append([]string{cfg.Home, filepath.Join(sockets, "broker"), filepath.Join(sockets, "operator")}, cfg.Homes...)
	for i, file := range stdio {
		name := [...]string{"standard input", "standard output", "standard error"}[i]
		raw, err := file.SyscallConn()
		if err != nil {
			return fmt.Errorf("looking at %s: %w", name, err)
		}
		var refused error
		if err := raw.Control(func(fd uintptr) { refused = checkDescriptor(int(fd), name, hidden, cfg.NoNet) }); err != nil {
			return fmt.Errorf("looking at %s: %w", name, err)
		}
		if refused != nil {
			return refused
		}
	}
	return nil
}

func checkDescriptor(fd int, name string, hidden []string, noNet bool) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	kind := stat.Mode & unix.S_IFMT
	switch {
	case kind == unix.S_IFDIR:
		return refuse("%s is a directory, which leads past what a launch covers", name)
	case flags&unix.O_PATH != 0:
		return refuse("%s is a path (O_PATH) and not an open file", name)
	case kind == unix.S_IFIFO, kind == unix.S_IFCHR:
		return nil
	case kind == unix.S_IFREG:
		path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && isHidden(path, hidden) {
			return refuse("%s is a file of the broker: %s", name, path)
		}
		return err
	case kind == unix.S_IFSOCK:
		if noNet && !isSettled(fd) {
			return refuse("%s is a socket of the network outside, which the launch must not have", name)
		}
		return checkSocket(fd, name, hidden)
	}
	return refuse("%s is no file, pipe, terminal or socket", name)
}

// isSettled says whether a socket is one between two programs of this machine, and
// stays that: one that takes addresses, or gets its peer yet, reaches others.
func isSettled(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_UNIX {
		return false
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET {
		return false
	}
	_, err = unix.Getpeername(fd)
	return err == nil
}

// checkSocket refuses a socket of which either end is one of the broker's.
func checkSocket(fd int, name string, hidden []string) error {
	for _, ask := range []func(int) (unix.Sockaddr, error){unix.Getpeername, unix.Getsockname} {
		address, err := ask(fd)
		if err != nil {
			continue // it has none
		}
		if named, ok := address.(*unix.SockaddrUnix); ok && isHidden(named.Name, hidden) {
			return refuse("%s is connected to the broker's socket %s", name, named.Name)
		}
	}
	return nil
}

// isHidden says whether path lies in one of dirs, however it is written.
func isHidden(path string, dirs []string) bool {
	// Sockets without a path, and relative ones, which mean something in the
	// listener's directory only: the broker has neither.
	if !filepath.IsAbs(path) {
		return false
	}
	path = filepath.Clean(path)
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		if within(path, filepath.Clean(dir)) {
			return true
		}
		top, err := os.Stat(dir)
		if err != nil {
			continue
		}
		resolved, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			resolved = filepath.Dir(path)
		}
		for at := resolved; ; at = filepath.Dir(at) {
			if info, err := os.Stat(at); err == nil && os.SameFile(top, info) {
				return true
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return false
}
