//go:build !linux

package worker

import "syscall"

// closeMemory does nothing here: memory is not claimed to be closed on this
// platform.
func closeMemory() error { return nil }

func reexec(self string, args, environ []string) error { return syscall.Exec(self, args, environ) }
