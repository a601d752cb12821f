package daemon

import (
	"fmt"
	"testing"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Who ends its run and asks anew asks a person no more often than who waits: what was
// left unanswered counts until it would have expired.
func TestAskingAnewIsBounded(t *testing.T) {
	k := newDesk(t, t.TempDir())
	asked := 0
	// session asks for n things in a run of its own and ends it. It reports whether a
	// person was asked for each.
	session := func(n int) bool {
		k.run = k.open("worker")
		all := true
		for range n {
			asked++
			g := k.ask(fmt.Sprintf(`{"n":%d}`, asked))
			g.wait = -1
			answer := k.gate(g)
			all = all && answer.outcome == gatePending
			if answer.outcome != gatePending && answer.cause != causeTooMany {
				t.Fatalf("request %d: %v, %s", asked, answer.outcome, answer.cause)
			}
		}
		k.must(k.op().EndRun(k.ctx, &operatorv1.EndRunRequest{RunId: k.run.id}))
		k.sweep()
		return all
	}
	for i := range maxLeftPerSubject / maxCardsPerSubject {
		if !session(maxCardsPerSubject) {
			t.Fatalf("nobody was asked in session %d", i)
		}
	}
	if session(1) {
		t.Error("a person was asked in one session more")
	}
	k.must(k.op().AddSubject(k.ctx, &operatorv1.AddSubjectRequest{Name: "other"}))
	k.must(k.op().CreateGrants(k.ctx, &operatorv1.CreateGrantsRequest{Subject: "other", Capabilities: []string{"call:files/write"}, RequireApproval: true}))
	k.run = k.open("other")
	g := k.ask(`{}`)
	if g.wait = -1; k.gate(g).outcome != gatePending {
		t.Error("nobody was asked for another subject")
	}
	k.offset.Add(int64(approvalLife))
	if !session(1) {
		t.Error("nobody was asked when all that would have expired")
	}
	k.approvals.mu.Lock()
	defer k.approvals.mu.Unlock()
	if n := len(k.approvals.left[askerKey{"worker", k.run.born.UnixNano()}]); n != 1 {
		t.Errorf("%d are counted", n)
	}
}
