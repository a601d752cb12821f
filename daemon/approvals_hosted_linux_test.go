package daemon_test

import (
	"testing"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Whoever waits for a person hears which policy stopped a hosted server.
func TestWaitingCallOfAHostedServerIsKilled(t *testing.T) {
	d := hosting(t)
	d.Authenticate()
	d.AddSubject("worker")
	addServer(t, d, "hub", &operatorv1.Server{}, "worker")
	trust(t, d, "hub")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, approvalWait: 4m, rules: {security: {granular_rules: ["+
		"{tool: echo, deny_if: {arguments: {a: bad}}, action: kill}, {tool: echo, deny_if: {arguments: {a: ask}}, action: request_approval}]}}}]\n")
	stream := hostedRelay(t, d.Open("worker"), "hub")
	_, waits := stream.begin("echo", `{"a":"ask"}`)
	eventually(t, "it waits", func() bool { return len(approvals(t, d, false)) == 1 })
	equal(t, "what kills", said(stream.call("echo", `{"a":"bad"}`).verdict), "-32000 POLICY_BLOCKED GranularAccessPolicy kill")
	equal(t, "the call that waited", said(stream.wait(waits).verdict), "-32000 POLICY_BLOCKED GranularAccessPolicy kill")
	equal(t, "its request", words(d.Entries("approval.void")), "approval.void deny GRANULAR_ACCESS_POLICY")
}
