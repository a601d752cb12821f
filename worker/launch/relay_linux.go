package launch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// drainTime bounds how long output that is still in the terminal is waited for
// after the tree is gone; it is there already.
const drainTime = 2 * time.Second

// relay carries bytes between this process's terminal and the tree's. Its
// methods do nothing on nil: a command without a terminal.
type relay struct {
	like  terminal
	files [3]bool  // which of stdin, stdout, stderr are terminals
	in    *os.File // nil: stdin is no terminal
	out   *os.File
	tty   *os.File // whose size and group count
	piped bool     // stdin is a terminal, stdout is none: others of a pipeline may use the terminal

	master  *os.File
	ticker  *time.Ticker
	copied  chan struct{} // closed when all output is out
	typed   chan struct{} // closed when nothing more is read
	wakeR   *os.File
	wakeW   *os.File
	mu      sync.Mutex
	reading bool
	late    bool        // begun in the background: the modes were the shell's, who was editing a line
	saved   *term.State // the terminal's modes while it is raw
}

// newRelay returns nil when none of the three is a terminal.
func newRelay(stdio [3]*os.File) *relay {
	r := &relay{}
	for i, file := range stdio {
		if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
			continue
		}
		r.files[i] = true
		if r.tty == nil {
			r.tty = file
		}
		if i == 0 {
			r.in = file
		} else if r.out == nil {
			r.out = file
		}
	}
	if r.tty == nil {
		return nil
	}
	if r.out == nil {
		r.out = r.tty
	}
	if termios, err := unix.IoctlGetTermios(int(r.tty.Fd()), unix.TCGETS); err == nil {
		r.like.Termios = *termios
	}
	if size, err := unix.IoctlGetWinsize(int(r.tty.Fd()), unix.TIOCGWINSZ); err == nil {
		r.like.Size = *size
	}
	r.piped = r.in != nil && !r.files[1]
	if r.in == nil || r.piped {
		r.like.Termios.Oflag &^= unix.OPOST // the caller's terminal does it, for all who write there
	}
	return r
}

// begin starts relaying.
func (r *relay) begin(master *os.File) error {
	// Not blocking, so that reading can be ended.
	fd, err := unix.FcntlInt(master.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	master.Close()
	if err != nil {
		return fmt.Errorf("relaying the terminal: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return fmt.Errorf("relaying the terminal: %w", err)
	}
	if r.wakeR, r.wakeW, err = os.Pipe(); err != nil {
		unix.Close(fd)
		return fmt.Errorf("relaying the terminal: %w", err)
	}
	r.master = os.NewFile(uintptr(fd), "master") // last: with it there is something to finish
	r.copied, r.typed = make(chan struct{}), make(chan struct{})
	r.ticker = time.NewTicker(200 * time.Millisecond)
	go func() {
		defer close(r.copied)
		_, _ = io.Copy(onlyWriter{r.out}, onlyReader{r.master}) // ends with EIO, which is the end of a terminal
		r.hangUp()
	}()
	go func() {
		defer close(r.typed)
		if r.in != nil && r.readKeys() {
			r.hangUp()
		}
	}()
	group, err := unix.IoctlGetInt(int(r.tty.Fd()), unix.TIOCGPGRP)
	r.late = err == nil && group != unix.Getpgrp()
	r.look()
	return nil
}

// hangUp closes the tree's terminal as this process's was closed. A command
// that ignores the signal would otherwise wait for ever for somebody who takes
// what it writes.
func (r *relay) hangUp() { r.master.Close() }

// io.Copy must not splice: the kernel does not do it for terminals.
type (
	onlyWriter struct{ io.Writer }
	onlyReader struct{ io.Reader }
)

// readKeys copies what is typed, while this process is in the foreground. It
// ends with finish, or when the terminal is gone.
func (r *relay) readKeys() (gone bool) {
	buffer := make([]byte, 4096)
	for {
		r.mu.Lock()
		reading := r.reading
		r.mu.Unlock()
		polled := []unix.PollFd{{Fd: int32(r.wakeR.Fd()), Events: unix.POLLIN}, {Fd: int32(r.in.Fd())}} // that it is gone is always told
		if reading {
			polled[1].Events = unix.POLLIN
		}
		if _, err := unix.Poll(polled, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return true
		}
		if polled[0].Revents != 0 {
			n, err := unix.Read(int(r.wakeR.Fd()), buffer[:1])
			if err != nil || n == 0 {
				return false // finish
			}
			continue
		}
		if polled[1].Revents == 0 {
			continue
		}
		if !reading {
			return true
		}
		n, err := unix.Read(int(r.in.Fd()), buffer)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil || n == 0 {
			return true
		}
		if _, err := r.master.Write(buffer[:n]); err != nil {
			return true
		}
	}
}

// ticks come while it must be asked whether this process is in the foreground:
// a shell does not say so to a job that was not stopped.
func (r *relay) ticks() <-chan time.Time {
	if r == nil || r.ticker == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading {
		return nil
	}
	return r.ticker.C
}

// look takes the terminal if this process is in its foreground, and hands its
// size on.
func (r *relay) look() {
	if r == nil || r.master == nil {
		return
	}
	if size, err := unix.IoctlGetWinsize(int(r.tty.Fd()), unix.TIOCGWINSZ); err == nil {
		r.resize(size)
	}
	group, err := unix.IoctlGetInt(int(r.tty.Fd()), unix.TIOCGPGRP)
	if err == nil && group != unix.Getpgrp() {
		return // in the background: not ours to touch
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.in != nil {
		modes, err := unix.IoctlGetTermios(int(r.in.Fd()), unix.TCGETS)
		if err == nil && r.piped && r.saved == nil && modes.Lflag&unix.ICANON == 0 {
			r.late = true
			return // a pager at the pipeline's end reads the keys
		}
		if err == nil && r.late {
			r.takeModes(*modes)
			r.late = false
		}
		r.makeRaw()
	}
	if !r.reading {
		r.reading = true
		r.wake()
	}
}

// resize needs no answer: the tree may be gone.
func (r *relay) resize(size *unix.Winsize) {
	raw, err := r.master.SyscallConn() // os.File.Fd would make it blocking
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, size) })
	}
}

// takeModes gives the tree's terminal the modes that this process's has now.
func (r *relay) takeModes(modes unix.Termios) {
	if r.piped {
		modes.Oflag &^= unix.OPOST
	}
	if raw, err := r.master.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.IoctlSetTermios(int(fd), unix.TCSETS, &modes) })
	}
}

// makeRaw has this process's terminal leave everything to the tree's; in a
// pipeline all but what becomes of the others' output.
func (r *relay) makeRaw() {
	fd := int(r.in.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return
	}
	if r.saved == nil {
		r.saved = state
	}
	if !r.piped {
		return
	}
	if modes, err := unix.IoctlGetTermios(fd, unix.TCGETS); err == nil {
		modes.Oflag = before.Oflag
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, modes)
	}
}

// pause gives the terminal back as it was.
func (r *relay) pause() {
	if r == nil || r.master == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reading {
		r.reading = false
		r.wake()
	}
	if r.saved != nil {
		_ = term.Restore(int(r.in.Fd()), r.saved)
		r.saved = nil
	}
}

func (r *relay) wake() { _, _ = r.wakeW.Write([]byte{0}) }

// finish lets the rest of the output out and gives the terminal back.
func (r *relay) finish() {
	if r == nil || r.master == nil {
		return
	}
	_ = r.master.SetReadDeadline(time.Now().Add(drainTime))
	select {
	case <-r.copied:
	case <-time.After(drainTime): // nobody takes it
	}
	r.pause()
	r.wakeW.Close()
	r.master.Close() // ends a write that nobody takes
	<-r.typed
	r.wakeR.Close()
	r.ticker.Stop()
}
