package audit

import (
	"context"
	"fmt"
	"time"
)

// Append adds one entry. build is called under the log's one mutex, with the
// seq and the time that the entry will have: the place to recheck and to
// reserve what the decision rests on. It must not block, nor call the log. When
// it returns an error, that error is returned and no seq is used up.
//
// The entry is not durable yet: see Ticket.Wait. Append fails at once with
// ErrFailed while the log cannot be written, with ErrTimeout while the disk
// does not answer, with ErrInvalid when the entry holds what no entry may hold.
func (l *Log) Append(build func(seq uint64, now time.Time) (Entry, error)) (Ticket, error) {
	return l.append(build, hurried)
}

// AppendGrouped is Append for an entry that nothing waits for: it has its place at
// once, and for up to GroupDelay it waits for others to be written with it. Waiting
// for its ticket, or for that of any entry behind it, ends that.
func (l *Log) AppendGrouped(build func(seq uint64, now time.Time) (Entry, error)) (Ticket, error) {
	return l.append(build, grouped)
}

// AppendOperator is Append for what the operator does: when the disk is full,
// these entries go into the reserve.
func (l *Log) AppendOperator(build func(seq uint64, now time.Time) (Entry, error)) (Ticket, error) {
	return l.append(build, operators)
}

// AppendOperators is [Log.AppendOperator] for n entries that belong together, at least
// one: they come one after the other, and in one commit. build is called for each of
// them, with its number from 0 on; an error of it, or an entry that cannot be, and none
// is appended. The ticket is that of the last.
func (l *Log) AppendOperators(n int, build func(i int, seq uint64, now time.Time) (Entry, error)) (Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.admit(true); err != nil {
		return Ticket{}, err
	}
	now := l.config.Now()
	entries := make([]Entry, n)
	for i := range entries {
		var err error
		if entries[i], err = build(i, l.next+uint64(i), now); err == nil {
			err = entries[i].check()
		}
		if err != nil {
			return Ticket{}, err
		}
	}
	var last Ticket
	for i := range entries { // the committer takes them under the mutex
		last = l.enqueue(&entries[i], now, operators)
		if l.config.Placed != nil {
			l.config.Placed(&entries[i])
		}
	}
	return last, nil
}

// Record appends e and waits until it is durable.
func (l *Log) Record(ctx context.Context, e Entry) (Position, error) {
	return l.record(ctx, e, hurried)
}

// RecordOperator is Record with the reserve, like AppendOperator.
func (l *Log) RecordOperator(ctx context.Context, e Entry) (Position, error) {
	return l.record(ctx, e, operators)
}

// class is how soon an entry is written, and what space it may use.
type class int

const (
	grouped   class = iota // it can wait for company
	hurried                // it is written as soon as the disk is free
	operators              // and may use the reserve
)

func (l *Log) record(ctx context.Context, e Entry, as class) (Position, error) {
	ticket, err := l.append(func(uint64, time.Time) (Entry, error) { return e, nil }, as)
	if err != nil {
		return Position{}, err
	}
	if err := ticket.Wait(ctx); err != nil {
		return Position{}, err
	}
	return ticket.Position(), nil
}

func (l *Log) append(build func(seq uint64, now time.Time) (Entry, error), as class) (Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.admit(as == operators); err != nil {
		return Ticket{}, err
	}
	now := l.config.Now()
	e, err := build(l.next, now)
	if err != nil {
		return Ticket{}, err
	}
	if err := e.check(); err != nil {
		return Ticket{}, err
	}
	ticket := l.enqueue(&e, now, as)
	if l.config.Placed != nil {
		l.config.Placed(&e)
	}
	return ticket, nil
}

// admit refuses entries that could not become durable soon, so that nothing
// piles up behind a dead disk. Called with mu held.
func (l *Log) admit(operator bool) error {
	switch {
	case l.closed:
		return ErrClosed
	case l.failure != nil && !(l.failure.space && operator):
		l.refused++
		return l.failure.err
	case !l.busy.IsZero() && time.Since(l.busy) > l.config.WaitLimit:
		l.refused++
		return ErrTimeout
	}
	return nil
}

// enqueue gives a checked entry its place. Called with mu held.
func (l *Log) enqueue(e *Entry, now time.Time, as class) Ticket {
	e.V, e.Seq, e.Timestamp, e.Vault, e.Segment = 1, l.next, now, l.config.VaultID, l.segment
	b := l.pending
	b.add(e)
	b.operator = b.operator || as == operators
	l.next++
	switch {
	case as != grouped || len(b.buf) >= maxGrouped:
		l.hurry(b)
	case !l.gathering:
		l.gathering = true
		l.gather.Reset(GroupDelay)
	}
	return Ticket{
		log: l, batch: b, index: len(b.ends) - 1,
		runID: e.RunID, subjectID: e.SubjectID, resourceID: e.ResourceID, version: e.Version,
	}
}

// hurry has the committer take b. Called with mu held.
func (l *Log) hurry(b *batch) {
	if b.due {
		return // the committer has been told already
	}
	b.due = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// gathered ends the wait of grouped entries for company.
func (l *Log) gathered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gathering = false
	if !l.pending.empty() {
		l.hurry(l.pending)
	}
}

// Ticket stands for one appended entry.
type Ticket struct {
	// Release is set by the caller when content will be handed out on the
	// strength of this entry. If Wait then gives up and the entry becomes
	// durable all the same, the log appends a release.withheld that names it.
	Release bool

	log   *Log
	batch *batch
	index int

	runID, subjectID, resourceID string
	version                      uint32
}

// Wait returns nil once the entry is durable: only then may anything be
// released. Otherwise it returns ErrFailed (the entry is not in the log), or
// ErrTimeout after Config.WaitLimit, or the error of ctx; after these two the
// entry may still become durable.
func (t Ticket) Wait(ctx context.Context) error {
	t.hurry()
	timer := time.NewTimer(t.log.config.WaitLimit)
	defer timer.Stop()
	var err error
	select {
	case <-t.batch.done:
		return t.batch.err
	case <-timer.C:
		err = ErrTimeout
	case <-ctx.Done():
		err = fmt.Errorf("waiting for the audit log: %w", ctx.Err())
	}
	return t.abandon(err)
}

// hurry ends the wait of a grouped entry for company.
func (t Ticket) hurry() {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.batch == t.log.pending {
		t.log.hurry(t.batch)
	}
}

// abandon gives up on a ticket, unless it was decided in the same moment.
func (t Ticket) abandon(err error) error {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.batch.settled {
		<-t.batch.done
		return t.batch.err
	}
	if t.Release {
		t.batch.late = append(t.batch.late, Entry{
			Kind: ReleaseWithheld, RunID: t.runID, SubjectID: t.subjectID, ResourceID: t.resourceID, Version: t.version,
			Decision: "error", ReasonCode: "AUDIT_FAILED", Void: &Void{Segment: t.batch.segment, Seq: t.Seq()},
		})
	}
	return err
}

// Seq returns the entry's sequence number.
func (t Ticket) Seq() uint64 { return t.batch.first + uint64(t.index) }

// Position returns the entry's position, once Wait has returned nil.
func (t Ticket) Position() Position { return t.batch.at(t.index) }
