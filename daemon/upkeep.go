package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

const (
	// rewrapRows is how many rows one mutation rewraps: other changes wait for
	// no more than that.
	rewrapRows = 256
	// Pauses after upkeep that did not go through: ever longer ones.
	upkeepFirst = 5 * time.Second
	upkeepLast  = 5 * time.Minute
)

// upkeep is what goes on in the background while the vault is open, and again
// after a restart until it is done: rewrapping after a rotate, and purging.
type upkeep struct {
	kick chan struct{}

	mu    sync.Mutex
	done  uint64 // rows rewrapped so far
	left  uint64
	cause string // why upkeep stands still, in words
}

func newUpkeep() *upkeep { return &upkeep{kick: make(chan struct{}, 1)} }

// wake says that there may be something to do.
func (u *upkeep) wake() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// progress says how far rewrapping is; both numbers are 0 when nothing is left.
func (u *upkeep) progress() (done, left uint64, cause string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.left == 0 {
		return 0, 0, u.cause
	}
	return u.done, u.left, u.cause
}

func (u *upkeep) rewrapped(done, left int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.done, u.left, u.cause = u.done+uint64(done), uint64(left), ""
	if left == 0 {
		u.done = 0
	}
}

// stands says why upkeep does not go on; empty: it does.
func (u *upkeep) stands(cause string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cause = cause
}

// keepUp does the upkeep until the daemon stops.
func (d *Daemon) keepUp() {
	for {
		select {
		case <-d.life.Done():
			return
		case <-d.upkeep.kick:
		}
		d.indexKnowledge()
		for pause := upkeepFirst; !d.locked(); pause = min(2*pause, upkeepLast) {
			err := errors.Join(d.purge(d.life), d.rewrap())
			if err == nil {
				d.upkeep.stands("")
			}
			if err == nil || d.locked() {
				break
			}
			d.upkeep.stands(err.Error())
			d.logger.Warn("upkeep of the vault", "error", err)
			if !d.sleep(pause, d.upkeep.kick) {
				return
			}
		}
	}
}

// rewrap seals rows of older terms again, until none is left.
func (d *Daemon) rewrap() error {
	for d.life.Err() == nil {
		if _, old := d.vault.Terms(); len(old) == 0 {
			return nil
		}
		var done, left int
		err := d.mutate(d.life, func(*state) (change, error) {
			return change{
				effects: []*audit.Entry{{Kind: kindKeyRewrap, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}},
				commit: func(j vault.Journal) (err error) {
					done, left, err = d.vault.Rewrap(j, rewrapRows)
					return err
				},
			}, nil
		})
		switch {
		case errors.Is(err, vault.ErrBusy): // the keys changed meanwhile: from the beginning
		case err != nil:
			return err
		default:
			d.upkeep.rewrapped(done, left)
		}
	}
	return nil
}

// purge makes a vault's file without the sealed bytes of what was removed, if
// the operator asked for it and it is not done yet.
func (d *Daemon) purge(ctx context.Context) error {
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	_, err := d.purgeLocked(ctx)
	return err
}

// purgeNow is purgeLocked for a verb that has just taken something out; done says
// what, for an operator whom a purge that comes later is told of.
func (d *Daemon) purgeNow(ctx context.Context, done string) (overwritten bool, err error) {
	overwritten, err = d.purgeLocked(ctx)
	if err == nil {
		return overwritten, nil
	}
	d.upkeep.wake()
	d.logger.Error("purging", "error", err)
	return false, &wire.Error{
		Reason:  refusal(err).Reason,
		Message: done + "; its sealed bytes are still in the vault's file and are purged as soon as that can be done",
	}
}

// purgeLocked is purge for callers that hold changing.mu.
func (d *Daemon) purgeLocked(ctx context.Context) (overwritten bool, err error) {
	if d.locked() {
		return false, wire.Deny(wire.VaultLocked)
	}
	err = d.vault.View(func(tx *vault.Tx) error {
		_, err := tx.Get(bucketDaemon, rowPurge)
		return err
	})
	if errors.Is(err, vault.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		overwritten, err = d.vault.Compact()
	}
	if err != nil {
		return false, err
	}
	return overwritten, d.mutateLocked(ctx, func(*state) (change, error) {
		return change{
			effects: []*audit.Entry{{Kind: kindVaultPurge, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}},
			write:   func(tx *vault.Tx) error { return tx.Delete(bucketDaemon, rowPurge) },
		}, nil
	})
}
