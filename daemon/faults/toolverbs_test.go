//go:build linux

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// The verbs that are about servers, rules and answers of a person: sbd dies before
// each call with which one changes the disk, and at every other of them, which is
// drawn, the power goes with it.
func TestToolVerbsAtEachStep(t *testing.T) {
	t.Parallel()
	need(t)
	w := newToolWorldOn(t, keepScore(t, "killed or without power before each step of each verb about tools"), newDisk(t, 16))
	w.Put("open", hello)
	w.AddSubject("served", "asker")
	w.Grant("asker", "read:open", daemontest.Gated)
	w.Grant("served", "call:hosted/*")
	w.Grant("served", "call:wrapped/*")
	only := os.Getenv("FAULTS_VERB")
	for _, v := range w.verbs() {
		if strings.Contains(v.rpc, only) {
			from := rand.IntN(2)
			w.dieAtSteps(v, func(n int) bool { return n%2 == from })
		}
	}
}

// verbs is the table; its rows are like those of the other one.
func (w *toolWorld) verbs() []verb {
	var card *operatorv1.Approval
	var consent string
	server := func(*world) string { return w.served("added") }
	rules := func(server string) string {
		list, err := w.Operator().ListPolicies(w.t.Context(), &operatorv1.ListPoliciesRequest{Subject: "served", Server: server})
		must(w.t, err)
		if len(list.GetPolicies()) == 0 {
			return absent
		}
		for _, m := range list.GetPolicies()[0].GetMeters() {
			switch {
			case m.GetKilled():
				return "killed"
			case m.GetCalls() > 0:
				return fmt.Sprintf("%d calls", m.GetCalls())
			}
		}
		return present
	}
	apply := func(server, rules string) error {
		return second(w.Operator().Apply(w.t.Context(), &operatorv1.ApplyRequest{Document: []byte(
			"version: 1\npolicies: [{subject: served, server: " + server + ", rules: " + rules + "}]\n")}))
	}
	const counting, killing = "{limits: {max_tool_calls: 100}}", "{security: {granular_rules: [{tool: ok, deny_if: {arguments: {id: bad}}, action: kill}]}}"
	reset := func(remove bool) error {
		return second(w.Operator().ResetPolicy(w.t.Context(), &operatorv1.ResetPolicyRequest{Subject: "served", Server: "wrapped", Remove: remove}))
	}
	unruled := func() {
		if rules("wrapped") != absent {
			must(w.t, reset(true))
		}
	}
	decide := func() error {
		done, err := w.Operator().DecideApproval(w.t.Context(), &operatorv1.DecideApprovalRequest{ApprovalId: card.GetApprovalId(), Approve: true, Scope: "uses", Uses: 3})
		consent = done.GetConsent().GetConsentId()
		return err
	}
	stands := func(*world) string {
		if len(w.consents()) == 0 {
			return absent
		}
		return present
	}
	ask := func() {
		w.Authenticate()
		for _, c := range w.consents() {
			must(w.t, second(w.Operator().RevokeConsent(w.t.Context(), &operatorv1.RevokeConsentRequest{ConsentId: c})))
		}
		card = w.asks()
	}
	return []verb{
		{
			rpc:     "AddServer",
			arrange: func(*world) { w.unserved("added") },
			act:     func(*world) error { return w.serve("added", "served") },
			look:    server, before: "absent, 0 grants", after: "untrusted, 1 grants",
		},
		{
			rpc:     "TrustServer",
			arrange: func(*world) { w.unserved("added"); must(w.t, w.serve("added", "served")) },
			act: func(*world) error {
				return second(w.Operator().TrustServer(w.t.Context(), &operatorv1.TrustServerRequest{Name: "added"}))
			},
			look: server, before: "untrusted, 1 grants", after: "3 tools trusted, 1 grants",
		},
		{
			rpc:     "RemoveServer",
			arrange: func(*world) { w.unserved("added"); must(w.t, w.serve("added", "served")) },
			act: func(*world) error {
				return second(w.Operator().RemoveServer(w.t.Context(), &operatorv1.RemoveServerRequest{Name: "added"}))
			},
			look: server, before: "untrusted, 1 grants", after: "absent, 0 grants",
		},
		{
			rpc:     "Apply of a policy",
			arrange: func(*world) { unruled() },
			act:     func(*world) error { return apply("wrapped", counting) },
			look:    func(*world) string { return rules("wrapped") }, before: absent, after: present,
		},
		{
			rpc: "ResetPolicy",
			arrange: func(*world) {
				unruled()
				must(w.t, apply("wrapped", counting))
				w.calls("wrapped", "{}")
			},
			act:  func(*world) error { return reset(false) },
			look: func(*world) string { return rules("wrapped") }, before: "1 calls", after: present,
		},
		{
			rpc:     "ResetPolicy to none",
			arrange: func(*world) { unruled(); must(w.t, apply("wrapped", counting)) },
			act:     func(*world) error { return reset(true) },
			look:    func(*world) string { return rules("wrapped") }, before: present, after: absent,
		},
		{
			rpc: "RestartServer",
			arrange: func(*world) {
				must(w.t, apply("hosted", killing))
				if rules("hosted") != "killed" {
					w.calls("hosted", `{"id":"bad"}`)
				}
				eventually(w.t, "the server is stopped", func() bool { return rules("hosted") == "killed" })
			},
			act: func(*world) error {
				return second(w.Operator().RestartServer(w.t.Context(), &operatorv1.RestartServerRequest{Name: "hosted", Subject: "served"}))
			},
			look: func(*world) string { return rules("hosted") }, before: "killed", after: present,
		},
		{
			rpc:     "DecideApproval",
			arrange: func(*world) { ask() },
			act:     func(*world) error { return decide() },
			look:    stands, before: absent, after: present,
		},
		{
			rpc:     "RevokeConsent",
			arrange: func(*world) { ask(); must(w.t, decide()) },
			act: func(*world) error {
				return second(w.Operator().RevokeConsent(w.t.Context(), &operatorv1.RevokeConsentRequest{ConsentId: consent}))
			},
			look: stands, before: present, after: absent,
		},
	}
}

// serve adds the server under a name.
func (w *toolWorld) serve(name string, subjects ...string) error {
	return second(w.Operator().AddServer(w.t.Context(), &operatorv1.AddServerRequest{
		Server: &operatorv1.Server{Name: name, Command: []string{w.self, serverRole, w.file}, Cwd: w.work}, Subjects: subjects,
	}))
}

// unserved makes sure that no server has a name.
func (w *toolWorld) unserved(name string) {
	w.t.Helper()
	if !strings.HasPrefix(w.served(name), absent) {
		must(w.t, second(w.Operator().RemoveServer(w.t.Context(), &operatorv1.RemoveServerRequest{Name: name})))
	}
}

// served tells what is known of a server, and how many grants there are to call it.
func (w *toolWorld) served(name string) string {
	w.t.Helper()
	list, err := w.Operator().ListServers(w.t.Context(), &operatorv1.ListServersRequest{})
	must(w.t, err)
	state := absent
	if slices.ContainsFunc(list.GetServers(), func(s *operatorv1.Server) bool { return s.GetName() == name }) {
		got, err := w.Operator().GetServer(w.t.Context(), &operatorv1.GetServerRequest{Name: name})
		must(w.t, err)
		trusted := 0
		for _, tool := range got.GetTools() {
			if tool.GetState() == "trusted" && tool.GetName() != "" {
				trusted++
			}
		}
		if state = "untrusted"; trusted > 0 {
			state = fmt.Sprintf("%d tools trusted", trusted)
		}
	}
	open := 0
	for _, g := range w.Grants("served") {
		if g.GetCapability() == "call:"+name+"/*" && g.GetState() == "active" {
			open++
		}
	}
	return fmt.Sprintf("%s, %d grants", state, open)
}

// calls has one call of a tool judged on a relay of its own.
func (w *toolWorld) calls(server, args string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), daemontest.Patience)
	defer cancel()
	run := w.Open("served")
	defer run.Close()
	mode := brokerv1.RelayMode_RELAY_MODE_WRAPPED
	if server == "hosted" {
		mode = brokerv1.RelayMode_RELAY_MODE_HOSTED
	}
	stream, err := run.Relay(ctx)
	must(w.t, err)
	must(w.t, stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{RunId: run.ID, Server: server, Mode: mode}}}))
	must(w.t, stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: &brokerv1.RelayCall{
		Id: 1, Method: "tools/call", Tool: "ok", Arguments: []byte(args),
	}}}))
	for {
		m, err := stream.Recv()
		must(w.t, err)
		if m.GetVerdict() != nil {
			break
		}
	}
	if server == "wrapped" {
		must(w.t, stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{
			Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK, Delivered: true,
		}}}))
	}
}

// consents are the ids of the answers that stand.
func (w *toolWorld) consents() (ids []string) {
	w.t.Helper()
	list, err := w.Operator().ListApprovals(w.t.Context(), &operatorv1.ListApprovalsRequest{})
	must(w.t, err)
	for _, c := range list.GetConsents() {
		ids = append(ids, c.GetConsentId())
	}
	return ids
}

// asks has a read wait for a person, and returns the request.
func (w *toolWorld) asks() (card *operatorv1.Approval) {
	w.t.Helper()
	run := w.Open("asker")
	go func() {
		// Its end is that of the daemon, or an answer: neither is looked at.
		_, _ = run.Acquire(context.WithoutCancel(w.t.Context()), &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "open"})
	}()
	eventually(w.t, "a person is asked about a read", func() bool {
		list, err := w.Operator().ListApprovals(w.t.Context(), &operatorv1.ListApprovalsRequest{})
		must(w.t, err)
		for _, a := range list.GetApprovals() {
			if a.GetState() == "pending" && a.GetRunId() == run.ID {
				card = a
			}
		}
		return card != nil
	})
	return card
}
