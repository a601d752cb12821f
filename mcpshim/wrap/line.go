package wrap

import (
	"io"
	"sync"

	"subjectbroker/proto/quick"
)

// lineWriter writes whole lines, one at a time. It is safe for concurrent use.
type lineWriter struct {
	mu     sync.Mutex
	out    io.Writer
	stream *quick.Stream // of out; nil: writing may always have to wait
	failed error         // the first error: nothing is written after it
}

func newLineWriter(out io.Writer) *lineWriter {
	l := &lineWriter{out: out}
	if source, ok := out.(quick.Source); ok {
		if l.stream = quick.New(source); l.stream != nil {
			l.out = l.stream
		}
	}
	return l
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

// tryWrite is write where that does not wait. Otherwise nothing is written, and it
// returns false; so it does when writing fails, and write says why.
func (l *lineWriter) tryWrite(line []byte) bool {
	if l.stream == nil || len(line) >= quick.Whole || !l.mu.TryLock() {
		return false
	}
	defer l.mu.Unlock()
	return l.failed == nil && l.stream.TryWrite(append(line, '\n'))
}
