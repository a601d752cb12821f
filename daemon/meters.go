package daemon

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants/rules"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// meterIdle is how long no relay of a subject to a server is open, outside of any
// launch, before its next one is another session.
const meterIdle = 30 * time.Minute

// meters are what the policies have counted: a part of what is in force, rebuilt
// at unlock from the vault's state row and the log after it.
//
// There are two copies. One is what calls are judged by. The other is behind it: it
// is as of an entry that is known to be durable, and what was counted since waits
// for its turn. Only that one can be written to the vault, because only of it can
// be said from which entry on the log has to be counted.
type meters struct {
	read func() reading // the clocks, for a wall clock that is set; nil: it never is

	mu      sync.Mutex
	live    tallies
	settled tallies
	since   []*meterEvent // what live has counted and settled has not, in the log's order
	last    uint64        // seq of the newest of them
	steps   clockSteps
}

// clockSteps are how far the wall clock was set, as the boot clock shows. Everything
// in meters is by a wall clock that never was: whoever sets it opens no window early,
// and has none stay closed.
type clockSteps struct {
	shift time.Duration // the wall clock less that one
	boot  string        // as was last looked at; empty: there is no boot clock
	drift time.Duration // the wall clock less the boot clock then
}

// look finds out whether the wall clock was set, or the machine started, since.
func (c *clockSteps) look(at reading) {
	if at.bootID == "" {
		return
	}
	drift := time.Duration(at.wall.UnixMilli())*time.Millisecond - at.since.Truncate(time.Millisecond)
	by := drift - c.drift
	switch {
	case c.boot != at.bootID:
		c.boot, c.drift = at.bootID, drift
	case by > clockSlack || by < -clockSlack:
		c.shift, c.drift = c.shift+by, drift
	}
}

// wall is a moment of meters by the wall clock; zero: none is.
func (c *clockSteps) wall(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(c.shift)
}

// look is that of the steps. The caller holds mu.
func (m *meters) look() {
	if m.read != nil {
		m.steps.look(m.read())
	}
}

func newMeters() *meters {
	return &meters{live: tallies{}, settled: tallies{}}
}

// tallies are what was counted, by whose policy.
type tallies map[policyKey]*tally

// tally is what was counted for a subject around a server.
type tally struct {
	spent    uint64 // over all sessions, in millionths of the budget's unit
	killedBy string // the policy that stopped a hosted server for the subject; empty: none did
	over     bool   // the policy was removed, and none was set since
	sessions map[string]*metered
}

// metered is what was counted in one session: a launch, or with an empty id what is
// outside of any.
type metered struct {
	limits string // version of the limits that it was counted under
	meter  *rules.Meter
	relays int       // that are open
	idle   time.Time // when the last one was closed, or known to be open
}

// meterWhat is what an event is about.
type meterWhat byte

const (
	meterOpen   meterWhat = 'o' // a relay was opened
	meterClose  meterWhat = 'c' // one was closed; in no entry
	meterTake   meterWhat = 't' // a call was forwarded
	meterUse    meterWhat = 'u' // the same without a policy: only the grant counts it that it is charged to
	meterDone   meterWhat = 'd' // it ended
	meterKill   meterWhat = 'k' // a rule killed the session
	meterStop   meterWhat = 's' // a rule stopped the hosted server for the subject
	meterReset  meterWhat = 'r' // the operator set to nothing what was counted; a stopped server stays so
	meterRemove meterWhat = 'x' // the operator removed the policy
	meterSet    meterWhat = 'p' // the operator is about to set one, or another
	meterRevive meterWhat = 'v' // the operator restarted the server, removed it or added one of its name
	meterLeave  meterWhat = 'l' // the operator removed the subject, or added one of its name
)

// ofOperator reports whether it tells of what the operator did, once that is durable.
func (w meterWhat) ofOperator() bool {
	switch w {
	case meterReset, meterRemove, meterRevive, meterLeave:
		return true
	default:
		return false
	}
}

// meterEvent is one thing that changes what was counted. Those that stand in the
// log can be read from there again.
type meterEvent struct {
	what                    meterWhat
	seq                     uint64 // of its entry; of a close, of the newest entry before it
	subject, server, launch string
	tool                    string
	at                      time.Time // by the wall clock, and once it is counted by that of meters
	micros                  uint64    // what a call cost
	end                     rules.End // how it ended
	killedBy                string    // name of the policy
	grant                   string    // the limited grant that a call is charged to; empty: none

	policy *rules.Compiled // by which it is counted; nil: by none, or by the one that a reader of the log finds
}

// findPolicy finds the policy around a server for a subject; nil: there is none.
type findPolicy func(subject, server string) *rules.Compiled

// of is the tally of a subject around a server, which may be a new one.
func (ts tallies) of(subject, server string) *tally {
	k := policyKey{subject, server}
	t := ts[k]
	if t == nil {
		t = &tally{sessions: map[string]*metered{}}
		ts[k] = t
	}
	return t
}

// session is what is counted in a session under a policy. Other limits begin anew.
func (t *tally) session(launch string, limits string) *metered {
	s := t.sessions[launch]
	if s == nil {
		s = &metered{}
		t.sessions[launch] = s
	}
	if s.meter == nil || s.limits != limits {
		s.meter, s.limits = &rules.Meter{}, limits
	}
	return s
}

// on lends fn a session's meter with what is counted over all sessions in it.
func (t *tally) on(s *metered, fn func(*rules.Meter)) {
	s.meter.Spent = t.spent
	fn(s.meter)
	t.spent = s.meter.Spent
}

// apply counts one event. find is for events that were read from the log; nil: the
// event has its policy.
func (ts tallies) apply(e *meterEvent, find findPolicy) {
	switch e.what {
	case meterReset:
		if t := ts[policyKey{e.subject, e.server}]; t != nil {
			t.reset()
		}
		return
	case meterRemove:
		t := ts.of(e.subject, e.server)
		t.reset()
		t.over = true
		return
	case meterSet:
		// Calls that had their place between the entry of a removal and the removal were
		// judged by the old policy, and a reader of the log takes them for those of the new.
		if t := ts[policyKey{e.subject, e.server}]; t != nil && t.over {
			t.reset()
			t.over = false
		}
		return
	case meterRevive:
		for k, t := range ts {
			if k.server == e.server && (e.subject == "" || k.subject == e.subject) {
				t.revive()
			}
		}
		return
	case meterLeave:
		for k, t := range ts {
			if k.subject == e.subject {
				t.revive()
			}
		}
		return
	case meterUse:
		return
	case meterStop:
		ts.of(e.subject, e.server).killedBy = e.killedBy
		return
	case meterClose:
		if t := ts[policyKey{e.subject, e.server}]; t != nil {
			if s := t.sessions[e.launch]; s != nil && s.relays > 0 {
				s.relays--
				s.idle = e.at
			}
		}
		return
	default: // it is about a session
	}
	policy := e.policy
	if find != nil {
		policy = find(e.subject, e.server)
	}
	if policy == nil {
		if e.what == meterOpen { // a policy may come while it is open
			t := ts.of(e.subject, e.server)
			s := t.sessions[e.launch]
			if s == nil {
				s = &metered{}
				t.sessions[e.launch] = s
			}
			s.relays++
			s.idle = e.at
		}
		return
	}
	t := ts.of(e.subject, e.server)
	if s := t.sessions[e.launch]; e.what == meterOpen && e.launch == "" && s != nil && s.relays == 0 && e.at.Sub(s.idle) >= meterIdle {
		s.meter = nil
	}
	s := t.session(e.launch, policy.LimitsVersion())
	s.idle = e.at // whoever reads the log may not have seen what was opened before
	t.on(s, func(m *rules.Meter) {
		switch e.what {
		case meterOpen:
			s.relays++
		case meterTake:
			policy.Retake(m, e.tool, e.at, e.micros)
		case meterDone:
			policy.Settle(m, e.tool, e.end, e.at)
		case meterKill:
			m.KilledBy = e.killedBy
		default: // see above
		}
	})
}

// reset sets what was counted to nothing. Relays that are open stay so.
func (t *tally) reset() {
	t.spent = 0
	for _, s := range t.sessions {
		s.meter = nil
	}
}

// clone is a copy that shares nothing.
func (ts tallies) clone() tallies {
	all := make(tallies, len(ts))
	for k, t := range ts {
		own := *t
		own.sessions = make(map[string]*metered, len(t.sessions))
		for launch, s := range t.sessions {
			copied := *s
			if s.meter != nil {
				copied.meter, _ = rules.ParseMeter(s.meter.Append(nil)) // never fails on what a meter wrote
			}
			own.sessions[launch] = &copied
		}
		all[k] = &own
	}
	return all
}

// revive lifts every kill.
func (t *tally) revive() {
	t.killedBy = ""
	for _, s := range t.sessions {
		if s.meter != nil {
			s.meter.KilledBy = ""
		}
	}
}

// note counts an event that nobody judges. The caller holds the log's mutex, unless
// it is in no entry.
func (m *meters) note(e meterEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.seq == 0 {
		e.seq = m.last
	}
	m.look()
	e.at = e.at.Add(-m.steps.shift)
	m.live.apply(&e, nil)
	m.push(&e)
}

// maxSince is how many events wait at most until the vault can be written, about 200
// bytes each: beyond, calls are refused until it can.
const maxSince = 1 << 20

// full reports whether too much waits for the vault, as while a backup is made.
func (m *meters) full() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.since) >= maxSince
}

// push lets the other copy count an event when its entry is durable. The caller
// holds mu.
func (m *meters) push(e *meterEvent) {
	m.last = max(m.last, e.seq)
	m.since = append(m.since, e)
}

// heard counts what entries say that the operator did. They have their places in the
// log already and are durable, and calls may have been counted since that come
// after them. The caller holds changing.mu, so that the other copy is not past them.
func (m *meters) heard(entries []audit.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	any := false
	for _, entry := range entries {
		e := meterEventOf(entry)
		if e == nil || !e.what.ofOperator() {
			continue
		}
		any = true
		at := len(m.since)
		for at > 0 && m.since[at-1].seq > e.seq {
			at--
		}
		m.since = slices.Insert(m.since, at, e)
		m.last = max(m.last, e.seq)
	}
	if any {
		m.again()
	}
}

// again makes the copy that calls are judged by anew: what is settled, and what was
// counted since. The caller holds mu.
func (m *meters) again() {
	m.live = m.settled.clone()
	for _, e := range m.since {
		m.live.apply(e, nil)
	}
}

// judge judges a call by what was counted so far, and counts nothing.
func (m *meters) judge(who meterEvent, policy *rules.Compiled, call rules.Call) rules.Verdict {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look()
	call.Now = call.Now.Add(-m.steps.shift)
	// Whoever judges may still look at a policy that was replaced: what is counted
	// under the new one stays as it is.
	meter := &rules.Meter{}
	if t := m.live[policyKey{who.subject, who.server}]; t != nil {
		if s := t.sessions[who.launch]; s != nil && s.meter != nil && s.limits == policy.LimitsVersion() {
			meter = s.meter
		}
		meter.Spent = t.spent
		killed := meter.KilledBy
		defer func() { meter.KilledBy = killed }()
		meter.KilledBy = cmp.Or(killed, t.killedBy) // by another session
	}
	return policy.Judge(meter, call)
}

// taken is what a call that is being forwarded took.
type taken struct {
	event *meterEvent
	meter *rules.Meter
	cost  rules.Cost
	began bool // the session began with it
}

// take judges a call and counts it when lets says that it may be forwarded, with
// nothing between the two; nil: it was not. The caller holds the log's mutex, and
// e.seq is the number of the entry.
func (m *meters) take(e meterEvent, policy *rules.Compiled, call rules.Call, lets func(rules.Verdict) bool) (rules.Verdict, *taken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.what, e.policy = meterTake, policy
	m.look()
	e.at, call.Now = e.at.Add(-m.steps.shift), call.Now.Add(-m.steps.shift)
	took := &taken{event: &e}
	if policy == nil {
		e.what = meterUse
		return rules.Verdict{Outcome: rules.Forwarded}, took
	}
	t := m.live.of(e.subject, e.server)
	s := t.session(e.launch, policy.LimitsVersion())
	s.idle = e.at
	verdict := rules.Verdict{Outcome: rules.Blocked}
	t.on(s, func(meter *rules.Meter) {
		killed := meter.KilledBy
		if killed == "" {
			meter.KilledBy = t.killedBy
		}
		verdict = policy.Judge(meter, call)
		meter.KilledBy = killed
		if !lets(verdict) {
			return
		}
		took.began = meter.Began.IsZero()
		took.meter, took.cost = meter, policy.Take(meter, call)
		e.micros = took.cost.Micros
	})
	if took.meter == nil {
		return verdict, nil
	}
	m.push(took.event)
	return verdict, took
}

// giveBack undoes take for a call that is not forwarded, and whose entry is
// certainly not in the log.
func (m *meters) giveBack(took *taken) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.Index(m.since, took.event)
	if i < 0 {
		return
	}
	m.since = slices.Delete(m.since, i, i+1)
	if took.meter == nil {
		return
	}
	t := m.live[policyKey{took.event.subject, took.event.server}]
	if t == nil || t.sessions[took.event.launch] == nil || t.sessions[took.event.launch].meter != took.meter {
		m.again() // it is counted elsewhere since, or nowhere
		return
	}
	took.meter.Spent = t.spent
	took.event.policy.Undo(took.meter, took.cost)
	t.spent = took.meter.Spent
}

// charged says to which limited grant a call was charged. The caller holds the
// log's mutex.
func (m *meters) charged(took *taken, grant string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took.event.grant = grant
	if took.event.policy == nil {
		m.push(took.event)
	}
}

// settle lets the other copy catch up with the log, which is durable up to seq, and
// returns how often each grant was charged by the calls that are later than that,
// and not later than last.
func (m *meters) settle(seq, last uint64) (charges map[string]uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for n < len(m.since) && m.since[n].seq <= seq {
		m.settled.apply(m.since[n], nil)
		n++
	}
	m.since = slices.Delete(m.since, 0, n)
	charges = map[string]uint64{}
	for _, e := range m.since {
		if e.grant != "" && e.seq <= last {
			charges[e.grant]++
		}
	}
	return charges
}

// forget drops the sessions of launches that are over, what was counted under policies
// that are gone, and that a server was stopped of which nobody knows any more: what is
// left is bounded by the policies, the open launches and relays, and the stopped servers.
func (m *meters) forget(find findPolicy, open func(launch string) bool, runs func(subject, server string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	waits := map[policyKey]bool{} // of which something is to be counted yet
	for _, e := range m.since {
		waits[policyKey{e.subject, e.server}] = true
	}
	for _, ts := range []tallies{m.live, m.settled} {
		for k, t := range ts {
			none := find(k.subject, k.server) == nil
			if t.killedBy != "" && !runs(k.subject, k.server) {
				t.killedBy = ""
			}
			maps.DeleteFunc(t.sessions, func(launch string, s *metered) bool {
				return s.relays == 0 && (none || launch != "" && !open(launch))
			})
			if none {
				t.reset()
				if len(t.sessions) == 0 && t.killedBy == "" && !waits[k] {
					delete(ts, k)
				}
			}
		}
	}
}

// of is what was counted for a subject around a server, by launch, as the operator
// sees it.
func (m *meters) of(subject, server string) []*operatorv1.PolicyMeter {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.live[policyKey{subject, server}]
	if t == nil {
		return nil
	}
	var all []*operatorv1.PolicyMeter
	for _, launch := range slices.Sorted(maps.Keys(t.sessions)) {
		s := t.sessions[launch]
		if s.meter == nil {
			continue
		}
		all = append(all, &operatorv1.PolicyMeter{
			LaunchId: launch, Calls: s.meter.Calls, SpentMicros: t.spent, Began: millis(m.steps.wall(s.meter.Began)),
			OpenBreakers: s.meter.OpenBreakers(), Killed: s.meter.KilledBy != "" || t.killedBy != "",
		})
	}
	if all == nil && (t.spent > 0 || t.killedBy != "") { // all sessions are over
		all = append(all, &operatorv1.PolicyMeter{SpentMicros: t.spent, Killed: t.killedBy != ""})
	}
	return all
}

// deadline is when a session has lasted as long as its policy lets it, and what
// happens then; zero: never. A session begins with its first forwarded call.
func (m *meters) deadline(who meterEvent, policy *rules.Compiled) (time.Time, rules.Action) {
	if policy == nil {
		return time.Time{}, ""
	}
	limit, action := policy.Runtime()
	if limit == 0 {
		return time.Time{}, ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.live[policyKey{who.subject, who.server}]
	if t == nil {
		return time.Time{}, ""
	}
	s := t.sessions[who.launch]
	if s == nil || s.meter == nil || s.limits != policy.LimitsVersion() || s.meter.Began.IsZero() {
		return time.Time{}, ""
	}
	m.look()
	return m.steps.wall(s.meter.Began).Add(limit), action
}

// killedBy is the policy that killed a session, or stopped its server; empty: none
// did.
func (m *meters) killedBy(subject, server, launch string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.live[policyKey{subject, server}]
	if t == nil {
		return ""
	}
	if s := t.sessions[launch]; s != nil && s.meter != nil && s.meter.KilledBy != "" {
		return s.meter.KilledBy
	}
	return t.killedBy
}

// stoppedBy is the policy that stopped a hosted server for a subject; empty: none
// did.
func (m *meters) stoppedBy(subject, server string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.live[policyKey{subject, server}]; t != nil {
		return t.killedBy
	}
	return ""
}

// counted is what the metrics tell of one policy.
type counted struct {
	policyKey
	spent    uint64
	sessions int
	killed   bool
}

// all returns what was counted, by policy.
func (m *meters) all() []counted {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []counted
	for k, t := range m.live {
		one := counted{policyKey: k, spent: t.spent, killed: t.killedBy != ""}
		for _, s := range t.sessions {
			if s.meter != nil {
				one.sessions++
				one.killed = one.killed || s.meter.KilledBy != ""
			}
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b counted) int { return strings.Compare(a.row(), b.row()) })
	return list
}
