package main

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

	"subjectbroker/daemon"
	"subjectbroker/proto/recovery"
	"subjectbroker/proto/wire"
)

// terminal is where people are asked: never stdin, which may be a file.
const terminal = "/dev/tty"

// maxSecret is the longest passphrase or code that is read, in bytes.
const maxSecret = 1024

// attempts is how often a person may mistype the recovery code.
const attempts = 3

// person is the operator: at the terminal, or in what the command line says.
type person struct {
	ctx                          context.Context //nolint:containedctx // ends with an interrupt, and with it every question
	yes                          bool
	passphraseFD, recoveryCodeFD int // -1: asked at the terminal
}

// Confirm implements daemon.Person.
func (p person) Confirm(question string) (bool, error) {
	if p.yes {
		return true, nil
	}
	tty, err := openTerminal("or say --yes")
	if err != nil {
		return false, err
	}
	defer tty.Close()
	fmt.Fprintf(tty, "%s [y/N] ", question)
	line, err := p.wait(tty, func() ([]byte, error) {
		return bufio.NewReader(io.LimitReader(tty, maxSecret)).ReadBytes('\n')
	})
	if err != nil && !errors.Is(err, io.EOF) { // no answer is a no
		return false, fmt.Errorf("reading the answer: %w", err)
	}
	answer := strings.ToLower(strings.TrimSpace(string(line)))
	return answer == "y" || answer == "yes", nil
}

// wait is read, unless the person interrupts it: then the terminal is put back as
// it was. The read itself cannot be ended and ends with the process.
func (p person) wait(tty *os.File, read func() ([]byte, error)) ([]byte, error) {
	before, err := term.GetState(int(tty.Fd()))
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
	case <-p.ctx.Done():
		_ = term.Restore(int(tty.Fd()), before)
		fmt.Fprintln(tty)
		return nil, p.ctx.Err()
	}
}

// Secret implements daemon.Person.
func (p person) Secret(kind string) ([]byte, error) {
	if kind == slotPassphrase {
		typed, err := p.read(p.passphraseFD, "Passphrase: ", "or say --passphrase-fd N")
		if err == nil && len(typed) == 0 {
			err = refused("the passphrase is empty")
		}
		return typed, err
	}
	for attempt := 1; ; attempt++ {
		typed, err := p.read(p.recoveryCodeFD, "Recovery code: ", "or say --recovery-code-fd N")
		if err != nil {
			return nil, err
		}
		code, err := recovery.Parse(typed)
		clear(typed)
		if err == nil {
			defer code.Wipe()
			return code.Seed(), nil
		}
		if p.recoveryCodeFD >= 0 || attempt == attempts {
			return nil, refused("the recovery code: %w", err)
		}
		if tty, ttyErr := openTerminal(""); ttyErr == nil {
			fmt.Fprintf(tty, "%v\n", err)
			_ = tty.Close()
		}
	}
}

// read takes one line from a descriptor, or from the terminal without showing it.
func (p person) read(fd int, prompt, instead string) ([]byte, error) {
	if fd >= 0 {
		return readDescriptor(fd)
	}
	tty, err := openTerminal(instead)
	if err != nil {
		return nil, err
	}
	defer tty.Close()
	typed, err := p.wait(tty, func() ([]byte, error) {
		// Nothing is shown from before the question on: whoever answers at once, by
		// pasting, must not see the answer either.
		shown, err := term.MakeRaw(int(tty.Fd()))
		if err != nil {
			return nil, err
		}
		defer func() { _ = term.Restore(int(tty.Fd()), shown) }()
		fmt.Fprint(tty, prompt)
		return term.ReadPassword(int(tty.Fd()))
	})
	fmt.Fprintln(tty)
	if err != nil {
		return nil, fmt.Errorf("reading from the terminal: %w", err)
	}
	return typed, nil
}

// inherited says whether whoever started us opened fd for us. What the runtime
// opened for itself closes on exec, and must not be taken for a secret.
func inherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// readDescriptor reads what another program has written, up to its end or the
// end of the line.
func readDescriptor(fd int) ([]byte, error) {
	if !inherited(fd) {
		return nil, refused("no descriptor %d was opened for sbd", fd)
	}
	if term.IsTerminal(fd) {
		return nil, refused("descriptor %d is a terminal, where it would be shown: leave it out to be asked", fd)
	}
	file := os.NewFile(uintptr(fd), "descriptor")
	defer file.Close()
	buffer := make([]byte, maxSecret+len("\r\n"))
	n := 0
	for {
		more, err := file.Read(buffer[n:])
		n += more
		if end := bytes.IndexByte(buffer[:n], '\n'); end >= 0 {
			clear(buffer[end:n])
			n = len(bytes.TrimSuffix(buffer[:end], []byte("\r")))
			clear(buffer[n:end])
			break
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			clear(buffer)
			return nil, refused("reading descriptor %d: %w", fd, err)
		}
		if n == len(buffer) {
			break
		}
	}
	if n > maxSecret {
		clear(buffer)
		return nil, refused("descriptor %d: more than %d bytes", fd, maxSecret)
	}
	return buffer[:n], nil
}

func openTerminal(instead string) (*os.File, error) {
	tty, err := os.OpenFile(terminal, os.O_RDWR, 0)
	if err != nil {
		return nil, refused("there is no terminal to ask at: run this at one, %s", instead)
	}
	return tty, nil
}

// refused is a fault of what was brought, not of the home.
func refused(format string, args ...any) error {
	return &daemon.Fault{Code: wire.InvalidArgument, Err: fmt.Errorf(format, args...)}
}
