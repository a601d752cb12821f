package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Whatever runs first in a launch is its subject, so that a process of the uid
// that could start one would be a subject whose tier keeps it out.
func TestLaunchOfARaisedSubjectNeedsASession(t *testing.T) {
	d := world(t)
	open := func(c operatorv1.OperatorServiceClient, subject string, disclosed ...string) string {
		options := daemontest.TreeOptions{Places: d.Places}
		tree := daemontest.NewTree(t, options)
		q := tree.Request(subject, options)
		q.Disclose = disclosed
		_, err := c.OpenLaunch(t.Context(), q)
		return outcome(err)
	}
	equal(t, "before a tier is raised", open(anotherOperator(t, d), "high"), "ALLOWED")
	equal(t, "and with content", open(anotherOperator(t, d), "high", "plan"), "ALLOWED")
	setTier(d, "high", "bound")
	stranger := anotherOperator(t, d)
	equal(t, "without a session", open(stranger, "high"), unlockFirst)
	equal(t, "the entry", last(d, "launch.open").Cause, "OPERATOR_AUTH_REQUIRED")
	equal(t, "of another subject", open(stranger, "worker"), "ALLOWED")
	equal(t, "of another, with content", open(stranger, "worker", "plan"), unlockFirst)
	d.AddSubject("tiered")
	equal(t, "of one that was granted nothing", open(stranger, "tiered"), "ALLOWED")
	_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "tiered", Capabilities: []string{"plan"}, Tier: "sandboxed"})
	must(t, err)
	equal(t, "of one whose grant asks for a tier", open(stranger, "tiered"), unlockFirst)
	_, err = stranger.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
	must(t, err)
	equal(t, "with a session", open(stranger, "high"), "ALLOWED")
	equal(t, "with a session, and content", open(stranger, "high", "plan"), "ALLOWED")
	setTier(d, "high", "cooperative")
	equal(t, "after it was lowered", open(anotherOperator(t, d), "high"), "ALLOWED")
}
