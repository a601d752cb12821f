package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// As long as nobody knows what a wrapped server offers, a tool that differs in case
// alone from one that is denied, gated or asked about is none that may be called: the
// server may not mind case.
func TestDeniedToolsInAnotherCase(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	_, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"call:srv/drop"}, Deny: true})
	must(t, err)
	_, err = d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"call:srv/pay"}, RequireApproval: true})
	must(t, err)
	applyRules(t, d, "version: 1\ntools: {srv/write: {requires: [], gate: always}}\n")
	r := relayOf(t, run, "srv")
	for tool, want := range map[string]string{
		"ok": "forward", "OK": "forward",
		"drop": "0 ACCESS_DENIED", "DROP": "0 ACCESS_DENIED", "Drop": "0 ACCESS_DENIED", "drop2": "forward",
		"Pay": "0 ACCESS_DENIED", "Write": "0 ACCESS_DENIED",
	} {
		equal(t, tool, said(r.call(tool, `{}`)), want)
	}
	d.Grant("worker", "call:srv/Write") // it is named: these are two tools
	equal(t, "a tool that is named", said(r.call("Write", `{}`)), "forward")
}
