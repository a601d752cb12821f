//go:build !linux

package host

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adopt does nothing: there are no namespaces and no reaper but the system's.
func adopt() error { return nil }

func clearChildren() {}

// closeOnExec does nothing: Go passes on what it is told to, and nothing else was
// inherited from the daemon.
func closeOnExec() error { return nil }

// undumpable is not claimed on this platform.
func undumpable() bool { return false }

// limitFiles leaves what the system gives.
func limitFiles() error { return nil }

// unreadOf is not known on this platform.
func unreadOf(*os.File) int { return -1 }
