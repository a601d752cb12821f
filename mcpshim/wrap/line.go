package wrap

import (
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
)

// lineWriter writes whole lines, one at a time. It is safe for concurrent use.
type lineWriter struct {
	mu     sync.Mutex
	out    io.Writer
	failed error // the first error: nothing is written after it

	raw syscall.RawConn // of a pipe of ours; nil: writing may always have to wait
}

// newPipeWriter writes to a pipe that we made.
func newPipeWriter(pipe *os.File) *lineWriter {
	l := &lineWriter{out: pipe}
	if raw, err := pipe.SyscallConn(); err == nil {
		l.raw = raw
	}
	return l
}

// wholeAtOnce is what a pipe that does not block takes as a whole or not at all, in
// bytes: PIPE_BUF.
var wholeAtOnce = func() int {
	if runtime.GOOS == "linux" {
		return 4096
	}
	return 512
}()

// tryWrite is write where that does not wait. Otherwise nothing is written, and it
// returns false; so it does when writing fails, and write says why.
func (l *lineWriter) tryWrite(line []byte) bool {
	if l.raw == nil || len(line) >= wholeAtOnce || !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	if l.failed != nil {
		return false
	}
	line = append(line, '\n')
	n := 0
	err := l.raw.Write(func(fd uintptr) bool {
		n, _ = syscall.Write(int(fd), line)
		return true
	})
	return err == nil && n == len(line)
}

// write writes line and a newline in one write. The line's memory may be used for
// the newline.
func (l *lineWriter) write(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	_, l.failed = l.out.Write(append(line, '\n'))
	return l.failed
}
