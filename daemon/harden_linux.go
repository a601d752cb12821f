package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Harden closes the process to others of its uid: no ptrace, no
// /proc/PID/{mem,environ,maps}, no core; nothing that it creates is open to anybody
// else.
func Harden() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making the process undumpable: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core files: %w", err)
	}
	unix.Umask(0o077)
	return nil
}

func reexec(self string, args, environ []string) error { return unix.Exec(self, args, environ) }
