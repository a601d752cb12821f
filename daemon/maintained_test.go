package daemon

import (
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

// What the process of a server says counts as long as that server is there: one that
// a removed or changed one of its name has left speaks for nobody.
func TestProcessesOfRemovedServersSayNothing(t *testing.T) {
	k := newDesk(t, t.TempDir())
	st := k.state()
	was := grants.Server{Name: "later", Hosted: true, Command: []string{"one"}, Created: k.clock.now()}
	again := was
	again.Created = was.Created.Add(time.Second)
	other := was
	other.Command = []string{"two"}
	o := &offer{tools: map[string][]byte{"echo": []byte(`{"name":"echo"}`)}}
	for name, tc := range map[string]struct {
		now  []grants.Server
		want bool
	}{
		"it is there":    {[]grants.Server{was}, true},
		"removed":        {nil, false},
		"added again":    {[]grants.Server{again}, false},
		"run otherwise":  {[]grants.Server{other}, false},
		"of no document": {[]grants.Server{func() grants.Server { s := was; s.Owner = "a"; return s }()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			st.mu.Lock()
			delete(st.servers, "later")
			for _, s := range tc.now {
				st.servers["later"] = s
			}
			st.mu.Unlock()
			k.offers.forget("later")
			told := k.offered("worker", "later", o, &was)
			if seen := k.offers.of("later") != nil; seen != tc.want || told != tc.want {
				t.Errorf("believed %v, told %v, want %v", seen, told, tc.want)
			}
		})
	}
	if k.offers.forget("agents"); !k.offered("worker", "agents", o, nil) {
		t.Error("nothing is known of what an agent wraps")
	}
}

// The uses of an answer go with it, also where the log alone tells of both.
func TestUsesGoWithTheAnswer(t *testing.T) {
	for _, kind := range []audit.Kind{kindApprovalVoid, kindApprovalExpire} {
		r := reconciliation{uses: map[string]uint64{"earlier": 1}}
		for _, id := range []string{"one", "two"} {
			r.follow(audit.Entry{Kind: kindApprovalRun, ApprovalID: id, Count: 3})
		}
		r.follow(audit.Entry{Kind: kind, ApprovalID: "one"})
		r.follow(audit.Entry{Kind: kind, ApprovalID: "earlier"})
		if len(r.uses) != 1 || r.uses["two"] != 3 {
			t.Errorf("after %s: %v", kind, r.uses)
		}
	}
}

// Whoever judges by a policy that was replaced meanwhile takes nothing of what is
// counted under the new one.
func TestJudgingByAnOlderPolicy(t *testing.T) {
	m := newMeters()
	older := meterPolicy(t)
	changed := *older.Policy()
	most := uint64(2)
	changed.Rules.Limits.MaxToolCalls = &most
	newer, err := rules.Compile(changed, nil)
	if err != nil {
		t.Fatal(err)
	}
	if older.LimitsVersion() == newer.LimitsVersion() {
		t.Fatal("the limits are the same")
	}
	who := meterEvent{subject: "s", server: "srv", seq: 1, at: time.Now()}
	call := rules.Call{Tool: "read", Now: who.at}
	lets := func(v rules.Verdict) bool { return v.Outcome == rules.Forwarded }
	for i, want := range []rules.Outcome{rules.Forwarded, rules.Forwarded, rules.Blocked} {
		m.judge(who, older, call)
		if v, _ := m.take(who, newer, call, lets); v.Outcome != want {
			t.Errorf("call %d: %v by %s, want %v", i, v.Outcome, v.Policy, want)
		}
	}
}
