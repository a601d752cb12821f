//go:build !linux

package wrap

import (
	"os/exec"
	"syscall"
)

// attributes: here nothing makes the server die with us but the end of its input.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// reap waits until the server has exited. What it left in its group stays: the
// group's number may be somebody else's by now.
func (p *process) reap(command *exec.Cmd) {
	_ = command.Wait() // its state says more
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
}
