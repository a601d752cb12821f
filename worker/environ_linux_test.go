package worker_test

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// dumpable is whether others of our uid could read our memory.
func dumpable() string {
	is, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	var core unix.Rlimit
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_CORE, &core)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("dumpable %d, core %d", is, core.Max)
}
