package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// ownTime is the processor time that this process has used.
func ownTime() time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used); err != nil {
		return 0
	}
	return time.Duration(used.Nano())
}
