package daemon_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Every call that is judged is one of allowed, denied and waited, and those that
// failed are among the allowed, whatever comes in which order.
func TestCountersAddUp(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	run := worker(t, d)
	applyRules(t, d, atOnce(`{limits: {circuit_breaker: {failure_threshold: 3}}, security: {denied_tools: [evil], require_approval: [ask]}}`))
	r := relayOf(t, run, "srv")
	type sums struct{ Allowed, Denied, Waited, Failed, Ended uint64 }
	var want sums
	began := d.Seq()
	going := map[uint64]bool{}
	end := func(id uint64, how brokerv1.RelayEnd) {
		delete(going, id)
		want.Ended++
		if how != brokerv1.RelayEnd_RELAY_END_OK && how != brokerv1.RelayEnd_RELAY_END_CANCELLED {
			want.Failed++
		}
		must(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{
			Id: id, End: how, Answer: []byte(`{"content":[]}`),
		}}}))
	}
	judged := map[string]int{}
	for range 200 {
		clock.step(time.Second) // so that refusals are not too many
		var id uint64
		switch random.IntN(8) {
		case 0:
			id = r.ask("evil", `{}`)
		case 1:
			id = r.ask("ok", `{"a":1,"a":2}`)
		case 2:
			id = r.ask("no such tool", `{}`)
		case 3, 4:
			id = r.ask("ask", fmt.Sprintf(`{"n":%d}`, random.IntN(3)))
		case 5: // a person answers
			for id := range approvals(t, d, false) {
				_, _ = decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: random.IntN(5) > 0})
			}
			continue
		default:
			id = r.ask(fmt.Sprintf("ok%d", random.IntN(3)), `{}`)
		}
		v := r.verdict(id)
		switch {
		case v.GetForward():
			judged["forwarded"]++
			want.Allowed++
			going[id] = true
			if random.IntN(4) > 0 {
				end(id, brokerv1.RelayEnd(1+random.IntN(5)))
			}
		case v.GetReplay() != nil:
			judged["replayed"]++
			want.Allowed++
		case v.GetReasonCode() == "APPROVAL_PENDING":
			judged["waits"]++
			want.Waited++
		default:
			judged["refused"]++
			want.Denied++
		}
	}
	r.verdict(r.askMethod("server/shutdown", "", "")) // counts as no call
	for id := range going {
		end(id, brokerv1.RelayEnd_RELAY_END_OK)
	}
	r.cancel()
	eventually(t, "the end of all", func() bool { return uint64(len(d.Since(began, "call.done"))) == want.Ended })
	stats, err := d.Operator().CallStats(t.Context(), &operatorv1.CallStatsRequest{})
	must(t, err)
	var got sums
	for _, s := range stats.GetStats() {
		got.Allowed += s.GetAllowed()
		got.Denied += s.GetDenied()
		got.Waited += s.GetWaited()
		got.Failed += s.GetFailed()
		if s.GetFailed() > s.GetAllowed() {
			t.Errorf("more failed than were allowed: %v", s)
		}
	}
	got.Ended = want.Ended
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, came := range []string{"forwarded", "refused", "waits"} {
		if judged[came] < 10 {
			t.Errorf("%d calls were %s: the sequence shows nothing", judged[came], came)
		}
	}
}

// What is a denial is one thing for the metrics, the list of denials and the runs, and
// what waits for a person is none.
func TestDenialsAreOneThing(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	d.Put("plan", "text")
	run := worker(t, d)
	_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:plan"}, RequireApproval: true})
	must(t, err)
	applyRules(t, d, atOnce(`{security: {denied_tools: [evil], require_approval: [ask]}}`))
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	r := relayOf(t, run, "srv")
	equal(t, "a call that waits", said(r.call("ask", "{}")), "-32001 APPROVAL_PENDING ApprovalPolicy request_approval")
	equal(t, "a call that is refused", said(r.call("evil", "{}")), "-32000 POLICY_BLOCKED DeniedToolsPolicy block")
	equal(t, "another method", said(r.verdict(r.askMethod("server/shutdown", "", ""))), "-32000 POLICY_BLOCKED MethodPolicy block")
	equal(t, "a malformed call", said(r.call("ok", "[]")), "-32602 INVALID_ARGUMENT")
	_, err = run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "nothing"})
	equal(t, "a read that is refused", daemontest.Reason(err), wire.AccessDenied)
	waits, stop := context.WithCancel(ctx)
	go func() {
		for len(approvals(t, d, false)) < 2 && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	_, _ = run.Acquire(waits, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "plan"})
	d.Await(0, func(e verify.Entry) bool { return e.Kind == "acquire" && e.Decision == "pending" })
	_, err = d.Broker().OpenRun(t.Context(), daemontest.Claim("nobody"))
	equal(t, "a run that is refused", daemontest.Reason(err), wire.AccessDenied)

	want := map[string]uint64{"POLICY_BLOCKED": 2, "INVALID_ARGUMENT": 1, "ACCESS_DENIED": 2}
	listed, err := d.Operator().ListDenials(t.Context(), &operatorv1.ListDenialsRequest{})
	must(t, err)
	got := map[string]uint64{}
	for _, g := range listed.GetGroups() {
		got[g.GetReasonCode()] += g.GetCount()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
	metrics, err := d.Operator().Metrics(t.Context(), &operatorv1.MetricsRequest{})
	must(t, err)
	got = map[string]uint64{}
	for _, m := range regexp.MustCompile(`(?m)^subjectbroker_denials_total\{reason="(\w+)"\} (\d+)$`).FindAllStringSubmatch(string(metrics.GetText()), -1) {
		got[m[1]], err = strconv.ParseUint(m[2], 10, 64)
		must(t, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the metrics (-want +got):\n%s", diff)
	}
	runs := d.Status().GetRuns()
	if len(runs) != 1 || runs[0].GetDenials() != 4 { // the run that was refused is none
		t.Errorf("the runs: %v", runs)
	}
}
