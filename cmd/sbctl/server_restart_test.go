package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Whoever restarts a server that a limit killed is told what is still needed; a rule
// that counts nothing needs nothing.
func TestStillCounted(t *testing.T) {
	process := func(subject, cause string) *operatorv1.ServerProcess {
		return &operatorv1.ServerProcess{Subject: subject, State: "killed", Cause: cause}
	}
	got := stillCounted("github", []*operatorv1.ServerProcess{
		process("coder", "stopped by MaxToolCallsPolicy until it is restarted"),
		process("other", "stopped by DeniedToolsPolicy until it is restarted"),
		process("third", "stopped by BudgetPolicy until it is restarted"),
	})
	want := []string{
		"MaxToolCallsPolicy stopped it for coder, and what was counted stays counted: where that is used up the next call stops it again; sbctl policy reset coder github begins anew",
		"BudgetPolicy stopped it for third, and what was counted stays counted: where that is used up the next call stops it again; sbctl policy reset third github begins anew",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
