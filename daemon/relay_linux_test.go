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
// relays are of one mind about it.
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
	servers := func(when, want string) {
		t.Helper()
		listed, err := run.ListServers(ctx, &brokerv1.ListServersRequest{RunId: run.ID})
		must(t, err)
		equal(t, when, strings.Join(listed.GetServers(), " "), want)
		_, err = openRelay(t, run, &brokerv1.RelayOpen{RunId: run.ID, Server: "hub", Mode: brokerv1.RelayMode_RELAY_MODE_HOSTED})
		if opens := err == nil; opens != (want != "") {
			t.Errorf("%s: a relay opens: %v", when, opens)
		}
	}
	hears("the beginning", func(e *brokerv1.WatchResponse) bool { return e.GetReady() != nil })
	servers("without a grant", "")
	id := d.Grant("worker", "call:hub/*")
	servers("granted, and not trusted", "")
	trust(t, d, "hub")
	hears("what was trusted", changed)
	servers("trusted", "hub")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {security: {allowed_tools: [nothing-of-it]}}}]\n")
	hears("the policy", changed)
	servers("under a policy that leaves out every tool", "")
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: hub, rules: {}}]\n")
	hears("another policy", changed)
	servers("under one that does not", "hub")
	d.Revoke(id)
	hears("the revocation", changed)
	servers("revoked", "")
}
