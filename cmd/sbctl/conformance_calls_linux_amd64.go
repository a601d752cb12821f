package main

import "golang.org/x/sys/unix"

// int80 makes a system call of i386 and returns what that returns.
//
//go:noescape
func int80(number, a, b, c uint32) int32

// i386Call makes one from a program of amd64. It ends the program where the kernel has
// no such calls.
func i386Call(number, a, b, c uintptr) unix.Errno {
	if got := int80(uint32(number), uint32(a), uint32(b), uint32(c)); got < 0 && got > -4096 {
		return unix.Errno(-got)
	}
	return 0
}
