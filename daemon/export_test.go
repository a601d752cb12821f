package daemon

import (
	"os"
	"syscall"
)

// DieAt makes the process die as by kill -9 when a step is reached.
func DieAt(o *Offline, step string) {
	o.step = func(name string) {
		if name == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// AccountedCalls names the RPCs that have a row in calls.
func AccountedCalls() map[string]bool {
	names := map[string]bool{}
	for name := range calls {
		names[name] = true
	}
	return names
}
