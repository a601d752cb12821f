package vault

import (
	"fmt"
)

// verifyRows adds up every row outside contents and compares the sum with the state row. The caller holds life.
func (v *Vault) verifyRows(tx rowTx, keys *keyset, want *stateRow) error {
	sum, count, err := v.sumRows(tx, keys, func(*batch) error { return nil })
	if err != nil {
		return err
	}
	if count != want.count || sum != want.acc {
		return fmt.Errorf("%w: the rows are not those of generation %d", ErrIntegrity, want.generation)
	}
	return nil
}

// sumRows computes acc and row count as they are, and calls also with each batch of accounted rows.
func (v *Vault) sumRows(tx rowTx, keys *keyset, also func(*batch) error) (sum acc, count uint64, err error) {
	buckets, err := tx.buckets()
	if err != nil {
		return sum, 0, err
	}
	var b batch
	for _, bucket := range buckets {
		if !accounted(bucket) {
			continue
		}
		for after := ""; ; after = b.names[len(b.names)-1] {
			if err := tx.scan(bucket, after, &b); err != nil {
				return sum, 0, err
			}
			if len(b.names) == 0 {
				break
			}
			leaves := make([][32]byte, len(b.names))
			err := v.parallel(len(b.names), func(s *scratch, from, to int) error {
				for i := from; i < to; i++ {
					leaves[i] = s.leaf(keys.set, v.id, bucket, b.names[i], b.value(i))
				}
				return nil
			})
			if err != nil {
				return sum, 0, err
			}
			for _, leaf := range leaves {
				sum = sum.add(leaf)
			}
			count += uint64(len(b.names))
			if err := also(&b); err != nil {
				return sum, 0, err
			}
		}
	}
	return sum, count, nil
}

// Verify checks the whole vault as it is in the file: that every row outside contents opens and that they add up, and, if
// contents is set, that every version of every resource is the pinned one and opens, and that no content is there
// without a record. progress, which may be nil, is called now and then with the number of rows checked and their total.
//
// Errors: ErrIntegrity, ErrDamaged; ErrLocked also when Lock came in between. Lock and Close do not wait for Verify, mutations may.
func (v *Vault) Verify(contents bool, progress func(done, total int)) error {
	if progress == nil {
		progress = func(int, int) {}
	}
	return v.View(func(tx *Tx) error {
		if err := v.verify(tx, contents, progress); err != nil {
			return fmt.Errorf("verifying vault: %w", err)
		}
		return nil
	})
}

func (v *Vault) verify(tx *Tx, contents bool, progress func(done, total int)) error {
	state, err := v.keys.openState(tx.s, tx.rows)
	if err != nil {
		return err
	}
	done, total := 0, int(state.count)
	var versions uint64
	sum, count, err := v.sumRows(tx.rows, v.keys, func(b *batch) error {
		if v.stopping.Load() > 0 {
			return ErrLocked
		}
		n, err := v.openBatch(b)
		versions += n
		done += len(b.names)
		progress(done, max(done, total))
		return err
	})
	if err != nil {
		return err
	}
	if count != state.count || sum != state.acc {
		return fmt.Errorf("%w: the rows are not those of generation %d", ErrIntegrity, state.generation)
	}
	if !contents {
		return nil
	}
	return v.verifyContents(tx, done, done+int(versions), progress)
}

// openBatch opens accounted rows and counts the versions their records name. Slots stay wrapped: their keys are elsewhere.
func (v *Vault) openBatch(b *batch) (versions uint64, err error) {
	if b.bucket == bucketSlots {
		return 0, nil
	}
	counts := make([]uint64, len(b.names))
	err = v.parallel(len(b.names), func(s *scratch, from, to int) error {
		var plain []byte
		defer func() { clear(plain[:cap(plain)]) }()
		for i := from; i < to; i++ {
			var err error
			if plain, err = v.keys.open(s, plain[:0], b.bucket, b.names[i], b.value(i)); err != nil {
				return err
			}
			if b.bucket == bucketRecords {
				rec, err := openRecord(b.names[i], plain)
				if err != nil {
					return err
				}
				counts[i] = uint64(len(rec.Versions))
			}
		}
		return nil
	})
	for _, n := range counts {
		versions += n
	}
	return versions, err
}

// verifyContents opens every version every record names, and finds rows no record names by counting.
func (v *Vault) verifyContents(tx *Tx, done, total int, progress func(done, total int)) error {
	var named uint64
	err := tx.Records(func(rec Record) error {
		for _, ver := range rec.Versions {
			if v.stopping.Load() > 0 {
				return ErrLocked
			}
			row := contentRow(rec.Name, ver.N)
			stored, err := tx.rows.get(bucketContents, row)
			if err != nil {
				return err
			}
			content, err := v.keys.openContent(tx.s, row, stored, ver)
			if err != nil {
				return err
			}
			content.Wipe()
			named++
			done++
			if done%batchRows == 0 || done == total {
				progress(done, total)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var there uint64
	var b batch
	for after := ""; ; after = b.names[len(b.names)-1] {
		if err := tx.rows.scan(bucketContents, after, &b); err != nil {
			return err
		}
		if len(b.names) == 0 {
			break
		}
		there += uint64(len(b.names))
	}
	if there != named {
		return fmt.Errorf("%w: %d content rows, %d of them in records", ErrIntegrity, there, named)
	}
	return nil
}
