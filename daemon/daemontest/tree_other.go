//go:build !linux

package daemontest

// First is false: there are no trees here.
func First() (code int, is bool) { return 0, false }
