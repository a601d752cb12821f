package daemon

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

// meterPolicy limits everything that can be limited.
func meterPolicy(t testing.TB) *rules.Compiled {
	t.Helper()
	most := uint64(1000)
	policy, err := rules.Compile(rules.Policy{
		Subject: "s", Server: "srv", Audit: rules.Strict, ApprovalWait: time.Second,
		Rules: rules.Rules{OnViolation: rules.Block, Limits: rules.Limits{
			MaxToolCalls: &most, Rate: &rules.Rate{Calls: 1000, Window: time.Minute},
			Budget:  &rules.Budget{Max: 1_000_000_000, Currency: "USD", PerCall: 10_000},
			Breaker: &rules.Breaker{Failures: 2, Reset: time.Minute, Counts: rules.CountTransport},
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// Whenever the vault is written and whenever the daemon dies: from what the vault
// remembers and from the log after it comes what was counted.
func TestWhatWasCountedComesBack(t *testing.T) {
	policy := meterPolicy(t)
	rapid.Check(t, func(t *rapid.T) {
		m := newMeters()
		inForce := policy // in force; nil: none is
		find := func(string, string) *rules.Compiled { return inForce }
		open := func(string) bool { return true }
		var log []audit.Entry
		uses := map[string]uint64{}
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		entry := func(e audit.Entry) (uint64, time.Time) {
			now = now.Add(time.Duration(rapid.IntRange(0, 90_000).Draw(t, "ms")) * time.Millisecond)
			e.Seq, e.Timestamp, e.SubjectID, e.Server = uint64(len(log))+1, now, "s", "srv"
			log = append(log, e)
			return e.Seq, now
		}
		var at uint64
		var row []byte
		var marked map[string]uint64
		var owed []audit.Entry // what the operator did, and is about to be in force
		heard := func() {
			m.heard(owed)
			for _, e := range owed {
				if e.Kind == kindPolicyRemove {
					inForce = nil
				}
			}
			owed = nil
		}

		for _, launch := range []string{"", "launch"} { // calls come on relays
			event := meterEvent{what: meterOpen, subject: "s", server: "srv", launch: launch, policy: policy}
			event.seq, event.at = entry(audit.Entry{Kind: kindRunRelay, LaunchID: launch})
			m.note(event)
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			launch := rapid.SampledFrom([]string{"", "launch"}).Draw(t, "launch")
			tool := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tool")
			event := meterEvent{subject: "s", server: "srv", launch: launch, tool: tool, policy: policy}
			event.policy = inForce
			version := ""
			if inForce != nil {
				version = inForce.Version()
			}
			if rapid.IntRange(0, 2).Draw(t, "heard") == 0 {
				heard()
			}
			switch rapid.IntRange(0, 10).Draw(t, "step") {
			case 0:
				event.what = meterOpen
				event.seq, event.at = entry(audit.Entry{Kind: kindRunRelay, LaunchID: launch})
				m.note(event)
			case 1, 2, 3:
				fails := rapid.IntRange(0, 3).Draw(t, "fails") == 0
				if fails { // of a tool whose breaker never remembers when it was asked for
					tool, event.tool = "c", "c"
				}
				event.seq, event.at = entry(audit.Entry{Kind: audit.Call, LaunchID: launch, Tool: tool, Decision: decisionAllow, Policy: version})
				_, took := m.take(event, inForce, rules.Call{Tool: tool, Now: event.at}, func(rules.Verdict) bool { return true })
				log[event.seq-1].Count = took.event.micros
				if fails { // the log did not take it
					log = log[:len(log)-1]
					m.giveBack(took)
				} else if launch == "" {
					log[event.seq-1].GrantID = "g"
					m.charged(took, "g")
					uses["g"]++
				}
			case 4:
				event.what, event.end = meterDone, rapid.SampledFrom([]rules.End{rules.EndOK, rules.EndTransport, rules.EndCancelled}).Draw(t, "end")
				event.seq, event.at = entry(audit.Entry{Kind: kindCallDone, LaunchID: launch, Tool: tool, Cause: endWords[event.end]})
				m.note(event)
			case 5:
				event.what, event.killedBy = meterKill, rules.BudgetPolicy
				event.seq, event.at = entry(audit.Entry{
					Kind: audit.Call, LaunchID: launch, Tool: tool, Decision: decisionDeny, Cause: killWord + policyWords[rules.BudgetPolicy],
				})
				m.note(event)
			case 6:
				entry(audit.Entry{Kind: kindPolicyReset})
				owed = append(owed, log[len(log)-1])
			case 7:
				entry(audit.Entry{Kind: kindServerRestart})
				owed = append(owed, log[len(log)-1])
			case 9:
				if heard(); inForce != nil {
					entry(audit.Entry{Kind: kindPolicyRemove})
					owed = append(owed, log[len(log)-1])
				}
			case 10:
				heard()
				entry(audit.Entry{Kind: audit.OpIntent, Action: string(kindPolicySet)})
				m.note(*meterEventOf(log[len(log)-1]))
				inForce = policy
			case 8: // the vault is written, as of an entry that is durable
				heard()
				at = rapid.Uint64Range(at, uint64(len(log))).Draw(t, "durable")
				marked = map[string]uint64{"g": uses["g"]}
				for id, n := range m.settle(at, uint64(len(log))) {
					marked[id] -= n
				}
				m.forget(find, open, func(string, string) bool { return true })
				row = m.encode(now)
			}
		}
		heard()

		again := newState()
		if inForce != nil {
			again.policies[policyKey{"s", "srv"}] = inForce
		}
		again.mustPutSubject(grants.Subject{Name: "s"})
		again.mustPutGrant(grants.Grant{ID: "g", Subject: "s", Pattern: grants.Pattern{Action: grants.Call, Prefix: true}, Effect: grants.Allow, Uses: 1000})
		again.uses["g"] = marked["g"]
		var tail []*meterEvent
		for _, e := range log[at:] {
			if event := meterEventOf(e); event != nil {
				tail = append(tail, event)
			}
		}
		if rapid.Bool().Draw(t, "recovered") { // by somebody who does not know the policies
			kept, err := keepEvents(row, tail)
			if err != nil {
				t.Fatal(err)
			}
			row, tail = kept, nil
		}
		if err := again.recount(row, tail); err != nil {
			t.Fatal(err)
		}
		if again.uses["g"] != uses["g"] {
			t.Errorf("the grant was used %d times, and comes back with %d", uses["g"], again.uses["g"])
		}
		m.forget(find, open, func(string, string) bool { return true })
		again.meters.forget(find, open, func(string, string) bool { return true })
		got, want := spoken(again.meters.live), spoken(m.live)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("what was counted (-before +after):\n%s", diff)
		}
		again.meters.settle(uint64(len(log)), uint64(len(log)))
		m.settle(uint64(len(log)), uint64(len(log)))
		m.forget(find, open, func(string, string) bool { return true })
		if diff := cmp.Diff(want, spoken(m.settled)); diff != "" {
			t.Errorf("the copy for the vault of the one who counted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, spoken(again.meters.settled)); diff != "" {
			t.Errorf("the copy for the vault (-before +after):\n%s", diff)
		}
	})
}

// spoken is what was counted, in a form to compare.
func spoken(ts tallies) []string {
	var all []string
	for k, t := range ts {
		if t.spent > 0 || t.killedBy != "" {
			all = append(all, fmt.Sprintf("%s spent %d killed %q", k.row(), t.spent, t.killedBy))
		}
		for launch, s := range t.sessions {
			if s.meter == nil {
				continue
			}
			meter := *s.meter
			meter.Spent = 0 // it is lent
			if bytes.Equal(meter.Append(nil), (&rules.Meter{}).Append(nil)) {
				continue
			}
			all = append(all, fmt.Sprintf("%s %q %s %x", k.row(), launch, s.limits, meter.Append(nil)))
		}
	}
	slices.Sort(all)
	return all
}

// A session outside of any launch ends when no relay was open for a while, and what
// was spent stays.
func TestSessionsWithoutALaunchEnd(t *testing.T) {
	policy := meterPolicy(t)
	m := newMeters()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	seq := uint64(0)
	note := func(what meterWhat, launch string) {
		seq++
		m.note(meterEvent{what: what, seq: seq, subject: "s", server: "srv", launch: launch, at: now, policy: policy})
	}
	call := func(launch string) {
		seq++
		m.take(meterEvent{seq: seq, subject: "s", server: "srv", launch: launch, tool: "a", at: now}, policy, rules.Call{Tool: "a", Now: now},
			func(v rules.Verdict) bool { return v.Outcome == rules.Forwarded })
	}
	look := func(when string, outside, inside, spent uint64) {
		t.Helper()
		for _, one := range m.of("s", "srv") {
			want := outside
			if one.GetLaunchId() != "" {
				want = inside
			}
			if one.GetCalls() != want || one.GetSpentMicros() != spent {
				t.Errorf("%s: %v, want %d calls and %d", when, one, want, spent)
			}
		}
	}
	note(meterOpen, "")
	note(meterOpen, "l")
	call("")
	call("l")
	now = now.Add(2 * meterIdle)
	call("")
	look("while a relay is open", 2, 1, 30_000)
	note(meterClose, "")
	note(meterClose, "l")
	now = now.Add(meterIdle - time.Second)
	note(meterOpen, "")
	note(meterOpen, "l")
	look("just before it ends", 2, 1, 30_000)
	note(meterClose, "")
	note(meterClose, "l")
	now = now.Add(meterIdle)
	note(meterOpen, "")
	note(meterOpen, "l")
	call("")
	look("after it ended", 1, 1, 40_000)
}

func TestLatencyBuckets(t *testing.T) {
	for _, took := range []time.Duration{0, time.Microsecond, 2, 3 * time.Microsecond, 4 * time.Microsecond, 100 * time.Microsecond, 999 * time.Millisecond, time.Hour} {
		bucket := bucketOf(took)
		us := uint64(took.Microseconds())
		if boundOf(bucket) < us || bucket > 0 && boundOf(bucket-1) >= us {
			t.Errorf("%s is in bucket %d, from %d to %d µs", took, bucket, boundOf(max(bucket, 1)-1)+1, boundOf(bucket))
		}
	}
	var l latencies
	for range 99 {
		l.add(time.Millisecond)
	}
	l.add(time.Second)
	if p50, p99 := l.quantile(0.5), l.quantile(0.99); p50 < 1000 || p50 > 1535 || p99 < 1_000_000 {
		t.Errorf("p50 %d, p99 %d", p50, p99)
	}
}

// The stored form is one that a later build must read.
func TestStoredMeters(t *testing.T) {
	const stored = `{"v":1,"tallies":[{"subject":"s","server":"srv","spent":20000,"killedBy":"BudgetPolicy","sessions":[` +
		`{"limits":"73dc4687d6b38281","idle":1772366400000,"meter":"AQKgnAGAoKmRk2cAAAA="},{"launch":"l","limits":"","idle":1772366400001,"meter":"AQAAAAAAAA=="}]}],` +
		`"events":[{"what":"t","subject":"s","server":"srv","launch":"l","tool":"a","at":1772366400002,"micros":10000,"grant":"g"},` +
		`{"what":"d","subject":"s","server":"srv","tool":"a","at":1772366400003,"end":4}]}`
	row, err := decodeMeters([]byte(stored))
	if err != nil {
		t.Fatal(err)
	}
	ts, err := row.tallies()
	if err != nil {
		t.Fatal(err)
	}
	one := ts[policyKey{"s", "srv"}]
	if one.spent != 20_000 || one.killedBy != rules.BudgetPolicy || len(one.sessions) != 2 || one.sessions[""].meter.Calls != 2 {
		t.Errorf("what was read: %+v", one)
	}
	var events []*meterEvent
	for _, e := range row.Events {
		event, err := e.event()
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	row.Events = nil
	again, err := keepEvents(row.encode(), events)
	if err != nil || string(again) != stored {
		t.Errorf("%v\n%s, want\n%s", err, again, stored)
	}
	for name, bad := range map[string]string{
		"another version": `{"v":2}`, "an unknown field": `{"v":1,"more":1}`, "blanks": `{"v": 1}`, "no JSON": `x`,
	} {
		if _, err := decodeMeters([]byte(bad)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	for name, bad := range map[string]string{
		"no meter": `{"v":1,"tallies":[{"subject":"s","server":"srv","sessions":[{"limits":"","idle":0,"meter":"AA=="}]}]}`,
		"no event": `{"v":1,"events":[{"what":"open","at":0}]}`,
	} {
		if err := newState().recount([]byte(bad), nil); err == nil {
			t.Errorf("%s is counted", name)
		}
	}
}

// What the vault remembers of calls does not grow with what there was: launches that
// ended, policies, subjects and servers that were removed leave nothing.
func TestMetersAreBounded(t *testing.T) {
	m, policy := newMeters(), meterPolicy(t)
	policies, launches, servers := map[string]bool{}, map[string]bool{}, map[string]bool{}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	seq := uint64(0)
	settle := func() []byte {
		m.settle(seq, seq)
		m.forget(func(subject, server string) *rules.Compiled {
			if policies[subject+"/"+server] {
				return policy
			}
			return nil
		}, func(launch string) bool { return launches[launch] }, func(_, server string) bool { return servers[server] })
		return m.encode(now)
	}
	most := 0
	for n := range 300 {
		subject, server, launch := fmt.Sprint("s", n%7), fmt.Sprint("srv", n%5), fmt.Sprint("l", n)
		key := subject + "/" + server
		policies[key], launches[launch], servers[server] = true, true, true
		for _, launch := range []string{"", launch} {
			for _, what := range []meterWhat{meterOpen, meterDone, meterStop, meterClose} {
				seq++
				m.note(meterEvent{what: what, seq: seq, subject: subject, server: server, launch: launch, tool: "a", at: now, end: rules.EndTransport, killedBy: rules.BudgetPolicy, policy: policy})
			}
		}
		size := len(settle())
		if size == 0 {
			t.Fatal("nothing is remembered: this shows nothing")
		}
		most = max(most, size)
		delete(launches, launch)
		delete(policies, key)
		delete(servers, server)
		// A kill whose entry comes after the end of all that it is about.
		seq++
		m.note(meterEvent{what: meterStop, seq: seq, subject: subject, server: server, at: now, killedBy: rules.BudgetPolicy})
		if row := settle(); len(row) > 0 {
			t.Fatalf("after %d: %s", n, row)
		}
	}
	if len(m.live)+len(m.settled)+len(m.since) > 0 || most > 4096 {
		t.Errorf("%d and %d are counted, %d wait, %d bytes at most", len(m.live), len(m.settled), len(m.since), most)
	}
}
