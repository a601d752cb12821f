package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/recovery"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

// What opens a vault is typed on the terminal and not shown, or read from a
// descriptor that the caller opened for it: never an argument, never a variable,
// both of which other processes can read.

// minPassphrase is the shortest passphrase that the daemon takes, in bytes.
const minPassphrase = 8

// maxPassphrase bounds a passphrase and what a code may be typed as, in bytes.
const maxPassphrase = 1024

// shortPassphrase is the length in bytes below which a passphrase earns a word
// of warning.
const shortPassphrase = 14

// tries is how often a person may mistype a code before the command ends.
const tries = 3

type codeSource struct {
	RecoveryCodeFD *int `name:"recovery-code-fd" placeholder:"N" help:"Read the recovery code from this open descriptor, up to its end, instead of asking for it."`
}

// passphraseOption is how a program says a passphrase. It is an option of every
// command: with a verb that is about the vault's passphrase it means that one,
// with any other the operator's.
const passphraseOption = "--passphrase-fd"

// passphraseFD is the descriptor that a passphrase is still to be read from; nil
// when none was named, or it was read already.
func (a *app) passphraseFD() *int {
	if a.fdRead {
		return nil
	}
	return a.opts.PassphraseFD
}

// passphrase takes the passphrase that opens the vault. The caller wipes it.
func (a *app) passphrase(ctx context.Context, doing string) (content.Bytes, error) {
	return a.passphraseOr(ctx, doing, "Passphrase")
}

// takePassphraseFD is passphraseFD, which is taken to be read now.
func (a *app) takePassphraseFD() *int {
	fd := a.passphraseFD()
	a.fdRead = a.fdRead || fd != nil
	return fd
}

// passphraseOr reads the descriptor of --passphrase-fd, once, or asks with prompt.
func (a *app) passphraseOr(ctx context.Context, doing, prompt string) (content.Bytes, error) {
	if fd := a.takePassphraseFD(); fd != nil {
		return a.passphraseFrom(doing, passphraseOption, *fd)
	}
	return a.askSecret(ctx, doing, passphraseOption, prompt)
}

// newPassphrase takes a passphrase that is to be set; a person types it twice, and
// is told what a short one means. A program gives it in fd, whose option is named.
func (a *app) newPassphrase(ctx context.Context, doing, option string, fd *int, short string) (content.Bytes, error) {
	if fd != nil {
		return a.passphraseFrom(doing, option, *fd)
	}
	typed, err := a.askSecret(ctx, doing, option, "New passphrase")
	if err != nil {
		return nil, err
	}
	if len(typed) < minPassphrase {
		typed.Wipe()
		return nil, refuse(doing, "a passphrase has at least %d bytes", minPassphrase)
	}
	again, err := a.askSecret(ctx, doing, option, "The same again")
	defer again.Wipe()
	if err == nil && !bytes.Equal(typed, again) {
		err = refuse(doing, "the two passphrases differ, nothing was changed")
	}
	if err != nil {
		typed.Wipe()
		return nil, err
	}
	if len(typed) < shortPassphrase {
		a.say("warning: this passphrase is short: %s; several random words are better", short)
	}
	return typed, nil
}

// recoveryCode takes a recovery code. The caller wipes it.
func (a *app) recoveryCode(ctx context.Context, doing string, from codeSource) (recovery.Code, error) {
	if from.RecoveryCodeFD != nil {
		text, err := a.readDescriptor(doing, "--recovery-code-fd", *from.RecoveryCodeFD)
		if err != nil {
			return recovery.Code{}, err
		}
		defer text.Wipe()
		code, err := recovery.Parse(text)
		if err != nil {
			return recovery.Code{}, refuse(doing, "%v", err)
		}
		return code, nil
	}
	for left := tries; ; left-- {
		text, err := a.askSecret(ctx, doing, "--recovery-code-fd", "Recovery code")
		if err != nil {
			return recovery.Code{}, err
		}
		code, err := recovery.Parse(text)
		text.Wipe()
		if err == nil {
			return code, nil
		}
		if left == 1 {
			return recovery.Code{}, refuse(doing, "%v", err)
		}
		a.say("%v; try again", err)
	}
}

// wrongSecret says in a person's words that what was given opens nothing.
func wrongSecret(err error, kind string) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || failed.code != wire.WrongKey {
		return err
	}
	switch kind {
	case slotPassphrase:
		failed.what, failed.hint = "this passphrase does not open the vault", ""
	case slotRecovery:
		failed.what, failed.hint = "this is a recovery code, but not the one of this vault", ""
	}
	return failed
}

// askSecret asks a person for one line. option is what a program uses instead.
func (a *app) askSecret(ctx context.Context, doing, option, prompt string) (content.Bytes, error) {
	tty, err := a.tty()
	if err != nil {
		return nil, refuse(doing, "there is no terminal to ask on: use %s N", option)
	}
	defer func() { _ = tty.Close() }()
	typed, err := tty.ReadSecret(ctx, ui.Safe(prompt))
	if errors.Is(err, io.EOF) || err == nil && len(typed) == 0 {
		return nil, refuse(doing, "nothing was typed")
	}
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	return typed, nil
}

func (a *app) passphraseFrom(doing, option string, fd int) (content.Bytes, error) {
	text, err := a.readDescriptor(doing, option, fd)
	if err != nil {
		return nil, err
	}
	text = content.TrimNewline(text)
	switch {
	case len(text) == 0:
		return nil, refuse(doing, "%s: there is no passphrase in it", option)
	case bytes.IndexByte(text, '\n') >= 0:
		text.Wipe()
		return nil, refuse(doing, "%s: a passphrase is one line", option)
	}
	return text, nil
}

// readDescriptor reads a descriptor to its end. It stays open: closing one that
// turns out to be the runtime's own would do harm.
func (a *app) readDescriptor(doing, option string, fd int) (content.Bytes, error) {
	if !terminal.Inherited(fd) {
		return nil, refuse(doing, "%s: no descriptor %d was opened for sbctl", option, fd)
	}
	if fd == 0 && a.inConsole() {
		return nil, refuse(doing, "%s: standard input is the console's own", option)
	}
	// A file closes its descriptor once nothing refers to it: ours is a second one.
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, refuse(doing, "%s: %v", option, err)
	}
	file := os.NewFile(uintptr(own), fmt.Sprintf("descriptor %d", fd))
	defer file.Close()
	if terminal.Is(file) {
		return nil, refuse(doing, "%s: descriptor %d is a terminal, where it would be shown: leave the option out to be asked", option, fd)
	}
	text, more, err := content.Read(file, maxPassphrase)
	if fd > 2 {
		unix.CloseOnExec(fd) // a file that was read can be read again: no program that sbctl starts gets it
	}
	if err != nil {
		return nil, refuse(doing, "%s: %v", option, err)
	}
	if more {
		return nil, refuse(doing, "%s: more than %d bytes", option, maxPassphrase)
	}
	return text, nil
}
