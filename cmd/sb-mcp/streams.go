package main

import (
	"io"
	"os"
	"syscall"
)

// waiting returns stdin such that a read of it waits in the runtime's poller
// and not inside a thread of its own: a line then reaches its handler without
// another thread having to wake up first, which on a busy machine costs more
// than everything else we do. It is done to a pipe or socket that is nobody
// else's; restore undoes it, since the other end of a shell script may read on.
func waiting(stdin io.Reader) (in io.Reader, restore func()) {
	unchanged := func() {}
	file, ok := stdin.(*os.File)
	if !ok {
		return stdin, unchanged
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return stdin, unchanged
	}
	// A socket that is our output as well would lose what does not fit at once.
	for _, other := range []*os.File{os.Stdout, os.Stderr} {
		if also, err := other.Stat(); err != nil || os.SameFile(info, also) {
			return stdin, unchanged
		}
	}
	fd := int(file.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		return stdin, unchanged
	}
	polled := os.NewFile(uintptr(fd), file.Name()) // sees that it does not block
	return polled, func() {
		_ = syscall.SetNonblock(fd, false)
	}
}
