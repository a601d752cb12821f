//go:build linux

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A stepper traces a process and kills it right before the n-th of the calls
// that change a disk, counted over all of its threads. strace counts each
// thread for itself, and so cannot do that. It is a process of its own, this
// program started again with stepRole: only one thread may trace.
type stepper struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	calls  []string
	killed bool
}

// stepRole PID N is how this program is a stepper.
const stepRole = "step"

// stepping are the calls that change a disk. write counts only for files.
var stepping = map[uint64]string{
	unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITE: "write", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_FSYNC: "fsync",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_LINKAT: "linkat", unix.SYS_MKDIRAT: "mkdirat",
}

// manyInARow is how many of the same calls in a row, to the same file, are
// steps: a file that is copied is written very often.
const manyInARow = 4

// killAt attaches to a process, to kill it before its n-th step from now on.
func killAt(t *testing.T, pid, n int) *stepper {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	s := &stepper{cmd: exec.Command(self, stepRole, strconv.Itoa(pid), strconv.Itoa(n)), done: make(chan struct{})}
	s.cmd.Stderr = os.Stderr
	stdout, err := s.cmd.StdoutPipe()
	must(t, err)
	must(t, s.cmd.Start())
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "attached" {
		t.Fatalf("the stepper does not attach: %s", lines.Text())
	}
	go func() {
		defer close(s.done)
		for lines.Scan() {
			s.mu.Lock()
			if s.calls = append(s.calls, lines.Text()); len(s.calls) == n {
				s.killed = true
			}
			s.mu.Unlock()
		}
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() { s.end() })
	return s
}

// end lets go of the process, and reports whether it was killed.
func (s *stepper) end() (killed bool) {
	s.mu.Lock()
	if !s.killed {
		_ = s.cmd.Process.Kill() // which detaches
	}
	s.mu.Unlock()
	<-s.done
	return s.killed
}

// story is what it saw, for whom it may concern when something was lost.
func (s *stepper) story() string { return strings.Join(s.calls, " ") }

// stepMain is what the stepper's process does.
func stepMain(pid, n string) int {
	numbers := [2]int{}
	for i, word := range []string{pid, n} {
		var err error
		if numbers[i], err = strconv.Atoi(word); err != nil {
			return 2
		}
	}
	if err := step(numbers[0], numbers[1]); err != nil {
		fmt.Fprintln(os.Stderr, "stepper:", err)
		return 1
	}
	return 0
}

// step is the stepper itself.
func step(pid, n int) error {
	runtime.LockOSThread()
	if err := seize(pid); err != nil {
		return err
	}
	fmt.Println("attached")
	count, before, row := 0, "", 0
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return nil // all of it is gone
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case !status.Stopped():
			continue
		}
		signal, event := int(status.StopSignal()), int(status)>>16
		switch {
		case event == unix.PTRACE_EVENT_STOP && signal != int(unix.SIGTRAP): // stopped by somebody else
			_, _, _ = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_LISTEN, uintptr(tid), 0, 0, 0, 0)
			continue
		case event != 0:
			signal = 0
		case signal == int(unix.SIGTRAP)|0x80:
			signal = 0
			call := entered(tid)
			if call == "" {
				break
			}
			if row++; call != before {
				before, row = call, 1
			}
			if row > manyInARow {
				break
			}
			fmt.Println(call)
			if count++; count == n {
				_ = unix.Kill(pid, unix.SIGKILL)
				continue
			}
		}
		_ = unix.PtraceSyscall(tid, signal) // fails when it is gone
	}
}

// seize attaches to every thread of a process.
func seize(pid int) error {
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEEXEC
	held := map[int]bool{}
	for more := true; more; { // threads may appear meanwhile
		more = false
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, task := range tasks {
			tid, err := strconv.Atoi(task.Name())
			if err != nil || held[tid] {
				continue
			}
			_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, options, 0, 0)
			switch errno {
			case 0:
				_, _, _ = unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(tid), 0, 0, 0, 0)
			case unix.EPERM: // born of one that is traced already, and so is it
			case unix.ESRCH:
			default:
				return fmt.Errorf("tracing %d: %w", tid, errno)
			}
			held[tid], more = true, true
		}
	}
	if len(held) == 0 {
		return errors.New("no such process")
	}
	return nil
}

// entered is the name of the call that a stopped thread is about to make, if it
// is a step.
func entered(tid int) string {
	const getSyscallInfo, entry = 0x420e, 1
	var info struct {
		op   uint8
		_    [3]uint8
		_    uint32
		_, _ uint64
		nr   uint64
		args [6]uint64
		_    [2]uint64
	}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 || info.op != entry {
		return ""
	}
	call := stepping[info.nr]
	if info.nr == unix.SYS_WRITE || info.nr == unix.SYS_PWRITE64 || info.nr == unix.SYS_FDATASYNC {
		path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, info.args[0]))
		if err != nil || !filepath.IsAbs(path) || strings.HasPrefix(path, "/dev/") {
			return ""
		}
		call += ":" + filepath.Base(path)
	}
	return call
}

// launchUnder starts a command stopped, so that a stepper sees it from its
// first call on, and lets it go.
func launchUnder(t *testing.T, cmd *exec.Cmd, n int) *stepper {
	t.Helper()
	cmd.Args = append([]string{"sh", "-c", `kill -STOP $$; exec "$@"`, "sh"}, cmd.Args...)
	var err error
	cmd.Path, err = exec.LookPath("sh")
	must(t, err)
	must(t, cmd.Start())
	for { // until it has stopped
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		must(t, err)
		if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "T") {
			break
		}
		runtime.Gosched()
	}
	s := killAt(t, cmd.Process.Pid, n)
	must(t, cmd.Process.Signal(syscall.SIGCONT))
	return s
}
