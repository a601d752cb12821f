//go:build !linux

package keysource

import "golang.org/x/sys/unix"

// harden keeps the key out of core files.
func harden() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
