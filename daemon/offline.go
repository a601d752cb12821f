package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Offline is what the commands get that work while no daemon runs: check,
// recover, restore and forget.
type Offline struct {
	Config
	// Person answers questions. Required, except by Check and Forget.
	Person Person
	// Slot is passphrase or recovery: what opens the vault when none of this
	// machine's key sources does, or what opens a backup; empty: nothing does, or
	// the first that the backup has.
	Slot string
	// ForgetPassphrase makes Recover remove the operator's passphrase.
	ForgetPassphrase bool
	// Say is told what was found, and what is done, line by line. Required.
	Say func(line string)
	// Progress is told now and then how far long work is; nil: nobody is.
	Progress func(what string, done, total int64)

	secret vault.Secret      // what the person said, until forgetSecret
	step   func(name string) // called between the steps of a change by tests that die there
}

// Person is the operator at a terminal, or what a program was given in his place.
// Its errors are told as they are.
type Person interface {
	// Confirm asks whether to go on. A program that was not told to go on is an
	// error, not a no.
	Confirm(question string) (bool, error)
	// Secret asks for what opens a slot of that kind: the passphrase, or the
	// 32-byte seed of the recovery code. The caller wipes it.
	Secret(kind string) ([]byte, error)
}

func (o *Offline) say(format string, args ...any) { o.Say(fmt.Sprintf(format, args...)) }

func (o *Offline) progress(what string) func(done, total int64) {
	return func(done, total int64) {
		if o.Progress != nil {
			o.Progress(what, done, total)
		}
	}
}

func (o *Offline) reached(step string) {
	if o.step != nil {
		o.step(step)
	}
}

// errDeclined: the person said no.
var errDeclined = errors.New("nothing was changed")

// offlineFault gives an error its code; what says nothing of the home, such as
// that somebody said no, has none.
func offlineFault(err error) error {
	for _, other := range []error{errDeclined, errChanged, context.Canceled} {
		if errors.Is(err, other) {
			return err
		}
	}
	if err == nil {
		return nil
	}
	return asFault(err)
}

// keyFault is why one of the machine's own key sources does not open the vault.
type keyFault struct {
	kind string
	err  error
}

// gone reports that asking again will not help: the key is not there, or it is
// another one.
func (k keyFault) gone() bool { return !errors.Is(k.err, vault.ErrKeyNotAnswering) }

// unlock opens v with the first of the machine's own key sources that can, else
// with what the person has for o.Slot. It returns why the machine's own did not.
func (o *Offline) unlock(ctx context.Context, v *vault.Vault) ([]keyFault, error) {
	faults, err := o.unlockAlone(ctx, v)
	if err == nil || o.Slot == "" || !isKeyFault(err) {
		return faults, err
	}
	return faults, o.unlockBy(ctx, v, o.Slot)
}

// unlockAlone tries the sources that need no person.
func (o *Offline) unlockAlone(ctx context.Context, v *vault.Vault) (faults []keyFault, err error) {
	for _, source := range sourcesOf(v, o.Home, o.keychild(), keysource.Timeout) {
		if err = v.UnlockWith(ctx, source); err == nil {
			return faults, nil
		}
		if !isKeyFault(err) {
			return faults, err
		}
		faults = append(faults, keyFault{source.Kind(), err})
	}
	if len(faults) > 0 {
		return faults, hinted(v, o.Home, faults[0].err)
	}
	return nil, hinted(v, o.Home, errNeedsPerson)
}

// unlockBy opens v with a secret of the person's.
func (o *Offline) unlockBy(ctx context.Context, v *vault.Vault, kind string) error {
	if !hasSlot(v, kind) {
		return fault(wire.KeyUnavailable, "the vault has no slot of kind %s", kind)
	}
	source, err := o.secretSource(kind)
	if err != nil {
		return err
	}
	return v.UnlockWith(ctx, source)
}

// secretSource asks the person for what opens a slot, once. forgetSecret wipes
// the answer.
func (o *Offline) secretSource(kind string) (vault.KeySource, error) {
	if o.secret == nil {
		if o.Person == nil {
			return nil, fault(wire.KeyUnavailable, "nobody is there to be asked for the %s", kind)
		}
		var err error
		if o.secret, err = o.Person.Secret(kind); err != nil {
			return nil, err
		}
	}
	if kind == slotRecovery {
		return vault.Recovery(o.secret), nil
	}
	return vault.Passphrase(o.secret), nil
}

func (o *Offline) forgetSecret() {
	o.secret.Wipe()
	o.secret = nil
}

// hinted adds to a key that is missing what would open the vault without it. A
// key file that is all there needs only its mode or owner mended.
func hinted(v *vault.Vault, home string, err error) error {
	f := asFault(err)
	if info, statErr := os.Lstat(place.KeyFile(home)); f.Code == wire.KeyFileUnsafe && statErr == nil && info.Size() == keySize {
		return f
	}
	for _, slot := range []struct{ kind, option string }{{slotRecovery, "--recovery-code"}, {slotPassphrase, "--passphrase"}} {
		if !hasSlot(v, slot.kind) {
			continue
		}
		f.Hint = "sbd recover --slot " + slot.kind
		if errors.Is(err, errNeedsPerson) { // as it was meant to be
			f.Hint = "sbd check " + slot.option
		}
		break
	}
	return f
}

func isKeyFault(err error) bool {
	switch asFault(err).Code {
	case wire.KeyUnavailable, wire.WrongKey, wire.KeyFileUnsafe:
		return true
	}
	return false
}

// idle makes sure that no daemon holds the home, without changing the lock, and
// keeps it so until the file, which may be nil, is closed.
func idle(home string) (*os.File, error) {
	file, err := openPlain(place.LockFile(home))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault(wire.HomeUnsafe, "%w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fault(wire.AlreadyRunning, "an sbd holds %s: stop it first", home), file.Close())
	}
	return file, nil
}

// restoringMarker lies in a home from the first step of a restore to the last.
const restoringMarker = "restoring"

// notRestoring refuses a home in which a restore was interrupted. The caller
// holds the lock: else a restore may be running.
func notRestoring(home string) error {
	_, err := os.Lstat(filepath.Join(home, restoringMarker))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	return fault(wire.VaultMissing, "a restore into %s was interrupted: run sbd restore again", home)
}
