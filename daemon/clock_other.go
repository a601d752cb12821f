//go:build !linux

package daemon

import "time"

// bootClock is not known here: grants end by the wall clock alone.
func bootClock() (string, time.Duration) { return "", 0 }
