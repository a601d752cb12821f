package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// machineSlot makes a key slot of this machine in an unlocked vault, none of
// whose slots opens without a person. A slot of the same kind goes, and with it
// all whose keys are not here: the change needs a new root key, which nobody
// could wrap for them. Interrupted, it can be done again.
func (o *Offline) machineSlot(ctx context.Context, v *vault.Vault, kind string, journal func(audit.Kind, string) vault.Journal) error {
	source, err := sourceOf(kind, o.Home, o.keychild(), keysource.InteractiveTimeout)
	if err != nil {
		return err
	}
	if hasSlot(v, kind) {
		if kind == keysource.KindFile {
			if err := o.keepKeyFile(); err != nil {
				return err
			}
			o.reached("key file kept")
		}
		_, err = v.ReplaceKeySlots(ctx, journal(kindKeySlotReplace, kind), source)
	} else {
		_, err = v.AddSlot(ctx, journal(kindKeySlotAdd, kind), source)
	}
	if err != nil {
		return err
	}
	o.reached("slot made")
	if err := v.TestSlot(ctx, source); err != nil {
		return fmt.Errorf("trying the new key slot: %w", err)
	}
	o.say("made: a key slot %s for this machine", kind)
	return nil
}

func hasSlot(v *vault.Vault, kind string) bool {
	return slices.ContainsFunc(v.Slots(), func(s vault.Slot) bool { return s.Kind == kind })
}

// keepKeyFile moves a key file that does not open the vault out of the way: it
// may be another vault's.
func (o *Offline) keepKeyFile() error {
	path := place.KeyFile(o.Home)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	to, err := freeName(path, o.clockNow())
	if err != nil {
		return err
	}
	if err := os.Rename(path, to); err != nil {
		return err
	}
	o.say("kept: the key file that does not open the vault, in %s", to)
	return syncFolder(o.Home)
}
