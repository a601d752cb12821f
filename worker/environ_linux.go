package worker

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// closeMemory forbids ptrace, /proc/PID/mem and core files to others of our
// uid, so that one subject's shim cannot be read by another's agent.
func closeMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making the process undumpable: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core files: %w", err)
	}
	return nil
}

func reexec(self string, args, environ []string) error { return unix.Exec(self, args, environ) }
