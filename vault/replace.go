package vault

import (
	"context"
	"fmt"
	"slices"
)

// ReplaceKeySlots puts one slot of src's kind in place of every keychain and file slot, whose keys are lost or on another
// machine, and rekeys, all in one mutation. What a person keeps opens the vault as before. A key that the source has already is
// taken, as by AddSlot.
//
// Errors: ErrLastSlot when no person could open the vault, so that a key which does not reach the source loses nothing; ErrInvalid for
// src's kind; the source's; those of Mutate.
func (v *Vault) ReplaceKeySlots(ctx context.Context, j Journal, src KeySource) (Slot, error) {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	slot, err := v.replaceKeySlots(ctx, j, src)
	if err != nil {
		return slot, fmt.Errorf("replacing the key slots: %w", err)
	}
	return slot, nil
}

func (v *Vault) replaceKeySlots(ctx context.Context, j Journal, src KeySource) (Slot, error) {
	kind := src.Kind()
	if !keyed(kind) {
		return Slot{}, fmt.Errorf("%w: kind %q of a key source", ErrInvalid, kind)
	}
	if v.Locked() {
		return Slot{}, ErrLocked
	}
	if len(v.Recipients()) == 0 {
		return Slot{}, ErrLastSlot
	}
	return v.storeSlot(ctx, j, src, func(c *keyChange, key []byte) (Slot, error) {
		c.slots = slices.DeleteFunc(c.slots, func(s slotRow) bool { return keyed(s.Kind) })
		slot, err := c.add(kind)
		if err != nil {
			return Slot{}, err
		}
		made := slot.Slot
		return made, c.rekey(slotKeySet{kind: key})
	})
}
