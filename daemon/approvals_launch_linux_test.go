package daemon

import (
	"os"
	"testing"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// begin begins a launch of a subject whose first process is this one.
func (k *desk) begin(subject string) *launch {
	k.t.Helper()
	held, err := peer.Hold(int32(os.Getpid()))
	if err != nil {
		k.t.Fatal(err)
	}
	s, _ := k.state().set.Subject(subject)
	l := newLaunch(launchRow{id: grants.NewID(), subject: subject, born: s.Created, tier: grants.Cooperative, opened: k.clock.now()}, held)
	k.launches.add(l)
	k.t.Cleanup(func() {
		k.launches.end(l, k.clock.now(), "CLOSED")
		l.release()
	})
	return l
}

// The runs of one launch share requests and their answers; other launches, and runs
// outside of any, do not; and what was approved for a launch ends with it.
func TestLaunchesShareApprovals(t *testing.T) {
	k := newDesk(t, t.TempDir())
	mine, other := k.begin("worker"), k.begin("worker")
	in := func(l *launch) {
		k.run = k.open("worker")
		k.run.launch = l
	}
	in(mine)
	id := k.pending(`{}`)
	in(mine)
	if again := k.pending(`{}`); again != id {
		t.Error("another run of the launch asks anew")
	}
	in(other)
	if k.pending(`{}`) == id {
		t.Error("another launch has the same request")
	}
	in(nil)
	if k.pending(`{}`) == id {
		t.Error("a run outside of the launch has the same request")
	}
	made := k.decide(&operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: scopeSession})
	if c := made.GetConsent(); c.GetScope() != scopeLaunch || c.GetEndsWith() != mine.id || made.GetApproval().GetLaunchId() != mine.id {
		t.Errorf("it stands for %s %s", c.GetScope(), c.GetEndsWith())
	}
	in(mine)
	for range 3 {
		if k.call(k.ask(`{}`)) != gateApproved {
			t.Error("it is not used in the launch")
		}
	}
	in(other)
	if k.pending(`{}`) == id {
		t.Error("it is used in another launch")
	}
	in(mine)
	reserved := k.gate(k.ask(`{}`))
	k.launches.end(mine, k.clock.now(), "CLOSED")
	if k.take(reserved) {
		t.Error("it is taken after the end of the launch")
	}
	reserved.giveBack()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if void := k.entries(kindApprovalVoid); len(void) == 1 && void[0].ApprovalID == id && void[0].LaunchID == mine.id {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("its end is not in the log: %v", k.entries(kindApprovalVoid))
		}
	}
}
