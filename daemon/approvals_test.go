package daemon_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// impatient is how long a read waits for a person in tests that are about what
// comes after the wait.
const impatient = time.Millisecond

// startGated is a daemon with a person who can answer, and readme, which worker may
// read with each approval.
func startGated(t *testing.T, options daemontest.Options) *daemontest.Daemon {
	t.Helper()
	d := daemontest.StartWith(t, options)
	d.Authenticate()
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.Gated)
	return d
}

// asked reads and returns the content, or the id of the request that it waits for.
func asked(t *testing.T, run *daemontest.Run, name string) (content, id string, reason wire.Reason) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	got, err := run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: name})
	if err == nil {
		return string(got.GetContent()), "", wire.Allowed
	}
	refused := wire.FromError(err)
	if id := refused.Approval; id != "" && !strings.HasPrefix(refused.Message, "APPROVAL_PENDING id="+id) {
		t.Errorf("%s waits, and the message is %q", id, refused.Message)
	}
	return "", refused.Approval, refused.Reason
}

// pending makes a request that waits, and returns its id.
func pending(t *testing.T, run *daemontest.Run, name string) string {
	t.Helper()
	_, id, reason := asked(t, run, name)
	if reason != wire.ApprovalPending || id == "" {
		t.Fatalf("reading %s: %s, id %q, want a request that waits", name, reason, id)
	}
	return id
}

// decide answers a request.
func decide(t *testing.T, d *daemontest.Daemon, request *operatorv1.DecideApprovalRequest) (*operatorv1.DecideApprovalResponse, wire.Reason) {
	t.Helper()
	response, err := d.Operator().DecideApproval(t.Context(), request)
	return response, daemontest.Reason(err)
}

func approve(t *testing.T, d *daemontest.Daemon, id string) {
	t.Helper()
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true})
	equal(t, "approving "+id, reason, wire.Allowed)
}

// approvals lists requests by id.
func approvals(t *testing.T, d *daemontest.Daemon, all bool) map[string]*operatorv1.Approval {
	t.Helper()
	list, err := d.Operator().ListApprovals(t.Context(), &operatorv1.ListApprovalsRequest{All: all})
	must(t, err)
	found := map[string]*operatorv1.Approval{}
	for _, a := range list.GetApprovals() {
		found[a.GetApprovalId()] = a
	}
	return found
}

func consents(t *testing.T, d *daemontest.Daemon) []*operatorv1.Consent {
	t.Helper()
	list, err := d.Operator().ListApprovals(t.Context(), &operatorv1.ListApprovalsRequest{})
	must(t, err)
	return list.GetConsents()
}

// words are kind, decision and cause of entries.
func words(entries []verify.Entry) string {
	var all []string
	for _, e := range entries {
		all = append(all, e.Kind+" "+e.Decision+" "+e.Cause)
	}
	return strings.Join(all, ", ")
}

// These share a daemon: to set a passphrase takes a while, and so does giving it.
func TestGatedReads(t *testing.T) {
	clock := newClock()
	d := startGated(t, daemontest.Options{ApprovalWait: impatient, Now: clock.Now})
	for name, test := range map[string]func(*testing.T, *daemontest.Daemon, func()){
		"one read": testGatedRead, "deciding once": testDecidingOnce, "watching": testWatchApprovals, "what voids": testWhatVoidsAnApproval,
	} {
		rested := func() { clock.step(20 * time.Second) } // to be asked is rationed, as denials are
		rested()
		t.Run(name, func(t *testing.T) { test(t, d, rested) })
	}
}

// A gated read waits for a person and then says so; the retry after the answer gets
// the content, once; every step is an entry, and the answer's says whose it was.
func testGatedRead(t *testing.T, d *daemontest.Daemon, _ func()) {
	d.Authenticate()
	run := d.Open("worker")
	before := d.Seq()
	id := pending(t, run, "readme")
	equal(t, "the retry attaches", pending(t, run, "readme"), id)
	decision, reason := run.Explained("readme")
	equal(t, "explain", decision+" "+string(reason), "pending APPROVAL_PENDING")
	equal(t, "it is listed", listed(run, "readme"), true)

	card := approvals(t, d, false)[id]
	equal(t, "the request", strings.Join([]string{card.GetState(), card.GetSubject(), card.GetRunId(), card.GetResource(), card.GetCapability(), card.GetTier()}, " "),
		strings.Join([]string{"pending", "worker", run.ID, "readme", "read:readme", "cooperative"}, " "))
	again := pending(t, run, "readme")
	equal(t, "how often it was asked", approvals(t, d, false)[again].GetAsked(), card.GetAsked()+1)
	equal(t, "what it discloses", strings.Join(card.GetDiscloses(), ";"), "the content of readme (text, 5 bytes, version 1) to the agent")
	equal(t, "why", card.GetWhy(), "the grant read:readme needs an approval each time")
	equal(t, "how long it lives", card.GetExpires()-card.GetCreated(), (15 * time.Minute).Milliseconds())
	waiting := d.Status().GetApprovals()
	equal(t, "it can be answered", d.Status().GetApprovable(), true)

	approve(t, d, id[:6])
	equal(t, "one less waits", d.Status().GetApprovals(), waiting-1)
	content, _, reason := asked(t, run, "readme")
	equal(t, "after the answer", content+" "+string(reason), "hello ALLOWED")
	again = pending(t, run, "readme")
	equal(t, "another read is another request", again != id, true)
	equal(t, "the first", approvals(t, d, true)[id].GetState(), "settled")

	entries := d.Since(before, "acquire", "approval.request", "approval.approve", "approval.run")
	equal(t, "the entries", words(entries), "approval.request pending , acquire pending , acquire pending , acquire pending , approval.approve allow ONCE, approval.run allow , acquire allow , approval.request pending , acquire pending ")
	auth := d.Entries("operator.auth")
	session := auth[len(auth)-1].SessionID
	for _, e := range entries {
		if e.ApprovalID == "" || e.SubjectID != "worker" || e.ResourceID != "readme" || (e.Kind == "approval.approve") != (e.SessionID != "" && e.SessionID == session) {
			t.Errorf("the entry %s: approval %q, subject %q, resource %q, session %q", e.Kind, e.ApprovalID, e.SubjectID, e.ResourceID, e.SessionID)
		}
	}
}

// Who waits is let through by the answer, or refused by it.
func TestAnswersReachWhoWaits(t *testing.T) {
	d := startGated(t, daemontest.Options{ApprovalWait: daemontest.Patience})
	run := d.Open("worker")
	wait := func(answer func(id string)) (string, wire.Reason) {
		t.Helper()
		done := make(chan [2]string, 1)
		go func() {
			content, _, reason := asked(t, run, "readme")
			done <- [2]string{content, string(reason)}
		}()
		var id string
		eventually(t, "a request waits", func() bool {
			for one, a := range approvals(t, d, false) {
				if a.GetWaiting() == 1 {
					id = one
				}
			}
			return id != ""
		})
		answer(id)
		got := <-done
		return got[0], wire.Reason(got[1])
	}
	content, reason := wait(func(id string) { approve(t, d, id) })
	equal(t, "approved", content+string(reason), "helloALLOWED")
	_, reason = wait(func(string) {
		_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{}) // the only one
		equal(t, "denying", reason, wire.Allowed)
	})
	equal(t, "denied", reason, wire.ApprovalDenied)
	_, reason = wait(func(string) { d.SetEnabled("worker", false) })
	equal(t, "disabled while it waits", reason, wire.RunEnded)
	eventually(t, "its end is in the log", func() bool { return len(d.Entries("approval.void")) == 1 })
}

// Nobody approves alone: without authentication an answer is refused, and without a
// way to it nothing is asked.
func TestApprovingNeedsAuthentication(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{ApprovalWait: impatient})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.Gated)
	run := d.Open("worker")
	equal(t, "without anybody", run.Refused("readme"), wire.ApprovalDenied)
	equal(t, "status", d.Status().GetApprovable(), false)
	equal(t, "nothing is asked", len(approvals(t, d, true)), 0)
	equal(t, "why", d.Entries("acquire")[0].Cause, "NO_APPROVER")

	d.Authenticate()
	id := pending(t, run, "readme")
	_, err := d.Operator().CloseSession(t.Context(), &operatorv1.CloseSessionRequest{})
	must(t, err)
	request := &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true}
	_, reason := decide(t, d, request)
	equal(t, "without a session", reason, wire.AccessDenied)
	equal(t, "it still waits", pending(t, run, "readme"), id)
	d.Authenticate()
	_, reason = decide(t, d, request)
	equal(t, "with one", reason, wire.Allowed)
	equal(t, "then", run.Refused("readme"), wire.Allowed)
}

// A request is answered once, about what was shown, and in a scope that it may have.
func testDecidingOnce(t *testing.T, d *daemontest.Daemon, _ func()) {
	d.Authenticate()
	run := d.Open("worker")
	id := pending(t, run, "readme")
	before := d.Seq()
	for name, request := range map[string]*operatorv1.DecideApprovalRequest{
		"other arguments":     {ApprovalId: id, Approve: true, ArgsDigest: strings.Repeat("0", 63) + "1"},
		"another id":          {ApprovalId: "zzzzzzzzzz", Approve: true},
		"no such scope":       {ApprovalId: id, Approve: true, Scope: "forever"},
		"one use":             {ApprovalId: id, Approve: true, Scope: "uses", Uses: 1},
		"too many uses":       {ApprovalId: id, Approve: true, Scope: "uses", Uses: 10_001},
		"uses without scope":  {ApprovalId: id, Approve: true, Uses: 2},
		"an end in the past":  {ApprovalId: id, Approve: true, Scope: "until", Until: 1},
		"an end too far away": {ApprovalId: id, Approve: true, Scope: "until", Until: time.Now().Add(1000 * 24 * time.Hour).UnixMilli()},
		"a denial with scope": {ApprovalId: id, Scope: "uses", Uses: 2},
	} {
		_, reason := decide(t, d, request)
		equal(t, name, reason, wire.InvalidArgument)
	}
	var deciders sync.WaitGroup
	var mu sync.Mutex
	yes := 0
	for range 8 {
		deciders.Go(func() {
			_, err := d.Operator().DecideApproval(t.Context(), &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				yes++
			}
		})
	}
	deciders.Wait()
	equal(t, "answers that count", yes, 1)
	equal(t, "in the log", len(d.Since(before, "approval.approve"))-countErrors(d.Since(before, "approval.approve")), 1)
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id})
	equal(t, "denying what was approved", reason, wire.InvalidArgument)
	equal(t, "the read", run.Refused("readme"), wire.Allowed)
}

func countErrors(entries []verify.Entry) (n int) {
	for _, e := range entries {
		if e.Decision == "error" {
			n++
		}
	}
	return n
}

// What was approved is not done when it is not so any more; the control is done.
func testWhatVoidsAnApproval(t *testing.T, d *daemontest.Daemon, rested func()) {
	d.Authenticate()
	for name, tc := range map[string]struct {
		change func(run *daemontest.Run, subject, name, grant string) *daemontest.Run
		want   wire.Reason
		void   string // causes, one of which it is; empty: it is not void
	}{
		"nothing": {func(run *daemontest.Run, _, _, _ string) *daemontest.Run { return run }, wire.Allowed, ""},
		"the grant goes": {func(run *daemontest.Run, _, _, grant string) *daemontest.Run {
			d.Revoke(grant)
			return run
		}, wire.AccessDenied, "NO_GRANT"},
		"another grant": {func(run *daemontest.Run, subject, name, grant string) *daemontest.Run {
			d.Revoke(grant)
			d.Grant(subject, "read:"+name, daemontest.Gated)
			return run
		}, wire.ApprovalPending, "NO_GRANT"},
		"other content": {func(run *daemontest.Run, _, name, _ string) *daemontest.Run {
			d.Put(name, "other")
			return run
		}, wire.ApprovalPending, "CONTENT_CHANGED"},
		"a denial comes": {func(run *daemontest.Run, subject, name, _ string) *daemontest.Run {
			d.Grant(subject, "read:"+name, daemontest.Denying)
			return run
		}, wire.AccessDenied, "EXPLICIT_DENY"},
		"off and on": {func(run *daemontest.Run, subject, _, _ string) *daemontest.Run {
			d.SetEnabled(subject, false)
			d.SetEnabled(subject, true)
			return run
		}, wire.RunEnded, "RUN_ENDED SUBJECT_DISABLED"},
		"another run":   {func(_ *daemontest.Run, subject, _, _ string) *daemontest.Run { return d.Open(subject) }, wire.ApprovalPending, ""},
		"the run's end": {func(run *daemontest.Run, _, _, _ string) *daemontest.Run { run.Close(); return run }, wire.RunEnded, "RUN_ENDED"},
		"lock and unlock": {func(_ *daemontest.Run, subject, _, _ string) *daemontest.Run {
			d.Lock()
			equal(t, "while it is locked", d.Status().GetApprovals(), 0)
			d.Unlock()
			d.Authenticate()
			return d.Open(subject)
		}, wire.ApprovalPending, "LOCKED"},
	} {
		t.Run(name, func(t *testing.T) {
			rested()
			subject := strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", "")
			file := "of-" + subject
			d.Put(file, "hello")
			d.AddSubject(subject)
			grant := d.Grant(subject, "read:"+file, daemontest.Gated)
			run := d.Open(subject)
			id := pending(t, run, file)
			approve(t, d, id)
			run = tc.change(run, subject, file, grant)
			equal(t, "the read", run.Refused(file), tc.want)
			if tc.void != "" {
				eventually(t, "its end in the log", func() bool {
					for _, e := range d.Entries("approval.void") {
						if e.ApprovalID == id {
							equal(t, "it is void because of "+e.Cause, slices.Contains(strings.Fields(tc.void), e.Cause), true)
							return true
						}
					}
					return false
				})
			}
		})
	}
}

// After a restart nothing that was asked or approved before is done, and the log
// says so, also when the daemon had no time to.
func TestRestartVoidsApprovals(t *testing.T) {
	home := daemontest.NewHome(t)
	d := startGated(t, daemontest.Options{Home: home, ApprovalWait: impatient})
	run := d.Open("worker")
	id := pending(t, run, "readme")
	approve(t, d, id)
	d.Restart()
	d.Authenticate()
	run = d.Open("worker")
	second := pending(t, run, "readme")
	equal(t, "it is another request", second != id, true)
	equal(t, "the end", words(d.Entries("approval.void")), "approval.void deny DAEMON_STOPPED")
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true})
	equal(t, "the first is nothing any more", reason, wire.InvalidArgument)
}

// A stream tells what is open, and then what becomes of it.
func testWatchApprovals(t *testing.T, d *daemontest.Daemon, _ func()) {
	d.Authenticate()
	run := d.Open("worker")
	first := pending(t, run, "readme")
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	before := d.Seq()
	stream, err := d.Operator().WatchApprovals(ctx, &operatorv1.WatchApprovalsRequest{})
	must(t, err)
	next := func() string {
		t.Helper()
		event, err := stream.Recv()
		must(t, err)
		if event.GetApproval() == nil {
			return "that is all"
		}
		return event.GetApproval().GetState() + " " + event.GetApproval().GetApprovalId()
	}
	until := func(want string) {
		t.Helper()
		for next() != want { // changes coalesce, there are others, and waiting counts as one
		}
	}
	open := 0
	for got := next(); got != "that is all"; got = next() {
		if got == "pending "+first {
			open++
		}
	}
	equal(t, "what is open", open, 1)
	equal(t, "its one entry", words(d.Since(before)), "operator.watch allow ")
	approve(t, d, first)
	until("approved " + first)
	equal(t, "the read", run.Refused("readme"), wire.Allowed)
	until("settled " + first)
	second := pending(t, run, "readme")
	until("pending " + second)
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: second})
	equal(t, "denying", reason, wire.Allowed)
	until("denied " + second)
}
