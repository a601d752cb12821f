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
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// ErrNone is returned when a person must be asked and there is nobody to ask.
var ErrNone = errors.New("there is no terminal to ask on")

// ErrTooLong is returned for a line that the terminal itself has cut off.
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

// Confirm asks a question and says whether the answer was yes.
func (t *TTY) Confirm(ctx context.Context, question string) (bool, error) {
	if _, err := fmt.Fprintf(t.file, "%s [y/N] ", question); err != nil {
		return false, fmt.Errorf("asking on the terminal: %w", err)
	}
	answer, err := t.wait(ctx, func() ([]byte, error) {
		line, err := bufio.NewReader(t.file).ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			err = nil // no answer is a no
		}
		return line, err
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

// wait is read, unless the person interrupts it: then the terminal is put back
// as it was. The read itself cannot be ended and ends with the process.
func (t *TTY) wait(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	before, err := term.GetState(int(t.file.Fd()))
	if err != nil {
		return nil, err
	}
	type result struct {
		line []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		line, err := read()
		done <- result{line, err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		_ = term.Restore(int(t.file.Fd()), before)
		return nil, ctx.Err()
	}
}

// ReadSecret asks for one line that is not shown while it is typed. The caller
// wipes it. ErrTooLong.
func (t *TTY) ReadSecret(ctx context.Context, prompt string) ([]byte, error) {
	typed, err := t.wait(ctx, func() ([]byte, error) {
		// Nothing is shown from before the question on: whoever answers at once, by
		// pasting, must not see the answer either.
		shown, err := term.MakeRaw(int(t.file.Fd()))
		if err != nil {
			return nil, err
		}
		defer func() { _ = term.Restore(int(t.file.Fd()), shown) }()
		if _, err := fmt.Fprintf(t.file, "%s: ", prompt); err != nil {
			return nil, err
		}
		return term.ReadPassword(int(t.file.Fd()))
	})
	_, _ = fmt.Fprintln(t.file)
	if err != nil {
		return nil, fmt.Errorf("reading what was typed: %w", err)
	}
	if len(typed) >= maxTyped {
		clear(typed)
		return nil, ErrTooLong
	}
	return typed, nil
}

// Is says whether stream is a terminal.
func Is(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
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
