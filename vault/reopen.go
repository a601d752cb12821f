package vault

import "fmt"

// Reopen closes the file, opens it again and verifies it, which is the one way out of ErrFailed. Of a mutation whose
// commit failed either all or nothing is there afterwards: State tells.
//
// Errors: those of Open, and ErrRollback or ErrIntegrity when something acknowledged before is gone. The vault then stays failed;
// Reopen may be tried again.
func (v *Vault) Reopen() error {
	v.life.Lock()
	defer v.life.Unlock()
	if err := v.reopen(); err != nil {
		v.fail(err)
		return fmt.Errorf("reopening vault: %w", err)
	}
	v.mu.Lock()
	v.failed = nil
	v.mu.Unlock()
	return nil
}

func (v *Vault) reopen() error {
	v.mu.Lock()
	closed := v.closed
	v.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if v.store != nil {
		// An error here is of a file that is given up anyway.
		_ = v.store.close()
		v.store = nil
	}
	// After a failed sync the page cache holds what the disk does not.
	dropCache(v.cfg.File)
	if err := v.attach(); err != nil {
		return err
	}
	if v.keys == nil {
		return nil
	}
	root, err := v.presentRoot()
	if err != nil {
		return v.detach(err)
	}
	keys, err := v.load(root)
	if err != nil {
		return v.detach(err)
	}
	v.install(keys, v.describe().unlockedBy)
	if v.doubt != nil {
		v.doubt.keys.wipe()
		v.doubt = nil
	}
	return nil
}

// detach gives the file up.
func (v *Vault) detach(err error) error {
	store := v.store
	v.store = nil
	return and(err, store.close())
}

// presentRoot returns the root key of the file: after a change of keys that may have failed or not, the one that goes with the
// generation it finds. The keys of the change open the state row in both cases.
func (v *Vault) presentRoot() ([]byte, error) {
	if v.doubt == nil {
		return v.keys.root, nil
	}
	tx, err := v.store.begin(false)
	if err != nil {
		return nil, err
	}
	defer tx.rollback()
	s := v.scratch()
	defer v.pool.Put(s)
	state, err := v.doubt.keys.openState(s, tx)
	if err != nil {
		return nil, err
	}
	if state.generation == v.doubt.generation {
		return v.doubt.keys.root, nil
	}
	return v.keys.root, nil
}

// fail stops the vault: whatever memory and file disagree about must not be served.
func (v *Vault) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.failed == nil {
		v.failed = err
	}
}
