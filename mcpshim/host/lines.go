package host

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"runtime/debug"
)

// What is kept of a line that is too long, to see whose answer it was, in bytes.
const (
	keptHead = 512
	keptTail = 128
)

// Room for lines, in bytes: what is kept from one to the next, and from where on it
// is given back to the system at once.
const (
	keptBuffer  = 256 << 10
	largeBuffer = 4 << 20
)

// longLine is what is left of a line that was longer than the limit.
type longLine struct{ head, tail []byte }

// lines cuts a stream into lines of a limited length, one of which it holds.
type lines struct {
	in    *bufio.Reader
	limit int
	// grown is called, at most once a line, before a line takes more than
	// keptBuffer. Nil: nobody cares.
	grown func()
	buf   []byte
}

func newLines(in io.Reader, limit int) *lines {
	return &lines{in: bufio.NewReaderSize(in, 32<<10), limit: limit}
}

// errEndless: a line went on for more than its limit once more, after it was longer
// than its limit. Nobody waits for its end.
var errEndless = errors.New("a line without an end")

// next returns the next line without its newline, good until the next call, or
// what is left of one that was too long. What follows the last newline is a line
// too. Errors are the stream's, and errEndless, with what is left of that line.
func (l *lines) next() (line []byte, long *longLine, err error) {
	l.drop()
	grew := false
	for {
		part, err := l.in.ReadSlice('\n')
		whole := err == nil
		if whole {
			part = part[:len(part)-1]
		}
		if len(l.buf)+len(part) > l.limit {
			return l.skip(part, err)
		}
		if l.grown != nil && !grew && len(l.buf)+len(part) > keptBuffer {
			grew = true
			l.grown()
		}
		l.room(len(part))
		l.buf = append(l.buf, part...)
		switch {
		case whole:
			return l.buf, nil, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(l.buf) > 0:
			return l.buf, nil, nil
		default:
			return nil, nil, err
		}
	}
}

// drop forgets the line.
func (l *lines) drop() {
	large := cap(l.buf) >= largeBuffer
	if cap(l.buf) > keptBuffer {
		l.buf = nil
	}
	l.buf = l.buf[:0]
	if large {
		debug.FreeOSMemory()
	}
}

// room makes room for n more bytes. What it takes the place of is given back at
// once where it is large: otherwise a line would cost several times its size.
func (l *lines) room(n int) {
	need, have := len(l.buf)+n, cap(l.buf)
	if need <= have {
		return
	}
	grown := make([]byte, len(l.buf), min(max(2*have, need, 16<<10), max(l.limit, need)))
	copy(grown, l.buf)
	l.buf = grown
	if have >= largeBuffer {
		debug.FreeOSMemory()
	}
}

// skip reads on to the newline; part is what was read last, with err.
func (l *lines) skip(part []byte, err error) ([]byte, *longLine, error) {
	long := &longLine{head: bytes.Clone(l.buf[:min(keptHead, len(l.buf))]), tail: lastBytes(nil, l.buf)}
	l.drop()
	long.tail = lastBytes(long.tail, part)
	for skipped := len(part); errors.Is(err, bufio.ErrBufferFull); skipped += len(part) {
		if skipped > l.limit {
			return nil, long, errEndless
		}
		part, err = l.in.ReadSlice('\n')
		if err == nil {
			part = part[:len(part)-1]
		}
		long.tail = lastBytes(long.tail, part)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	return nil, long, nil
}

func lastBytes(tail, part []byte) []byte {
	part = part[max(0, len(part)-keptTail):]
	tail = append(bytes.Clone(tail), part...)
	return tail[max(0, len(tail)-keptTail):]
}

// idIn looks for the id of an answer of which only the ends are there: first or
// last member of the object. A server that writes something else there harms its
// own answers.
func (l *longLine) idIn() (uint64, bool) {
	const key = `"id":`
	for _, place := range []struct {
		text []byte
		at   int
	}{{l.head, bytes.Index(l.head, []byte(key))}, {l.tail, bytes.LastIndex(l.tail, []byte(key))}} {
		if place.at < 0 {
			continue
		}
		rest := bytes.TrimLeft(place.text[place.at+len(key):], " ")
		end := 0
		for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
			end++
		}
		if n, ok := number(rest[:end]); ok && end < len(rest) && (rest[end] == ',' || rest[end] == '}') {
			return n, true
		}
	}
	return 0, false
}

// number reads an id of ours as a server sends it back.
func number(raw []byte) (n uint64, ok bool) {
	if len(raw) == 0 || len(raw) > 15 || raw[0] == '0' {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}
