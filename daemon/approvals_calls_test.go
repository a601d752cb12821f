package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// atOnce is a policy under which calls of ask wait for a person, who is not waited
// for.
func atOnce(rules string) string { return policyDoc("approvalWait: 0s, ", rules) }

const askAPerson = `{security: {require_approval: [ask]}}`

// startAsking is a daemon with a person who can answer, and a relay on which calls
// of ask wait for one.
func startAsking(t *testing.T, document string) (*daemontest.Daemon, *daemontest.Run, *relay) {
	t.Helper()
	d := daemontest.Start(t)
	d.Authenticate()
	run := worker(t, d)
	applyRules(t, d, document)
	return d, run, relayOf(t, run, "srv")
}

// waits has a call judged that waits for a person, and returns the request's id.
func waits(t *testing.T, r *relay, tool, args string) string {
	t.Helper()
	v := r.call(tool, args)
	id := v.GetApprovalId()
	if said(v) != "-32001 APPROVAL_PENDING ApprovalPolicy request_approval" || id == "" || !strings.HasPrefix(v.GetMessage(), "APPROVAL_PENDING id="+id) {
		t.Fatalf("it does not wait: %s, id %q: %s", said(v), id, v.GetMessage())
	}
	return id
}

// A call that a rule leaves to a person is forwarded once when one has approved it;
// the retry gets the answer that nobody got; nothing else is covered.
func TestApprovedCall(t *testing.T) {
	d, _, r := startAsking(t, atOnce(askAPerson))
	equal(t, "what needs nobody", said(r.call("ok", `{}`)), "forward")
	id := waits(t, r, "ask", `{"n":1}`)
	equal(t, "the retry attaches", waits(t, r, "ask", `{"n":1}`), id)
	other := waits(t, r, "ask", `{"n":2}`)
	equal(t, "other arguments are another request", other != id, true)
	card := approvals(t, d, false)[id]
	equal(t, "what a person sees", string(card.GetArguments())+" "+card.GetServer()+" "+card.GetTool()+" "+card.GetPinState(), `{"n":1} srv ask untrusted`)
	equal(t, "the scopes without a pin", strings.Join(card.GetScopes(), " "), "once")
	_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: "session"})
	equal(t, "for more than once", reason, wire.InvalidArgument)
	_, reason = decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, ArgsDigest: approvals(t, d, false)[other].GetArgsDigest()})
	equal(t, "with the other's digest", reason, wire.InvalidArgument)
	_, reason = decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, ArgsDigest: card.GetArgsDigest()})
	equal(t, "with its own", reason, wire.Allowed)

	waits(t, r, "ask", `{"n":2}`)
	number := r.ask("ask", `{"n":1}`)
	v := r.verdict(number)
	equal(t, "the retry", said(v)+" "+v.GetApprovalId(), "forward "+id)
	equal(t, "its answer is wanted", v.GetApproved(), true)
	equal(t, "while it is under way", waits(t, r, "ask", `{"n":1}`), id)
	must(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{
		Id: number, End: brokerv1.RelayEnd_RELAY_END_OK, Answer: []byte(`{"content":[]}`),
	}}}))
	eventually(t, "its end", func() bool { return approvals(t, d, true)[id].GetState() == "settled" })
	v = r.verdict(r.ask("ask", `{"n":1}`))
	equal(t, "the retry of what nobody got", string(v.GetReplay())+" "+v.GetApprovalId(), `{"content":[]} `+id)
	equal(t, "it is not forwarded", v.GetForward(), false)
	replays := d.Entries("approval.replay")
	if len(replays) != 1 || replays[0].ApprovalID != id || replays[0].Tool != "ask" || replays[0].Decision != "allow" {
		t.Errorf("the entry of that: %+v", replays)
	}
	equal(t, "after that it is another request", waits(t, r, "ask", `{"n":1}`) != id, true)

	runs := 0
	for _, e := range d.Entries("call") {
		if e.Tool == "ask" && e.Decision == "allow" {
			runs++
			equal(t, "the entry", e.ApprovalID+" "+e.Decision, id+" allow")
		}
	}
	equal(t, "forwarded", runs, 1)
}

// A call that waits holds up no other, and takes nothing until it is forwarded.
func TestWaitingCall(t *testing.T) {
	d, _, r := startAsking(t, policyDoc("approvalWait: 4m, ", `{limits: {max_tool_calls: 2}, security: {require_approval: [ask]}}`))
	first, second := r.ask("ask", `{"n":1}`), r.ask("ask", `{"n":2}`)
	var ids []string
	eventually(t, "both wait", func() bool {
		ids = nil
		for id, a := range approvals(t, d, false) {
			if a.GetWaiting() == 1 {
				ids = append(ids, id)
			}
		}
		return len(ids) == 2
	})
	equal(t, "another call", said(r.call("ok", `{}`)), "forward")
	for _, id := range ids {
		approve(t, d, id)
	}
	got := map[string]int{}
	for _, number := range []uint64{first, second} {
		v := r.verdict(number)
		got[said(v)]++
		if v.GetForward() {
			r.end(number, brokerv1.RelayEnd_RELAY_END_OK)
		}
	}
	if got["forward"] != 1 || got["-32000 POLICY_BLOCKED MaxToolCallsPolicy block"] != 1 {
		t.Errorf("of two calls for the last place: %v", got)
	}
}

// What a person was asked about and is not so any more is not forwarded, whatever
// they said.
func TestApprovedCallThatChanged(t *testing.T) {
	d, run, r := startAsking(t, atOnce(askAPerson))
	id := waits(t, r, "ask", `{}`)
	approve(t, d, id)
	applyRules(t, d, atOnce(`{limits: {max_tool_calls: 9}, security: {require_approval: [ask]}}`))
	equal(t, "under another policy", waits(t, r, "ask", `{}`) != id, true)
	id = waits(t, r, "ask", `{}`)
	approve(t, d, id)
	applyRules(t, d, atOnce(`{security: {denied_tools: [ask]}}`))
	equal(t, "denied since", said(r.call("ask", `{}`)), "-32000 POLICY_BLOCKED DeniedToolsPolicy block")
	before := len(approvals(t, d, true))
	r.call("ask", `{"other":1}`)
	equal(t, "a denial asks nobody", len(approvals(t, d, true)), before)
	applyRules(t, d, atOnce(askAPerson))
	id = waits(t, r, "ask", `{}`)
	approve(t, d, id)
	other := relayOf(t, d.Open("worker"), "srv")
	equal(t, "another run", waits(t, other, "ask", `{}`) != id, true)
	again := relayOf(t, run, "srv")
	equal(t, "the same run on another stream", said(again.call("ask", `{}`)), "forward")
}

// What nobody got is given to nobody who may not call any more.
func TestReplayNeedsTheGrant(t *testing.T) {
	d := daemontest.Start(t)
	d.Authenticate()
	d.AddSubject("worker")
	grant := d.Grant("worker", "call:srv/ask")
	applyRules(t, d, atOnce(askAPerson))
	r := relayOf(t, d.Open("worker"), "srv")
	for _, args := range []string{`{"n":1}`, `{"n":2}`} {
		approve(t, d, waits(t, r, "ask", args))
		number := r.ask("ask", args)
		equal(t, "the retry", said(r.verdict(number)), "forward")
		seq := d.Seq()
		must(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{
			Id: number, End: brokerv1.RelayEnd_RELAY_END_TOOL_ERROR, Answer: []byte(`{"isError":true}`),
		}}}))
		d.Await(seq, func(e verify.Entry) bool { return e.Kind == "call.done" })
	}
	equal(t, "what is given", string(r.verdict(r.ask("ask", `{"n":1}`)).GetReplay()), `{"isError":true}`)
	d.Revoke(grant)
	v := r.verdict(r.ask("ask", `{"n":2}`))
	equal(t, "what is given then", string(v.GetReplay())+said(v), "0 ACCESS_DENIED")
}

// The approval policy of a profile follows the tools or does not, and nothing lifts
// the floor of a tool.
func TestGatesOfProfiles(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	applyRules(t, d, `version: 1
subjects: {worker: {}}
tools:
  srv/ask: {requires: [], approval: always}
  srv/gate: {requires: [], gate: always}
  srv/free: {requires: []}
profiles:
  auto: {subject: worker, tools: [srv/ask, srv/gate, srv/free]}
  always: {subject: worker, tools: [srv/ask, srv/gate, srv/free], approval: always}
  never: {subject: worker, tools: [srv/ask, srv/gate, srv/free], approval: never}
grants: [{subject: worker, capability: "call:srv/*"}]
policies: [{subject: worker, server: srv, approvalWait: 0s, rules: {}}]
`)
	const yes, ask = "forward", "-32001 APPROVAL_PENDING ApprovalPolicy request_approval"
	for profile, want := range map[string]map[string]string{
		"":       {"free": yes, "ask": yes, "gate": ask},
		"auto":   {"free": yes, "ask": ask, "gate": ask},
		"always": {"free": ask, "ask": ask, "gate": ask},
		"never":  {"free": yes, "ask": yes, "gate": ask},
	} {
		clock.step(1e10)
		run := d.Open("worker")
		if profile != "" {
			run = openUnder(t, d, "worker", profile)
		}
		r := relayOf(t, run, "srv")
		for tool, outcome := range want {
			v := r.call(tool, `{}`)
			equal(t, profile+" "+tool, said(v), outcome)
			if outcome == ask {
				approve(t, d, v.GetApprovalId())
				equal(t, profile+" "+tool+" approved", said(r.call(tool, `{}`)), yes)
			}
		}
	}
}

// A call that waits for a person when a rule kills the session gets that policy's
// answer, and nothing is left to approve; where nothing kills, it waits on.
func TestWaitingCallIsKilled(t *testing.T) {
	for action, want := range map[string]string{
		"kill": "-32000 POLICY_BLOCKED GranularAccessPolicy kill", "block": "waits",
	} {
		d, _, r := startAsking(t, policyDoc("approvalWait: 4m, ",
			`{security: {require_approval: [ask], granular_rules: [{tool: ok, deny_if: {arguments: {a: bad}}, action: `+action+`}]}}`))
		number := r.ask("ask", `{"n":1}`)
		id := ""
		eventually(t, "it waits", func() bool {
			for one, a := range approvals(t, d, false) {
				if a.GetWaiting() == 1 {
					id = one
				}
			}
			return id != ""
		})
		equal(t, action, said(r.call("ok", `{"a":"bad"}`)), "-32000 POLICY_BLOCKED GranularAccessPolicy "+action)
		if want == "waits" {
			equal(t, "the request", approvals(t, d, true)[id].GetState(), "pending")
			continue
		}
		v := r.verdict(number)
		equal(t, "the call that waited", said(v), want)
		equal(t, "its request", approvals(t, d, true)[id].GetState(), "void")
		equal(t, "the end", r.over(), wire.Allowed)
		equal(t, "the kill", r.kill.GetPolicy(), "GranularAccessPolicy")
		_, reason := decide(t, d, &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true})
		equal(t, "approving it then", reason, wire.InvalidArgument)
		void := d.Entries("approval.void")
		if len(void) != 1 || void[0].ApprovalID != id || void[0].Cause != "GRANULAR_ACCESS_POLICY" {
			t.Errorf("the entry of its end: %+v", void)
		}
		var calls []string
		for _, e := range d.Entries("call") {
			if e.Tool == "ask" {
				calls = append(calls, e.Decision+" "+e.Cause)
			}
		}
		equal(t, "the entries of the call", strings.Join(calls, ", "), "deny GRANULAR_ACCESS_POLICY")
	}
}

// Where a path leads is looked at when a person has answered, not only before: who is
// asked about a call may take minutes.
func TestPathsAreLookedAtAfterTheAnswer(t *testing.T) {
	for _, moves := range []bool{false, true} {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		must(t, err)
		inside, outside, link := filepath.Join(dir, "in"), filepath.Join(dir, "out"), filepath.Join(dir, "link")
		must(t, errors.Join(os.Mkdir(inside, 0o700), os.Mkdir(outside, 0o700), os.Symlink(inside, link)))
		d, _, r := startAsking(t, policyDoc("approvalWait: 4m, ",
			fmt.Sprintf(`{security: {require_approval: [ask], granular_rules: [{tool: ask, deny_if: {arguments: {path: {path: %s}}}}]}}`, outside)))
		number := r.ask("ask", fmt.Sprintf(`{"path":%q}`, link+"/x"))
		id := ""
		eventually(t, "it waits", func() bool {
			for one, a := range approvals(t, d, false) {
				if a.GetWaiting() == 1 {
					id = one
				}
			}
			return id != ""
		})
		want := "forward"
		if moves {
			must(t, errors.Join(os.Remove(link), os.Symlink(outside, link)))
			want = "-32000 POLICY_BLOCKED GranularAccessPolicy block"
		}
		approve(t, d, id)
		equal(t, fmt.Sprintf("moved: %v", moves), said(r.verdict(number)), want)
	}
}
