package worker

import (
	"context"
	"errors"
	"math/rand/v2" //nolint:depguard // spreads retries, keeps no secret
	"runtime"
	"sync"
	"time"

	"subjectbroker/proto/wire"
)

// Waits between attempts to open a run. An absent daemon costs us one lstat, so
// it is looked for often; a daemon that refuses writes an entry each time.
const (
	firstWait     = 50 * time.Millisecond
	maxWait       = 5 * time.Second
	maxRefusedFor = time.Minute
)

// unwatchedFor is how long a run is kept back until its stream is there.
const unwatchedFor = time.Second

// Keeper keeps one run open: it opens another when the daemon or the run went
// away, and tells what happens. The zero value is not usable; see NewKeeper.
type Keeper struct {
	config Config
	notify func(Event)
	kick   chan struct{} // capacity 1: somebody waits for a run
	asking chan struct{} // see Asking
	asks   func()        // closes it

	mu      sync.Mutex
	fresh   *Run // opened, and maybe not watched yet
	run     *Run // fresh, once it is watched
	err     error
	begun   int           // attempts, also the one that is being made
	opened  int           // the number of the attempt that fresh is of
	ended   int           // the number of the attempt that run and err are of
	settled chan struct{} // closed when the next attempt has got further
	stopped bool
	relays  map[relayKey]*relaySlot
}

// Event is one thing that happened to the kept run.
type Event struct {
	Change
	// Again is set with Watching when something may have been missed: there was
	// an earlier run, an earlier stream or a failed attempt.
	Again bool
	// Err is set, and Kind is zero, when a run could not be opened.
	Err *wire.Error
}

// NewKeeper returns a keeper that tells events to notify, one after the other;
// nil means that nobody wants to know. Nothing happens before Keep.
func NewKeeper(config Config, notify func(Event)) (*Keeper, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if notify == nil {
		notify = func(Event) {}
	}
	asking := make(chan struct{})
	return &Keeper{
		config: config, notify: notify, kick: make(chan struct{}, 1), settled: make(chan struct{}),
		asking: asking, asks: sync.OnceFunc(func() { close(asking) }),
	}, nil
}

// Asking is closed when the first attempt waits for the daemon, or has failed: the
// time until it answers is good for other things.
func (k *Keeper) Asking() <-chan struct{} { return k.asking }

// Run returns the open run. When there is none it makes an attempt at once and
// waits for it; the error is then the attempt's, a *wire.Error. What an attempt
// found that was begun before does not count: the daemon may have come since.
func (k *Keeper) Run(ctx context.Context) (*Run, error) {
	return k.wait(ctx, func() (*Run, int) { return k.run, k.ended })
}

// Fresh is Run for what need not be told of changes: it does not wait until the run
// is watched.
func (k *Keeper) Fresh(ctx context.Context) (*Run, error) {
	return k.wait(ctx, func() (*Run, int) { return k.fresh, k.opened })
}

// wait waits for what an attempt brings; have tells that, and of which attempt it is.
func (k *Keeper) wait(ctx context.Context, have func() (run *Run, attempt int)) (*Run, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for before := k.begun; ; {
		if run, attempt := have(); run != nil && (attempt > before || !run.isOver()) {
			return run, nil
		}
		if k.stopped {
			return nil, wire.Deny(wire.BrokerUnavailable)
		}
		if k.ended > before {
			return nil, k.err
		}
		settled := k.settled
		k.mu.Unlock()
		select {
		case k.kick <- struct{}{}:
		default: // somebody else asked already
		}
		select {
		case <-ctx.Done():
		case <-settled:
		}
		k.mu.Lock()
		if err := ctx.Err(); err != nil {
			return nil, wire.FromError(err)
		}
	}
}

// Current is the run that is open now; nil when there is none. It does not wait.
func (k *Keeper) Current() *Run {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.run
}

// Keep keeps a run open until ctx ends, and then closes it. It is called once.
func (k *Keeper) Keep(ctx context.Context) {
	defer func() {
		k.mu.Lock()
		k.stopped = true
		k.mu.Unlock()
		k.settle(nil, wire.Deny(wire.BrokerUnavailable))
	}()
	again, failures := false, 0
	for ctx.Err() == nil {
		k.mu.Lock()
		k.begun++
		k.mu.Unlock()
		run, err := k.config.open(ctx, k.asks)
		k.asks()
		if err == nil {
			failures = 0
			k.follow(ctx, run, again)
			k.forget()
			run.Close()
		} else {
			failures++
			k.settle(nil, err)
			if ctx.Err() == nil { // else it failed because it was to end
				k.notify(Event{Err: wire.FromError(err)})
			}
		}
		again = true
		k.pause(ctx, failures, err)
	}
}

// settle publishes the outcome of an attempt and wakes those who wait for it.
func (k *Keeper) settle(run *Run, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh, k.run, k.err, k.opened, k.ended = run, run, err, k.begun, k.begun
	k.wake()
	if run != nil {
		select {
		case <-k.kick: // whoever asked has it now
		default:
		}
	}
}

// hand gives a run to those who need no more than that.
func (k *Keeper) hand(run *Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh, k.opened = run, k.begun
	k.wake()
}

// wake has everybody who waits look again. The caller holds mu.
func (k *Keeper) wake() {
	close(k.settled)
	k.settled = make(chan struct{})
}

// forget takes back a run that has ended. Who was about to be handed it gets an
// error instead: there is never neither.
func (k *Keeper) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fresh, k.run, k.err = nil, nil, wire.Deny(wire.BrokerUnavailable)
}

// follow watches run until it or ctx ends. The run is handed out once it is
// watched, so that whoever lists something under it is told when that changes;
// a daemon that has no stream for us, or not yet, does not keep the run back.
func (k *Keeper) follow(ctx context.Context, run *Run, again bool) {
	k.hand(run)
	runtime.Gosched() // who waits for it goes first
	publish := sync.OnceFunc(func() { k.settle(run, nil) })
	unwatched := time.AfterFunc(unwatchedFor, publish)
	defer unwatched.Stop()
	for failures := 1; ; failures++ {
		_ = run.Watch(ctx, func(change Change) { // however it ended, the run may be good without
			again = !unwatched.Stop() || again // it was handed out before, or has had a stream
			publish()
			k.notify(Event{Change: change, Again: again && change.Kind == Watching})
			failures = 1
		})
		publish()
		again = true
		wait := time.NewTimer(backOff(failures, maxRefusedFor))
		select {
		case <-ctx.Done():
		case <-run.Over():
		case <-wait.C:
			continue
		}
		wait.Stop()
		return
	}
}

// pause waits before the next attempt, or until somebody asks for a run.
func (k *Keeper) pause(ctx context.Context, failures int, err error) {
	limit := maxWait
	if typed, ok := errors.AsType[*wire.Error](err); ok && typed.Reason != wire.BrokerUnavailable && typed.Reason != wire.SocketUnsafe {
		limit = maxRefusedFor
	}
	timer := time.NewTimer(backOff(failures, limit))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-k.kick:
	}
}

// backOff doubles with each failure up to limit, and spreads by half, so that
// the shims of one machine do not come back in step.
func backOff(failures int, limit time.Duration) time.Duration {
	wait := limit
	if failures < 16 {
		wait = min(limit, firstWait<<failures)
	}
	return wait/2 + rand.N(wait/2) //nolint:gosec // see the import
}
