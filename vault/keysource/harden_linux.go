package keysource

import "golang.org/x/sys/unix"

// harden keeps the key out of core files, and the process closed to others of the same user. Best effort: the daemon's own
// start refuses where this does not work.
func harden() {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
