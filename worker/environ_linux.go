package worker

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// closeMemory forbids ptrace, /proc/PID/mem and core files to others of our
// uid, so that one subject's shim cannot be read by another's agent. Being
// undumpable is enough for that; the limit for core files says it once more, and
// can be raised again by the programs that we start, for theirs.
func closeMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("making the process undumpable: %w", err)
	}
	var core unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &core)
	if err == nil {
		core.Cur = 0
		err = unix.Setrlimit(unix.RLIMIT_CORE, &core)
	}
	if err != nil {
		return fmt.Errorf("forbidding core files: %w", err)
	}
	return nil
}

func reexec(self string, args, environ []string) error { return unix.Exec(self, args, environ) }
