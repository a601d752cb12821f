package daemon_test

import (
	"fmt"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Calls that are sent without waiting for any verdict take what a limit leaves in the
// order in which they were sent.
func TestCallsTakeTheirPlacesInOrder(t *testing.T) {
	const calls, limit, rounds = 200, 199, 8 // few denials: those are rationed
	for _, way := range []string{"strict", "grouped"} {
		t.Run(way, func(t *testing.T) {
			d := daemontest.Start(t)
			run := worker(t, d)
			applyRules(t, d, policyDoc("audit: "+way+", ", fmt.Sprintf(`{limits: {rate_limit: {calls_per_window: %d, window_seconds: 3600}}}`, limit)))
			r := relayOf(t, run, "srv")
			for round := range rounds {
				if round > 0 {
					_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv"})
					must(t, err)
				}
				var ids []uint64
				for i := range calls {
					ids = append(ids, r.ask("ok", fmt.Sprintf(`{"i":%d}`, i)))
				}
				for i, id := range ids {
					want := "forward"
					if i >= limit {
						want = "-32000 POLICY_BLOCKED RateLimitPolicy block"
					}
					v := r.verdict(id)
					if said(v) != want {
						t.Fatalf("round %d, call %d: %s, want %s", round, i, said(v), want)
					}
					if v.GetForward() {
						r.end(id, 1)
					}
				}
			}
			var last string
			for _, e := range d.Entries("call") { // and in the log too
				if e.Decision == "deny" && last != "allow" {
					t.Fatalf("entry %d was refused after %q", e.Seq, last)
				}
				last = e.Decision
			}
		})
	}
}

// A call that waits for a person holds up none of those that were sent after it.
func TestAGatedCallHoldsUpNobody(t *testing.T) {
	_, _, r := startAsking(t, policyDoc("approvalWait: 5m, ", `{security: {require_approval: [ask]}, limits: {max_tool_calls: 20}}`))
	waiting := map[uint64]bool{}
	var others []uint64
	for i := range 21 {
		if i%7 == 3 {
			waiting[r.ask("ask", fmt.Sprintf(`{"i":%d}`, i))] = true
			continue
		}
		others = append(others, r.ask("ok", "{}"))
	}
	for _, id := range others {
		equal(t, "another call", said(r.judged(id)), "forward")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range waiting {
		if r.verdicts[id] != nil {
			t.Errorf("call %d did not wait: %s", id, said(r.verdicts[id]))
		}
	}
}

// A call that ends the session stops those that were sent after it, and none before.
func TestAKillStopsWhatComesAfterIt(t *testing.T) {
	const calls, bad = 60, 40
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("audit: grouped, ", `{security: {granular_rules: [{tool: ok, deny_if: {arguments: {a: bad}}, action: kill}]}}`))
	r := relayOf(t, run, "srv")
	for i := range calls {
		if i == bad {
			r.ask("ok", `{"a":"bad"}`)
			continue
		}
		r.ask("ok", `{"a":"good"}`)
	}
	equal(t, "the end", r.over(), wire.Allowed)
	allowed, killed := 0, false
	for _, e := range d.Entries("call") {
		switch {
		case e.Decision != "allow":
			killed = true
		case killed:
			t.Errorf("entry %d allows a call after the kill", e.Seq)
		default:
			allowed++
		}
	}
	equal(t, "allowed before it", allowed, bad)
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, v := range r.verdicts {
		if v.GetForward() && id > bad {
			t.Errorf("call %d was allowed", id)
		}
	}
}
