package vault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Names beside the vault that tell whether a vault existed, and what an unfinished first start leaves.
const (
	newSuffix  = ".new"
	secretKey  = "secret.key"
	auditKey   = "audit.key"
	auditDir   = "audit"
	lostFound  = "lost+found" // an audit directory may be a file system of its own
	errEmptied = "is empty, but it was a vault or nothing else would have made it"
)

// Fresh reports whether a first start may make a vault at file. It may not when one is there (false, nil), and it must not
// when one was there: ErrMissing when the file is empty, or when it is gone while a key, a log or FILE.compact beside it exist.
// Files ending in .new are what an interrupted first start left, and no evidence.
func Fresh(file string) (bool, error) {
	info, err := os.Lstat(file)
	switch {
	case err == nil && info.Mode().IsRegular() && info.Size() == 0:
		return false, fmt.Errorf("%w: %s %s", ErrMissing, file, errEmptied)
	case err == nil:
		return false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	dir := filepath.Dir(file)
	for _, name := range []string{secretKey, auditKey, filepath.Base(file) + compactSuffix} {
		found, err := exists(filepath.Join(dir, name))
		if err != nil {
			return false, err
		}
		if found {
			return false, fmt.Errorf("%w: no file %s, but there is %s", ErrMissing, file, name)
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, auditDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range entries {
		if e.Name() != lostFound {
			return false, fmt.Errorf("%w: no file %s, but there is %s", ErrMissing, file, filepath.Join(auditDir, e.Name()))
		}
	}
	return true, nil
}

// Create makes a new vault with a new key and opens it. Whatever instant it is interrupted at, by a kill or a power cut, there
// is afterwards either no vault, and Create works, or a good one, and Open works:
//
//  1. the vault is written to FILE.new and synced;
//  2. the key is stored; the source of kind "file" writes secret.key.new and syncs it;
//  3. FILE.new becomes FILE: from here on there is a vault;
//  4. secret.key.new becomes secret.key. Open does this, too, when it finds it undone.
//
// Errors: ErrMissing and ErrExists as Fresh finds, the key source's; nothing is left behind then but, if the process dies, files
// ending in .new and an unused item in the keychain.
func Create(ctx context.Context, cfg Config) (*Vault, error) {
	if err := cfg.check(true); err != nil {
		return nil, fmt.Errorf("creating vault: %w", err)
	}
	if cfg.ReadOnly {
		return nil, fmt.Errorf("creating vault: %w", ErrReadOnly)
	}
	if err := create(ctx, &cfg); err != nil {
		return nil, fmt.Errorf("creating vault: %w", err)
	}
	return Open(ctx, cfg)
}

func create(ctx context.Context, cfg *Config) error {
	fresh, err := Fresh(cfg.File)
	if err != nil {
		return err
	}
	if !fresh {
		return ErrExists
	}
	dir, temp := filepath.Dir(cfg.File), cfg.File+newSuffix
	for _, path := range []string{temp, filepath.Join(dir, secretKey+newSuffix), filepath.Join(dir, auditKey+newSuffix)} {
		if err := removeIfThere(path); err != nil {
			return err
		}
	}
	cfg.step("cleaned")

	id, slotKey := newVaultID(), newKey()
	defer clear(slotKey)
	if err := writeNew(cfg, temp, id, slotKey); err != nil {
		return and(err, removeIfThere(temp))
	}
	cfg.step("written")
	if err := syncDir(dir); err != nil {
		return and(err, removeIfThere(temp))
	}
	if err := cfg.Keys.Store(ctx, id, slotKey); err != nil {
		return and(fmt.Errorf("storing its key: %w", err), removeIfThere(temp))
	}
	cfg.step("stored")
	if err := renameNew(temp, cfg.File); err != nil {
		// Nobody can ever need this key: its vault was never there.
		return and(and(err, removeIfThere(temp)), cfg.Keys.Remove(ctx, id))
	}
	cfg.step("renamed")
	if err := syncDir(dir); err != nil {
		return err
	}
	cfg.step("synced")
	if c, ok := cfg.Keys.(Committer); ok {
		if err := c.Commit(ctx, id); err != nil {
			return fmt.Errorf("storing its key: %w", err)
		}
	}
	cfg.step("committed")
	return nil
}

// writeNew writes a complete vault without resources, generation 0.
func writeNew(cfg *Config, path, id string, slotKey []byte) error {
	store, err := createBolt(path)
	if err != nil {
		return err
	}
	cfg.step("created")
	err = fillNew(store, id, slotKey, cfg.Keys.Kind())
	if err = and(err, store.close()); err != nil {
		return err
	}
	cfg.step("filled")
	return syncFile(path)
}

func fillNew(store rowStore, id string, slotKey []byte, kind string) error {
	if !keyed(kind) {
		return fmt.Errorf("%w: kind %q of a key source", ErrInvalid, kind)
	}
	keys, err := firstKeys(id)
	if err != nil {
		return err
	}
	defer keys.wipe()
	s := newScratch()
	ring, err := keys.sealRing(s)
	if err != nil {
		return err
	}
	slot := newSlot(1, kind)

	tx, err := store.begin(true)
	if err != nil {
		return err
	}
	defer tx.rollback()
	state := stateRow{}
	for _, row := range []struct {
		bucket, name string
		value        []byte
	}{
		{bucketMeta, rowFormat, formatValue()},
		{bucketMeta, rowVaultID, []byte(id)},
		{bucketSlots, slot.Name, keyedValue(slot, keys.root, slotKey, id)},
		{bucketKeyring, rowKeyring, ring},
	} {
		if err := tx.put(row.bucket, row.name, row.value); err != nil {
			return err
		}
		if accounted(row.bucket) {
			state.acc = state.acc.add(s.leaf(keys.set, id, row.bucket, row.name, row.value))
			state.count++
		}
	}
	if err := keys.writeState(s, tx, &state); err != nil {
		return err
	}
	return tx.commit()
}

// firstKeys makes the keys of a new vault.
func firstKeys(id string) (*keyset, error) {
	root, ring := newKey(), newKeyring(id)
	defer clear(root)
	defer ring.wipe()
	return newKeyset(root, ring)
}
