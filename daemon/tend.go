package daemon

import (
	"context"
	"errors"
	"os"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

const (
	tendPeriod       = time.Second
	checkpointPeriod = 5 * time.Second
	checkpointAfter  = 4096 // entries
)

// tend looks after what nobody asks for: the files are still ours, the log is
// told what it is owed, unrecorded refusals are accounted for, checkpoints.
func (d *Daemon) tend(lock *os.File, rotate <-chan os.Signal) {
	tick := time.NewTicker(tendPeriod)
	defer tick.Stop()
	lastSuppressed, lastCheckpoint := d.clock.now(), d.clock.now()
	var lastSeq, lastCharges uint64
	for {
		d.followAdopted()
		select {
		case <-d.life.Done():
			return
		case <-rotate:
			d.rotate()
			continue
		case <-d.untilSpent():
			d.endSpent()
			continue
		case <-tick.C:
		}
		if err := d.stillOurs(lock); errors.Is(err, vault.ErrFailed) {
			d.vaultFailed(err)
			d.recoverVault()
			continue
		} else if err != nil {
			d.fail(err)
			return
		}
		if d.locking.waitsForRecovery() { // reopened, but not entered yet
			d.recoverVault()
			continue
		}
		d.changing.mu.Lock()
		if d.log() != nil && !d.locked() {
			_ = d.settle() // tried again at the next tick
		}
		d.changing.mu.Unlock()
		d.endSpent()
		d.clock.read() // moves the mark
		now := d.clock.now()
		if now.Sub(lastSuppressed) >= suppressedPeriod || now.Before(lastSuppressed) {
			d.suppressed(now)
			lastSuppressed = now
		}
		if log := d.log(); log != nil {
			charges := d.charges.Load() // first: what is counted is durable then
			durable, _ := log.Durable()
			since := durable.Seq - lastSeq
			due := now.Sub(lastCheckpoint) >= checkpointPeriod || now.Before(lastCheckpoint)
			// A log that is cut back while sbd is dead can give back only uses of which
			// the vault has not heard.
			if (since >= checkpointAfter || charges != lastCharges || since > 0 && due) && d.checkpoint() {
				lastCheckpoint, lastSeq, lastCharges = now, durable.Seq, charges
			}
		}
	}
}

// stillOurs reports that the vault or the home's lock was removed or replaced:
// going on would mean two daemons, or writing to what nobody will find.
func (d *Daemon) stillOurs(lock *os.File) error {
	if err := d.vault.CheckFile(); err != nil {
		return err
	}
	if !sameFile(lock, place.LockFile(d.home)) {
		return fault(wire.HomeUnsafe, "%s was removed or replaced while sbd was running", place.LockFile(d.home))
	}
	return nil
}

func (d *Daemon) rotate() {
	log := d.log()
	if log == nil {
		return
	}
	if err := log.Rotate(); err != nil {
		d.logger.Error("rotating the log", "error", err)
		return
	}
	d.logger.Info("the log goes on in another segment", "segment", log.Head().Segment)
}

// causeOverBudget: the same peer or key, or all of them together, were over a bound: of
// refusals that are recorded one by one, of calls that are open, or of answers that
// nobody takes.
const causeOverBudget = "OVER_BUDGET"

// suppressed accounts for the requests that were refused over budget.
func (d *Daemon) suppressed(now time.Time) {
	log := d.log()
	if log == nil {
		return
	}
	for _, s := range d.budgets.collect(now) {
		e := audit.Entry{
			Kind: audit.Suppressed, LaunchID: d.launches.keyed(s.key), SubjectID: s.subject, Peer: s.peer,
			KeyID: s.keyID, Decision: decisionDeny, ReasonCode: string(wire.RateLimited), Cause: causeOverBudget, Count: s.count,
		}
		if _, err := log.Record(context.Background(), e); err != nil {
			d.logger.Warn("suppressed requests are not accounted for", "count", s.count, "error", err)
		}
	}
}

// checkpoint lets the vault remember how far the log has come, and reports
// whether it does now. While a mutation is pending it does not wait.
func (d *Daemon) checkpoint() bool {
	if !d.changing.mu.TryLock() {
		return false
	}
	defer d.changing.mu.Unlock()
	return d.checkpointLocked()
}

// checkpointLocked is checkpoint for callers that hold changing.mu.
func (d *Daemon) checkpointLocked() bool {
	log := d.log()
	if log == nil || d.locked() || d.changing.owed != nil {
		return false
	}
	durable, _ := log.Durable()
	marks := vault.Marks{Checkpoint: vault.Checkpoint(durable), HighWater: d.clock.mark()}
	marks.BootID, _ = d.clock.boot()
	d.countMarks(log, &marks)
	if stored, err := d.keyUse.persist(d.state(), marks.Meters); err != nil {
		d.logger.Warn("keeping when keys were used", "error", err)
	} else {
		marks.Meters = stored
	}
	err := d.vault.WriteCheckpoint(marks)
	switch {
	case err == nil, errors.Is(err, vault.ErrBusy), errors.Is(err, vault.ErrLocked):
	case errors.Is(err, vault.ErrFailed):
		d.vaultFailed(err)
	default:
		d.logger.Warn("writing a checkpoint", "error", err)
	}
	return err == nil
}
