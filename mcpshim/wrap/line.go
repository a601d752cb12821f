package wrap

import (
	"io"
	"sync"
)

// lineWriter writes whole lines, one at a time. It is safe for concurrent use.
type lineWriter struct {
	mu     sync.Mutex
	out    io.Writer
	failed error // the first error: nothing is written after it
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
