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
	keys, err := v.load(append([]byte(nil), v.keys.root...))
	if err != nil {
		store := v.store
		v.store = nil
		return and(err, store.close())
	}
	v.keys.wipe()
	v.keys = keys
	return nil
}

// fail stops the vault: whatever memory and file disagree about must not be served.
func (v *Vault) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.failed == nil {
		v.failed = err
	}
}
