package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"

	"subjectbroker/proto/place"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Forget removes the slot keys that are stored for the vault in the home: the
// keychain's item, and secret.key, which is overwritten. What a person keeps
// still opens the vault. No daemon may run. One that cannot be removed does not
// keep the other.
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
	return errors.Join(forgetKeychain(ctx, o), forgetFile(ctx, o))
}

func forgetFile(ctx context.Context, o *Offline) error {
	path := place.KeyFile(o.Home)
	switch err := keysource.File(path).Remove(ctx, ""); { // of whatever vault it is
	case err == nil:
		o.say("removed: %s", path)
	case !errors.Is(err, vault.ErrKeyUnavailable):
		return err
	}
	return nil
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
