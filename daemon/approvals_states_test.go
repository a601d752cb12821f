package daemon_test

import (
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A request whose answer stands waits for nobody, is approved for as long as that
// stands, and says then how it ended.
func TestStatesOfRequests(t *testing.T) {
	clock := newClock()
	d := startGated(t, daemontest.Options{ApprovalWait: impatient, Now: clock.Now})
	run := d.Open("worker")
	ask := func() string {
		t.Helper()
		clock.step(20 * time.Second)
		return pending(t, run, "readme")
	}
	answer := func(id, scope string, uses uint32, until time.Duration) {
		t.Helper()
		d.Authenticate()
		request := &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scope, Uses: uses}
		if until > 0 {
			request.Until = clock.Now().Add(until).UnixMilli()
		}
		response, reason := decide(t, d, request)
		equal(t, "approving for "+scope, reason, wire.Allowed)
		equal(t, "what the answer says", response.GetApproval().GetState(), "approved")
		if waits := approvals(t, d, false); len(waits) != 0 {
			t.Errorf("approved for %s, and it waits: %v", scope, waits)
		}
		equal(t, "while it stands", state(t, d, id), "approved")
	}
	becomes := func(id, want string) {
		t.Helper()
		eventually(t, want, func() bool { return state(t, d, id) == want })
	}
	read := func() {
		t.Helper()
		_, _, reason := asked(t, run, "readme")
		equal(t, "a read", reason, wire.Allowed)
	}

	id := ask()
	answer(id, "uses", 2, 0)
	read()
	equal(t, "after one of two", state(t, d, id), "approved")
	read()
	becomes(id, "settled used-up")

	id = ask()
	answer(id, "until", 0, 40*time.Minute)
	clock.step(30 * time.Minute) // longer than a request lives
	read()
	equal(t, "after the life of a request", state(t, d, id), "approved")
	clock.step(11 * time.Minute)
	becomes(id, "settled expired")

	id = ask()
	answer(id, "session", 0, 0)
	run.Close()
	becomes(id, "settled ended")
	run = d.Open("worker")

	id = ask()
	answer(id, "until", 0, time.Hour)
	_, err := d.Operator().RevokeConsent(t.Context(), &operatorv1.RevokeConsentRequest{ConsentId: id})
	must(t, err)
	equal(t, "taken back", state(t, d, id), "settled revoked")

	id = ask()
	answer(id, "until", 0, time.Hour)
	d.Put("readme", "another")
	becomes(id, "void CONTENT_CHANGED")

	id = ask()
	d.Put("readme", "one more")
	becomes(id, "void CONTENT_CHANGED")

	id = ask()
	clock.step(16 * time.Minute)
	becomes(id, "expired UNANSWERED")

	id = ask()
	d.Authenticate()
	approve(t, d, id)
	if waits := approvals(t, d, false); waits[id].GetState() != "approved" {
		t.Errorf("approved once, and not used: %v", waits)
	}
	read()
	equal(t, "approved once", state(t, d, id), "settled ok")
}

// state is the state of a request, and what came of it.
func state(t *testing.T, d *daemontest.Daemon, id string) string {
	t.Helper()
	m := approvals(t, d, true)[id]
	if m.GetOutcome() == "" {
		return m.GetState()
	}
	return m.GetState() + " " + m.GetOutcome()
}

// A wall clock that is set has nobody asked again whom a person has refused: an hour
// has to pass.
func TestRefusalsGoByTheTimeThatPasses(t *testing.T) {
	clock := newClocks()
	d := startGated(t, daemontest.Options{ApprovalWait: impatient, Now: clock.Now, Boot: clock.Boot})
	run := d.Open("worker")
	for range 3 {
		id := pending(t, run, "readme")
		_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id})
		equal(t, "refusing", reason, wire.Allowed)
		clock.pass(20 * time.Second)
	}
	refused := func(when string) {
		t.Helper()
		_, _, reason := asked(t, run, "readme")
		equal(t, when, reason, wire.ApprovalDenied)
		equal(t, when+", the cause", last(d, "acquire").Cause, "REFUSED_TOO_OFTEN")
	}
	refused("after three refusals")
	clock.set(2 * time.Hour)
	refused("after the clock was set ahead")
	clock.set(-2 * time.Hour)
	refused("after it was set back")
	clock.pass(time.Hour)
	pending(t, run, "readme")
}
