package worker_test

import (
	"testing"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

func TestProfile(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.AddProfile("worker", "coder")
	b.AddProfile("other", "theirs")
	for profile, want := range map[string]wire.Reason{"": wire.Allowed, "coder": wire.Allowed, "theirs": wire.AccessDenied, "absent": wire.AccessDenied} {
		c := config(b, "worker")
		c.Profile = profile
		run, err := worker.Open(t.Context(), c)
		if got := reason(err); want != wire.Allowed && got != want {
			t.Errorf("profile %q: %s, want %s", profile, got, want)
		}
		if want != wire.Allowed {
			continue
		}
		if err != nil {
			t.Fatalf("profile %q: %v", profile, err)
		}
		report, err := run.Report(t.Context())
		if err != nil || run.Profile != profile || report.Profile != profile {
			t.Errorf("the run is under %q and reports %q, want %q (%v)", run.Profile, report.Profile, profile, err)
		}
		run.Close()
	}
}

func TestCan(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.May("worker", "reach:api.example.com", "allow")
	b.May("worker", "call:github/delete_repo", "pending")
	run, err := worker.Open(t.Context(), config(b, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	for capability, want := range map[string]worker.Verdict{
		"reach:api.example.com":   {Decision: "allow", Reason: wire.Allowed},
		"reach:elsewhere":         {Decision: "deny", Reason: wire.AccessDenied},
		"call:github/delete_repo": {Decision: "pending", Reason: wire.ApprovalPending},
	} {
		if got, err := run.Can(t.Context(), capability); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", capability, got, err, want)
		}
	}
	b.EndRuns(wire.RunEnded)
	if _, err := run.Can(t.Context(), "reach:api.example.com"); reason(err) != wire.RunEnded {
		t.Errorf("under a run that is over: %v", err)
	}
	<-run.Over()
}

// A run in a launch is whose the launch is.
func TestRunInALaunch(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.AddProfile("worker", "coder")
	b.Launch("worker", "coder")
	run, err := worker.Open(t.Context(), config(b, "somebody"))
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	if run.Subject != "worker" || run.Profile != "coder" {
		t.Errorf("the run is of %s under %s, want worker under coder", run.Subject, run.Profile)
	}
}
