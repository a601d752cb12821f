// Package quick reads and writes pipes and sockets that do not block, for processes
// that mostly wait for the next small message.
//
// Go tells its scheduler of every system call, because one that blocks would keep
// others from running. In a process that has been idle this wakes a thread that
// finds nothing to do, and the wake costs more than the call. A descriptor that does
// not block needs none of that: the call returns at once, and where there is nothing
// to read, or no room, the runtime's poller waits.
//
// It changes when work is done, never what: a stream reads and writes what the file
// or connection would, with the same deadlines and the same end.
package quick

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxAtOnce is the most that is read or written in one call, in bytes: nothing else
// runs on the processor meanwhile.
const maxAtOnce = 64 << 10

// Source is what has a descriptor: *os.File, or a connection of package net.
type Source interface {
	io.ReadWriter
	SyscallConn() (syscall.RawConn, error)
}

// Stream reads and writes a descriptor that does not block. It is safe for
// concurrent use.
type Stream struct {
	raw            syscall.RawConn
	input, output  side
	taking, giving func(fd uintptr) bool // made once
}

// side is one direction.
type side struct {
	mu    sync.Mutex
	left  []byte
	n     int
	errno syscall.Errno
	once  bool // not a second time
}

// New returns a stream of source; nil where its descriptor may block, and on systems
// other than Linux.
func New(source Source) *Stream {
	if !supported {
		return nil
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return nil
	}
	blocks := true
	err = raw.Control(func(fd uintptr) {
		flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
		blocks = err != nil || flags&unix.O_NONBLOCK == 0
	})
	if err != nil || blocks {
		return nil
	}
	s := &Stream{raw: raw}
	s.taking, s.giving = s.take, s.give
	return s
}

// Reader returns source itself where there is no stream of it.
func Reader(source io.Reader) io.Reader {
	if has, ok := source.(Source); ok {
		if s := New(has); s != nil {
			return s
		}
	}
	return source
}

// Writer returns target itself where there is no stream of it.
func Writer(target io.Writer) io.Writer {
	if has, ok := target.(Source); ok {
		if s := New(has); s != nil {
			return s
		}
	}
	return target
}

// Conn returns a connection that reads and writes as a Stream does: conn itself where
// there is none.
func Conn(conn net.Conn) net.Conn {
	if has, ok := conn.(Source); ok {
		if s := New(has); s != nil {
			return &connection{conn, s}
		}
	}
	return conn
}

type connection struct {
	net.Conn
	stream *Stream
}

func (c *connection) Read(p []byte) (int, error)  { return c.stream.Read(p) }
func (c *connection) Write(p []byte) (int, error) { return c.stream.Write(p) }

// Read reads what is there, and waits while there is nothing.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	in := &s.input
	in.mu.Lock()
	defer in.mu.Unlock()
	in.left, in.n, in.errno = p[:min(len(p), maxAtOnce)], 0, 0
	err := s.raw.Read(s.taking)
	in.left = nil
	switch {
	case err != nil:
		return 0, err
	case in.errno != 0:
		return 0, os.NewSyscallError("read", in.errno)
	case in.n == 0:
		return 0, io.EOF
	}
	return in.n, nil
}

// take reads once; false: there is nothing yet.
func (s *Stream) take(fd uintptr) bool {
	in := &s.input
	for {
		in.n, in.errno = read(fd, in.left)
		switch in.errno {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			return true
		}
	}
}

// Write writes all of p, and waits while there is no room.
func (s *Stream) Write(p []byte) (int, error) {
	s.output.mu.Lock()
	defer s.output.mu.Unlock()
	return s.writeHeld(p, false)
}

// TryWrite is Write of what a pipe takes as a whole or not at all, which is up to
// [Whole] bytes: it reports false where that would have to wait, where somebody else
// is writing, and where writing fails. Nothing is written then.
func (s *Stream) TryWrite(p []byte) bool {
	if len(p) > Whole || !s.output.mu.TryLock() {
		return false
	}
	defer s.output.mu.Unlock()
	n, err := s.writeHeld(p, true)
	return err == nil && n == len(p)
}

func (s *Stream) writeHeld(p []byte, once bool) (int, error) {
	out := &s.output
	out.left, out.n, out.errno, out.once = p, 0, 0, once
	err := s.raw.Write(s.giving)
	out.left = nil
	switch {
	case err != nil:
		return out.n, err
	case out.errno != 0:
		return out.n, os.NewSyscallError("write", out.errno)
	}
	return out.n, nil
}

// give writes what is left; false: there is no room for all of it.
func (s *Stream) give(fd uintptr) bool {
	out := &s.output
	for out.n < len(out.left) {
		end := min(len(out.left), out.n+maxAtOnce)
		n, errno := write(fd, out.left[out.n:end])
		switch errno {
		case 0:
			out.n += n
		case syscall.EINTR:
		case syscall.EAGAIN:
			return out.once
		default:
			out.errno = errno
			return true
		}
	}
	return true
}
