package vault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// compactSuffix names what Compact writes, and afterwards what it replaced.
const compactSuffix = ".compact"

// Compact gives the vault a new file with the same rows, generation and state, and destroys the old one with everything
// that was deleted or replaced in it, and the copy that Migrate kept. At whatever instant it is interrupted, FILE is a complete
// vault with the same rows:
//
//  1. the rows are copied to FILE.compact, which is synced and compared with FILE;
//  2. the two exchange their names, and that is made durable. Where a file system cannot exchange, FILE.compact replaces FILE,
//     and an interruption from here on gives the old file's room back as it is;
//  3. the old file, now FILE.compact, is overwritten with zeros in place, synced and removed. What an interruption leaves of it,
//     the next unlock overwrites and removes.
//
// Mutations wait for all of it, readers only for the second step.
//
// It reports whether the old bytes were overwritten where they lay: never on file systems that write changes elsewhere or that are not
// known to write in place. What a flash drive, a snapshot or a backup keeps below or beside the file system is out of reach.
//
// Errors: those of Mutate; ErrReplaced; ErrIntegrity and ErrDamaged for what it read; ErrBusy when the vault was reopened
// meanwhile; else of writing. The vault goes on with the old file then, or with the new one if only destroying the old one failed.
func (v *Vault) Compact() (overwritten bool, err error) {
	v.mutating.Lock()
	defer v.mutating.Unlock()
	overwritten, err = v.compact()
	if err != nil {
		return false, fmt.Errorf("compacting vault: %w", err)
	}
	return overwritten, nil
}

// compact runs while mutating is held.
func (v *Vault) compact() (bool, error) {
	before, after, err := v.prepareCompact()
	if err != nil {
		return false, err
	}
	old, err := v.switchFile(before, after)
	if err != nil {
		return false, err
	}
	defer old.Close()
	v.cfg.step("switched")
	overwritten, err := destroyOpen(v.compactFile(), old, v.cfg.step)
	for n := uint32(1); n < schema; n++ {
		kept := v.keptFile(n)
		for _, path := range []string{kept + newSuffix, kept} {
			too, more := destroy(path, v.cfg.step)
			overwritten, err = overwritten && too, and(err, more)
		}
	}
	return overwritten, err
}

func (v *Vault) compactFile() string { return v.cfg.File + compactSuffix }

// prepareCompact makes the new file beside the one in use.
func (v *Vault) prepareCompact() (before, after *boltStore, err error) {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.writable(); err != nil {
		return nil, nil, err
	}
	before, ok := v.store.(*boltStore)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	if err := before.unchanged(); err != nil {
		return nil, nil, err
	}
	if err := v.finishCompact(); err != nil {
		return nil, nil, err
	}
	src, err := before.begin(false)
	if err != nil {
		return nil, nil, v.faulty(err)
	}
	defer src.rollback()
	v.mu.Lock()
	state := v.state
	v.mu.Unlock()
	after, err = v.copyTo(v.compactFile(), src, &state)
	return before, after, err
}

// switchFile makes the new file the vault, and returns the old one, open for writing. On error the new one is gone, except
// when nobody knows which one a power cut would leave: then the vault stops.
func (v *Vault) switchFile(before, after *boltStore) (old *os.File, err error) {
	v.lockLife()
	defer v.life.Unlock()
	if old, err = v.exchangeFile(before); err != nil {
		return nil, and(and(err, after.close()), removeIfThere(v.compactFile()))
	}
	v.cfg.step("exchanged")
	after.path, v.store = v.cfg.File, after
	// Nobody reads from it any more, and an error would be of a file that is given up.
	_ = before.close()
	// The old file must not be touched while a power cut could make it the vault again.
	if err := syncDir(filepath.Dir(v.cfg.File)); err != nil {
		old.Close()
		return nil, v.faulty(err)
	}
	v.cfg.step("exchange synced")
	return old, nil
}

// exchangeFile gives the new file its name, unless something came in between since it was made. The caller holds life.
func (v *Vault) exchangeFile(before *boltStore) (old *os.File, err error) {
	if err := v.usable(); err != nil {
		return nil, err
	}
	if v.store != before {
		return nil, fmt.Errorf("%w: it was reopened", ErrBusy)
	}
	if err := before.unchanged(); err != nil {
		return nil, err
	}
	if old, err = before.dup(); err != nil {
		return nil, err
	}
	if err := exchange(v.compactFile(), v.cfg.File); err != nil {
		old.Close()
		return nil, err
	}
	return old, nil
}

// lockLife takes life for writing. A Lock that waits keeps new readers out for as long as the slowest running one takes, so
// for a while it only looks for a moment without any.
func (v *Vault) lockLife() {
	for range 200 {
		if v.life.TryLock() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	v.life.Lock()
}

// finishCompact destroys what an interrupted Compact left. The caller knows that FILE is good.
func (v *Vault) finishCompact() error {
	_, err := destroy(v.compactFile(), v.cfg.step)
	return err
}
