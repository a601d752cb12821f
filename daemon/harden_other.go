//go:build !linux

package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Harden forbids core files and makes what the process creates owner-only. It
// does not close memory to debuggers of the same uid: status says so.
func Harden() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbidding core files: %w", err)
	}
	unix.Umask(0o077)
	return nil
}

func reexec(self string, args, environ []string) error { return unix.Exec(self, args, environ) }
