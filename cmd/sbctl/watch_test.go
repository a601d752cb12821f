package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

func TestDenialsAreCountedFromTheLog(t *testing.T) {
	live := &liveScreen{}
	for _, line := range []string{
		`{"seq":1,"timestamp":"2026-01-01T00:00:00.000Z","kind":"acquire","subjectId":"a","capability":"read:x","decision":"deny","reasonCode":"ACCESS_DENIED","cause":"NO_GRANT"}`,
		`{"seq":2,"timestamp":"2026-01-01T00:00:01.000Z","kind":"acquire","subjectId":"b","resourceId":"x","action":"read","decision":"deny","reasonCode":"ACCESS_DENIED","cause":"NO_GRANT"}`,
		`{"seq":3,"timestamp":"2026-01-01T00:00:02.000Z","kind":"acquire","subjectId":"a","capability":"read:x","decision":"allow","reasonCode":"ALLOWED"}`,
		`{"seq":4,"timestamp":"2026-01-01T00:00:03.000Z","kind":"operator.read","decision":"error","reasonCode":"INVALID_ARGUMENT"}`,
		`{"seq":5,"timestamp":"2026-01-01T00:00:04.000Z","kind":"suppressed","subjectId":"a","capability":"read:x","decision":"deny","reasonCode":"ACCESS_DENIED","cause":"NO_GRANT","count":5}`,
	} {
		e, err := parseEntry([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		live.denials = addDenial(live.denials, e)
	}
	want := []*operatorv1.DenialGroup{
		{Subject: "a", Capability: "read:x", Cause: "NO_GRANT", ReasonCode: "ACCESS_DENIED", Count: 6, First: fakeNow, Last: fakeNow + 4000},
		{Subject: "b", Capability: "read:x", Cause: "NO_GRANT", ReasonCode: "ACCESS_DENIED", Count: 1, First: fakeNow + 1000, Last: fakeNow + 1000},
	}
	if diff := cmp.Diff(want, live.denials, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// The grant key is for what a grant of its kind mends.
func TestNoGrant(t *testing.T) {
	for _, test := range []struct{ cause, reason, want string }{
		{"NO_GRANT", "ACCESS_DENIED", ""},
		{"GRANT_EXPIRED", "ACCESS_DENIED", ""},
		{"CAPS_NARROWED", "ACCESS_DENIED", `a grant does not mend CAPS_NARROWED: the run's profile leaves it out of its caps: change the profile in its document and apply that; "sbctl why worker read:x" says where`},
		{"DISCLOSURE_NOT_GRANTED", "ACCESS_DENIED", "only a grant that discloses mends DISCLOSURE_NOT_GRANTED: sbctl grant worker read:x --disclose"},
		{"EXPLICIT_DENY", "ACCESS_DENIED", `a grant does not mend EXPLICIT_DENY: a grant denies it; "sbctl why worker read:x" says what does`},
		{"", "RATE_LIMITED", `a grant does not mend RATE_LIMITED: too much was asked for at once; "sbctl why worker read:x" says what does`},
	} {
		got := (&app{}).noGrant(&operatorv1.DenialGroup{Subject: "worker", Capability: "read:x", Cause: test.cause, ReasonCode: test.reason})
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.cause, got, test.want)
		}
	}
	for capability, grantable := range map[string]bool{"memory.read:a": true, "memory.write:a,b": false, "memory.read": false} {
		got := (&app{}).noGrant(&operatorv1.DenialGroup{Subject: "worker", Capability: capability, Cause: "NO_GRANT", ReasonCode: "TENANT_OUT_OF_SCOPE"})
		if (got == "") != grantable {
			t.Errorf("%s: %q", capability, got)
		}
	}
}

// What was answered here does not come back by older news.
func TestOlderNewsOfWhatWasAnswered(t *testing.T) {
	live := &liveScreen{waitingRoom: newWaitingRoom()}
	news := func(state string) int {
		m := fakeApproval("kmpx", "worker", "desk", "publish")
		m.State = state
		live.keep(m)
		return len(live.pending)
	}
	for i, step := range []struct {
		state string
		want  int
	}{{"pending", 1}, {"pending", 1}, {"approved", 0}, {"pending", 1}, {"approved", 0}} {
		if got := news(step.state); got != step.want {
			t.Errorf("step %d, %s: %d wait, want %d", i, step.state, got, step.want)
		}
	}
	news("pending")
	news("approved")
	live.answered["kmpx"] = true // as after an answer from here
	if got := news("pending"); got != 0 {
		t.Errorf("older news: %d wait", got)
	}
	news("settled")
	if len(live.answered) != 0 {
		t.Error("what is over is remembered")
	}
}
