package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopt makes orphans below this process its children.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// clearChildren ends everything below this process. Who forks faster than this
// for so long stays.
func clearChildren() {
	for range 500 {
		children := childrenOf(os.Getpid())
		if len(children) == 0 {
			return
		}
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // its children are ours then
		}
		time.Sleep(time.Millisecond)
	}
}

func childrenOf(pid int) []int {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var all []int
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(content)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// limitFiles bounds what each process below this one may open, and has none of them
// leave a core: in it would be the secrets that it was given.
func limitFiles() error {
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	// The runtime has raised the first, and would give a child what was there before.
	files.Max = min(files.Max, maxFiles)
	files.Cur = min(files.Max, defaultFiles)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files)
}

// unreadOf is how many bytes stand in a pipe, -1 where nobody can say.
func unreadOf(pipe *os.File) int {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return -1
	}
	left := -1
	_ = raw.Control(func(fd uintptr) { // left stays, then
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			left = n
		}
	})
	return left
}

// closeOnExec marks every descriptor but the standard ones.
func closeOnExec() error {
	return unix.CloseRange(controlFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
}

// undumpable reports whether others of this uid are kept from this process's memory.
func undumpable() bool {
	is, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return err == nil && is == 0
}
