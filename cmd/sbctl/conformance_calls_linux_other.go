//go:build linux && !amd64

package main

import "golang.org/x/sys/unix"

func i386Call(uintptr, uintptr, uintptr, uintptr) unix.Errno { return unix.ENOSYS }
