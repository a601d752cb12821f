package daemon_test

import (
	"context"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// A run is told when which hosted servers it may call is different, and lists and
// calls are of one mind about it. Why one is refused the log knows.
func TestServersOfARun(t *testing.T) {
	d := hosting(t)
	d.AddSubject("worker", "other")
	addServer(t, d, "hub", &operatorv1.Server{}, "other")
	run := d.Open("worker")
	ctx, cancel := context.WithTimeout(t.Context(), 4*daemontest.Patience)
	defer cancel()
	watch, err := run.Watch(ctx, &brokerv1.WatchRequest{RunId: run.ID})
	must(t, err)
	hears := func(what string, want func(*brokerv1.WatchResponse) bool) {
		t.Helper()
		for {
			event, err := watch.Recv()
			if err != nil {
				t.Fatalf("%s: nothing is heard: %v", what, err)
			}
			if want(event) {
				return
			}
		}
	}
	changed := func(e *brokerv1.WatchResponse) bool { return e.GetServersChanged() != nil }
	servers := func(when, want, cause string) {
		t.Helper()
		listed, err := run.ListServers(ctx, &brokerv1.ListServersRequest{RunId: run.ID})
		must(t, err)
		equal(t, when, strings.Join(listed.GetServers(), " "), want)
		verdict := hostedRelay(t, run, "hub").call("echo", "{}").verdict
		equal(t, when+", a call is forwarded", verdict.GetForward(), want != "")
		if cause != "" {
			called := last(d, "call")
			equal(t, when+", the entry", called.Decision+" "+called.Capability+" "+called.Cause, "deny call:hub/echo "+cause)
		}
	}
	hears("the beginning", func(e *brokerv1.WatchResponse) bool { return e.GetReady() != nil })
	servers("without a grant", "", "NO_GRANT")
	id := d.Grant("worker", "call:hub/*")
	servers("granted, and not trusted", "", "TOOL_WITHHELD")
	trust(t, d, "hub")
	hears("what was trusted", changed)
	servers("trusted", "hub", "")
	opened, err := run.OpenRun(ctx, daemontest.Claim("worker")) // it is told without asking
	must(t, err)
	equal(t, "at the start of another run", strings.Join(opened.GetOffered().GetServers(), " "), "hub")
	equal(t, "in its entry, the number of servers", last(d, "run.open").Count, 1)
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {security: {allowed_tools: [nothing-of-it]}}}]\n")
	hears("the policy", changed)
	servers("under a policy that leaves out every tool", "", "ALLOWED_TOOLS_POLICY")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {}}]\n")
	hears("another policy", changed)
	servers("under one that does not", "hub", "")
	d.Revoke(id)
	hears("the revocation", changed)
	servers("revoked", "", "NO_GRANT")
	must(t, removeServer(d, "hub"))
	servers("removed", "", "NO_SERVER")
}

func removeServer(d *daemontest.Daemon, server string) error {
	_, err := d.Operator().RemoveServer(context.Background(), &operatorv1.RemoveServerRequest{Name: server})
	return err
}
