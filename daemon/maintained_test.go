package daemon

import (
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
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
		r.follow(audit.Entry{Kind: kind, ApprovalID: "one", Generation: 7})
		r.follow(audit.Entry{Kind: kind, ApprovalID: "earlier", Generation: 7})
		r.follow(audit.Entry{Kind: kind, ApprovalID: "two"}) // a request of that id
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

// That a person was asked too often is not held against a later subject of the name.
func TestLaterSubjectIsAskedFor(t *testing.T) {
	k := newDesk(t, t.TempDir())
	for range quietAfter {
		k.deny(k.pending(`{}`))
	}
	k.run = k.open("worker")
	if answer := k.gate(k.ask(`{}`)); answer.cause != causeQuiet {
		t.Fatalf("after %d refusals it is %d %s", quietAfter, answer.outcome, answer.cause)
	}
	st := k.state()
	st.mu.Lock()
	worker, _ := st.set.Subject("worker")
	worker.Created = worker.Created.Add(time.Second)
	st.mustPutSubject(worker)
	st.mu.Unlock()
	k.run = k.open("worker")
	k.pending(`{}`)
}

// A request whose answer stands ends without a word: what the log says of its id is
// about the answer.
func TestEndOfARequestIsNotThatOfItsAnswer(t *testing.T) {
	for name, end := range map[string]func(k *desk){
		"in time": func(k *desk) { k.offset.Store(int64(approvalLife)); k.sweep() },
		"the run's": func(k *desk) {
			k.must(nil, k.endRuns(wire.RunEnded, "TEST", func(*run) bool { return true }))
			k.sweep()
		},
		"a stop's": func(k *desk) { k.voidCards(causeStopped) },
	} {
		t.Run(name, func(t *testing.T) {
			k := newDesk(t, t.TempDir())
			stands, once := k.pending(`{}`), k.pending(`{"n":1}`)
			k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: stands, Approve: true, Scope: scopeUses, Uses: 5})
			k.approve(once)
			end(k)
			ends := map[string]int{}
			for _, e := range k.entries(kindApprovalVoid, kindApprovalExpire) {
				ends[e.ApprovalID]++
			}
			if ends[stands] != 0 || ends[once] != 1 {
				t.Errorf("%d ends of the one whose answer stands, %d of the one for once", ends[stands], ends[once])
			}
		})
	}
}
