package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"subjectbroker/daemon"
	"subjectbroker/proto/recovery"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

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
	defer func() { _ = tty.Close() }()
	return tty.Confirm(p.ctx, question)
}

// Secret implements daemon.Person.
func (p person) Secret(kind string) ([]byte, error) {
	if kind == slotPassphrase {
		typed, err := p.read(p.passphraseFD, "Passphrase", "or say --passphrase-fd N")
		if err == nil && len(typed) == 0 {
			err = refused("the passphrase is empty")
		}
		return typed, err
	}
	for attempt := 1; ; attempt++ {
		typed, err := p.read(p.recoveryCodeFD, "Recovery code", "or say --recovery-code-fd N")
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
	defer func() { _ = tty.Close() }()
	return tty.ReadSecret(p.ctx, prompt)
}

// readDescriptor reads what another program has written, up to its end or the
// end of the line.
func readDescriptor(fd int) ([]byte, error) {
	if !terminal.Inherited(fd) {
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

func openTerminal(instead string) (*terminal.TTY, error) {
	tty, err := terminal.Open()
	if err != nil {
		return nil, refused("there is no terminal to ask at: run this at one, %s", instead)
	}
	return tty, nil
}

// refused is a fault of what was brought, not of the home.
func refused(format string, args ...any) error {
	return &daemon.Fault{Code: wire.InvalidArgument, Err: fmt.Errorf(format, args...)}
}
