package daemon_test

import (
	"strings"
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

// A launch that was opened before anybody had to be authenticated for it may be any
// process's: it counts for no tier that is asked for later. What it is worth
// otherwise, and a launch that an authenticated operator opened, stay as they are.
func TestLaunchOfBeforeTheTierWasRaised(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "x")
	d.AddSubject("worker", "tiered")
	d.Grant("worker", "read:plan")
	d.Grant("tiered", "read:plan", atTier("bound"))
	early, _ := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, early.Go(self(t), "hold", d.Home))
	line, err := early.Line()
	must(t, err)
	equal(t, "a run before", line, "worker bound")
	tiered, _ := d.OpenTree("tiered", daemontest.TreeOptions{})
	later, _ := d.OpenTree("worker", daemontest.TreeOptions{})

	setTier(d, "worker", "bound")
	line, err = early.Line()
	must(t, err)
	equal(t, "that run", strings.Fields(line)[0], "ended")
	must(t, early.Say("again"))
	line, err = early.Line()
	must(t, err)
	equal(t, "another run", line, "ACCESS_DENIED")
	equal(t, "why not", last(d, "run.open").Cause, "TIER_TOO_LOW")
	must(t, tiered.Go(self(t), "read", d.Home, "tiered", "plan"))
	_, stdout, _ := tiered.Wait()
	equal(t, "by a grant with a tier", stdout, "")
	equal(t, "why not", last(d, "acquire").Cause, "TIER_TOO_LOW")

	vouched, _ := d.OpenTree("worker", daemontest.TreeOptions{})
	must(t, vouched.Go(self(t), "read", d.Home, "worker", "plan"))
	_, stdout, stderr := vouched.Wait()
	equal(t, "in one that was opened with a session: "+stderr, stdout, "x")

	setTier(d, "worker", "cooperative")
	must(t, later.Go(self(t), "read", d.Home, "worker", "plan"))
	_, stdout, stderr = later.Wait()
	equal(t, "in one of before, now that nothing is asked for: "+stderr, stdout, "x")
}
