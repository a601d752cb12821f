package ui

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// ErrNoTerminal is returned when a person must be asked and there is nobody to ask.
var ErrNoTerminal = errors.New("there is no terminal to ask on")

// maxTyped is the longest line that a terminal in its usual mode hands over,
// in bytes (MAX_CANON less its newline); it cuts longer ones off silently.
const maxTyped = 4094

// TTY is the controlling terminal: where people are asked, whatever standard
// input and output are connected to. The rules: questions and what is typed
// never mix with data; no answer is a no.
type TTY struct {
	file *os.File
}

// OpenTTY opens the controlling terminal. It returns ErrNoTerminal when the
// process has none.
func OpenTTY() (*TTY, error) {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil, ErrNoTerminal
	}
	return &TTY{file: file}, nil
}

// Close releases the terminal.
func (t *TTY) Close() error { return t.file.Close() }

// Write shows text on the terminal.
func (t *TTY) Write(text []byte) (int, error) { return t.file.Write(text) }

// Confirm asks a question and says whether the answer was yes.
func (t *TTY) Confirm(question string) (bool, error) {
	if _, err := fmt.Fprintf(t.file, "%s [y/N] ", Safe(question)); err != nil {
		return false, fmt.Errorf("asking on the terminal: %w", err)
	}
	answer, err := bufio.NewReader(t.file).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("reading the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// ReadSecret asks for one line that is not shown while it is typed. The caller
// wipes it.
func (t *TTY) ReadSecret(prompt string) ([]byte, error) {
	if _, err := fmt.Fprintf(t.file, "%s: ", Safe(prompt)); err != nil {
		return nil, fmt.Errorf("asking on the terminal: %w", err)
	}
	typed, err := term.ReadPassword(int(t.file.Fd()))
	_, _ = fmt.Fprintln(t.file)
	if err != nil {
		return nil, fmt.Errorf("reading what was typed: %w", err)
	}
	if len(typed) >= maxTyped {
		clear(typed)
		return nil, fmt.Errorf("a terminal cuts lines off at %d bytes: use --from-file or standard input", maxTyped)
	}
	return typed, nil
}

// IsTerminal says whether stream is a terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
