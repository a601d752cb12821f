package daemon

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Limits on launches.
const (
	maxLaunches  = 256 // open ones
	keptLaunches = 200 // ended ones that are shown
)

// Causes that are about launches.
const (
	causeLaunchEnded = "LAUNCH_ENDED"
	causeTreeEnded   = "TREE_ENDED"
	causeNotOpened   = "NOT_OPENED"
)

// launch is a tree of processes that is one subject: everything that lives in the
// pid namespace of its first process. Everything but the counters is fixed.
type launch struct {
	launchRow
	unproven bool          // after a restart it could not be shown to be the same; nobody is in it
	done     chan struct{} // closed when it has ended

	holding sync.RWMutex // a pidfd must not be closed under who uses it
	held    peer.Held    // its first process; zero when there is none to be held

	mu      sync.Mutex // taken before holding, where both are
	begun   bool       // it was open
	ended   time.Time
	cause   string // why it ended
	reads   uint64
	denials uint64
}

func newLaunch(row launchRow, held peer.Held) *launch {
	return &launch{launchRow: row, held: held, done: make(chan struct{})}
}

// key names its first process: the unit of its budgets.
func (l *launch) key() peer.ProcessKey {
	return peer.ProcessKey{UID: l.uid, PID: l.pid, Start: l.start}
}

// over reports whether the launch has ended, or its first process has, and with
// it every other one.
func (l *launch) over() bool {
	select {
	case <-l.done:
		return true
	default:
	}
	return !l.alive()
}

// alive reports whether its first process runs.
func (l *launch) alive() bool {
	l.holding.RLock()
	defer l.holding.RUnlock()
	return l.held.Alive()
}

// wait waits until its first process has ended; false when ctx has before that.
func (l *launch) wait(ctx context.Context) bool {
	l.holding.RLock()
	defer l.holding.RUnlock()
	return l.held.Wait(ctx)
}

// kill ends its first process, and with it the kernel ends every other one.
func (l *launch) kill() error {
	l.holding.RLock()
	defer l.holding.RUnlock()
	return l.held.Kill()
}

// release gives the pidfd back. It waits for those who wait for the process.
func (l *launch) release() {
	l.holding.Lock()
	defer l.holding.Unlock()
	l.held.Close()
}

// count records the outcome of one request of one of its runs.
func (l *launch) count(released bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if released {
		l.reads++
	} else {
		l.denials++
	}
}

// hasBegun reports whether it was ever open.
func (l *launch) hasBegun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun
}

// state is a word for the operator.
func (l *launch) state() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stateLocked()
}

// stateLocked is state for callers that hold mu.
func (l *launch) stateLocked() string {
	switch {
	case !l.ended.IsZero():
		return "ended"
	case l.unproven:
		return "unproven"
	case !l.alive():
		return "ended"
	}
	return "open"
}

// message is the launch as the operator sees it, with so many open runs.
func (l *launch) message(runs uint32) *operatorv1.Launch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &operatorv1.Launch{
		LaunchId: l.id, Subject: l.subject, Profile: l.profile, Tier: l.tier.String(), Pid: l.pid, Uid: l.uid, Command: l.command,
		Opened: millis(l.opened), Ended: millis(l.ended), Runs: runs, Reads: l.reads, Denials: l.denials,
		Disclosed: l.disclosed, State: l.stateLocked(), NoNet: l.noNet, Workspace: l.workspace,
	}
}

// launches are the open launches and the newest ended ones. They outlive a lock
// of the vault: their trees do.
type launches struct {
	mu    sync.Mutex
	open  map[string]*launch
	ended []*launch // oldest first
	taken []*launch // adopted and not yet followed
	tasks sync.WaitGroup
}

func newLaunches() *launches { return &launches{open: map[string]*launch{}} }

// add lets a launch begin. One that has ended before that is an ended one, and
// never began.
func (ls *launches) add(l *launch) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended.IsZero() {
		ls.keep(l)
		return
	}
	l.begun = true
	ls.open[l.id] = l
}

// keep remembers an ended launch for those who ask. The caller holds mu.
func (ls *launches) keep(l *launch) {
	ls.ended = append(ls.ended, l)
	if extra := len(ls.ended) - keptLaunches; extra > 0 {
		ls.ended = slices.Delete(ls.ended, 0, extra)
	}
}

// get returns an open launch.
func (ls *launches) get(id string) (*launch, bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, ok := ls.open[id]
	return l, ok
}

// past returns a launch that has ended under this daemon.
func (ls *launches) past(id string) (*launch, bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, l := range ls.ended {
		if l.id == id {
			return l, true
		}
	}
	return nil, false
}

// adopt remembers to follow a launch.
func (ls *launches) adopt(l *launch) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.taken = append(ls.taken, l)
}

func (ls *launches) takeAdopted() []*launch {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	taken := ls.taken
	ls.taken = nil
	return taken
}

// end ends a launch, also one that has not begun; false when it has ended before.
func (ls *launches) end(l *launch, now time.Time, cause string) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended.IsZero() {
		return false
	}
	l.ended, l.cause = now, cause
	close(l.done)
	if ls.open[l.id] == l {
		delete(ls.open, l.id)
		ls.keep(l)
	}
	return true
}

// list returns open launches, and ended ones when asked for, oldest first.
func (ls *launches) list(ended bool) []*launch {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var all []*launch
	if ended {
		all = append(all, ls.ended...)
	}
	for _, l := range ls.open {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b *launch) int {
		if c := a.opened.Compare(b.opened); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

// withPrefix returns the open launches whose id starts with prefix; one whose id
// it is, alone.
func (ls *launches) withPrefix(prefix string) []*launch {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l, ok := ls.open[prefix]; ok {
		return []*launch{l}
	}
	var found []*launch
	for id, l := range ls.open {
		if strings.HasPrefix(id, prefix) {
			found = append(found, l)
		}
	}
	return found
}

// proven returns the open launches that somebody can be in.
func (ls *launches) proven() []*launch {
	return slices.DeleteFunc(ls.list(false), func(l *launch) bool { return l.unproven || l.over() })
}

// of returns the launch that a peer is in. A pid namespace is a launch's, or is
// nested in one's. Where the kernel does not let us see which one the peer lives
// in, a first process among its ancestors tells: nothing leaves such a tree, for
// orphans go to the first process.
func (ls *launches) of(p *peer.Peer) (*launch, bool) {
	if !p.Foreign {
		return nil, false
	}
	proven := ls.proven()
	if len(proven) == 0 {
		return nil, false
	}
	if len(p.Namespaces) > 0 {
		for _, l := range proven {
			if slices.Contains(p.Namespaces, l.pidNS) {
				return l, true
			}
		}
		return nil, false
	}
	line, err := peer.Ancestry(p.PID)
	if err != nil {
		return nil, false
	}
	for _, ancestor := range line {
		for _, l := range proven {
			if ancestor.PID == l.pid && ancestor.Start == l.start {
				return l, true
			}
		}
	}
	return nil, false
}

// keyed returns the id of the launch whose first process has that key, an ended
// one too; empty when there is none.
func (ls *launches) keyed(key peer.ProcessKey) string {
	for _, l := range ls.list(true) {
		if l.key() == key {
			return l.id
		}
	}
	return ""
}

// close gives back what the launches hold, once nobody asks any more whether
// they are over: their trees go on.
func (ls *launches) close() {
	ls.tasks.Wait()
	for _, l := range append(ls.list(true), ls.takeAdopted()...) {
		l.release()
	}
}

// follow waits for the end of a launch's tree, in the background, and then sees
// to it that nothing is left of the launch.
func (d *Daemon) follow(l *launch) {
	d.launches.tasks.Go(func() {
		if !d.awaitTree(l) {
			return // sbd stops, the tree goes on: see launches.close
		}
		l.release()
		if d.launches.end(l, d.clock.now(), causeTreeEnded) {
			_ = d.endRunsOf(l) // a failing log is reported by its own state
		} else if !d.sleep(forgetPause, nil) { // whoever ended it removes the row
			return
		}
		for d.forgetLaunch(context.Background(), l, nil) != nil {
			if d.locked() || !d.sleep(forgetPause, nil) {
				return // see adopt
			}
		}
	})
}

// awaitTree waits until the tree of a launch is gone; false when sbd stops before
// that. One that never began is not waited for, nor is one that is unproven any
// longer than until its end: whose process it holds nobody knows.
func (d *Daemon) awaitTree(l *launch) bool {
	if !l.hasBegun() {
		return true
	}
	ctx, cancel := context.WithCancel(d.life)
	defer cancel()
	if l.unproven {
		go func() {
			select {
			case <-l.done:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return l.wait(ctx) || d.life.Err() == nil
}

// forgetPause is between two attempts to remove the row of an ended launch.
const forgetPause = time.Second

// ownPID is the process id of sbd.
func ownPID() int32 { return int32(os.Getpid()) }

// launchTier is what a tree is to be.
func launchTier(sandbox bool) grants.Tier {
	if sandbox {
		return grants.Sandboxed
	}
	return grants.Bound
}
