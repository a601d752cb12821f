package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Where the log is gone that counted calls, nobody knows what they have used up: all
// of it, until the operator begins anew. Answers of a person are void. A log that is
// still there takes nothing.
func TestRecoverCountsCallsAsUsedUp(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]bool{"without the log": true, "with it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := daemontest.NewHome(t)
			d := daemontest.StartWith(t, daemontest.Options{Home: home, Spoiled: true})
			run := worker(t, d)
			d.Grant("worker", "call:other/*")
			applyRules(t, d, `version: 1
policies:
- {subject: worker, server: srv, rules: {limits: {budget: {max_cost: 1}}}}
- {subject: worker, server: other, rules: {limits: {max_tool_calls: 9}}}
`)
			equal(t, "before", said(relayOf(t, run, "srv").call("ok", `{}`)), "forward")
			d.Stop()
			budget, calls := "forward", "forward"
			if gone {
				remove(t, place.AuditDir(home))
				recovered(t, home, "count as used up", "worker around srv", "worker around other", "sbctl policy reset")
				budget, calls = "-32000 POLICY_BLOCKED BudgetPolicy block", "-32000 POLICY_BLOCKED MaxToolCallsPolicy block"
			}
			d.Start()
			equal(t, "what has a budget", said(relayOf(t, d.Open("worker"), "srv").call("ok", `{}`)), budget)
			equal(t, "what has a number of calls", said(relayOf(t, d.Open("worker"), "other").call("ok", `{}`)), calls)
			d.Restart()
			equal(t, "after another start", said(relayOf(t, d.Open("worker"), "srv").call("ok", `{}`)), budget)
			for _, server := range []string{"srv", "other"} {
				_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: server})
				must(t, err)
				equal(t, "begun anew, "+server, said(relayOf(t, d.Open("worker"), server).call("ok", `{}`)), "forward")
			}
		})
	}
}
