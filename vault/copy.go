package vault

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// denseFill is for a copy: its rows come in order and are all there is, but for a little room to grow.
const denseFill = 0.9

var errCopy = errors.New("the copy does not read as it was written")

// copyTo writes what a transaction sees to a new file of mode 0600: the rows as they are stored and nothing else, so that
// nothing deleted or replaced travels in a free page. When it returns, the rows are those of the state row, the copy was
// compared row by row with where it came from, and is durable with its name. The store is open and holds the file's lock.
// The file must not exist before, and does not after an error.
//
// Errors: ErrLocked when Lock or Close want to go on, ErrIntegrity and ErrDamaged for the source, else what writing says.
func (v *Vault) copyTo(path string, src rowTx, state *stateRow) (_ *boltStore, err error) {
	if err := v.verifyRows(src, v.keys, state); err != nil {
		return nil, err
	}
	store, err := createBolt(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = and(err, removeIfThere(path))
		}
	}()
	v.cfg.step("copy made")
	// It is synced once, when it is complete.
	store.fill, store.db.NoSync, store.db.NoGrowSync = denseFill, true, true
	if err := and(v.copyRows(store, src), store.close()); err != nil {
		return nil, err
	}
	v.cfg.step("copied")
	if err := syncFile(path); err != nil {
		return nil, err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	v.cfg.step("copy synced")
	// What is compared must come from the disk.
	dropCache(path)
	if store, err = openBolt(path, false); err != nil {
		return nil, err
	}
	if err := v.compareRows(store, src); err != nil {
		return nil, and(err, store.close())
	}
	v.cfg.step("copy compared")
	return store, nil
}

func (v *Vault) copyRows(dst rowStore, src rowTx) error {
	return v.eachBatch(src, func(_ string, b *batch) error {
		if len(b.names) == 0 {
			return nil
		}
		tx, err := dst.begin(true)
		if err != nil {
			return err
		}
		defer tx.rollback()
		for i, name := range b.names {
			if err := tx.put(b.bucket, name, b.value(i)); err != nil {
				return err
			}
		}
		return tx.commit()
	})
}

func (v *Vault) compareRows(dst rowStore, src rowTx) error {
	tx, err := dst.begin(false)
	if err != nil {
		return err
	}
	defer tx.rollback()
	var there batch
	return v.eachBatch(src, func(after string, b *batch) error {
		if err := tx.scan(b.bucket, after, &there); err != nil {
			return err
		}
		if !slices.Equal(there.names, b.names) || !slices.Equal(there.ends, b.ends) || !bytes.Equal(there.data, b.data) {
			return fmt.Errorf("bucket %s: %w", b.bucket, errCopy)
		}
		return nil
	})
}

// eachBatch calls fn with the rows of every bucket, in batches that come after a name; an empty one ends each bucket.
func (v *Vault) eachBatch(tx rowTx, fn func(after string, b *batch) error) error {
	buckets, err := tx.buckets()
	if err != nil {
		return err
	}
	var b batch
	for _, bucket := range buckets {
		for after := ""; ; after = b.names[len(b.names)-1] {
			if v.stopping.Load() > 0 {
				return ErrLocked
			}
			if err := tx.scan(bucket, after, &b); err != nil {
				return err
			}
			if err := fn(after, &b); err != nil {
				return err
			}
			if len(b.names) == 0 {
				break
			}
		}
	}
	return nil
}
