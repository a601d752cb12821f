//go:build !linux

package daemon_test

var roles = map[string]func(string) int{"loud": loud}
