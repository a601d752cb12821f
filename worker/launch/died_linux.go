package launch

import (
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Died is the signal that ended the command, once Wait has returned, if it is
// one of those that are handed on; 0 otherwise. A caller that ends by the same
// signal tells a shell that somebody pressed Ctrl-C, which ends the shell's
// loops.
func (t *Tree) Died() syscall.Signal {
	if _, handed := handedOn[t.died]; handed && t.died != unix.SIGTSTP {
		return t.died
	}
	return 0
}

// DieOf ends this process by sig, after Wait. Where it was typed on the terminal
// the others of this process's group get it too, who did not get it while the
// terminal was raw. It returns only if the signal did not end the process.
func (t *Tree) DieOf(sig syscall.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signal.Ignore(sig)
	typed := t.sent != sig && t.term != nil && t.term.in != nil
	if typed && (sig == unix.SIGINT || sig == unix.SIGQUIT) {
		_ = unix.Kill(0, sig)
	}
	// The runtime does not give a signal back its default action.
	if setAction(sig, defaultAction) == nil {
		_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), sig)
	}
}
