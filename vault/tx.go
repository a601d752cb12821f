package vault

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

const (
	maxNameLen = 1024
	// maxValueLen leaves a wide margin over the largest content.
	maxValueLen = 16 << 20
	// parallelRows is how many rows make a second goroutine worth its start.
	parallelRows = 64
)

// Tx is one transaction. It must not be used after its function returned, nor by several goroutines at once. Everything it
// returns is the caller's own.
type Tx struct {
	v     *Vault
	keys  *keyset // the vault's, or those that come into force with this transaction
	rows  rowTx
	s     *scratch
	write bool
	done  bool
	acc   acc
	count uint64
}

func (v *Vault) newTx(rows rowTx, write bool) *Tx {
	v.mu.Lock()
	defer v.mu.Unlock()
	return &Tx{v: v, keys: v.keys, rows: rows, s: v.scratch(), write: write, acc: v.state.acc, count: v.state.count}
}

func (t *Tx) end() {
	t.done = true
	t.v.pool.Put(t.s)
	t.s = nil
}

// Get opens one row. ErrNotFound, ErrIntegrity.
func (t *Tx) Get(bucket, name string) ([]byte, error) {
	if err := checkRow(bucket, name); err != nil {
		return nil, err
	}
	return t.get(bucket, name)
}

// Put seals one row; the bucket is made if need be. ErrInvalid for an empty or overlong name, for an overlong value and for
// buckets that belong to the vault.
func (t *Tx) Put(bucket, name string, value []byte) error {
	if err := checkRow(bucket, name); err != nil {
		return err
	}
	return t.put(bucket, name, value)
}

// Delete removes one row. ErrNotFound.
func (t *Tx) Delete(bucket, name string) error {
	if err := checkRow(bucket, name); err != nil {
		return err
	}
	return t.del(bucket, name)
}

// Each calls fn with every row of a bucket in the order of their names' bytes, until fn returns an error, which it returns.
// fn may use the transaction; rows it puts behind the current name may or may not be seen.
func (t *Tx) Each(bucket string, fn func(name string, value []byte) error) error {
	if err := checkRow(bucket, "any"); err != nil {
		return err
	}
	return scanRows(t, bucket, func(_ string, plain []byte) ([]byte, error) { return slices.Clone(plain), nil }, fn)
}

// Some calls fn with rows of a bucket whose names' bytes come after a name, in their order, as many as are read at once: at
// most 1024, and not many more than fit into 1 MiB. It returns the last of their names, which the next call goes on after;
// empty: there was none. Whoever reads a large bucket so, each time in a transaction of its own, holds up no writer and
// keeps no page of the file from being used again, but does not see one moment.
func (t *Tx) Some(bucket, after string, fn func(name string, value []byte) error) (last string, err error) {
	if err := checkRow(bucket, "any"); err != nil {
		return "", err
	}
	var b batch
	return scanSome(t, &b, bucket, after, func(_ string, plain []byte) ([]byte, error) { return slices.Clone(plain), nil }, fn)
}

// Count returns how many rows a bucket has, without opening them.
func (t *Tx) Count(bucket string) (n int, err error) {
	if err := checkRow(bucket, "any"); err != nil {
		return 0, err
	}
	if t.done {
		return 0, ErrTxDone
	}
	b := batch{head: 1}
	for after := ""; ; {
		if err := t.rows.scan(bucket, after, &b); err != nil {
			return 0, err
		}
		if len(b.names) == 0 {
			return n, nil
		}
		n += len(b.names)
		after = b.names[len(b.names)-1]
	}
}

func checkRow(bucket, name string) error {
	switch bucket {
	case bucketMeta, bucketSlots, bucketKeyring, bucketState, bucketRecords, bucketContents:
		return fmt.Errorf("%w: bucket %q belongs to the vault", ErrInvalid, bucket)
	}
	switch {
	case bucket == "" || len(bucket) > maxNameLen:
		return fmt.Errorf("%w: a bucket's name has 1 to %d bytes", ErrInvalid, maxNameLen)
	case name == "" || len(name) > maxNameLen:
		return fmt.Errorf("%w: a row's name has 1 to %d bytes", ErrInvalid, maxNameLen)
	}
	return nil
}

func (t *Tx) get(bucket, name string) ([]byte, error) {
	if t.done {
		return nil, ErrTxDone
	}
	stored, err := t.rows.get(bucket, name)
	if err != nil {
		return nil, err
	}
	if stored == nil {
		return nil, fmt.Errorf("row %s/%s: %w", bucket, name, ErrNotFound)
	}
	return t.keys.open(t.s, nil, bucket, name, stored)
}

// put seals a row and returns nothing but an error; putStored is for who needs the stored value.
func (t *Tx) put(bucket, name string, value []byte) error {
	_, err := t.putStored(bucket, name, value)
	return err
}

func (t *Tx) putStored(bucket, name string, value []byte) ([]byte, error) {
	if err := t.writable(); err != nil {
		return nil, err
	}
	if len(value) > maxValueLen {
		return nil, fmt.Errorf("%w: a row holds at most %d bytes", ErrInvalid, maxValueLen)
	}
	stored, err := t.keys.seal(t.s, bucket, name, t.keys.newest, value)
	if err != nil {
		return nil, err
	}
	return stored, t.replace(bucket, name, stored)
}

// replace puts a stored value, sealed or wrapped already.
func (t *Tx) replace(bucket, name string, stored []byte) error {
	old, err := t.rows.get(bucket, name)
	if err != nil {
		return err
	}
	if err := t.rows.put(bucket, name, stored); err != nil {
		return err
	}
	t.account(bucket, name, old, stored)
	return nil
}

func (t *Tx) del(bucket, name string) error {
	if err := t.writable(); err != nil {
		return err
	}
	old, err := t.rows.get(bucket, name)
	if err != nil {
		return err
	}
	if old == nil {
		return fmt.Errorf("row %s/%s: %w", bucket, name, ErrNotFound)
	}
	if err := t.rows.del(bucket, name); err != nil {
		return err
	}
	t.account(bucket, name, old, nil)
	return nil
}

func (t *Tx) writable() error {
	if t.done {
		return ErrTxDone
	}
	if !t.write {
		return ErrReadOnly
	}
	return nil
}

// account replaces one row's leaf in the accumulator; nil stands for no row.
func (t *Tx) account(bucket, name string, old, stored []byte) {
	if !accounted(bucket) {
		return
	}
	if old != nil {
		t.acc = t.acc.sub(t.s.leaf(t.keys.set, t.v.id, bucket, name, old))
		t.count--
	}
	if stored != nil {
		t.acc = t.acc.add(t.s.leaf(t.keys.set, t.v.id, bucket, name, stored))
		t.count++
	}
}

// accounted reports whether a bucket's rows are in acc. Contents are pinned by their records, the state row holds acc, and meta
// is compared with the keyring.
func accounted(bucket string) bool {
	return bucket != bucketMeta && bucket != bucketState && bucket != bucketContents
}

// scanRows opens the rows of a bucket, decodes them and hands them to fn in order. Opening dominates, so each batch is shared
// among the processors; decode runs there, too, gets plaintext that is only its own until it returns, and must not use the transaction.
func scanRows[T any](t *Tx, bucket string, decode func(name string, plain []byte) (T, error), fn func(name string, value T) error) error {
	var b batch
	for after := ""; ; {
		last, err := scanSome(t, &b, bucket, after, decode, fn)
		if err != nil || last == "" {
			return err
		}
		after = last
	}
}

// scanSome is scanRows for one batch. It returns the last name of it, empty at the end.
func scanSome[T any](t *Tx, b *batch, bucket, after string, decode func(name string, plain []byte) (T, error), fn func(name string, value T) error) (last string, err error) {
	if t.done {
		return "", ErrTxDone
	}
	if err := t.rows.scan(bucket, after, b); err != nil {
		return "", err
	}
	if len(b.names) == 0 {
		return "", nil
	}
	values := make([]T, len(b.names))
	err = t.v.parallel(len(b.names), func(s *scratch, from, to int) error {
		var plain []byte
		defer func() { clear(plain[:cap(plain)]) }()
		for i := from; i < to; i++ {
			var err error
			if plain, err = t.keys.open(s, plain[:0], bucket, b.names[i], b.value(i)); err != nil {
				return err
			}
			if values[i], err = decode(b.names[i], plain); err != nil {
				return fmt.Errorf("row %s/%s: %w: %w", bucket, b.names[i], ErrIntegrity, err)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	for i, name := range b.names {
		if err := fn(name, values[i]); err != nil {
			return "", err
		}
	}
	return b.names[len(b.names)-1], nil
}

// parallel splits [0, n) among as many goroutines as are worth it and returns the error of the lowest part.
func (v *Vault) parallel(n int, work func(s *scratch, from, to int) error) error {
	parts := min(runtime.GOMAXPROCS(0), 8, (n+parallelRows-1)/parallelRows)
	errs := make([]error, parts)
	run := func(p int) {
		s := v.scratch()
		defer v.pool.Put(s)
		errs[p] = work(s, p*n/parts, (p+1)*n/parts)
	}
	var wg sync.WaitGroup
	for p := 1; p < parts; p++ {
		wg.Go(func() { run(p) })
	}
	run(0)
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// removePrefix removes every row whose name begins with prefix.
func (t *Tx) removePrefix(bucket, prefix string) error {
	var b batch
	for {
		// Names have at least one byte behind the prefix, so nothing equals it.
		if err := t.rows.scan(bucket, prefix, &b); err != nil {
			return err
		}
		if len(b.names) == 0 {
			return nil
		}
		for _, name := range b.names {
			if !strings.HasPrefix(name, prefix) {
				return nil
			}
			if err := t.del(bucket, name); err != nil {
				return err
			}
		}
	}
}
