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
