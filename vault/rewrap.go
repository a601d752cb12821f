package vault

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

const (
	// termHead is how much of a stored value tells its term.
	termHead = len(rowPrefix) + 11
	// maxRewrapBytes bounds one mutation of Rewrap when contents are large.
	maxRewrapBytes = 8 << 20
)

// pass is where Rewrap stands on its way through all rows. Whatever is written behind its back is of the newest term.
type pass struct {
	keys    *keyset // a pass ends with the keys it began with
	buckets []string
	after   string // in the first bucket
	left    int    // rows of older terms, as far as is known
	flaw    error  // of a content that cannot be rewrapped because it does not open
}

// errNoRows ends a mutation before anything is announced.
var errNoRows = errors.New("no rows")

// Rewrap seals rows of older terms anew under the newest one, in one mutation of at most limit rows, to which the records come
// that pin rewrapped contents. left is how many remain. The keyring, which still has the older keys, counts as the last row: the call
// that comes to it drops them. When there is nothing to do, nothing is done: 0, 0, nil. Rows may be read and written
// meanwhile.
//
// A content that is damaged does not keep others from being rewrapped; at the end it is the error, and its term stays.
//
// Errors: those of Mutate; ErrIntegrity.
func (v *Vault) Rewrap(j Journal, limit int) (done, left int, err error) {
	if limit < 1 {
		return 0, 0, fmt.Errorf("rewrapping: %w: at most %d rows", ErrInvalid, limit)
	}
	v.rewrapping.Lock()
	defer v.rewrapping.Unlock()
	done, left, err = v.rewrap(j, limit)
	if err != nil {
		return done, left, fmt.Errorf("rewrapping: %w", err)
	}
	return done, left, nil
}

func (v *Vault) rewrap(j Journal, limit int) (done, left int, err error) {
	if err := v.beginPass(); err != nil {
		return 0, 0, err
	}
	if v.pass == nil {
		return 0, 0, nil
	}
	next := *v.pass
	if len(next.buckets) > 0 {
		err = v.Mutate(j, func(tx *Tx) error {
			if tx.keys != next.keys {
				return ErrBusy // the keys changed since the pass began
			}
			if done, err = next.work(tx, limit); err == nil && done == 0 {
				err = errNoRows
			}
			return err
		})
	}
	switch {
	case errors.Is(err, ErrBusy):
		v.pass = nil
		return 0, 0, err
	case err != nil && !errors.Is(err, errNoRows) && !errors.Is(err, ErrNotRecorded):
		return 0, v.pass.left + 1, err
	}
	if v.pass = &next; done > 0 {
		return done, next.left + 1, err
	}
	if next.flaw != nil {
		v.pass = nil
		return 0, next.left + 1, next.flaw
	}
	v.pass = nil
	if err := v.dropTerms(j); err != nil {
		return 0, 1, err
	}
	return 1, 0, nil
}

// beginPass makes a new pass if there is none for the present keys; there is none when there are no older terms.
func (v *Vault) beginPass() error {
	return v.View(func(tx *Tx) error {
		switch {
		case len(tx.keys.ring.data) == 1:
			v.pass = nil
		case v.pass == nil || v.pass.keys != tx.keys:
			p := &pass{keys: tx.keys}
			err := tx.oldRows(func(bucket, _ string) error {
				p.left++
				return nil
			})
			if err != nil {
				return err
			}
			if p.buckets, err = tx.rewrappable(); err != nil {
				return err
			}
			v.pass = p
		}
		return nil
	})
}

// rewrappable returns the buckets whose rows are sealed by data keys, but the state, which every mutation writes anew.
// Contents come first, because they take their records along.
func (t *Tx) rewrappable() ([]string, error) {
	all, err := t.rows.buckets()
	if err != nil {
		return nil, err
	}
	buckets := []string{bucketContents}
	for _, bucket := range all {
		switch bucket {
		case bucketMeta, bucketSlots, bucketKeyring, bucketState, bucketContents:
		default:
			buckets = append(buckets, bucket)
		}
	}
	return buckets, nil
}

// oldRows calls fn with every row of an older term.
func (t *Tx) oldRows(fn func(bucket, name string) error) error {
	buckets, err := t.rewrappable()
	if err != nil {
		return err
	}
	b := batch{head: termHead}
	for _, bucket := range buckets {
		for after := ""; ; after = b.names[len(b.names)-1] {
			if err := t.rows.scan(bucket, after, &b); err != nil {
				return err
			}
			if len(b.names) == 0 {
				break
			}
			for i, name := range b.names {
				if !t.newest(b.value(i)) {
					if err := fn(bucket, name); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// newest reports whether a stored value, of which only the beginning is needed, is of the newest term.
func (t *Tx) newest(stored []byte) bool {
	rest, _ := bytes.CutPrefix(stored, []byte(rowPrefix))
	digits, _, _ := bytes.Cut(rest, []byte(":"))
	term, ok := parseDecimal(digits)
	return ok && term == t.keys.newest
}

// work rewraps rows from where the pass stands.
func (p *pass) work(tx *Tx, limit int) (done int, err error) {
	b := batch{head: termHead}
	size := 0
	for len(p.buckets) > 0 {
		bucket := p.buckets[0]
		if err := tx.rows.scan(bucket, p.after, &b); err != nil {
			return 0, err
		}
		if len(b.names) == 0 {
			p.buckets, p.after = p.buckets[1:], ""
			continue
		}
		for i, name := range b.names {
			if tx.newest(b.value(i)) {
				p.after = name
				continue
			}
			if done >= limit || size >= maxRewrapBytes {
				return done, nil
			}
			if tx.v.stopping.Load() > 0 {
				return 0, ErrLocked
			}
			rows, n, err := p.one(tx, bucket, name)
			if err != nil {
				return 0, err
			}
			done, size, p.after = done+rows, size+n, name
			p.left -= rows
		}
	}
	return done, nil
}

// one rewraps one row and returns how many rows of an older term there are less, and how much was sealed.
func (p *pass) one(tx *Tx, bucket, name string) (rows, size int, err error) {
	if bucket == bucketContents {
		return p.content(tx, name)
	}
	plain, err := tx.get(bucket, name)
	if err != nil {
		return 0, 0, err
	}
	defer clear(plain)
	return 1, len(plain), tx.put(bucket, name, plain)
}

// content rewraps one version and moves its pin.
func (p *pass) content(tx *Tx, row string) (rows, size int, err error) {
	name, digits, _ := strings.Cut(row, "/")
	n, ok := parseDecimal([]byte(digits))
	if !ok {
		return 0, 0, p.flawed(row, ErrNotFound)
	}
	rec, err := tx.Record(name)
	if err != nil {
		return 0, 0, p.flawed(row, err)
	}
	ver, ok := rec.version(n)
	if !ok || n == 0 {
		return 0, 0, p.flawed(row, ErrNotFound)
	}
	stored, err := tx.rows.get(bucketContents, row)
	if err != nil {
		return 0, 0, err
	}
	content, err := tx.keys.openContent(tx.s, row, stored, ver)
	if err != nil {
		return 0, 0, p.flawed(row, err)
	}
	defer content.Wipe()
	if stored, err = tx.putStored(bucketContents, row, content); err != nil {
		return 0, 0, err
	}
	rec.Versions[n-1].Pin = sha256.Sum256(stored)
	rows = 1
	old, err := tx.rows.get(bucketRecords, name)
	if err != nil {
		return 0, 0, err
	}
	if !tx.newest(old) {
		rows++
	}
	return rows, len(stored), tx.put(bucketRecords, name, rec.encode(nil))
}

// flawed remembers the first content that cannot be rewrapped and lets the pass go on.
func (p *pass) flawed(row string, err error) error {
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("row %s/%s: %w: no record names it", bucketContents, row, ErrIntegrity)
	}
	if !errors.Is(err, ErrIntegrity) && !errors.Is(err, ErrInvalid) {
		return err
	}
	if p.flaw == nil {
		p.flaw = err
	}
	return nil
}

// dropTerms forgets the older data keys after looking once more that nothing needs them.
func (v *Vault) dropTerms(j Journal) error {
	return v.mutateKeys(j, func(c *keyChange) error {
		rows, err := v.store.begin(false)
		if err != nil {
			return v.faulty(err)
		}
		defer rows.rollback()
		tx := v.newTx(rows, false)
		defer tx.end()
		if err := tx.oldRows(func(bucket, name string) error { return ErrBusy }); err != nil {
			return err
		}
		c.ring.data = c.ring.data[len(c.ring.data)-1:]
		return nil
	})
}
