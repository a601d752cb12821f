package main

import (
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel kill a process when the thread that starts it ends.
func dieWithUs(process *exec.Cmd) {
	if process.SysProcAttr == nil {
		process.SysProcAttr = &syscall.SysProcAttr{}
	}
	process.SysProcAttr.Pdeathsig = syscall.SIGKILL
}
