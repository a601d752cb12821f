//go:build !linux

package peer_test

var roles = map[string]func(string) int{}
