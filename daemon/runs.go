package daemon

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
)

// Limits on what one run remembers and how many ended runs are shown.
const (
	keptRuns         = 200
	keptRunResources = 100
	maxRuns          = 4096
	maxRunsOnConn    = 16
)

// run is one session of one subject, bound to one connection. Everything but
// the counters is fixed when it opens.
type run struct {
	id          string
	subject     string
	born        time.Time // when the subject was created: a later one of the same name is another
	tier        grants.Tier
	profile     grants.Profile  // as it was when the run opened; zero: none
	ceiling     *grants.Ceiling // under the profile; never moves
	key         string          // id of the agent key that it was opened with; empty: with none
	keyName     string          // its name then; may be empty
	launch      *launch         // that it is in; nil: none
	peer        *peer.Peer
	command     string
	shimVersion string
	opened      time.Time
	done        chan struct{} // closed when the run ends

	mu        sync.Mutex
	ended     time.Time
	reason    wire.Reason // why it ended, as its watchers are told
	reads     uint64
	calls     uint64 // that were forwarded
	denials   uint64
	resources map[string]*uint32 // what was released, and whose it is where it is personal
}

// over reports whether the run has ended.
func (r *run) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// count records the outcome of one request under the run. owner is the operator
// whose the resource is; nil: every operator's.
func (r *run) count(resource string, released bool, owner *uint32) {
	if r.launch != nil {
		r.launch.count(released)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !released {
		r.denials++
		return
	}
	r.reads++
	if resource != "" && len(r.resources) < keptRunResources {
		r.resources[resource] = owner
	}
}

// forwarded counts one call of a tool that was forwarded.
func (r *run) forwarded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
}

// runs are the open runs and the newest ended ones.
type runs struct {
	mu       sync.Mutex
	open     map[string]*run
	gateways map[peer.ProcessKey]int // open runs of agent keys, by the process that has them
	ended    []*run                  // oldest first
}

func newRuns() *runs { return &runs{open: map[string]*run{}, gateways: map[peer.ProcessKey]int{}} }

// keyed reports whether a process has runs of agent keys.
func (rs *runs) keyed(process peer.ProcessKey) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.gateways[process] > 0
}

// add opens a run. It refuses more than there may be, and a second subject on one
// connection: the first OpenRun decided. A gateway's connection carries runs of
// several keys, and no others.
func (rs *runs) add(r *run) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	onConn := 0
	for _, other := range rs.open {
		if other.peer != r.peer {
			continue
		}
		if onConn++; other.subject != r.subject && (r.key == "" || other.key == "") || (r.key == "") != (other.key == "") {
			refusal := wire.Deny(wire.AccessDenied)
			refusal.Cause = causeSubjectMismatch
			return refusal
		}
	}
	if len(rs.open) >= maxRuns || onConn >= maxRunsOnConn {
		refusal := wire.Deny(wire.RateLimited)
		refusal.Cause = "TOO_MANY_RUNS"
		return refusal
	}
	rs.open[r.id] = r
	if r.key != "" {
		rs.gateways[r.peer.Key()]++
	}
	return nil
}

// find returns the open run with id if it belongs to the connection.
func (rs *runs) find(id string, p *peer.Peer) (*run, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r, ok := rs.open[id]
	if !ok || r.peer != p {
		return nil, false
	}
	return r, true
}

// end ends the runs that match and returns them; each is returned once, by the
// call that ended it.
func (rs *runs) end(reason wire.Reason, now time.Time, match func(*run) bool) []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var gone []*run
	for id, r := range rs.open {
		if !match(r) {
			continue
		}
		delete(rs.open, id)
		if process := r.peer.Key(); r.key != "" {
			if rs.gateways[process]--; rs.gateways[process] == 0 {
				delete(rs.gateways, process)
			}
		}
		r.mu.Lock()
		r.ended, r.reason = now, reason
		r.mu.Unlock()
		close(r.done)
		gone = append(gone, r)
	}
	slices.SortFunc(gone, byOpened)
	rs.ended = append(rs.ended, gone...)
	if extra := len(rs.ended) - keptRuns; extra > 0 {
		rs.ended = slices.Delete(rs.ended, 0, extra)
	}
	return gone
}

// list returns open runs, and ended ones when asked for, oldest first.
func (rs *runs) list(ended bool) []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var all []*run
	if ended {
		all = append(all, rs.ended...)
	}
	for _, r := range rs.open {
		all = append(all, r)
	}
	slices.SortFunc(all, byOpened)
	return all
}

// withPrefix returns the open runs whose id starts with prefix; one whose id it
// is, alone.
func (rs *runs) withPrefix(prefix string) []*run {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r, ok := rs.open[prefix]; ok {
		return []*run{r}
	}
	var found []*run
	for id, r := range rs.open {
		if strings.HasPrefix(id, prefix) {
			found = append(found, r)
		}
	}
	return found
}

// byLaunch counts open runs, by the launch that they are in.
func (rs *runs) byLaunch() map[*launch]uint32 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	count := map[*launch]uint32{}
	for _, r := range rs.open {
		if r.launch != nil {
			count[r.launch]++
		}
	}
	return count
}

// byKey counts open runs, by the agent key that they were opened with.
func (rs *runs) byKey() map[string]uint32 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	count := map[string]uint32{}
	for _, r := range rs.open {
		if r.key != "" {
			count[r.key]++
		}
	}
	return count
}

// bySubject counts open runs.
func (rs *runs) bySubject() map[string]uint32 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	count := map[string]uint32{}
	for _, r := range rs.open {
		count[r.subject]++
	}
	return count
}

func byOpened(a, b *run) int {
	if c := a.opened.Compare(b.opened); c != 0 {
		return c
	}
	return strings.Compare(a.id, b.id)
}

// asker is the run, as far as a decision depends on it.
func (r *run) asker() asker {
	return asker{
		subject: r.subject, tier: r.tier, key: r.key, anyone: r.launch != nil && !r.launch.vouched, profile: r.profile.Name, ceiling: r.ceiling,
	}
}

// entry is the part of an entry that every request of the run has.
func (r *run) entry(kind audit.Kind) audit.Entry {
	e := audit.Entry{Kind: kind, RunID: r.id, SubjectID: r.subject, Tier: r.tier.String(), ProfileID: r.profile.Name, KeyID: r.key}
	if r.launch != nil {
		e.LaunchID = r.launch.id
	}
	return e
}

// endRuns ends the runs that match, with one entry each, and returns once those
// are durable.
func (d *Daemon) endRuns(reason wire.Reason, cause string, match func(*run) bool) error {
	log := d.log()
	var failed error
	var last audit.Ticket
	waits := false
	for _, r := range d.runs.end(reason, d.clock.now(), match) {
		if log == nil {
			continue
		}
		e := r.entry(kindRunEnd)
		r.mu.Lock() // what was released before the end may still be counted
		e.ReasonCode, e.Cause, e.Count = string(reason), cause, r.reads
		r.mu.Unlock()
		ticket, err := log.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil })
		if err != nil {
			failed = wire.Deny(wire.AuditFailed)
			continue
		}
		last, waits = ticket, true
	}
	d.approvals.wake()
	if waits && last.Wait(context.Background()) != nil {
		failed = wire.Deny(wire.AuditFailed)
	}
	return failed
}

// over reports that a run is not entitled to an answer any more.
func (d *Daemon) over(r *run) bool {
	return r.over() || !r.peer.Alive() || r.launch != nil && r.launch.over() || !d.entitled(r)
}
