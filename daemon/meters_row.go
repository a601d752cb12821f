package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants/rules"
	"subjectbroker/vault"
)

// storedMeters is how meters stand in the vault's state row, exact as of the same
// entry as the uses beside them:
//
//	{"v":1,
//	 "tallies":[{"subject":…,"server":…,"spent":…,"killedBy":…,"over":…,   spent in millionths; over: its policy was removed
//	             "sessions":[{"launch":…,"limits":…,"idle":…,"meter":…}]}], meter: base64 of what package rules writes;
//	                                                                     limits: empty when nothing was counted yet
//	 "events":[{"what":…,"subject":…,"server":…,"launch":…,"tool":…,"at":…,
//	            "micros":…,"end":…,"killedBy":…,"grant":…}]}                not counted yet: see recovery.marks
//
// and beside v how far the wall clock was set and how far it was from the boot clock:
//
//	"shift":…,"boot":…,"drift":…                                           as clockSteps says
//
// and "keys":{…:…}: when agent keys were used last, in minutes since 1970, by id.
//
// Times are Unix milliseconds, those of tallies by the clock that never was set, and
// spans are milliseconds. What is empty is left out. Subjects, servers and
// launches rise, and nothing at all is no bytes at all.
type storedMeters struct {
	V       int           `json:"v"`
	Shift   int64         `json:"shift,omitempty"`
	Boot    string        `json:"boot,omitempty"`
	Drift   int64         `json:"drift,omitempty"`
	Tallies []storedTally `json:"tallies,omitempty"`
	Events  []storedEvent `json:"events,omitempty"`

	Keys map[string]int64 `json:"keys,omitempty"`
}

type storedTally struct {
	Subject  string          `json:"subject"`
	Server   string          `json:"server"`
	Spent    uint64          `json:"spent,omitempty"`
	KilledBy string          `json:"killedBy,omitempty"`
	Over     bool            `json:"over,omitempty"`
	Sessions []storedSession `json:"sessions,omitempty"`
}

type storedSession struct {
	Launch string `json:"launch,omitempty"`
	Limits string `json:"limits"`
	Idle   int64  `json:"idle"`
	Meter  []byte `json:"meter"`
}

type storedEvent struct {
	What     string `json:"what"`
	Subject  string `json:"subject,omitempty"`
	Server   string `json:"server,omitempty"`
	Launch   string `json:"launch,omitempty"`
	Tool     string `json:"tool,omitempty"`
	At       int64  `json:"at"`
	Micros   uint64 `json:"micros,omitempty"`
	End      int    `json:"end,omitempty"`
	KilledBy string `json:"killedBy,omitempty"`
	Grant    string `json:"grant,omitempty"`
}

// encode is the stored form of what is settled. A relay that is open was not idle
// before now.
func (m *meters) encode(now time.Time) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.look()
	now = now.Add(-m.steps.shift)
	row := storedMeters{V: 1, Shift: m.steps.shift.Milliseconds(), Boot: m.steps.boot, Drift: m.steps.drift.Milliseconds()}
	for k, t := range m.settled {
		one := storedTally{Subject: k.subject, Server: k.server, Spent: t.spent, KilledBy: t.killedBy, Over: t.over}
		for _, launch := range slices.Sorted(maps.Keys(t.sessions)) {
			s := t.sessions[launch]
			stored := storedSession{Launch: launch, Limits: s.limits, Idle: s.idle.UnixMilli()}
			if s.relays > 0 {
				stored.Idle = now.UnixMilli()
			}
			switch {
			case s.meter != nil:
				stored.Meter = s.meter.Append(nil)
			case s.relays > 0: // nothing was counted yet
				stored.Limits, stored.Meter = "", (&rules.Meter{}).Append(nil)
			default:
				continue
			}
			one.Sessions = append(one.Sessions, stored)
		}
		if one.Spent > 0 || one.KilledBy != "" || one.Over || len(one.Sessions) > 0 {
			row.Tallies = append(row.Tallies, one)
		}
	}
	slices.SortFunc(row.Tallies, func(a, b storedTally) int {
		return strings.Compare(a.Subject+"/"+a.Server, b.Subject+"/"+b.Server)
	})
	return row.encode()
}

func (row storedMeters) encode() []byte {
	if len(row.Tallies) == 0 && len(row.Events) == 0 && len(row.Keys) == 0 {
		return nil
	}
	raw, _ := json.Marshal(row) // of strings, numbers and bytes: never fails
	return raw
}

func decodeMeters(raw []byte) (storedMeters, error) {
	var row storedMeters
	if len(raw) == 0 {
		return row, nil
	}
	if err := decodeRow(raw, &row); err != nil {
		return row, err
	}
	if row.V != 1 {
		return row, errors.New("it is of a form that this build does not know")
	}
	return row, nil
}

// tallies are what the row says was counted.
func (row storedMeters) tallies() (tallies, error) {
	ts := tallies{}
	for _, one := range row.Tallies {
		t := ts.of(one.Subject, one.Server)
		t.spent, t.killedBy, t.over = one.Spent, one.KilledBy, one.Over
		for _, s := range one.Sessions {
			meter, err := rules.ParseMeter(s.Meter)
			if err != nil {
				return nil, err
			}
			t.sessions[s.Launch] = &metered{limits: s.Limits, meter: meter, idle: fromMillis(s.Idle)}
		}
	}
	return ts, nil
}

func (e *meterEvent) stored() storedEvent {
	return storedEvent{
		What: string(rune(e.what)), Subject: e.subject, Server: e.server, Launch: e.launch, Tool: e.tool, At: e.at.UnixMilli(),
		Micros: e.micros, End: int(e.end), KilledBy: e.killedBy, Grant: e.grant,
	}
}

func (s storedEvent) event() (*meterEvent, error) {
	if len(s.What) != 1 || s.End < 0 || s.End > int(rules.EndCancelled) {
		return nil, errors.New("an event is none that is written")
	}
	return &meterEvent{
		what: meterWhat(s.What[0]), subject: s.Subject, server: s.Server, launch: s.Launch, tool: s.Tool, at: fromMillis(s.At),
		micros: s.Micros, end: rules.End(s.End), killedBy: s.KilledBy, grant: s.Grant,
	}, nil
}

// Words of the log for how a forwarded call ended.
var endWords = map[rules.End]string{
	rules.EndOK: "OK", rules.EndToolError: "TOOL_ERROR", rules.EndError: "ERROR", rules.EndTransport: "TRANSPORT", rules.EndCancelled: "CANCELLED",
}

// policyWords are the causes of what a policy decided, by its name.
var policyWords = map[string]string{
	rules.DeniedToolsPolicy: "DENIED_TOOLS_POLICY", rules.AllowedToolsPolicy: "ALLOWED_TOOLS_POLICY",
	rules.GranularAccessPolicy: "GRANULAR_ACCESS_POLICY", rules.MaxToolCallsPolicy: "MAX_TOOL_CALLS_POLICY",
	rules.MaxRuntimePolicy: "MAX_RUNTIME_POLICY", rules.RateLimitPolicy: "RATE_LIMIT_POLICY",
	rules.CircuitBreakerPolicy: "CIRCUIT_BREAKER_POLICY", rules.BudgetPolicy: "BUDGET_POLICY", rules.ApprovalPolicy: "APPROVAL_POLICY",
	methodPolicy: "METHOD_POLICY",
}

// What stands before the policy's word in a cause.
const (
	killWord    = "KILL_"     // the rule killed the session
	stopWord    = "STOP_"     // the rule stopped the hosted server for the subject
	observeWord = "OBSERVED_" // the rule would have stood against it, but only logs for a while
	warnWord    = "WARNED_"   // the rule noted it
)

// policyNamed is the name of the policy whose word a cause ends with; empty: none.
func policyNamed(word string) string {
	for name, known := range policyWords {
		if known == word {
			return name
		}
	}
	return ""
}

// meterEventOf is what an entry of the log changes of what was counted; nil:
// nothing.
func meterEventOf(e audit.Entry) *meterEvent {
	event := &meterEvent{seq: e.Seq, subject: e.SubjectID, server: e.Server, launch: e.LaunchID, tool: e.Tool, at: e.Timestamp}
	switch e.Kind {
	case kindRunRelay:
		if e.Decision != decisionAllow {
			return nil
		}
		event.what = meterOpen
	case audit.Call:
		kill, killed := strings.CutPrefix(e.Cause, killWord)
		stop, stopped := strings.CutPrefix(e.Cause, stopWord)
		switch {
		case e.Tool == "": // judged by the list of methods alone
			return nil
		case e.Decision == decisionAllow:
			event.what, event.micros, event.grant = meterTake, e.Count, e.GrantID
			if e.Policy == "" {
				event.what = meterUse
			}
		case e.Decision == decisionDeny && killed:
			event.what, event.killedBy = meterKill, policyNamed(kill)
		case e.Decision == decisionDeny && stopped:
			event.what, event.killedBy = meterStop, policyNamed(stop)
		default:
			return nil
		}
	case kindCallDone:
		event.what = meterDone
		for end, word := range endWords {
			if word == e.Cause {
				event.end = end
			}
		}
	case kindServerKill:
		event.what, event.killedBy = meterStop, e.Policy
	case kindPolicyReset:
		event.what = meterReset
	case kindPolicyRemove:
		event.what = meterRemove
	case audit.OpIntent:
		if e.Action != string(kindPolicySet) {
			return nil
		}
		event.what = meterSet // it may be in force from here on
	case kindServerRestart, kindServerRemove, kindServerAdd:
		event.what = meterRevive
	case kindSubjectRemove, kindSubjectAdd:
		event.what = meterLeave
	default:
		return nil
	}
	return event
}

// recount makes the meters from what the vault remembers and from what the log
// tells since, and counts the uses of limited grants by calls in there. The caller
// is the only one who has the state.
//
// The log does not tell under which limits a call was counted, so one counts under those
// that are in force now: those from before a change of limits, as far as they came after
// the last checkpoint, count in the session that began with the change. They are too many
// then, and never too few.
func (s *state) recount(raw []byte, tail []*meterEvent) error {
	row, err := decodeMeters(raw)
	if err != nil {
		return fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
	}
	m := newMeters()
	if m.settled, err = row.tallies(); err != nil {
		return fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
	}
	if m.live, err = row.tallies(); err != nil {
		return err
	}
	m.steps = clockSteps{time.Duration(row.Shift) * time.Millisecond, row.Boot, time.Duration(row.Drift) * time.Millisecond}
	var events []*meterEvent
	for _, stored := range row.Events {
		e, err := stored.event()
		if err != nil {
			return fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
		}
		events = append(events, e)
	}
	for _, e := range append(events, tail...) {
		e.at = e.at.Add(-m.steps.shift)
		if g, ok := s.set.Grant(e.grant); ok && g.Uses > 0 {
			s.uses[e.grant]++
		}
		m.live.apply(e, s.policyLocked)
		m.settled.apply(e, s.policyLocked)
	}
	for _, ts := range []tallies{m.live, m.settled} { // nothing is open any more
		for _, t := range ts {
			for _, session := range t.sessions {
				session.relays = 0
			}
		}
	}
	s.meters = m
	return nil
}

// wipeGrants forgets in a tail to which grant calls were charged that was granted
// anew since.
func wipeGrants(tail []*meterEvent, grant string) {
	for _, e := range tail {
		if e.grant == grant {
			e.grant = ""
		}
	}
}

// keepEvents appends what a log tells to stored meters, for a reader who does not
// know the policies.
func keepEvents(raw []byte, tail []*meterEvent) ([]byte, error) {
	row, err := decodeMeters(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: what was counted of calls: %v", vault.ErrIntegrity, err)
	}
	row.V = 1
	for _, e := range tail {
		row.Events = append(row.Events, e.stored())
	}
	return row.encode(), nil
}

// methodPolicy is the name under which the list of methods decides.
const methodPolicy = "MethodPolicy"

// errLooked ends a look at the counters that needs no entry.
var errLooked = errors.New("the counters were looked at")

// countMarks completes marks with what was counted. The uses of a grant that calls
// are charged to stand in no entry, so theirs are exact as of the checkpoint, like
// the meters: what is later is counted from the log. Those that an acquire is
// charged to may be ahead of it, for its entry has its number.
func (d *Daemon) countMarks(log *audit.Log, marks *vault.Marks) {
	st := d.state()
	policies, launches, servers := st.policyFinder(), st.launchFinder(), st.serverFinder()
	var last uint64 // the newest entry that has its place
	look := func() {
		st.mu.RLock()
		defer st.mu.RUnlock()
		marks.Uses = maps.Clone(st.uses)
	}
	_, err := log.Append(func(seq uint64, _ time.Time) (audit.Entry, error) {
		last = seq - 1
		look()
		return audit.Entry{}, errLooked
	})
	if !errors.Is(err, errLooked) { // it cannot be written now, and nothing gets a place
		last = math.MaxUint64
		look()
	}
	for id, n := range st.meters.settle(marks.Checkpoint.Seq, last) {
		marks.Uses[id] -= min(n, marks.Uses[id])
	}
	st.meters.forget(policies, launches, servers)
	marks.Meters = st.meters.encode(d.clock.now())
}

// launchFinder says of launches whether they have a row now, without a lock.
func (s *state) launchFinder() func(launch string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := map[string]bool{}
	for id := range s.launches {
		known[id] = true
	}
	return func(launch string) bool { return known[launch] }
}

// serverFinder says whether a server is run for a subject, without a lock.
func (s *state) serverFinder() func(subject, server string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	subjects, servers := map[string]bool{}, map[string]bool{}
	for _, one := range s.set.Subjects() {
		subjects[one.Name] = true
	}
	for name, one := range s.servers {
		servers[name] = one.Hosted
	}
	return func(subject, server string) bool { return subjects[subject] && servers[server] }
}

// policyFinder finds policies as they are now, without a lock.
func (s *state) policyFinder() findPolicy {
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := maps.Clone(s.policies)
	return func(subject, server string) *rules.Compiled { return known[policyKey{subject, server}] }
}
