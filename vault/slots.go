package vault

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
)

// slotKeySet holds keys of slots by kind.
type slotKeySet map[string][]byte

func (s slotKeySet) wipe() {
	for _, key := range s {
		clear(key)
	}
}

// TestSlot proves that a source opens its slot and that the slot holds this vault's root key. It changes nothing.
//
// Errors: ErrLocked; ErrNoSlot; the source's; ErrWrongKey; ErrIntegrity.
func (v *Vault) TestSlot(ctx context.Context, src KeySource) error {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	if err := v.testSlot(ctx, src); err != nil {
		return fmt.Errorf("testing the %s slot: %w", src.Kind(), err)
	}
	return nil
}

func (v *Vault) testSlot(ctx context.Context, src KeySource) error {
	slot, err := v.slotFor(src.Kind())
	if err != nil {
		return err
	}
	if v.Locked() {
		return ErrLocked
	}
	root, err := v.fetch(ctx, slot, src)
	if err != nil {
		return err
	}
	defer clear(root)
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.open(); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(root, v.keys.root) != 1 {
		return fmt.Errorf("%w: it holds another root key", ErrIntegrity)
	}
	return nil
}

// AddSlot adds a slot of kind keychain or file: it makes a key, stores it in the source, and wraps the root key under it. A
// key that the source has already, left by an attempt that was interrupted, is taken instead of a new one.
//
// Errors: ErrSlotExists; the source's; those of Mutate. The key stays in the source whatever happens after it is stored.
func (v *Vault) AddSlot(ctx context.Context, j Journal, src KeySource) (Slot, error) {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	slot, err := v.addSlot(ctx, j, src)
	if err != nil {
		return slot, fmt.Errorf("adding a %s slot: %w", src.Kind(), err)
	}
	return slot, nil
}

func (v *Vault) addSlot(ctx context.Context, j Journal, src KeySource) (Slot, error) {
	kind := src.Kind()
	if !keyed(kind) {
		return Slot{}, fmt.Errorf("%w: kind %q of a key source", ErrInvalid, kind)
	}
	if err := v.mayAdd(kind); err != nil {
		return Slot{}, err
	}
	return v.storeSlot(ctx, j, src, func(c *keyChange, key []byte) (Slot, error) {
		slot, err := c.add(kind)
		if err != nil {
			return Slot{}, err
		}
		slot.value = keyedValue(slot.Slot, c.root, key, v.id)
		return slot.Slot, nil
	})
}

// storeSlot makes a slot with the key that src has, or gets: change adds it.
func (v *Vault) storeSlot(ctx context.Context, j Journal, src KeySource, change func(c *keyChange, key []byte) (Slot, error)) (made Slot, err error) {
	key, err := v.slotKey(ctx, src)
	if err != nil {
		return Slot{}, err
	}
	defer clear(key)
	v.cfg.step("stored")
	err = v.mutateKeys(j, func(c *keyChange) (err error) {
		made, err = change(c, key)
		return err
	})
	if err != nil && !errors.Is(err, ErrNotRecorded) {
		return Slot{}, err
	}
	v.cfg.step("added")
	if c, ok := src.(Committer); ok {
		if commitErr := c.Commit(ctx, v.id); commitErr != nil {
			return made, and(err, commitErr)
		}
	}
	return made, err
}

// mayAdd finds what can be found before anybody is asked for anything.
func (v *Vault) mayAdd(kind string) error {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.writable(); err != nil {
		return err
	}
	if _, err := v.slotFor(kind); err == nil {
		return fmt.Errorf("%w: %s", ErrSlotExists, kind)
	}
	return nil
}

// slotKey returns the key that a source has for this vault, or makes one.
func (v *Vault) slotKey(ctx context.Context, src KeySource) ([]byte, error) {
	key, err := src.Load(ctx, v.id)
	if !errors.Is(err, ErrKeyUnavailable) {
		return key, err
	}
	key = newKey()
	if err := src.Store(ctx, v.id, key); err != nil {
		clear(key)
		return nil, err
	}
	return key, nil
}

// AddPassphrase adds the slot that a passphrase opens. It takes a second and 64 MiB of memory.
//
// Errors: ErrSlotExists; ErrInvalid for an empty passphrase; those of Mutate.
func (v *Vault) AddPassphrase(j Journal, p Secret) (Slot, error) {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	slot, err := func() (Slot, error) {
		if err := v.mayAdd(kindPassphrase); err != nil {
			return Slot{}, err
		}
		to, err := newPassphrase(p, v.cfg.cost)
		if err != nil {
			return Slot{}, err
		}
		return v.addSealed(j, to)
	}()
	if err != nil {
		return slot, fmt.Errorf("adding a passphrase: %w", err)
	}
	return slot, nil
}

// AddRecovery adds the slot that a recovery code opens, given the code's X25519 public key of 32 bytes. A recovery slot that
// is there is replaced, which rekeys: then sources are needed as for Rekey.
//
// Errors: ErrInvalid for a public key that is none; those of Rekey.
func (v *Vault) AddRecovery(ctx context.Context, j Journal, public []byte, sources []KeySource) (slot Slot, replaced bool, err error) {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	to, err := newRecovery(public)
	if err == nil {
		slot, replaced, err = v.addRecovery(ctx, j, to, sources)
	}
	if err != nil {
		return slot, replaced, fmt.Errorf("adding a recovery code: %w", err)
	}
	return slot, replaced, nil
}

func (v *Vault) addRecovery(ctx context.Context, j Journal, to recipient, sources []KeySource) (slot Slot, replaced bool, err error) {
	old, err := v.slotFor(kindRecovery)
	if err != nil {
		slot, err = v.addSealed(j, to)
		return slot, false, err
	}
	keys, err := v.slotKeys(ctx, sources, "")
	if err != nil {
		return Slot{}, false, err
	}
	defer keys.wipe()
	err = v.mutateKeys(j, func(c *keyChange) error {
		c.ring.setRecipient(to)
		return c.rekey(keys)
	})
	return old.Slot, true, err
}

// addSealed adds a slot that a person opens.
func (v *Vault) addSealed(j Journal, to recipient) (added Slot, err error) {
	err = v.mutateKeys(j, func(c *keyChange) error {
		slot, err := c.add(to.kind)
		if err != nil {
			return err
		}
		added = slot.Slot
		c.ring.setRecipient(to)
		return c.seal(slot)
	})
	return added, err
}

// RemoveSlot removes the slot of a kind and rekeys, so that what it gave away opens nothing that is written from now on but
// rows of the present terms, which Rotate ends. Copies made before stay open to it, and its key stays where it is kept: it is the
// caller's to remove. The sources are those of the remaining slots, as for Rekey.
//
// Errors: ErrNoSlot; ErrLastSlot; those of Rekey.
func (v *Vault) RemoveSlot(ctx context.Context, j Journal, kind string, sources []KeySource) error {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	if err := v.removeSlot(ctx, j, kind, sources); err != nil {
		return fmt.Errorf("removing the %s slot: %w", kind, err)
	}
	return nil
}

func (v *Vault) removeSlot(ctx context.Context, j Journal, kind string, sources []KeySource) error {
	if _, err := v.slotFor(kind); err != nil {
		return err
	}
	if len(v.slotRows()) == 1 {
		return ErrLastSlot
	}
	keys, err := v.slotKeys(ctx, sources, kind)
	if err != nil {
		return err
	}
	defer keys.wipe()
	return v.mutateKeys(j, func(c *keyChange) error {
		i := c.find(kind)
		c.slots = slices.Delete(c.slots, i, i+1)
		c.ring.dropRecipient(kind)
		return c.rekey(keys)
	})
}

// slotKeys fetches the keys of all slots that have one, but of one kind, and proves that each opens its slot: whoever rekeys
// with a wrong key shuts himself out.
func (v *Vault) slotKeys(ctx context.Context, sources []KeySource, but string) (slotKeySet, error) {
	if v.Locked() {
		return nil, ErrLocked
	}
	keys := slotKeySet{}
	for _, slot := range v.slotRows() {
		if !keyed(slot.Kind) || slot.Kind == but {
			continue
		}
		key, err := v.provenKey(ctx, slot, sourceOf(sources, slot.Kind))
		if err != nil {
			keys.wipe()
			return nil, err
		}
		keys[slot.Kind] = key
	}
	return keys, nil
}

func (v *Vault) provenKey(ctx context.Context, slot slotRow, src KeySource) ([]byte, error) {
	if src == nil {
		return nil, fmt.Errorf("slot %s: %w: no source for it", slot.Name, ErrKeySource)
	}
	key, err := src.Load(ctx, v.id)
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", slot.Name, err)
	}
	root, err := slot.open(key, v.id)
	if err != nil {
		clear(key)
		return nil, err
	}
	clear(root)
	return key, nil
}

func sourceOf(sources []KeySource, kind string) KeySource {
	for _, src := range sources {
		if src.Kind() == kind {
			return src
		}
	}
	return nil
}
