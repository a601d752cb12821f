package wrap

import (
	"errors"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// reap waits until the server has exited and ends what it left in its group while
// the group's number is still its own.
func (p *process) reap(command *exec.Cmd) {
	for errors.Is(unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
	p.mu.Lock()
	p.gone = true
	p.killGroup(syscall.SIGKILL)
	p.mu.Unlock()
	_ = command.Wait() // its state says more
}
