package vault

import (
	"errors"
	"fmt"
)

// Journal is the audit log as a mutation sees it. Both methods return when their entry is durable. They are called while
// the vault's write transaction is held: they must not call the vault, State excepted, nor wait for anything that does.
type Journal interface {
	// Intent announces a generation that is about to be committed and returns the position of its entry. On error nothing
	// is committed.
	Intent(generation uint64, digest [32]byte) (Checkpoint, error)
	// Applied says that the generation is committed.
	Applied(generation uint64, digest [32]byte) error
}

// View runs fn with a transaction that sees one moment and changes nothing. fn must not call Lock, Reopen, Close, nor
// View or Mutate again.
//
// Errors: ErrLocked, ErrFailed, ErrClosed, ErrStalled; else what fn returns.
func (v *Vault) View(fn func(*Tx) error) error {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.open(); err != nil {
		return err
	}
	rows, err := v.store.begin(false)
	if errors.Is(err, ErrStalled) {
		return err
	}
	if err != nil {
		return v.faulty(err)
	}
	defer rows.rollback()
	tx := v.newTx(rows, false)
	defer tx.end()
	return fn(tx)
}

// Mutate runs fn with a transaction that changes the vault, all of it or nothing, in this order: fn, the journal's Intent,
// the commit, the journal's Applied. The generation rises by one even if fn changed no row. Mutations run one after the
// other. The same rules as for View hold for fn and for the journal.
//
// Errors: those of View, ErrReadOnly; what fn or Intent return, when nothing was changed. ErrFailed when it is not known whether the
// commit succeeded: the vault has stopped. ErrNotRecorded, wrapping what Applied returned, when it did succeed.
func (v *Vault) Mutate(j Journal, fn func(*Tx) error) error {
	return v.mutate(j, fn, advance)
}

// advance is what becomes of the state in an ordinary mutation.
func advance(next *stateRow) error {
	next.generation++
	return nil
}

// mutate is Mutate with advance saying what becomes of generation and marks; its error ends the mutation before fn is run.
func (v *Vault) mutate(j Journal, fn func(*Tx) error, advance func(next *stateRow) error) error {
	if j == nil {
		return fmt.Errorf("%w: a mutation needs a journal", ErrInvalid)
	}
	v.mutating.Lock()
	defer v.mutating.Unlock()
	v.life.RLock()
	defer v.life.RUnlock()
	return v.mutateHeld(j, fn, advance)
}

// mutateHeld is mutate for who holds mutating and life.
func (v *Vault) mutateHeld(j Journal, fn func(*Tx) error, advance func(next *stateRow) error) error {
	if err := v.writable(); err != nil {
		return err
	}
	// Only a holder of mutating writes state, so this is its newest value.
	v.mu.Lock()
	next := v.state
	v.mu.Unlock()
	if err := advance(&next); err != nil {
		return err
	}
	rows, err := v.store.begin(true)
	if err != nil {
		return v.faulty(err)
	}
	defer rows.rollback()
	tx := v.newTx(rows, true)
	defer tx.end()
	if err := fn(tx); err != nil {
		return err
	}

	next.count, next.acc = tx.count, tx.acc
	digest := tx.s.digest(tx.keys.publish, next.generation, next.count, next.acc)
	position, err := j.Intent(next.generation, digest)
	if err != nil {
		return err
	}
	if position != (Checkpoint{}) {
		next.checkpoint = position
	}
	// From here on the log says that this generation may exist.
	if err := v.commit(tx, &next, digest); err != nil {
		return err
	}
	if err := j.Applied(next.generation, digest); err != nil {
		return fmt.Errorf("generation %d: %w: %w", next.generation, ErrNotRecorded, err)
	}
	return nil
}

// WriteCheckpoint stores marks in the state row, and nothing else: the generation stays. It is best effort and never waits for
// a mutation: ErrBusy.
func (v *Vault) WriteCheckpoint(m Marks) error {
	if !v.mutating.TryLock() {
		return ErrBusy
	}
	defer v.mutating.Unlock()
	if !v.life.TryRLock() {
		return ErrBusy
	}
	defer v.life.RUnlock()
	if err := v.writable(); err != nil {
		return err
	}
	v.mu.Lock()
	next, digest := v.state, v.digest
	v.mu.Unlock()
	newest := next.checkpoint
	next.setMarks(m)
	// A mutation may have stored a later position since the caller looked.
	if newest.Seq > m.Checkpoint.Seq {
		next.checkpoint = newest
	}
	rows, err := v.store.begin(true)
	if err != nil {
		return v.faulty(err)
	}
	defer rows.rollback()
	tx := v.newTx(rows, true)
	defer tx.end()
	return v.commit(tx, &next, digest)
}

// commit writes the state row and commits. Any error stops the vault: bbolt reports a failed sync of its meta page though
// the transaction is visible, and may be durable or not.
func (v *Vault) commit(tx *Tx, next *stateRow, digest [32]byte) error {
	err := tx.keys.writeState(tx.s, tx.rows, next)
	if err == nil {
		err = tx.rows.commit()
	}
	if err != nil {
		err = fmt.Errorf("committing generation %d: %w", next.generation, err)
		v.fail(err)
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	v.mu.Lock()
	v.state, v.digest = *next, digest
	v.mu.Unlock()
	return nil
}

// writable reports why nothing can be written. The caller holds life.
func (v *Vault) writable() error {
	if err := v.open(); err != nil {
		return err
	}
	if v.cfg.ReadOnly {
		return ErrReadOnly
	}
	return nil
}

// faulty stops the vault when the store cannot even start a transaction.
func (v *Vault) faulty(err error) error {
	v.fail(err)
	return fmt.Errorf("%w: %w", ErrFailed, err)
}
