package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"subjectbroker/proto/place"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Forget removes the slot keys that are stored for the vault in the home: the
// keychain's item, and secret.key, which is overwritten. What a person keeps
// still opens the vault. No daemon may run. It goes on after an error, and
// returns the first.
func Forget(ctx context.Context, o Offline) error {
	return offlineFault(forget(ctx, &o))
}

func forget(ctx context.Context, o *Offline) error {
	if err := checkHome(o.Home); err != nil {
		return err
	}
	lock, err := idle(o.Home)
	if err != nil {
		return err
	}
	if lock != nil {
		defer lock.Close()
	}
	keychainErr := forgetKeychain(ctx, o)
	var fileErr error
	for _, path := range []string{place.KeyFile(o.Home), place.KeyFile(o.Home) + ".new"} {
		if _, err := os.Lstat(path); os.IsNotExist(err) {
			continue
		}
		if err := overwrite(path); err != nil {
			fileErr = errors.Join(fileErr, err)
			continue
		}
		o.say("removed: %s, overwritten before", path)
	}
	return errors.Join(keychainErr, fileErr)
}

// forgetKeychain needs the vault, which names the item. Without one there is
// nothing to find it by.
func forgetKeychain(ctx context.Context, o *Offline) error {
	v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(o.Home), ReadOnly: true, Now: o.Now})
	if err != nil {
		if _, missing := os.Lstat(place.VaultFile(o.Home)); os.IsNotExist(missing) {
			return nil
		}
		return err
	}
	defer v.Close()
	for _, slot := range v.Slots() {
		if slot.Kind != keysource.KindKeychain {
			continue
		}
		source, err := sourceOf(slot.Kind, o.Home, o.keychild(), keysource.InteractiveTimeout)
		if err != nil {
			return err
		}
		switch err := source.Remove(ctx, v.ID()); {
		case err == nil:
			o.say("removed: the keychain's item of vault %s", v.ID())
		case errors.Is(err, vault.ErrKeyUnavailable):
			o.say("the keychain holds no key of vault %s", v.ID())
		default:
			return fmt.Errorf("removing the key of vault %s from the keychain: %w", v.ID(), err)
		}
	}
	return nil
}

// overwrite replaces the content of a file by zeros, in place, as far as the
// medium allows, and removes it. One that is not there is fine; what is no
// regular file of one link is only removed.
func overwrite(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|openPlainFlags, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err == nil {
		err = zero(file)
		if errClose := file.Close(); err == nil {
			err = errClose
		}
	}
	if errRemove := os.Remove(path); errRemove != nil {
		return errRemove
	}
	if err != nil {
		return fmt.Errorf("%s was removed, but not overwritten: %w", path, err)
	}
	return syncFolder(filepath.Dir(path))
}

func zero(file *os.File) error {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	if _, err := io.CopyN(file, zeros{}, info.Size()); err != nil {
		return err
	}
	return file.Sync()
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
