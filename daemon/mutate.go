package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// change is one mutation of what is in force: the rows to write, what it does
// to the copy in memory, and the entries that tell of it.
type change struct {
	// effects are the entries of what happened; each is announced by an intent.
	// None means that there is nothing to change.
	effects []*audit.Entry
	// write changes the vault's rows. It may complete the effects.
	write func(*vault.Tx) error
	// commit, where it is set, is done instead of write: a mutation of the vault's
	// own, such as of its keys.
	commit func(vault.Journal) error
	// subject says that a subject asked for it: of the room in the log that is kept
	// for operators it gets none.
	subject bool
	// restrict takes away, permit adds. Both run under state.mu for writing:
	// restrict at the intent, so that nothing is released after it that should
	// not be; permit when the change is durable and recorded.
	restrict, permit func(*state)
	// after runs when everything is done, outside all locks: notifications.
	after func()
}

// changing serialises mutations and remembers what the log still has to be told
// of the last one.
type changing struct {
	mu   sync.Mutex
	owed *owed
}

// owed is the end of a mutation that the log could not take.
type owed struct {
	entries []audit.Entry
	permit  func(*state)
}

// mutate makes one change, or none. plan judges it against what is in force; it
// runs while no other mutation can. Protocol: op.intent durable, commit,
// effects and op.applied durable, answer.
func (d *Daemon) mutate(ctx context.Context, plan func(*state) (change, error)) error {
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	return d.mutateLocked(ctx, plan)
}

// mutateLocked is mutate for callers that hold changing.mu.
func (d *Daemon) mutateLocked(ctx context.Context, plan func(*state) (change, error)) error {
	if d.locked() {
		return wire.Deny(wire.VaultLocked)
	}
	if err := d.settle(); err != nil {
		return err
	}
	st := d.state()
	if err := d.needStill(ctx, st); err != nil {
		return err
	}
	c, err := plan(st)
	if err != nil {
		return err
	}
	if len(c.effects) == 0 { // nothing to change
		return nil
	}
	return d.commit(ctx, st, c)
}

// commit makes one change that was judged, whatever is in force. The caller holds
// changing.mu and has settled.
func (d *Daemon) commit(ctx context.Context, st *state, c change) (err error) {
	defer d.followChange(d.subjectUIDs())
	j := &journal{ctx: ctx, d: d, change: c, st: st}
	if c.commit != nil {
		err = c.commit(j)
	} else {
		err = d.vault.Mutate(j, c.write)
	}
	if err != nil {
		return d.unmutate(j, err)
	}
	if c.after != nil {
		c.after()
	}
	d.approvals.wake()
	return nil
}

// journal tells the log of one mutation.
type journal struct {
	ctx        context.Context // of the operator's call
	d          *Daemon
	change     change
	st         *state
	generation uint64
	digest     [32]byte
	intended   bool // op.intent was appended
	committed  bool // the vault called Applied
}

// Intent makes the intent durable. What the change takes away is gone from the
// moment the intent has its place in the log.
func (j *journal) Intent(generation uint64, digest [32]byte) (vault.Checkpoint, error) {
	j.generation, j.digest = generation, digest
	var last audit.Ticket
	for i, effect := range j.change.effects {
		e := *effect
		e.Action = string(e.Kind)
		e.Kind, e.Generation, e.Digest = audit.OpIntent, generation, audit.Hash(digest)
		write := (*audit.Log).AppendOperator
		if j.change.subject {
			write = (*audit.Log).Append
		}
		ticket, err := write(j.d.log(), func(seq uint64, now time.Time) (audit.Entry, error) {
			if i == 0 {
				j.apply(j.change.restrict)
				j.intended = true
			}
			e.Seq, e.Timestamp = seq, now
			if event := meterEventOf(e); event != nil {
				j.st.meters.note(*event)
			}
			return e, nil
		})
		if err != nil {
			return vault.Checkpoint{}, err
		}
		last = ticket
	}
	accountFor(j.ctx)
	if err := last.Wait(context.Background()); err != nil {
		return vault.Checkpoint{}, err
	}
	return vault.Checkpoint(last.Position()), nil
}

// Applied records what happened, in one batch, and lets it take effect.
func (j *journal) Applied(generation uint64, digest [32]byte) error {
	j.committed = true
	entries := make([]audit.Entry, 0, len(j.change.effects)+1)
	for _, e := range j.change.effects {
		e.Generation = generation
		entries = append(entries, *e)
	}
	entries = append(entries, audit.Entry{Kind: audit.OpApplied, Generation: generation, Digest: audit.Hash(digest)})
	if err := j.d.recordAll(entries); err != nil {
		j.d.changing.owed = &owed{entries: entries, permit: j.change.permit}
		return err
	}
	durable, _ := j.d.log().Durable()
	j.d.heads.changed(durable.Seq)
	j.st.meters.heard(entries)
	j.apply(j.change.permit)
	return nil
}

func (j *journal) apply(fn func(*state)) {
	if fn == nil {
		return
	}
	j.st.mu.Lock()
	defer j.st.mu.Unlock()
	fn(j.st)
}

// recordAll appends entries in order and in one commit of the log, says in them which
// place they have, and waits for it.
func (d *Daemon) recordAll(entries []audit.Entry) error {
	last, err := d.log().AppendOperators(len(entries), func(i int, seq uint64, now time.Time) (audit.Entry, error) {
		e := &entries[i]
		e.Seq, e.Timestamp = seq, now
		return *e, nil
	})
	if err != nil {
		return err
	}
	return last.Wait(context.Background())
}

// unmutate cleans up after a mutation that did not go through and returns what
// the operator is told.
func (d *Daemon) unmutate(j *journal, err error) error {
	switch {
	case j.committed:
		// The vault has it; the log owes the rest and is asked again each second.
	case errors.Is(err, vault.ErrFailed):
		d.vaultFailed(err)
	case j.intended:
		if !errors.Is(err, audit.ErrFailed) { // else the intent certainly is not in the log
			d.changing.owed = &owed{entries: []audit.Entry{{Kind: audit.OpNotApplied, Generation: j.generation, Digest: audit.Hash(j.digest)}}}
		}
		if reloadErr := d.reload(); reloadErr != nil {
			d.logger.Error("reading the vault again", "error", reloadErr)
		}
		_ = d.settle() // the ticker tries again
	}
	if _, typed := errors.AsType[*wire.Error](err); !typed && refusal(err).Reason == wire.InternalError {
		d.logger.Error("a change was not made", "error", err)
	}
	if errors.Is(err, vault.ErrFailed) {
		return diskWords("writing the vault", err)
	}
	return err
}

// settle tells the log what it still has to be told of the last mutation. The
// caller holds changing.mu.
func (d *Daemon) settle() error {
	o := d.changing.owed
	if o == nil {
		return nil
	}
	if err := d.recordAll(o.entries); err != nil {
		return wire.Deny(wire.AuditFailed)
	}
	d.changing.owed = nil
	d.state().meters.heard(o.entries)
	defer d.followChange(d.subjectUIDs())
	if o.permit != nil {
		(&journal{st: d.state()}).apply(o.permit)
		d.hub.listChanged()
	}
	return nil
}

// vaultFailed puts nothing in force until the vault, one of whose writes failed,
// was reopened and verified: see recoverVault.
func (d *Daemon) vaultFailed(err error) {
	if d.locking.becomeFailed(err.Error()) {
		d.logger.Error("the vault stopped", "error", err)
		d.putInForce(newState())
	}
}

// recoverVault reopens and verifies a failed vault and puts it in force again;
// tend calls it until that succeeds. A vault that does not verify ends the
// daemon.
func (d *Daemon) recoverVault() {
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	err := d.vault.Reopen()
	if err == nil && d.locking.waitsForRecovery() {
		if d.vault.Locked() { // it failed while it was being unlocked
			d.locking.set(lockedByOperator, "it failed while it was being unlocked, and was reopened since")
		} else {
			err = d.enter(false)
		}
	}
	switch {
	case err == nil:
		d.logger.Info("the vault was reopened and verified")
	case hopeless(err):
		d.fail(fmt.Errorf("reopening the vault after a failed write: %w", err))
	default:
		d.vaultFailed(err)
	}
}

// hopeless reports that trying again would find the same.
func hopeless(err error) bool {
	for _, damage := range []error{vault.ErrIntegrity, vault.ErrDamaged, vault.ErrRollback, vault.ErrMissing, vault.ErrReplaced, vault.ErrSchema} {
		if errors.Is(err, damage) {
			return true
		}
	}
	f, isFault := errors.AsType[*Fault](err)
	return isFault && f.Code == wire.RollbackDetected
}
