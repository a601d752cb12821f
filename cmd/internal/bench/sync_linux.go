package main

import (
	"os"
	"syscall"
)

// syncData waits until what was written is on the disk, as the log does.
func syncData(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
