package daemon_test

import (
	"sync"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// metersOf is what the one policy has counted in its one session.
func metersOf(t *testing.T, d *daemontest.Daemon) *operatorv1.PolicyMeter {
	t.Helper()
	all := policyOf(t, d).GetMeters()
	if len(all) > 1 {
		t.Fatalf("what was counted: %v", all)
	}
	if len(all) == 0 {
		return &operatorv1.PolicyMeter{}
	}
	return all[0]
}

// How long a session may last counts from its first forwarded call, once, and goes
// on over a restart.
func TestRuntimeBeginsWithTheFirstCall(t *testing.T) {
	clock := newClocks()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now, Boot: clock.Boot})
	run := worker(t, d)
	applyRules(t, d, policyDoc("", `{global: {on_violation: kill}, limits: {max_runtime_seconds: 3600}, security: {denied_tools: [evil], granular_rules: [{tool: evil2, deny_if: {arguments: {a: x}}, action: block}]}}`))
	r := relayOf(t, run, "srv")
	clock.pass(2 * time.Hour)
	equal(t, "refused", said(r.call("evil2", `{"a":"x"}`)), "-32000 POLICY_BLOCKED GranularAccessPolicy block")
	equal(t, "before the first", metersOf(t, d).GetBegan(), 0)
	equal(t, "the first", said(r.call("ok", "{}")), "forward")
	began := clock.Now().UnixMilli()
	equal(t, "the beginning", metersOf(t, d).GetBegan(), began)
	clock.pass(time.Hour - time.Second)
	equal(t, "the second", said(r.call("ok", "{}")), "forward")
	d.Restart()
	equal(t, "the beginning after a restart", metersOf(t, d).GetBegan(), began)
	r = relayOf(t, d.Open("worker"), "srv")
	equal(t, "the third", said(r.call("ok", "{}")), "forward")
	clock.pass(time.Second)
	r = relayOf(t, d.Open("worker"), "srv")
	equal(t, "the end", r.over(), wire.Allowed)
	equal(t, "the policy", r.kill.GetPolicy(), "MaxRuntimePolicy")
}

// Nothing of a wrapped server is called any more when a hosted one gets its name: that
// would go on under rules that are not about what it runs. Each call is one denial like
// any other, whether its stream was open before or not.
func TestAWrappedServerUnderTheNameOfAHostedOne(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := worker(t, d)
	r, other := relayOf(t, run, "srv"), relayOf(t, run, "wrapped")
	equal(t, "before", said(r.call("ok", "{}")), "forward")
	add := func(name string) {
		t.Helper()
		_, err := d.Operator().AddServer(t.Context(), &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: name, Command: []string{"true"}}})
		must(t, err)
	}
	add("another")
	equal(t, "while another is added", said(r.call("ok", "{}")), "forward")
	add("srv")
	later := relayOf(t, run, "srv")
	equal(t, "what is not listed is withheld", later.opened.GetTrusted(), true)
	d.AddSubject("stranger")
	stranger := d.Open("stranger")
	for _, tc := range []struct {
		name, method, want, told string
		on                       *relay
	}{
		{"on the stream from before", "tools/call", "0 ACCESS_DENIED", "access denied. " + askThem, r},
		{"on a new one", "tools/call", "0 ACCESS_DENIED", "access denied. " + askThem, later},
		{"another method", "tasks/list", "-32000 ACCESS_DENIED", "access denied. " + askThem, later},
		{"of who was not granted anything", "tools/call", "0 ACCESS_DENIED", "access denied. " + askThem, relayOf(t, stranger, "srv")},
	} {
		clock.step(time.Minute)
		seq := d.Seq()
		v := tc.on.verdict(tc.on.askMethod(tc.method, "ok", "{}"))
		equal(t, tc.name, said(v), tc.want)
		equal(t, tc.name+", what is told", v.GetMessage(), tc.told)
		denied := d.Await(seq, func(e verify.Entry) bool { return e.Decision == "deny" })
		equal(t, tc.name+", the entry", denied.Kind+" "+denied.Server+" "+denied.Cause, "call srv SERVER_HOSTED")
		equal(t, tc.name+", entries", d.Seq(), denied.Seq)
	}
	later.until("that nothing is listed", func() bool { return len(later.tools) == 1 && len(later.tools[0]) == 0 })
	d.Grant("worker", "call:wrapped/ok")
	equal(t, "one of another name", said(other.call("ok", "{}")), "forward")
}

// askThem is the one next step.
const askThem = "Ask the person who runs this agent."

// What the operator sets to nothing is exact although calls go on: what comes after
// its entry counts, what was before does not, for those who judge as for those who
// read the log again.
func TestResetIsExactAmongCalls(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	run := worker(t, d)
	applyRules(t, d, policyDoc("audit: grouped, ", `{limits: {max_tool_calls: 1000000, budget: {max_cost: 1000000, cost_per_call: 0.000001}}}`))
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 4 {
		r := relayOf(t, run, "srv")
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					r.call("ok", "{}")
				}
			}
		})
	}
	look := func(when string) {
		t.Helper()
		from, want := uint64(0), uint64(0)
		for _, e := range d.Entries("policy.reset", "policy.remove", "call") {
			switch {
			case e.Kind != "call":
				from, want = e.Seq, 0
			case e.Decision == "allow":
				want++
			}
		}
		if got := metersOf(t, d); got.GetCalls() != want || got.GetSpentMicros() != want {
			t.Errorf("%s: %d calls are counted, %d micros spent; the log has %d after entry %d", when, got.GetCalls(), got.GetSpentMicros(), want, from)
		}
	}
	for range 20 {
		_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv"})
		must(t, err)
	}
	close(stop)
	callers.Wait()
	d.AddSubject("barrier") // what is grouped before it is durable
	look("while it runs")
	d.Kill()
	d.Start()
	look("after a crash")
	d.Restart()
	look("after a stop")
}

// A subject, or a server, that is removed and added again begins with nothing: no
// counters, no kill, no policy, no pin, no answer.
func TestRemovedNamesLeaveNothing(t *testing.T) {
	for _, what := range []string{"subject", "server", "policy"} {
		t.Run(what, func(t *testing.T) {
			d := daemontest.Start(t)
			run := worker(t, d)
			rules := policyDoc("", `{limits: {max_tool_calls: 2, budget: {max_cost: 10}}, security: {granular_rules: [{tool: bad, deny_if: {arguments: {a: x}}, action: kill}]}}`)
			applyRules(t, d, rules)
			r := relayOf(t, run, "srv")
			equal(t, "the first", said(r.call("ok", "{}")), "forward")
			equal(t, "the second", said(r.call("ok", "{}")), "forward")
			equal(t, "the third", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED MaxToolCallsPolicy block")
			equal(t, "a kill", said(r.call("bad", `{"a":"x"}`)), "-32000 POLICY_BLOCKED GranularAccessPolicy kill")
			equal(t, "the end", r.over(), wire.Allowed)
			if r := relayOf(t, run, "srv"); true {
				equal(t, "the control: killed", r.over(), wire.Allowed)
			}
			switch what {
			case "subject":
				d.RemoveSubject("worker")
				run = worker(t, d)
			case "server":
				_, err := d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "srv"})
				must(t, err)
				d.Grant("worker", "call:srv/*")
			case "policy":
				_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv", Remove: true})
				must(t, err)
			}
			listed, err := d.Operator().ListPolicies(t.Context(), &operatorv1.ListPoliciesRequest{})
			must(t, err)
			equal(t, "policies", len(listed.GetPolicies()), 0)
			applyRules(t, d, rules)
			if got := policyOf(t, d).GetMeters(); len(got) != 0 {
				t.Errorf("what was counted is inherited: %v", got)
			}
			r = relayOf(t, run, "srv")
			equal(t, "the first again", said(r.call("ok", "{}")), "forward")
			d.Restart()
			equal(t, "calls after a restart", metersOf(t, d).GetCalls(), 1)
		})
	}
}
