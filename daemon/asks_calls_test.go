package daemon_test

import (
	"context"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// lifting are calls of an operator that would let pass unasked what a person is asked
// about, in an order in which each of them can be made after those before it.
func lifting(c operatorv1.OperatorServiceClient) []struct {
	name string
	call func(context.Context) error
} {
	apply := func(doc string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\n" + doc + "\n")})
			return err
		}
	}
	type one = struct {
		name string
		call func(context.Context) error
	}
	return []one{
		{"policy reset", func(ctx context.Context) error {
			_, err := c.ResetPolicy(ctx, &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv"})
			return err
		}},
		{"a grant beside", func(ctx context.Context) error {
			_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:*"}})
			return err
		}},
		{"a grant instead", func(ctx context.Context) error {
			_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"plan"}})
			return err
		}},
		{"a grant for another", apply(`grants: [{subject: other, capability: "call:srv/ask"}]`)},
		{"revoking beside what stays", func(ctx context.Context) error {
			_, err := c.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:docs.a"})
			return err
		}},
		{"a profile that never asks", apply(`profiles: {coder: {subject: worker, tools: [read_resource], approval: never}}`)},
		{"a tool without its gate", apply(`tools: {srv/gate: {requires: []}}`)},
		{"a server that only observes", func(ctx context.Context) error {
			_, err := c.AddServer(ctx, &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "srv", Url: "https://127.0.0.1:1/"}, ObserveSeconds: 60})
			return err
		}},
		{"a policy without its rule", apply(`policies: [{subject: worker, server: srv, rules: {}}]`)},
		{"a policy that asks again", apply(`policies: [{subject: worker, server: srv, approvalWait: 0s, rules: ` + askAPerson + `}]`)}, // stricter: see below
		{"server rm", func(ctx context.Context) error {
			_, err := c.RemoveServer(ctx, &operatorv1.RemoveServerRequest{Name: "srv"})
			return err
		}},
	}
}

// startAsked is a daemon in which much asks a person.
func startAsked(t *testing.T) (*daemontest.Daemon, *daemontest.Run) {
	t.Helper()
	d := daemontest.StartWith(t, daemontest.Options{ApprovalWait: impatient})
	run := worker(t, d)
	d.AddSubject("other")
	for _, name := range []string{"plan", "docs.a"} {
		d.Put(name, "hello")
		d.Grant("worker", "read:"+name, daemontest.Gated)
	}
	d.Grant("worker", "read:docs.*") // would take over
	applyRules(t, d, `version: 1
tools: {srv/gate: {requires: [], gate: always}}
profiles: {coder: {subject: worker, tools: [read_resource], approval: always}}
policies: [{subject: worker, server: srv, approvalWait: 0s, rules: `+askAPerson+`}]
`)
	return d, run
}

// Once somebody could be asked, nobody else lifts what asks; with a session the same
// calls do it, so they are real.
func TestWithoutASessionNothingIsLifted(t *testing.T) {
	d, run := startAsked(t)
	d.Authenticate()
	c := anotherOperator(t, d)
	r := relayOf(t, run, "srv")
	for _, one := range lifting(c) {
		err := one.call(t.Context())
		if one.name == "a policy that asks again" {
			must(t, err)
			continue
		}
		refused := wire.FromError(err)
		if err == nil || refused.Reason != wire.AccessDenied || !strings.Contains(refused.Message, "passphrase") {
			t.Errorf("%s, without a session: %v", one.name, err)
		}
	}
	waits(t, r, "ask", `{}`)
	waits(t, r, "gate", `{}`)
	pending(t, run, "plan")

	// What takes away asks nobody, and what was taken away does not come back unasked.
	_, err := c.RevokeGrants(t.Context(), &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "plan"})
	must(t, err)
	_, err = c.CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"plan"}})
	equal(t, "granting without asking what was revoked", daemontest.Reason(err), wire.AccessDenied)
	_, err = c.RemoveSubject(t.Context(), &operatorv1.RemoveSubjectRequest{Name: "worker"})
	equal(t, "removing the subject of it all", daemontest.Reason(err), wire.AccessDenied)
	_, err = c.CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "other", Capabilities: []string{"call:elsewhere/x"}})
	must(t, err)

	_, err = c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
	must(t, err)
	for _, one := range lifting(c) {
		if err := one.call(t.Context()); err != nil {
			t.Errorf("%s, with a session: %v", one.name, err)
		}
	}
	_, err = c.RemoveSubject(t.Context(), &operatorv1.RemoveSubjectRequest{Name: "worker"})
	must(t, err)
}

// Where nobody could be asked, nothing passed that asked: it is lifted by who may
// grant, who is told so.
func TestLiftedWhereNobodyIsAsked(t *testing.T) {
	d, run := startAsked(t)
	r := relayOf(t, run, "srv")
	equal(t, "before", said(r.call("ask", `{}`)), "-32000 APPROVAL_DENIED ApprovalPolicy request_approval")
	granted, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"plan"}})
	must(t, err)
	removed, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv", Remove: true})
	must(t, err)
	applied, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\ntools: {srv/gate: {requires: []}}\n")})
	must(t, err)
	for what, warnings := range map[string][]string{"a grant": granted.GetWarnings(), "policy rm": removed.GetWarnings(), "apply": applied.GetWarnings()} {
		if len(warnings) != 1 || !strings.Contains(warnings[0], "set a passphrase") {
			t.Errorf("%s says %q", what, warnings)
		}
	}
	equal(t, "after", said(r.call("ask", `{}`)), "forward")
	equal(t, "the read", run.Refused("plan"), wire.Allowed)
	plain, err := d.Operator().CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"call:elsewhere/x"}})
	must(t, err)
	equal(t, "warnings about another grant", len(plain.GetWarnings()), 0)
}
