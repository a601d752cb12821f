package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// can is the answer to Can, as decision and reason.
func can(t *testing.T, run *daemontest.Run, capability string) string {
	t.Helper()
	got, err := run.Can(t.Context(), &brokerv1.CanRequest{RunId: run.ID, Capability: capability})
	if err != nil {
		return string(daemontest.Reason(err))
	}
	return got.GetDecision() + " " + got.GetReasonCode()
}

func TestCan(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.Put("gated", "hello")
	d.AddSubject("worker", "other")
	d.Grant("worker", "reach:api.example.com")
	d.Grant("worker", "reach:once.example.com", daemontest.Uses(1))
	d.Grant("worker", "call:github/*")
	d.Grant("worker", "call:github/delete_repo", daemontest.Denying)
	d.Grant("worker", "read:readme")
	d.Grant("worker", "read:gated", daemontest.Gated)
	d.Grant("other", "reach:other.example.com")
	run := d.Open("worker")
	for capability, want := range map[string]string{
		"reach:api.example.com":   "allow ALLOWED",
		"reach:once.example.com":  "allow ALLOWED",
		"reach:other.example.com": "deny ACCESS_DENIED",
		"reach:nowhere":           "deny ACCESS_DENIED",
		"call:github/new_issue":   "allow ALLOWED",
		"call:github/delete_repo": "deny ACCESS_DENIED",
		"use:readme":              "deny ACCESS_DENIED",
		"read:readme":             "allow ALLOWED",
		"readme":                  "allow ALLOWED",
		"read:gated":              "pending APPROVAL_PENDING",
		"read:nothing":            "deny ACCESS_DENIED",
		"memory.read:acme":        "deny ACCESS_DENIED",
		"reach:":                  "INVALID_ARGUMENT",
		"fly:away":                "INVALID_ARGUMENT",
		"":                        "INVALID_ARGUMENT",
		"reach:*":                 "INVALID_ARGUMENT",
		"read:a\nb":               "INVALID_ARGUMENT",
	} {
		if got := can(t, run, capability); got != want {
			t.Errorf("%q: %s, want %s", capability, got, want)
		}
	}
	// A question uses nothing up, however often it is asked.
	for range 3 {
		if got := can(t, run, "reach:once.example.com"); got != "allow ALLOWED" {
			t.Errorf("the one use is used up by a question: %s", got)
		}
	}
	for _, g := range d.Grants("worker") {
		if g.GetUsed() != 0 {
			t.Errorf("%s was charged: %v", g.GetCapability(), g)
		}
	}
	// What may be told changes with the grants, also within the run.
	_, err := d.Operator().RevokeGrants(t.Context(), &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "reach:api.example.com"})
	must(t, err)
	if got := can(t, run, "reach:api.example.com"); got != "deny ACCESS_DENIED" {
		t.Errorf("after the revocation: %s", got)
	}
}

// The entry tells what was asked for, by which grant it was answered, and, to
// the operator alone, why not.
func TestCanIsRecorded(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	id := d.Grant("worker", "reach:api.example.com")
	run := d.Open("worker")
	for _, tc := range []struct {
		capability, entry string
	}{
		{"reach:api.example.com", "reach reach:api.example.com  allow ALLOWED  " + id},
		{"reach:elsewhere", "reach reach:elsewhere  deny ACCESS_DENIED NO_GRANT "},
		{"use:readme", "use  readme deny ACCESS_DENIED NO_GRANT "},
		{"read:nothing", "read  nothing deny ACCESS_DENIED UNKNOWN_RESOURCE "},
	} {
		seq := d.Seq()
		can(t, run, tc.capability)
		found := d.Since(seq, "explain")
		if len(found) != 1 {
			t.Fatalf("%s: %d entries, want 1", tc.capability, len(found))
		}
		e := found[0]
		got := e.Action + " " + e.Capability + " " + e.ResourceID + " " + e.Decision + " " + e.ReasonCode + " " + e.Cause + " " + e.GrantID
		equal(t, tc.capability, got, tc.entry)
		equal(t, "the run", e.RunID, run.ID)
		equal(t, "the subject", e.SubjectID, "worker")
	}
	// What is no capability is not repeated.
	seq := d.Seq()
	can(t, run, "reach:a b")
	if found := d.Since(seq, "explain"); len(found) != 1 || found[0].ResourceID == "reach:a b" || found[0].Cause != "MALFORMED" {
		t.Errorf("the entry of a malformed one: %+v", found)
	}
	// Only of a run that is the connection's own.
	other := d.Open("worker")
	_, err := other.Can(t.Context(), &brokerv1.CanRequest{RunId: run.ID, Capability: "reach:api.example.com"})
	if reason := daemontest.Reason(err); reason != wire.RunEnded {
		t.Errorf("under somebody else's run: %s", reason)
	}
}
