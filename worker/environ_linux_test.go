package worker_test

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// dumpable is whether others of our uid could read our memory, and how large a
// core file a program that we start could allow itself.
func dumpable() string {
	is, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	var core unix.Rlimit
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_CORE, &core)
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("dumpable %d, core %d of %d", is, core.Cur, core.Max)
}

// coreAllowed is the limit that we started with.
func coreAllowed() uint64 {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return 0
	}
	return core.Max
}
