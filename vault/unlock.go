package vault

import (
	"context"
	"errors"
	"fmt"
)

// Unlock fetches the key from Config.Keys and verifies everything again. It does nothing when the vault is unlocked.
// Concurrent calls make one attempt: the others wait for it. On error the vault stays locked.
func (v *Vault) Unlock(ctx context.Context) error { return v.UnlockWith(ctx, v.cfg.Keys) }

// UnlockWith is Unlock with another source, which must be of a kind the vault has a slot for: ErrKeySource and ErrNoSlot. What a
// person brings is tried each time; of several calls that wait for a keychain or a file only the first one asks.
func (v *Vault) UnlockWith(ctx context.Context, keys KeySource) error {
	if err := v.unlock(ctx, keys); err != nil {
		return fmt.Errorf("unlocking vault: %w", err)
	}
	return nil
}

func (v *Vault) unlock(ctx context.Context, source KeySource) error {
	if source == nil {
		return fmt.Errorf("%w: no key source", ErrInvalid)
	}
	kind := source.Kind()
	before := v.attempts.Load()
	v.unlocking.Lock()
	defer v.unlocking.Unlock()
	if v.locked.Load() && v.attempts.Load() != before && keyed(kind) && v.attempted == kind {
		return v.attempt // made while this call waited
	}
	v.attempt, v.attempted = v.tryUnlock(ctx, source), kind
	v.attempts.Add(1)
	return v.attempt
}

func (v *Vault) tryUnlock(ctx context.Context, source KeySource) error {
	if !v.locked.Load() {
		return nil
	}
	slot, err := v.slotFor(source.Kind())
	if err != nil {
		return err
	}
	// The source may take its time, so nothing is held that Close needs.
	root, err := v.fetch(ctx, slot, source)
	if err != nil {
		return err
	}
	defer clear(root)

	v.life.Lock()
	defer v.life.Unlock()
	if err := v.usable(); err != nil {
		return err
	}
	keys, err := v.load(root)
	if err != nil {
		return err
	}
	// Only now is the key known to be right, and only a right key may change anything.
	if c, ok := source.(Committer); ok && !v.cfg.ReadOnly {
		if err := c.Commit(ctx, v.id); err != nil {
			keys.wipe()
			return err
		}
	}
	if !v.cfg.ReadOnly {
		// That something is left is no reason to stay locked; Compact insists.
		_ = v.finishCompact()
	}
	v.install(keys, slot.Kind)
	return nil
}

// fetch gets a slot's key from its source and opens the slot. The caller wipes the root key.
func (v *Vault) fetch(ctx context.Context, slot slotRow, source KeySource) ([]byte, error) {
	secret, err := source.Load(ctx, v.id)
	if err != nil {
		return nil, err
	}
	defer clear(secret)
	return slot.open(secret, v.id)
}

// slotFor returns the slot of a kind. That there is none is ErrKeySource, too: it is what a daemon with another key source
// than the vault's finds.
func (v *Vault) slotFor(kind string) (slotRow, error) {
	if err := v.usable(); err != nil {
		return slotRow{}, err
	}
	for _, slot := range v.slotRows() {
		if slot.Kind == kind {
			return slot, nil
		}
	}
	return slotRow{}, fmt.Errorf("%w: %w: it has none of kind %q", ErrKeySource, ErrNoSlot, kind)
}

// load opens the keyring with the root key, which stays the caller's, and verifies the rows. The caller holds life for writing.
func (v *Vault) load(root []byte) (*keyset, error) {
	tx, err := v.store.begin(false)
	if err != nil {
		return nil, err
	}
	defer tx.rollback()
	keys, err := openKeyring(tx, root, v.id)
	if err != nil {
		return nil, err
	}
	s := v.scratch()
	defer v.pool.Put(s)
	row, err := keys.openState(s, tx)
	if err == nil {
		err = v.verifyRows(tx, keys, row)
	}
	if err == nil {
		err = checkRecipients(keys.ring, v.slotRows(), v.id)
	}
	if err != nil {
		keys.wipe()
		return nil, err
	}
	digest := s.digest(keys.publish, row.generation, row.count, row.acc)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known {
		// What this process acknowledged must still be there. Without a failed commit nothing else can be, either.
		switch {
		case row.generation < v.state.generation:
			err = fmt.Errorf("%w: from %d to %d", ErrRollback, v.state.generation, row.generation)
		case row.generation == v.state.generation && digest != v.digest:
			err = fmt.Errorf("%w: generation %d has other rows than before", ErrIntegrity, row.generation)
		}
		if err != nil {
			keys.wipe()
			return nil, err
		}
	}
	v.state, v.digest, v.known = *row, digest, true
	return keys, nil
}

// openKeyring opens the keyring of one transaction with the root key, which stays the caller's.
func openKeyring(tx rowTx, root []byte, vaultID string) (*keyset, error) {
	stored, err := tx.get(bucketKeyring, rowKeyring)
	if err != nil {
		return nil, err
	}
	// The row key needs the vault's ID and the root key only, so a keyring of nothing else opens the real one.
	bare := &keyset{ring: &keyring{vaultID: vaultID}, rootPRF: newPRF(root)}
	defer bare.rootPRF.wipe()
	plain, err := bare.open(newScratch(), nil, bucketKeyring, rowKeyring, stored)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	ring, err := decodeKeyring(plain)
	switch {
	case errors.Is(err, ErrSchema):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("keyring: %w: %w", ErrIntegrity, err)
	case ring.vaultID != vaultID:
		return nil, fmt.Errorf("keyring: %w: it belongs to another vault", ErrIntegrity)
	}
	return newKeyset(root, ring)
}

// Lock wipes the keys. It waits for running transactions, and interrupts long ones.
func (v *Vault) Lock() {
	defer v.Interrupt()()
	v.life.Lock()
	defer v.life.Unlock()
	v.wipe()
}

// wipe forgets the keys; the caller holds life for writing.
func (v *Vault) wipe() {
	v.install(nil, "")
	if v.doubt != nil {
		v.doubt.keys.wipe()
		v.doubt = nil
	}
}
