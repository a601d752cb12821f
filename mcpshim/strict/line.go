package strict

import (
	"bufio"
	"errors"
	"io"
)

// ErrLineTooLong says that a line was longer than the limit. It has been read
// to its end and thrown away; the next one is whole.
var ErrLineTooLong = errors.New("the line is too long")

// LineReader cuts a stream into lines of a limited length. It is for one reader.
type LineReader struct {
	in    *bufio.Reader
	limit int
}

// NewLineReader returns a reader of lines of up to limit bytes, newline aside.
func NewLineReader(in io.Reader, limit int) *LineReader {
	return &LineReader{in: bufio.NewReaderSize(in, 16<<10), limit: limit}
}

// Next returns the next line without its newline. The line is the caller's to
// keep. What follows the last newline is a line too, if there is anything.
// Errors are ErrLineTooLong, after which reading goes on, io.EOF, or the
// stream's own.
func (l *LineReader) Next() ([]byte, error) {
	var line []byte
	for {
		part, err := l.in.ReadSlice('\n')
		if len(line)+len(part) > l.limit+1 {
			return nil, l.skip(err)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return line, l.tooLong(line)
		default:
			return nil, err
		}
	}
}

// tooLong judges a last line, which has no newline to count.
func (l *LineReader) tooLong(line []byte) error {
	if len(line) > l.limit {
		return ErrLineTooLong
	}
	return nil
}

// skip reads on to the newline that ends the line; err is what came of reading
// its latest part.
func (l *LineReader) skip(err error) error {
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = l.in.ReadSlice('\n')
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return ErrLineTooLong
}
