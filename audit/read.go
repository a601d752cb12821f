package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
)

// Replay calls fn for every durable entry after the given position, in order;
// zero means from the first. It returns ErrNotFound when after is not in the
// log, ErrDamaged for a line that is not what the log wrote, or fn's error.
func (l *Log) Replay(after Position, fn func(Entry, Position) error) error {
	from := after.Seq
	if after == (Position{}) {
		from = 1
	}
	seen := after == (Position{})
	err := l.Read(from, func(_ uint64, line []byte) error {
		e, err := decodeLine(line)
		if err != nil {
			return err
		}
		hash := hashLine(line)
		if !seen {
			seen = true
			if e.Seq != after.Seq || hash != Hash(after.Hash) {
				return fmt.Errorf("replaying the audit log: entry %d: %w", after.Seq, ErrNotFound)
			}
			return nil
		}
		return fn(e, Position{Segment: e.Segment, Seq: e.Seq, Hash: hash})
	})
	if err == nil && !seen {
		return fmt.Errorf("replaying the audit log: entry %d: %w", after.Seq, ErrNotFound)
	}
	return err
}

// Read calls fn for every durable line, with its newline, from the entry with
// that seq on; 0 means from the first. It ends at what is durable when it is
// called: Durable tells when there is more. fn must not keep the line. Of a
// pruned segment there are only the first and the last line, so seqs are not dense.
func (l *Log) Read(from uint64, fn func(seq uint64, line []byte) error) error {
	l.mu.Lock()
	list := slices.Clone(l.list)
	l.mu.Unlock()
	start := 0
	for i, s := range list {
		if s.first <= from {
			start = i
		}
	}
	for _, s := range list[start:] {
		f, err := l.view(s.name())
		if errors.Is(err, fs.ErrNotExist) && !s.pruned { // perhaps it was pruned just now
			s = l.current(s)
			f, err = l.view(s.name())
		}
		if err == nil {
			err = readSegment(f, s.end, from, fn)
			f.Close()
		}
		if err != nil {
			return fmt.Errorf("reading audit segment %d: %w", s.number, err)
		}
	}
	return nil
}

// view opens a segment for a reader. It leaves the folder out, which is the
// committer's: reading goes on while writing fails.
func (l *Log) view(name string) (file, error) { return osFolder(l.config.Dir).View(name) }

// current returns what has become of s.
func (l *Log) current(s segment) segment {
	l.pruning.Lock() // between removing a segment and saying so
	defer l.pruning.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[s.number-1]
}

func readSegment(f io.ReaderAt, end int64, from uint64, fn func(seq uint64, line []byte) error) error {
	start, err := seek(f, end, from)
	if err != nil {
		return err
	}
	lines := bufio.NewReaderSize(io.NewSectionReader(f, start, end-start), 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		c, ok := cutLine(line)
		if !ok {
			return fmt.Errorf("%w: a line without seq or prev", ErrDamaged)
		}
		if c.seq < from {
			continue
		}
		if err := fn(c.seq, line); err != nil {
			return err
		}
	}
}

// seek finds, by bisection, an offset at which a line begins and before which
// all lines are older than from.
func seek(f io.ReaderAt, end int64, from uint64) (int64, error) {
	low, high := int64(0), end // a line older than from, or the first one, begins at low
	window := make([]byte, 2*maxLine)
	for high-low > int64(len(window)) {
		middle := low + (high-low)/2
		n, err := f.ReadAt(window, middle)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		newline := bytes.IndexByte(window[:n], '\n')
		if newline < 0 {
			return 0, fmt.Errorf("%w: a line without an end", ErrDamaged)
		}
		rest := window[newline+1 : n]
		length := bytes.IndexByte(rest, '\n')
		if length < 0 {
			high = middle
			continue
		}
		c, ok := cutLine(rest[:length+1])
		if !ok {
			return 0, fmt.Errorf("%w: a line without seq or prev", ErrDamaged)
		}
		if c.seq < from {
			low = middle + int64(newline) + 1
		} else {
			high = middle
		}
	}
	return low, nil
}
