package vault

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// keyChange is what a change of keys or slots starts from and turns into what shall be. Keys it makes are wiped with it.
type keyChange struct {
	v     *Vault
	root  []byte
	ring  *keyring
	slots []slotRow
	fresh [][]byte
}

// doubt is a change of keys whose commit failed: the file has it or not, and Reopen finds out.
type doubt struct {
	keys       *keyset
	generation uint64
}

// mutateKeys is a mutation of keys and slots, all of them or none. Nothing else runs meanwhile, because no transaction may hold
// keys that are wiped.
func (v *Vault) mutateKeys(j Journal, fn func(*keyChange) error) error {
	if j == nil {
		return fmt.Errorf("%w: a mutation needs a journal", ErrInvalid)
	}
	v.mutating.Lock()
	defer v.mutating.Unlock()
	v.lockLife()
	defer v.life.Unlock()
	if err := v.writable(); err != nil {
		return err
	}
	old := v.slotRows()
	c := &keyChange{v: v, root: v.keys.root, ring: v.keys.ring.clone(), slots: slices.Clone(old)}
	defer c.wipe()
	if c.ring.schema < schema {
		if err := v.keepOld(c.ring.schema); err != nil {
			return err
		}
		c.ring.schema, c.ring.backup = schema, c.newKey()
	}
	if err := fn(c); err != nil {
		return err
	}
	keys, err := newKeyset(c.root, c.ring)
	if err != nil {
		return err
	}
	v.mu.Lock()
	generation, unlockedBy := v.state.generation+1, v.about.unlockedBy
	v.mu.Unlock()
	err = v.mutateHeld(j, func(tx *Tx) error {
		tx.keys = keys
		return c.write(tx, old)
	}, advance)
	switch {
	case err == nil, errors.Is(err, ErrNotRecorded):
		v.setSlots(c.slots)
		v.install(keys, unlockedBy)
	case errors.Is(err, ErrFailed):
		v.doubt = &doubt{keys: keys, generation: generation}
	default:
		keys.wipe()
	}
	return err
}

// write stores the keyring and whatever slots are not as they were.
func (c *keyChange) write(tx *Tx, old []slotRow) error {
	ring, err := tx.keys.sealRing(tx.s)
	if err != nil {
		return err
	}
	if err := tx.replace(bucketKeyring, rowKeyring, ring); err != nil {
		return err
	}
	for _, was := range old {
		if !slices.ContainsFunc(c.slots, func(s slotRow) bool { return s.Name == was.Name }) {
			if err := tx.del(bucketSlots, was.Name); err != nil {
				return err
			}
		}
	}
	for _, slot := range c.slots {
		if !slices.ContainsFunc(old, func(s slotRow) bool { return s.Name == slot.Name && bytes.Equal(s.value, slot.value) }) {
			if err := tx.replace(bucketSlots, slot.Name, slot.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// newKey makes a key that ends up in key memory.
func (c *keyChange) newKey() []byte {
	key := newKey()
	c.fresh = append(c.fresh, key)
	return key
}

func (c *keyChange) wipe() {
	for _, key := range c.fresh {
		clear(key)
	}
}

// find returns the index of the slot of a kind, -1 if there is none.
func (c *keyChange) find(kind string) int {
	return slices.IndexFunc(c.slots, func(s slotRow) bool { return s.Kind == kind })
}

// add makes the next slot, without a value.
func (c *keyChange) add(kind string) (*slotRow, error) {
	if c.find(kind) >= 0 {
		return nil, fmt.Errorf("%w: %s", ErrSlotExists, kind)
	}
	c.slots = append(c.slots, slotRow{Slot: newSlot(c.slots[len(c.slots)-1].N+1, kind)})
	return &c.slots[len(c.slots)-1], nil
}

// rekey makes a new root key and wraps it in every slot: under the keys of those that have one, sealed to the keyring's
// recipients in the others. Whatever stands in the slots themselves is not asked: it may be forged.
func (c *keyChange) rekey(slotKeys slotKeySet) error {
	c.root = c.newKey()
	for i := range c.slots {
		slot := &c.slots[i]
		if keyed(slot.Kind) {
			key, ok := slotKeys[slot.Kind]
			if !ok {
				return fmt.Errorf("slot %s: %w: its key was not fetched", slot.Name, ErrKeyUnavailable)
			}
			slot.value = keyedValue(slot.Slot, c.root, key, c.v.id)
			continue
		}
		if err := c.seal(slot); err != nil {
			return err
		}
	}
	return nil
}

// seal seals the root key to the keyring's recipient of a slot's kind.
func (c *keyChange) seal(slot *slotRow) (err error) {
	to := c.ring.recipient(slot.Kind)
	if to == nil {
		return fmt.Errorf("slot %s: %w: the keyring does not know it", slot.Name, ErrIntegrity)
	}
	slot.value, err = sealedValue(slot.Slot, c.root, to, c.v.id)
	return err
}

// checkRecipients compares the slots that a person opens with the keyring.
func checkRecipients(ring *keyring, slots []slotRow, vaultID string) error {
	sealed := 0
	for _, slot := range slots {
		if keyed(slot.Kind) {
			continue
		}
		sealed++
		found, err := slot.parseSealed(vaultID)
		if err != nil {
			return fmt.Errorf("slot %s: %w", slot.Name, err)
		}
		to := ring.recipient(slot.Kind)
		if to == nil || !to.equal(&found.how) || to.check(slot.purpose(vaultID)) != found.check {
			return fmt.Errorf("slot %s: %w: it is not the keyring's", slot.Name, ErrIntegrity)
		}
	}
	if sealed != len(ring.recipients) {
		return fmt.Errorf("keyring: %w: a slot is missing", ErrIntegrity)
	}
	return nil
}
