package main

import (
	"io"
	"os"
	"syscall"

	"subjectbroker/proto/quick"
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
	if polled, restore := polledFile(file); polled != nil {
		return quick.Reader(polled), restore
	}
	return stdin, unchanged
}

// ready is the same for stdout: a line that there is room for is written without a
// thread of its own.
func ready(stdout io.Writer) (out io.Writer, restore func()) {
	unchanged := func() {}
	file, ok := stdout.(*os.File)
	if !ok {
		return stdout, unchanged
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return stdout, unchanged
	}
	// What others write, too, would lose for them what does not fit at once.
	for _, other := range []*os.File{os.Stdin, os.Stderr} {
		if also, err := other.Stat(); err != nil || os.SameFile(info, also) {
			return stdout, unchanged
		}
	}
	if polled, restore := polledFile(file); polled != nil {
		return polled, restore
	}
	return stdout, unchanged
}

// polledFile is the file of the same descriptor, which does not block any more; nil
// where that cannot be.
func polledFile(file *os.File) (polled *os.File, restore func()) {
	fd := int(file.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, nil
	}
	return os.NewFile(uintptr(fd), file.Name()), func() { // it sees that it does not block
		_ = syscall.SetNonblock(fd, false)
	}
}
