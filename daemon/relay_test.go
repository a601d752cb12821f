package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// relay is a client's end of a relay of calls.
type relay struct {
	t      testing.TB
	stream brokerv1.BrokerService_RelayClient
	cancel context.CancelFunc
	opened *brokerv1.RelayOpened

	sending sync.Mutex
	id      uint64

	mu       sync.Mutex
	verdicts map[uint64]*brokerv1.RelayVerdict
	tools    [][]string
	kill     *brokerv1.RelayKill
	err      error         // why it is over
	changed  chan struct{} // closed whenever something has come
}

// relayOf opens a relay of a wrapped server.
func relayOf(t testing.TB, run *daemontest.Run, server string) *relay {
	t.Helper()
	r, err := openRelay(t, run, &brokerv1.RelayOpen{RunId: run.ID, Server: server, Mode: brokerv1.RelayMode_RELAY_MODE_WRAPPED})
	if err != nil {
		t.Fatalf("opening a relay: %s: %v", daemontest.Reason(err), err)
	}
	return r
}

func openRelay(t testing.TB, run *daemontest.Run, open *brokerv1.RelayOpen) (*relay, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*daemontest.Patience)
	t.Cleanup(cancel)
	stream, err := run.Relay(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, stream: stream, cancel: cancel, verdicts: map[uint64]*brokerv1.RelayVerdict{}, changed: make(chan struct{})}
	_ = r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: open}})
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if r.opened = first.GetOpened(); r.opened == nil {
		t.Fatalf("the first answer is %v", first)
	}
	go r.read()
	return r, nil
}

func (r *relay) send(m *brokerv1.RelayRequest) error {
	r.sending.Lock()
	defer r.sending.Unlock()
	return r.stream.Send(m)
}

func (r *relay) read() {
	for {
		m, err := r.stream.Recv()
		r.mu.Lock()
		switch {
		case err != nil:
			r.err = err
		case m.GetVerdict() != nil:
			r.verdicts[m.GetVerdict().GetId()] = m.GetVerdict()
		case m.GetTools() != nil:
			names := []string{}
			for _, tool := range m.GetTools().GetTools() {
				names = append(names, tool.GetName())
			}
			r.tools = append(r.tools, names)
		case m.GetKill() != nil:
			r.kill = m.GetKill()
		}
		close(r.changed)
		r.changed = make(chan struct{})
		r.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// until waits for what done reports under mu.
func (r *relay) until(what string, done func() bool) {
	r.t.Helper()
	limit := time.After(daemontest.Patience)
	for {
		r.mu.Lock()
		ok, changed := done(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			r.t.Fatalf("waiting for %s: nothing comes", what)
		}
	}
}

// ask sends a call and returns its number.
func (r *relay) ask(tool, args string) uint64 {
	r.t.Helper()
	return r.askMethod("tools/call", tool, args)
}

func (r *relay) askMethod(method, tool, args string) uint64 {
	r.t.Helper()
	r.sending.Lock()
	defer r.sending.Unlock()
	r.id++
	err := r.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: &brokerv1.RelayCall{
		Id: r.id, Method: method, Tool: tool, Arguments: []byte(args),
	}}})
	if err != nil && !errors.Is(err, io.EOF) { // the stream may be over: its verdict tells
		r.t.Errorf("asking: %v", err)
	}
	return r.id
}

// verdict waits for the judgement of a call.
func (r *relay) verdict(id uint64) *brokerv1.RelayVerdict {
	r.t.Helper()
	v := r.judged(id)
	if v == nil {
		r.t.Fatalf("call %d: the stream ended: %s: %v", id, daemontest.Reason(r.err), r.err)
	}
	return v
}

// judged is the same, and nil when the stream ends before that.
func (r *relay) judged(id uint64) *brokerv1.RelayVerdict {
	r.t.Helper()
	r.until(fmt.Sprintf("the verdict of call %d", id), func() bool { return r.verdicts[id] != nil || r.err != nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdicts[id]
}

// call has a call judged, and ends it well when it may be forwarded.
func (r *relay) call(tool, args string) *brokerv1.RelayVerdict {
	r.t.Helper()
	id := r.ask(tool, args)
	v := r.verdict(id)
	if v.GetForward() {
		r.end(id, brokerv1.RelayEnd_RELAY_END_OK)
	}
	return v
}

func (r *relay) end(id uint64, end brokerv1.RelayEnd) {
	r.t.Helper()
	if err := r.send(outcomeOf(id, end)); err != nil {
		r.t.Errorf("telling the end: %v", err)
	}
}

func outcomeOf(id uint64, end brokerv1.RelayEnd) *brokerv1.RelayRequest {
	return &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: id, End: end, Delivered: true}}}
}

// said is a verdict in a few words.
func said(v *brokerv1.RelayVerdict) string {
	if v.GetForward() {
		return "forward"
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %s %s", v.GetCode(), v.GetReasonCode(), v.GetPolicy(), v.GetAction()))
}

// over waits for the end of the stream.
func (r *relay) over() wire.Reason {
	r.t.Helper()
	r.until("the end of the stream", func() bool { return r.err != nil })
	if errors.Is(r.err, io.EOF) {
		return wire.Allowed
	}
	return daemontest.Reason(r.err)
}

// applyRules applies a document.
func applyRules(t testing.TB, d *daemontest.Daemon, document string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	if _, err := d.Operator().Apply(ctx, &operatorv1.ApplyRequest{Document: []byte(document)}); err != nil {
		t.Fatalf("applying: %v", err)
	}
}

// policyDoc is a document with one policy around srv for worker, with rules in
// flow style.
func policyDoc(more, rules string) string {
	return "version: 1\npolicies: [{subject: worker, server: srv, " + more + "rules: " + rules + "}]\n"
}

// worker is a subject that may call tools of srv, with a run.
func worker(t testing.TB, d *daemontest.Daemon) *daemontest.Run {
	t.Helper()
	d.AddSubject("worker")
	d.Grant("worker", "call:srv/*")
	return d.Open("worker")
}

func TestCallsNeedAGrant(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	id := d.Grant("worker", "call:srv/ok")
	r := relayOf(t, d.Open("worker"), "srv")
	equal(t, "granted", said(r.call("ok", `{"a":1}`)), "forward")
	for _, tool := range []string{"evil", "no such tool", "\u202e", strings.Repeat("x", 300)} {
		v := r.call(tool, "{}")
		equal(t, "a tool that was not granted", said(v), "0 ACCESS_DENIED")
		equal(t, "what the agent is told", v.GetMessage(), "access denied. Ask the person who runs this agent.")
	}
	d.Revoke(id)
	equal(t, "revoked while it is open", said(r.call("ok", "{}")), "0 ACCESS_DENIED")

	d.Await(0, func(e verify.Entry) bool { return e.Kind == "call.done" })
	entries := d.Entries("call")
	equal(t, "entries", len(entries), 6)
	first := entries[0]
	if first.Decision != "allow" || first.Server != "srv" || first.Tool != "ok" || first.GrantID != id || first.ArgsDigest == "" || first.RunID == "" {
		t.Errorf("the entry of what was allowed: %+v", first)
	}
	last := entries[5]
	if last.Decision != "deny" || last.Cause != "NO_GRANT" && last.Cause != "GRANT_REVOKED" {
		t.Errorf("the entry of what was denied: %+v", last)
	}
	if entries[1].ArgsDigest != last.ArgsDigest || first.ArgsDigest == last.ArgsDigest {
		t.Error("digests do not tell equal arguments from others")
	}
	done := d.Entries("call.done")
	if len(done) != 1 || done[0].Count != first.Seq || done[0].Cause != "OK" || done[0].Decision != "allow" {
		t.Errorf("how it ended: %+v", done)
	}
	runs := d.Status().GetRuns()
	if len(runs) != 1 || runs[0].GetCalls() != 1 || runs[0].GetDenials() != 5 {
		t.Errorf("the run: %+v", runs)
	}
}

// How calls ended may be said beside the next one, and comes before it, or by itself.
func TestEndsBesideACall(t *testing.T) {
	d := daemontest.Start(t)
	r := relayOf(t, worker(t, d), "srv")
	equal(t, "it is understood", r.opened.GetEnded(), true)
	first := r.ask("ok", "{}")
	equal(t, "the first", said(r.verdict(first)), "forward")
	ended := func(id uint64, end brokerv1.RelayEnd) []*brokerv1.RelayOutcome {
		return []*brokerv1.RelayOutcome{{Id: id, End: end, Delivered: true}}
	}
	r.sending.Lock()
	r.id++
	second := r.id
	r.sending.Unlock()
	must(t, r.send(&brokerv1.RelayRequest{
		Ended:   ended(first, brokerv1.RelayEnd_RELAY_END_TOOL_ERROR),
		Message: &brokerv1.RelayRequest_Call{Call: &brokerv1.RelayCall{Id: second, Method: "tools/call", Tool: "ok", Arguments: []byte("{}")}},
	}))
	equal(t, "the second", said(r.verdict(second)), "forward")
	must(t, r.send(&brokerv1.RelayRequest{Ended: ended(second, brokerv1.RelayEnd_RELAY_END_OK)}))
	d.Await(0, func(e verify.Entry) bool { return e.Kind == "call.done" && e.Cause == "OK" })
	var got []string
	for _, e := range d.Entries("call", "call.done") {
		got = append(got, e.Kind+" "+e.Cause)
	}
	equal(t, "the log", strings.TrimSpace(strings.Join(got, ", ")), "call , call.done TOOL_ERROR, call , call.done OK")
}

func TestRules(t *testing.T) {
	for _, tc := range []struct {
		name, rules string
		calls       []string // TOOL ARGS
		want        []string
	}{
		{"no policy", "", []string{"any {}"}, []string{"forward"}},
		{
			"lists and arguments", `{security: {allowed_tools: [ok, other], denied_tools: [other], granular_rules: [{tool: ok, deny_if: {arguments: {path: '\.env'}}}]}}`,
			[]string{`ok {"path":"/a"}`, `ok {"path":"/a/.env"}`, "other {}", "evil {}"},
			[]string{
				"forward", "-32000 POLICY_BLOCKED GranularAccessPolicy block", "-32000 POLICY_BLOCKED DeniedToolsPolicy block",
				"-32000 POLICY_BLOCKED AllowedToolsPolicy block",
			},
		},
		{"none", `{limits: {max_tool_calls: 0}}`, []string{"ok {}"}, []string{"-32000 POLICY_BLOCKED MaxToolCallsPolicy block"}},
		{
			"two calls", `{limits: {max_tool_calls: 2}}`, []string{"ok {}", "ok {}", "ok {}"},
			[]string{"forward", "forward", "-32000 POLICY_BLOCKED MaxToolCallsPolicy block"},
		},
		{
			"rate", `{limits: {rate_limit: {calls_per_window: 1}}}`, []string{"ok {}", "ok {}"},
			[]string{"forward", "-32000 POLICY_BLOCKED RateLimitPolicy block"},
		},
		{
			"budget", `{limits: {budget: {max_cost: 0.02}}}`, []string{"ok {}", "ok {}", "ok {}"},
			[]string{"forward", "forward", "-32000 POLICY_BLOCKED BudgetPolicy block"},
		},
		{
			"what is refused costs nothing", `{limits: {max_tool_calls: 1}, security: {denied_tools: [evil]}}`, []string{"evil {}", "ok {}", "ok {}"},
			[]string{"-32000 POLICY_BLOCKED DeniedToolsPolicy block", "forward", "-32000 POLICY_BLOCKED MaxToolCallsPolicy block"},
		},
		{
			"nobody can approve", `{security: {require_approval: [ok]}}`, []string{"ok {}"},
			[]string{"-32000 APPROVAL_DENIED ApprovalPolicy request_approval"},
		},
		{
			"malformed", "", []string{`ok {"a":1,"a":2}`, "ok [1]", "ok {", "ok {\"a\":\"\xff\"}", "ok {}"},
			[]string{
				"-32602 INVALID_ARGUMENT", "-32602 INVALID_ARGUMENT", "-32602 INVALID_ARGUMENT", "-32602 INVALID_ARGUMENT", "forward",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := daemontest.Start(t)
			run := worker(t, d)
			if tc.rules != "" {
				applyRules(t, d, policyDoc("", tc.rules))
			}
			r := relayOf(t, run, "srv")
			var got []string
			for _, call := range tc.calls {
				tool, args, _ := strings.Cut(call, " ")
				got = append(got, said(r.call(tool, args)))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if n := len(d.Entries("call")); n != len(tc.calls) {
				t.Errorf("%d entries for %d calls", n, len(tc.calls))
			}
		})
	}
}

// What is counted is counted once, however many ask at once.
func TestTheLastUnitIsSpentOnce(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("", `{limits: {budget: {max_cost: 0.01}}}`))
	const relays, each = 4, 25
	var all []*relay
	for range relays {
		all = append(all, relayOf(t, run, "srv"))
	}
	forwarded, blocked := 0, 0
	asked := map[*relay][]uint64{}
	for range each {
		for _, r := range all {
			asked[r] = append(asked[r], r.ask("ok", "{}"))
		}
	}
	for r, ids := range asked {
		for _, id := range ids {
			switch v := r.verdict(id); {
			case v.GetForward():
				forwarded++
			case v.GetReasonCode() == "POLICY_BLOCKED", v.GetReasonCode() == "RATE_LIMITED":
				blocked++
			default:
				t.Errorf("another verdict: %v", v)
			}
		}
	}
	equal(t, "forwarded", forwarded, 1)
	equal(t, "blocked", blocked, relays*each-1)
}

// Counters survive a stop and a crash, exactly.
func TestLimitsSurvive(t *testing.T) {
	for _, way := range []string{"stop", "kill -9"} {
		t.Run(way, func(t *testing.T) {
			d := daemontest.Launch(t, daemontest.Options{})
			run := worker(t, d)
			d.Grant("worker", "call:limited/ok", daemontest.Uses(3))
			applyRules(t, d, policyDoc("", `{limits: {max_tool_calls: 6, budget: {max_cost: 0.05}}}`))
			again := func() {
				if way == "stop" {
					d.Restart()
				} else {
					d.Kill()
					d.Start()
				}
				run = d.Open("worker")
			}
			r := relayOf(t, run, "srv")
			for range 3 {
				equal(t, "before", said(r.call("ok", "{}")), "forward")
			}
			equal(t, "a limited grant", said(relayOf(t, run, "limited").call("ok", "{}")), "forward")
			again()
			r = relayOf(t, run, "srv")
			equal(t, "the fourth", said(r.call("ok", "{}")), "forward")
			equal(t, "the limited grant again", said(relayOf(t, run, "limited").call("ok", "{}")), "forward")
			again()
			r = relayOf(t, run, "srv")
			equal(t, "the fifth", said(r.call("ok", "{}")), "forward")
			equal(t, "the sixth", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED BudgetPolicy block")
			equal(t, "the limited grant's last", said(relayOf(t, run, "limited").call("ok", "{}")), "forward")
			equal(t, "and one more", said(relayOf(t, run, "limited").call("ok", "{}")), "0 ACCESS_DENIED")
			meters := policyOf(t, d).GetMeters()
			if len(meters) != 1 || meters[0].GetCalls() != 5 || meters[0].GetSpentMicros() != 50_000 {
				t.Errorf("what was counted: %v", meters)
			}
		})
	}
}

// Whenever the daemon dies, among calls or while the vault is written, what it goes
// on with is what the log holds, and that is everything that it said.
func TestCountersAreExactAfterACrash(t *testing.T) {
	for _, audit := range []string{"strict", "grouped"} {
		t.Run(audit, func(t *testing.T) {
			d := daemontest.Launch(t, daemontest.Options{})
			run := worker(t, d)
			applyRules(t, d, policyDoc("audit: "+audit+", ", `{limits: {max_tool_calls: 1000000, budget: {max_cost: 1000000, cost_per_call: 0.000001}}}`))
			var said atomic.Uint64
			for round, life := range []time.Duration{200, 1100} { // the vault is written each second
				before := len(d.Entries("call"))
				var callers sync.WaitGroup
				for range 4 {
					r := relayOf(t, run, "srv")
					callers.Go(func() {
						for id := r.ask("ok", "{}"); ; id = r.ask("ok", "{}") {
							v := r.judged(id)
							if v == nil {
								return
							}
							if v.GetForward() {
								said.Add(1)
							}
							_ = r.send(outcomeOf(id, brokerv1.RelayEnd_RELAY_END_OK))
						}
					})
				}
				eventually(t, "calls are in the log", func() bool { return len(d.Entries("call")) > before })
				time.Sleep(life * time.Millisecond)
				d.Kill()
				callers.Wait()
				d.Start()
				run = d.Open("worker")
				logged := uint64(0)
				for _, e := range d.Entries("call") {
					if e.Decision == "allow" {
						logged++
					}
				}
				meters := policyOf(t, d).GetMeters()
				if len(meters) != 1 || meters[0].GetCalls() != logged || meters[0].GetSpentMicros() != logged {
					t.Errorf("round %d: counted %v, in the log are %d", round, meters, logged)
				}
				if audit == "strict" && logged < said.Load() {
					t.Errorf("round %d: %d calls were let pass, in the log are %d", round, said.Load(), logged)
				}
				if logged == 0 {
					t.Errorf("round %d: nothing was called", round)
				}
			}
		})
	}
}

// policyOf is the one policy.
func policyOf(t *testing.T, d *daemontest.Daemon) *operatorv1.Policy {
	t.Helper()
	listed, err := d.Operator().ListPolicies(t.Context(), &operatorv1.ListPoliciesRequest{})
	must(t, err)
	if len(listed.GetPolicies()) != 1 {
		t.Fatalf("%d policies", len(listed.GetPolicies()))
	}
	return listed.GetPolicies()[0]
}

// A stream judges by what is in force when a call comes.
func TestPolicyChangesWhileARelayIsOpen(t *testing.T) {
	d := daemontest.Start(t)
	r := relayOf(t, worker(t, d), "srv")
	equal(t, "without a policy", said(r.call("ok", "{}")), "forward")
	applyRules(t, d, policyDoc("", `{security: {denied_tools: [ok]}}`))
	equal(t, "denied", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED DeniedToolsPolicy block")
	applyRules(t, d, policyDoc("", `{limits: {max_tool_calls: 1}}`))
	equal(t, "one call", said(r.call("ok", "{}")), "forward")
	equal(t, "a second one", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED MaxToolCallsPolicy block")
	_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv"})
	must(t, err)
	equal(t, "after a reset", said(r.call("ok", "{}")), "forward")
	d.Restart()
	r = relayOf(t, d.Open("worker"), "srv")
	equal(t, "after that and a restart", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED MaxToolCallsPolicy block")
}

func TestRelayEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*daemontest.Daemon, *daemontest.Run)
		want wire.Reason
	}{
		{"disable", func(d *daemontest.Daemon, _ *daemontest.Run) { d.SetEnabled("worker", false) }, wire.RunEnded},
		{"lock", func(d *daemontest.Daemon, _ *daemontest.Run) {
			_, _ = d.Operator().Lock(context.Background(), &operatorv1.LockRequest{})
		}, wire.VaultLocked},
		{"close", func(_ *daemontest.Daemon, run *daemontest.Run) {
			_, _ = run.CloseRun(context.Background(), &brokerv1.CloseRunRequest{RunId: run.ID})
		}, wire.RunEnded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := daemontest.Start(t)
			run := worker(t, d)
			r := relayOf(t, run, "srv")
			open := r.ask("ok", "{}")
			equal(t, "before", said(r.verdict(open)), "forward")
			tc.end(d, run)
			equal(t, "the end", r.over(), tc.want)
			e := d.Await(0, func(e verify.Entry) bool { return e.Kind == "call.done" })
			equal(t, "how the call ended that was on its way", e.Cause, "CANCELLED")
		})
	}
}

// A client that says no more is answered, and then the stream ends.
func TestRelayIsAnsweredToTheEnd(t *testing.T) {
	d := daemontest.Start(t)
	r := relayOf(t, worker(t, d), "srv")
	var asked []uint64
	for range 10 {
		asked = append(asked, r.ask("ok", "{}"))
	}
	must(t, r.stream.CloseSend())
	equal(t, "the end", r.over(), wire.Allowed)
	for _, id := range asked {
		equal(t, "a call", said(r.verdict(id)), "forward")
	}
	d.Stop()
	equal(t, "ends of which nobody told", len(d.Entries("call.done")), 10)
}

// What a client says that cannot be understood ends its stream and is an entry.
func TestMalformedRelays(t *testing.T) {
	call := func(c *brokerv1.RelayCall) *brokerv1.RelayRequest {
		return &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: c}}
	}
	for name, messages := range map[string][]*brokerv1.RelayRequest{
		"nothing":          {{}},
		"a second open":    {{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{}}}},
		"number 0":         {call(&brokerv1.RelayCall{Method: "tools/call", Tool: "ok"})},
		"a number again":   {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}), call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"})},
		"pieces of ends":   {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}), {Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK, Answer: []byte("{"), More: true}}}, outcomeOf(1, brokerv1.RelayEnd_RELAY_END_OK)},
		"half a tool":      {{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{Tools: []*brokerv1.ServerTool{{Name: "a", Object: []byte("{"), More: true}}}}}},
		"an empty piece":   {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok", More: true})},
		"mixed pieces":     {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok", Arguments: []byte("{"), More: true}), call(&brokerv1.RelayCall{Id: 2, Arguments: []byte("}")})},
		"a method twice":   {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok", Arguments: []byte("{"), More: true}), call(&brokerv1.RelayCall{Id: 1, Method: "x", Arguments: []byte("}")})},
		"an early outcome": {{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: 9, End: brokerv1.RelayEnd_RELAY_END_OK}}}},
		"no end":           {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}), {Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: 1}}}},
		"an early end":     {{Ended: []*brokerv1.RelayOutcome{{Id: 9, End: brokerv1.RelayEnd_RELAY_END_OK}}}},
		"an end of no kind": {
			call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}), {Ended: []*brokerv1.RelayOutcome{{Id: 1}}},
		},
		"an end with an answer": {
			call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}),
			{Ended: []*brokerv1.RelayOutcome{{Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK, Answer: []byte("{}")}}},
		},
		"too many ends": {
			call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}),
			{Ended: slices.Repeat([]*brokerv1.RelayOutcome{{Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK}}, wire.MaxEnded+1)},
		},
		"ends between pieces": {
			call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok"}),
			{Message: &brokerv1.RelayRequest_Outcome{Outcome: &brokerv1.RelayOutcome{Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK, Answer: []byte("{"), More: true}}},
			{Ended: []*brokerv1.RelayOutcome{{Id: 1, End: brokerv1.RelayEnd_RELAY_END_OK}}},
		},
		"a tool twice": {{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{Tools: []*brokerv1.ServerTool{{Name: "a"}, {Name: "a"}}}}}},
		"too large":    {call(&brokerv1.RelayCall{Id: 1, Method: "tools/call", Tool: "ok", Arguments: make([]byte, 64<<10)})},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t)
			r := relayOf(t, worker(t, d), "srv")
			seq := d.Seq()
			for _, m := range messages {
				_ = r.send(m) // the stream may be over
			}
			if reason := r.over(); reason != wire.InvalidArgument && !(name == "too large" && reason == wire.ResourceTooLarge) {
				t.Errorf("the end: %s", reason)
			}
			d.Await(seq, func(e verify.Entry) bool {
				return e.Kind == "run.relay" && e.Decision == "deny" && e.Cause == "MALFORMED"
			})
		})
	}
}

func TestRelayOpens(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := worker(t, d)
	for _, tc := range []struct {
		name string
		open *brokerv1.RelayOpen
		want wire.Reason
	}{
		{"no run", &brokerv1.RelayOpen{Server: "srv", Mode: brokerv1.RelayMode_RELAY_MODE_WRAPPED}, wire.RunEnded},
		{"nothing", nil, wire.RunEnded},
		{"no mode", &brokerv1.RelayOpen{RunId: run.ID, Server: "srv"}, wire.InvalidArgument},
		{"a bad name", &brokerv1.RelayOpen{RunId: run.ID, Server: "Srv", Mode: brokerv1.RelayMode_RELAY_MODE_WRAPPED}, wire.InvalidArgument},
	} {
		clock.step(time.Minute)
		seq := d.Seq()
		_, err := openRelay(t, run, tc.open)
		equal(t, tc.name, daemontest.Reason(err), tc.want)
		if e := d.Await(seq, nil); e.Decision != "deny" {
			t.Errorf("%s: the entry: %+v", tc.name, e)
		}
	}
}

// Arguments may come in pieces, and not without bound.
func TestArgumentsInPieces(t *testing.T) {
	d := daemontest.Start(t)
	r := relayOf(t, worker(t, d), "srv")
	pieces := func(size int) *brokerv1.RelayVerdict {
		args := []byte(`{"a":"` + strings.Repeat("x", size-8) + `"}`)
		r.id++
		for first, rest := true, args; len(rest) > 0; first = false {
			piece := rest[:min(len(rest), 32<<10)]
			rest = rest[len(piece):]
			c := &brokerv1.RelayCall{Id: r.id, Arguments: piece, More: len(rest) > 0}
			if first {
				c.Method, c.Tool = "tools/call", "ok"
			}
			try(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: c}}))
		}
		return r.verdict(r.id)
	}
	equal(t, "1 MiB", said(pieces(1<<20)), "forward")
	equal(t, "10 MiB", said(pieces(10<<20)), "forward")
	equal(t, "more than that", said(pieces(10<<20+1)), "-32602 INVALID_ARGUMENT")
	equal(t, "what comes after it", said(r.call("ok", "{}")), "forward")

	// Another stream of the process holds what it does not finish, and 16 MiB are
	// all that there is room for.
	other := relayOf(t, d.Open("worker"), "srv")
	for i := range 8 * 36 {
		c := &brokerv1.RelayCall{Id: 1, Arguments: bytes.Repeat([]byte("x"), 32<<10), More: true}
		if i == 0 {
			c.Method, c.Tool = "tools/call", "ok"
		}
		try(t, other.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: c}}))
	}
	eventually(t, "there is no room", func() bool { return said(pieces(9<<20)) == "-32000 RATE_LIMITED" })
	equal(t, "small ones go on meanwhile", said(r.call("ok", "{}")), "forward")
	other.cancel()
	eventually(t, "there is room again", func() bool { return said(pieces(9<<20)) == "forward" })
	equal(t, "small ones go on", said(r.call("ok", "{}")), "forward")
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A client that asks without end and reads nothing holds a bounded part of the
// daemon, and keeps nobody out.
func TestAClientThatDoesNotRead(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	other := relayOf(t, d.Open("worker"), "srv")
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := run.Relay(ctx)
	must(t, err)
	must(t, stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{
		RunId: run.ID, Server: "srv", Mode: brokerv1.RelayMode_RELAY_MODE_WRAPPED,
	}}}))
	var sent atomic.Uint64
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		padding := []byte(`{"a":"` + strings.Repeat("x", 1000) + `"}`)
		for id := uint64(1); ; id++ {
			if stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: &brokerv1.RelayCall{
				Id: id, Method: "tools/call", Tool: "ok", Arguments: padding,
			}}}) != nil {
				return
			}
			sent.Add(1)
		}
	}()
	// When nothing more is taken, whatever it holds is there.
	for last := uint64(0); ; {
		time.Sleep(200 * time.Millisecond)
		now := sent.Load()
		if now > 0 && now == last {
			break
		}
		last = now
	}
	if more := runtime.NumGoroutine() - before; more > 150 {
		t.Errorf("%d goroutines more", more)
	}
	equal(t, "others go on", said(other.call("ok", "{}")), "forward")
	d.SetEnabled("worker", false)
	equal(t, "a client that reads is told the end", other.over(), wire.RunEnded)
	eventually(t, "nothing is held any more", func() bool { return runtime.NumGoroutine() < before+20 })
	cancel()
	<-flood
}

// No argument, and no name that is none, is in the log, in an answer or in what the
// daemon says.
func TestCallsLeaveNoArguments(t *testing.T) {
	const marker = "MARKER-7f3a9c"
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("", `{security: {granular_rules: [{tool: ok, deny_if: {arguments: {a: MARKER}}}]}}`))
	r := relayOf(t, run, "srv")
	for _, call := range [][2]string{
		{"ok", `{"a":"` + marker + `"}`}, {"other", `{"a":"` + marker + `"}`}, {"ok", `{"` + marker}, {"tool " + marker, "{}"},
	} {
		v := r.call(call[0], call[1])
		if strings.Contains(v.String(), marker) {
			t.Errorf("the answer holds it: %v", v)
		}
	}
	r.askMethod(strings.ToLower(marker)+"/ \x01", "", "")
	try(t, r.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
		Instructions: marker, Tools: []*brokerv1.ServerTool{{Name: "t", Object: []byte(`{"description":"` + marker + `"}`)}},
	}}}))
	equal(t, "the last", said(r.call("ok", "{}")), "forward")
	metrics, err := d.Operator().Metrics(t.Context(), &operatorv1.MetricsRequest{})
	must(t, err)
	d.Stop()
	for what, text := range map[string]string{"the log": string(d.RawLog()), "stderr": d.Messages(), "the metrics": string(metrics.GetText())} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(marker)) {
			t.Errorf("%s holds it", what)
		}
	}
	if !strings.Contains(string(d.RawLog()), `"tool":"~`) {
		t.Error("the name that is none has no mask")
	}
}

// Entries of a policy that groups stand in the log in the order of the verdicts.
func TestGroupedEntriesKeepTheirOrder(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("audit: grouped, ", `{limits: {max_tool_calls: 50}}`))
	r := relayOf(t, run, "srv")
	for i := range 50 {
		equal(t, "a call", said(r.call("ok", fmt.Sprintf(`{"i":%d}`, i))), "forward")
	}
	equal(t, "the limit holds", said(r.call("ok", "{}")), "-32000 POLICY_BLOCKED MaxToolCallsPolicy block")
	d.Await(0, func(e verify.Entry) bool { return e.Kind == "call" && e.Decision == "deny" })
	calls, ended := 0, map[uint64]bool{}
	open := map[uint64]bool{}
	for _, e := range d.Entries("call", "call.done") {
		switch {
		case e.Kind == "call" && e.Decision == "allow":
			calls++
			open[e.Seq] = true
		case e.Kind == "call.done":
			if !open[e.Count] {
				t.Errorf("entry %d ends %d, which has not begun", e.Seq, e.Count)
			}
			ended[e.Count] = true
		}
	}
	equal(t, "calls", calls, 50)
	equal(t, "ends", len(ended), 50)
}

// While rules only log, what they say is in the log, and nothing is refused.
func TestObserve(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	applyRules(t, d, policyDoc("observeUntil: \""+until+"\", ", `{limits: {max_tool_calls: 0}}`))
	r := relayOf(t, run, "srv")
	equal(t, "it is forwarded", said(r.call("ok", "{}")), "forward")
	e := last(d, "call")
	equal(t, "the cause", e.Cause, "OBSERVED_MAX_TOOL_CALLS_POLICY")
	equal(t, "the decision", e.Decision, "allow")
}

// A rule that kills ends every stream of its session, and the next one too.
func TestKill(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("", `{security: {granular_rules: [{tool: ok, deny_if: {arguments: {a: bad}}, action: kill}]}}`))
	one, two := relayOf(t, run, "srv"), relayOf(t, run, "srv")
	equal(t, "before", said(one.call("ok", "{}")), "forward")
	equal(t, "the call", said(one.call("ok", `{"a":"bad"}`)), "-32000 POLICY_BLOCKED GranularAccessPolicy kill")
	for _, r := range []*relay{one, two} {
		equal(t, "the end", r.over(), wire.Allowed)
		if r.kill.GetPolicy() != "GranularAccessPolicy" {
			t.Errorf("the kill: %v", r.kill)
		}
	}
	d.Restart()
	r := relayOf(t, d.Open("worker"), "srv")
	equal(t, "a stream of the same session", r.over(), wire.Allowed)
	_, err := d.Operator().ResetPolicy(t.Context(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "srv"})
	must(t, err)
	equal(t, "after a reset", said(relayOf(t, d.Open("worker"), "srv").call("ok", "{}")), "forward")
}

// A session that has lasted as long as it may ends by itself where the policy kills.
func TestRuntimeIsATimer(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: srv, rules: {global: {on_violation: kill}, limits: {max_runtime_seconds: 1}}}]\n")
	r, other := relayOf(t, run, "srv"), relayOf(t, run, "srv")
	equal(t, "the first call", said(r.call("ok", "{}")), "forward")
	for _, r := range []*relay{r, other} {
		equal(t, "the end", r.over(), wire.Allowed)
		equal(t, "the policy", r.kill.GetPolicy(), "MaxRuntimePolicy")
	}
}

func TestMethods(t *testing.T) {
	d := daemontest.Start(t)
	run := worker(t, d)
	applyRules(t, d, policyDoc("methods: [sampling/createmessage], ", "{}"))
	r := relayOf(t, run, "srv")
	if diff := cmp.Diff([]string{"sampling/createmessage"}, r.opened.GetMethods()); diff != "" {
		t.Errorf("what the client is told: %s", diff)
	}
	equal(t, "listed", said(r.verdict(r.askMethod("sampling/createmessage", "", ""))), "forward")
	v := r.verdict(r.askMethod("server/shutdown", "", ""))
	equal(t, "not listed", said(v), "-32000 POLICY_BLOCKED MethodPolicy block")
	equal(t, "the entry", last(d, "call").Action, "server.shutdown")
}

func TestCallStats(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Grant("worker", "call:srv/ok")
	r := relayOf(t, d.Open("worker"), "srv")
	r.call("ok", "{}")
	id := r.ask("ok", "{}")
	r.verdict(id)
	r.end(id, brokerv1.RelayEnd_RELAY_END_TRANSPORT)
	r.call("evil\"\n", "{}")
	d.Await(0, func(e verify.Entry) bool { return e.Kind == "call.done" && e.Cause == "TRANSPORT" })
	stats, err := d.Operator().CallStats(t.Context(), &operatorv1.CallStatsRequest{})
	must(t, err)
	var got []string
	for _, s := range stats.GetStats() {
		got = append(got, fmt.Sprintf("%s %s %q %d %d %d", s.GetSubject(), s.GetServer(), s.GetTool(), s.GetAllowed(), s.GetDenied(), s.GetFailed()))
	}
	if diff := cmp.Diff([]string{`worker srv "" 0 1 0`, `worker srv "ok" 2 0 1`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	seq := d.Seq()
	metrics, err := d.Operator().Metrics(t.Context(), &operatorv1.MetricsRequest{})
	must(t, err)
	equal(t, "entries that the metrics wrote", d.Seq()-seq, 0)
	for _, line := range []string{
		`subjectbroker_calls_total{subject="worker",server="srv",outcome="allowed"} 2`,
		`subjectbroker_calls_total{subject="worker",server="srv",outcome="denied"} 1`,
		`subjectbroker_call_duration_seconds_count{subject="worker",server="srv"} 2`,
		`subjectbroker_runs{subject="worker"} 1`,
		`subjectbroker_vault_state{state="unlocked"} 1`,
	} {
		if !strings.Contains(string(metrics.GetText()), line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	for _, audit := range []string{"strict", "grouped"} {
		b.Run(audit, func(b *testing.B) {
			d := daemontest.Start(b)
			run := worker(b, d)
			applyRules(b, d, policyDoc("audit: "+audit+", ", `{security: {denied_tools: [evil]}}`))
			r := relayOf(b, run, "srv")
			b.ResetTimer()
			for range b.N {
				if v := r.call("ok", `{"path":"/a"}`); !v.GetForward() {
					b.Fatal(v)
				}
			}
		})
	}
}
