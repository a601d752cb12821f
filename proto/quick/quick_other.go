//go:build !linux

package quick

import "syscall"

const supported = false

// Whole is PIPE_BUF, in bytes.
const Whole = 512

func read(uintptr, []byte) (int, syscall.Errno)  { return 0, syscall.ENOSYS }
func write(uintptr, []byte) (int, syscall.Errno) { return 0, syscall.ENOSYS }
