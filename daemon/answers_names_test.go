package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// What a person approved for runs under a profile stands for no later one of its name.
func TestLaterProfileInheritsNoAnswers(t *testing.T) {
	d := startGated(t, daemontest.Options{ApprovalWait: impatient})
	const without = "version: 1\nowner: team\nsubjects: {other: {}}\n"
	const with = without + "profiles: {reads: {subject: worker, tools: [read_resource], approval: never}}\n"
	apply(t, d, with)
	id := pending(t, openUnder(t, d, "worker", "reads"), "readme")
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: "uses", Uses: 5})
	equal(t, "approving", reason, wire.Allowed)
	apply(t, d, with) // changes nothing
	equal(t, "under the profile", openUnder(t, d, "worker", "reads").Refused("readme"), wire.Allowed)
	before := d.Seq()
	applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(without), Prune: true})
	equal(t, "standing approvals", len(consents(t, d)), 0)
	equal(t, "their end", words(d.Since(before, "approval.void")), "approval.void deny PROFILE_REMOVED")
	apply(t, d, with)
	equal(t, "under a later one", openUnder(t, d, "worker", "reads").Refused("readme"), wire.ApprovalPending)
}
