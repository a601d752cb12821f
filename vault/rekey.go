package vault

import (
	"context"
	"fmt"
	"math"
)

// Rotate makes a new data key, which seals every row that is written from now on. Rows of older terms stay as they are until
// Rewrap comes to them.
//
// Errors: those of Mutate.
func (v *Vault) Rotate(j Journal) (term uint32, err error) {
	err = v.mutateKeys(j, func(c *keyChange) error {
		if c.ring.newest() == math.MaxUint32 {
			return fmt.Errorf("%w: no more terms", ErrInvalid)
		}
		term = c.ring.newest() + 1
		c.ring.data = append(c.ring.data, dataKey{term: term, key: c.newKey()})
		return nil
	})
	if err != nil {
		return term, fmt.Errorf("rotating the data key: %w", err)
	}
	return term, nil
}

// Rekey makes a new root key and wraps it in every slot. The keys of keychain and file slots stay what they are and are fetched
// from their sources, all of them, before anything is changed; passphrase and recovery code are not needed.
//
// Errors: ErrLocked; ErrKeySource for a slot without its source; the sources'; ErrWrongKey; those of Mutate.
func (v *Vault) Rekey(ctx context.Context, j Journal, sources []KeySource) error {
	v.rekeying.Lock()
	defer v.rekeying.Unlock()
	if err := v.rekey(ctx, j, sources); err != nil {
		return fmt.Errorf("rekeying: %w", err)
	}
	return nil
}

func (v *Vault) rekey(ctx context.Context, j Journal, sources []KeySource) error {
	keys, err := v.slotKeys(ctx, sources, "")
	if err != nil {
		return err
	}
	defer keys.wipe()
	return v.mutateKeys(j, func(c *keyChange) error { return c.rekey(keys) })
}
