// Package terminal asks a person at the terminal, in the same way in every
// program.
//
// The rules: people are asked on the controlling terminal, whatever standard
// input and output are connected to, so that questions and what is typed never mix
// with data. No answer is a no. What is secret is not shown, from before the
// question on. An interrupt ends a question, and leaves the terminal as it was.
//
// It shows what it is given: whoever asks about a name that somebody else chose
// makes it printable first.
package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ErrNone is returned when a person must be asked and there is nobody to ask.
var ErrNone = errors.New("there is no terminal to ask on")

// ErrTooLong is returned for a line that a terminal would cut off.
var ErrTooLong = fmt.Errorf("a terminal cuts lines off at %d bytes", maxTyped)

// maxTyped is the longest line that a terminal in its usual mode hands over,
// in bytes (MAX_CANON less its newline); it cuts longer ones off silently.
const maxTyped = 4094

// TTY is the controlling terminal.
type TTY struct {
	file *os.File
}

// Open opens the controlling terminal. It returns ErrNone when the process has
// none.
func Open() (*TTY, error) {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, ErrNone
	}
	return &TTY{file: file}, nil
}

// Close releases the terminal.
func (t *TTY) Close() error { return t.file.Close() }

// Write shows text on the terminal.
func (t *TTY) Write(text []byte) (int, error) { return t.file.Write(text) }

// Read hands over what was typed: a line in the terminal's usual mode, bytes in
// raw mode.
func (t *TTY) Read(typed []byte) (int, error) { return t.file.Read(typed) }

// control calls f with the descriptor. Asking the file for it would take the
// means from it to end a read.
func (t *TTY) control(f func(fd int) error) error {
	raw, err := t.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// Raw takes the terminal over: nothing that is typed is shown, and every key is
// handed over as it is, the interrupt too. restore gives it back as it was; it may
// be called more than once.
func (t *TTY) Raw() (restore func(), err error) {
	var before *term.State
	err = t.control(func(fd int) (err error) {
		before, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	return func() { _ = t.control(func(fd int) error { return term.Restore(fd, before) }) }, nil
}

// Size is the number of columns and rows; 80 and 24 where the terminal does not
// know.
func (t *TTY) Size() (width, height int) {
	err := t.control(func(fd int) (err error) {
		width, height, err = term.GetSize(fd)
		return err
	})
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// past is a deadline that no read can meet.
const past = 1

// Until lets reads end when ctx does, with os.ErrDeadlineExceeded, until release
// is called. It says whether this terminal can do so.
func (t *TTY) Until(ctx context.Context) (release func(), ok bool) {
	if t.file.SetReadDeadline(time.Time{}) != nil {
		return func() {}, false
	}
	var mu sync.Mutex
	released := false
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !released {
			_ = t.file.SetReadDeadline(time.Unix(past, 0))
		}
	})
	return func() {
		stop()
		mu.Lock()
		defer mu.Unlock()
		released = true
		_ = t.file.SetReadDeadline(time.Time{})
	}, true
}

// Confirm asks a question and says whether the answer was yes.
func (t *TTY) Confirm(ctx context.Context, question string) (bool, error) {
	if _, err := fmt.Fprintf(t.file, "%s [y/N] ", question); err != nil {
		return false, fmt.Errorf("asking on the terminal: %w", err)
	}
	answer, err := t.wait(ctx, func() ([]byte, error) {
		return readAnswer(t.file)
	})
	if err != nil {
		return false, fmt.Errorf("reading the answer: %w", err)
	}
	switch strings.ToLower(string(bytes.TrimSpace(answer))) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// readAnswer reads a line from a terminal in its usual mode. What was typed before
// it came into that mode ends in a return and no newline.
func readAnswer(typed io.Reader) ([]byte, error) {
	var line []byte
	buffer := make([]byte, 256)
	for {
		n, err := typed.Read(buffer)
		line = append(line, buffer[:n]...)
		if errors.Is(err, io.EOF) || bytes.ContainsAny(line, "\r\n") || len(line) > maxTyped {
			return line, nil // no answer is a no
		}
		if err != nil {
			return nil, err
		}
	}
}

// wait is read, unless the person interrupts it. Where a read of a terminal
// cannot be ended it ends with the process.
func (t *TTY) wait(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	release, ends := t.Until(ctx)
	defer release()
	type result struct {
		line []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		line, err := read()
		done <- result{line, err}
	}()
	if ends {
		r := <-done
		if r.err != nil && ctx.Err() != nil {
			clear(r.line)
			return nil, ctx.Err()
		}
		return r.line, r.err
	}
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ReadSecret asks for one line that is not shown while it is typed. The caller
// wipes it. io.EOF when there is no answer, ErrTooLong. Who was suspended
// meanwhile is asked again.
func (t *TTY) ReadSecret(ctx context.Context, prompt string) ([]byte, error) {
	for {
		typed, err := t.readSecret(ctx, prompt)
		if key, ok := errors.AsType[signalKey](err); ok {
			if syscall.Signal(key) == syscall.SIGTSTP {
				if err = suspend(ctx); err == nil {
					continue
				}
			} else {
				err = raise(ctx, syscall.Signal(key))
			}
		}
		if err != nil {
			clear(typed)
			return nil, fmt.Errorf("reading what was typed: %w", err)
		}
		if len(typed) >= maxTyped {
			clear(typed)
			return nil, ErrTooLong
		}
		return typed, nil
	}
}

// readSecret asks once, and leaves the terminal as it was.
func (t *TTY) readSecret(ctx context.Context, prompt string) ([]byte, error) {
	// Nothing is shown from before the question on: whoever answers at once, by
	// pasting, must not see the answer either.
	restore, err := t.Raw()
	if err != nil {
		return nil, err
	}
	defer restore()
	typed, err := t.wait(ctx, func() ([]byte, error) {
		if _, err := fmt.Fprintf(t.file, "%s: ", prompt); err != nil {
			return nil, err
		}
		return readHidden(t.file)
	})
	restore()
	_, _ = fmt.Fprintln(t.file)
	return typed, err
}

// Keys that mean something in a line that is not shown.
const (
	keyInterrupt = 'C' - '@'
	keyEnd       = 'D' - '@'
	keyErase     = 'H' - '@'
	keyKill      = 'U' - '@'
	keyQuit      = '\\' - '@'
	keySuspend   = 'Z' - '@'
	keyDelete    = 0x7f
)

// signalKey is a key for which a terminal in its usual mode sends a signal.
type signalKey syscall.Signal

func (k signalKey) Error() string { return syscall.Signal(k).String() }

// readHidden reads a line from a terminal in raw mode, one byte at a time: what
// is typed ahead belongs to the next question.
func readHidden(typed io.Reader) ([]byte, error) {
	line := make([]byte, 0, maxTyped+1) // never moved, so that one wipe is enough
	key := make([]byte, 1)
	for {
		n, err := typed.Read(key)
		if n == 0 && err == nil {
			err = io.EOF
		}
		if errors.Is(err, io.EOF) && len(line) > 0 {
			return line, nil
		}
		if err != nil {
			clear(line)
			return nil, err
		}
		switch key[0] {
		case '\r', '\n':
			return line, nil
		case keyEnd:
			if len(line) == 0 {
				return nil, io.EOF
			}
			return line, nil
		case keyInterrupt:
			clear(line)
			return nil, signalKey(syscall.SIGINT)
		case keyQuit:
			clear(line)
			return nil, signalKey(syscall.SIGQUIT)
		case keySuspend:
			clear(line)
			return nil, signalKey(syscall.SIGTSTP)
		case keyErase, keyDelete:
			_, size := utf8.DecodeLastRune(line)
			clear(line[len(line)-size:])
			line = line[:len(line)-size]
		case keyKill:
			clear(line)
			line = line[:0]
		default:
			if len(line) < maxTyped {
				line = append(line, key[0])
			}
		}
		key[0] = 0
	}
}

// raise does what the terminal would have done in its usual mode: it signals the
// whole foreground group. Whoever handles the signal ends ctx.
func raise(ctx context.Context, signal syscall.Signal) error {
	if err := syscall.Kill(0, signal); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second):
		return context.Canceled // somebody catches it and goes on
	}
}

// suspend stops the foreground group, as the terminal would have done, and returns
// when the shell lets it go on; soon where there is no shell that could.
func suspend(ctx context.Context) error {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	if err := syscall.Kill(0, syscall.SIGTSTP); err != nil {
		return err
	}
	select {
	case <-resumed:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Second): // it was not stopped
	}
	return nil
}

// Is says whether stream is a terminal.
func Is(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Columns is how wide the terminal is that stream is; 0 when it is none, or does not
// say.
func Columns(stream any) int {
	file, ok := stream.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return max(width, 0)
}

// Inherited says whether whoever started this process opened fd for it. What the
// runtime opened for itself, such as the limits of the control group, closes on
// exec, and must not be taken for a secret.
func Inherited(fd int) bool {
	if fd < 0 {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}
