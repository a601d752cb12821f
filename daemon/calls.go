package daemon

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/wire"
)

// toolCall is one call of a client to a server, as it is judged.
type toolCall struct {
	ctx    context.Context //nolint:containedctx // ends when nobody waits for the call any more
	server string
	hosted bool // the daemon has the server run and forwards
	tool   string
	args   []byte // one JSON object, as it will be forwarded; empty: none were given
	came   uint64 // how many starts of servers had failed when it came
	// offer is what the server says that it offers; nil: nobody knows.
	offer *offer
	// waiting is called, at most once, when a person is asked; nil: nobody is told.
	waiting func(approvalID string)
}

// judged is what came of a call. Where it may not be forwarded, what is left of it
// is what the agent is told.
type judged struct {
	forward    bool
	code       int32 // JSON-RPC error code; 0: the answer is a tool result
	message    string
	next       string // the end of message
	policy     string // that decided
	action     string // block, kill, request_approval
	reason     wire.Reason
	approvalID string
	replay     *replay    // of the same call, which was done before; nil: none
	going      *forwarded // of forward
	killed     bool       // the session ends with it
}

// JSON-RPC error codes of what is not forwarded.
const (
	codeBlocked   = -32000
	codePending   = -32001
	codeMalformed = -32602
)

// nextStep is what an agent is told to do about everything that it may not do.
const nextStep = "Ask the person who runs this agent."

// Causes of calls that the grants do not know.
const (
	causeWithheld = "TOOL_WITHHELD" // it is not what was trusted, or was never trusted
	causeHosted   = "SERVER_HOSTED" // it is not the worker plane that runs it
)

// judging is a call on the release path. It is brought to its place in the log, or
// to a person, in the order in which calls were made, without waiting for anything;
// finish waits. Nothing in it is safe for concurrent use.
type judging struct {
	d   *Daemon
	ask *callAsk // of a message that is no call of a tool only whose it is

	passage *passage
	failed  error // of the passage

	// Where there is no passage.
	noted noted
	then  judged // once noted is durable
	tool  bool   // it is a call of a tool that is refused, for reason
	cause wire.Reason
}

// beginCall decides about a call of a tool, as far as that needs nobody.
func (d *Daemon) beginCall(r *run, c toolCall) *judging {
	ask := &callAsk{d: d, run: r, call: c, digest: d.digestArgs(c.args)}
	if err := d.admit(c.ctx, r.peer, r.subject); err != nil {
		return ask.refuse(noted{err: err}, "")
	}
	if d.state().meters.full() {
		d.budgets.suppress(r.peer.Key(), d.clock.now())
		return ask.refuse(noted{none: true}, wire.RateLimited)
	}
	e := r.entry(audit.Call)
	e.Server, e.Tool, e.ArgsDigest = c.server, d.maskedTool(c.server, c.tool), ask.digest
	asked := grants.Call.String() + ":" + c.server + "/" + c.tool
	capability, err := grants.ParseCapability(asked)
	if err != nil || c.tool == "" {
		// Nobody can be granted such a name: it is denied like any that was not.
		e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.AccessDenied), causeMalformed
		return ask.refuse(d.noteDenial(r.peer, e), wire.AccessDenied)
	}
	args, err := rules.ParseArgs(c.args)
	if err != nil {
		return ask.refuse(d.noteMalformed(r.peer, e), wire.InvalidArgument)
	}
	ask.args = args
	ask.search()
	a := d.ask(r, audit.Call, asked)
	a.entry = e
	a.also, a.gate = ask, ask.person
	if c.hosted {
		a.open = func(*opened) error {
			err := d.hosts.ready(c.ctx, r, c.server, c.tool, c.came)
			if err != nil && c.ctx.Err() != nil {
				return errLeft
			}
			return err
		}
	}
	return &judging{d: d, ask: ask, passage: d.consider(a, capability)}
}

// refuse is a call that is refused for a reason once its entry is durable.
func (a *callAsk) refuse(n noted, reason wire.Reason) *judging {
	return &judging{d: a.d, ask: a, noted: n, tool: true, cause: reason}
}

// asks reports whether a person comes next.
func (g *judging) asks() bool { return g.passage != nil && g.passage.asks() }

// person asks one, and may wait for long.
func (g *judging) person(ctx context.Context) { g.failed = g.passage.person(ctx) }

// place gives the call its place in the log. A hosted server that does not run is
// started first.
func (g *judging) place() {
	if g.passage != nil && g.failed == nil {
		g.failed = g.passage.place()
	}
}

// waits reports whether finish waits for the log.
func (g *judging) waits() bool {
	if g.passage != nil {
		return g.failed == nil && g.passage.waits()
	}
	return g.noted.err == nil && !g.noted.none
}

// finish returns what came of the call once that may be told.
func (g *judging) finish(ctx context.Context) judged {
	d, ask := g.d, g.ask
	if g.passage == nil {
		switch err := g.noted.wait(ctx); {
		case err != nil && g.tool:
			return d.refused(ask, refusal(err).Reason)
		case err != nil:
			return unjudged(refusal(err).Reason)
		case g.tool:
			return d.refused(ask, g.cause)
		}
		if !g.then.forward {
			ask.run.count("", false, nil)
		}
		return g.then
	}
	var got answer
	err := g.failed
	if err == nil {
		got, err = g.passage.finish(ctx)
	}
	switch {
	case err != nil:
		return d.refused(ask, refusal(err).Reason)
	case got.gate.outcome == gateReplay:
		d.calls.count(ask.key(), callAllowed)
		return judged{reason: wire.Allowed, approvalID: got.gate.id, replay: got.gate.replay}
	case got.reason == "": // see errLeft
		return unjudged(wire.RunEnded)
	case got.decision != grants.Allowed || got.reason != wire.Allowed:
		ask.approvalID = got.gate.id
		return d.refused(ask, got.reason)
	}
	if ask.policy != nil { // see tend: the vault hears of it soon
		d.charges.Add(1)
	}
	if ask.took != nil && ask.took.began { // how long it may last counts from here
		d.relays.lasts(ask.run.subject, ask.call.server, ask.run.launchID())
	}
	ask.run.forwarded()
	d.calls.count(ask.key(), callAllowed)
	return judged{
		forward: true, reason: wire.Allowed, approvalID: got.gate.id,
		going: &forwarded{ask: ask, seq: got.seq, began: time.Now(), gate: got.gate},
	}
}

// refused is what an agent is told of a call that is not forwarded.
func (d *Daemon) refused(ask *callAsk, reason wire.Reason) judged {
	came := callDenied
	if reason == wire.ApprovalPending {
		came = callWaited
	} else {
		ask.run.count("", false, nil)
	}
	if !ask.noCall {
		d.calls.count(ask.key(), came)
	}
	j := judged{code: codeBlocked, reason: reason, next: nextStep, message: wire.Deny(reason).Message + ". " + nextStep}
	switch reason {
	case wire.AccessDenied:
		j.code = 0
	case wire.InvalidArgument:
		j.code = codeMalformed
	case wire.PolicyBlocked:
		j.policy, j.action, j.killed = ask.stood.Policy, string(ask.stood.Action), ask.stood.Outcome == rules.Killed
		j.message = "blocked by " + j.policy + " (" + j.action + "). " + nextStep
	case wire.ApprovalPending:
		j.code, j.approvalID = codePending, ask.approvalID
		j.policy, j.action = rules.ApprovalPolicy, string(rules.RequestApproval)
		j.next = "Ask the person who runs this agent to answer it, then make the same call again."
		j.message = "APPROVAL_PENDING id=" + j.approvalID + ": a person has not answered yet (" + ask.asking() + ", request_approval). " + j.next
	case wire.ApprovalDenied, wire.ApprovalExpired:
		j.approvalID = ask.approvalID
		j.policy, j.action = rules.ApprovalPolicy, string(rules.RequestApproval)
		j.message = wire.Deny(reason).Message + " (" + ask.asking() + ", request_approval). " + nextStep
	}
	return j
}

// digestArgs is what stands in the log for the arguments of a call: equal arguments
// look equal, and few possible ones cannot be tried.
func (d *Daemon) digestArgs(args []byte) audit.Hash {
	if len(args) == 0 {
		args = []byte("{}")
	}
	key := *d.correlate.Load() // of mask: this is no text that is masked
	own := hmac.New(sha256.New, key[:])
	own.Write([]byte("sb/args/v1"))
	mac := hmac.New(sha256.New, own.Sum(nil))
	mac.Write(args)
	return audit.Hash(mac.Sum(nil))
}

// callAsk is what a call brings along to release: pins and the policy judge it
// beside the grants, and what it takes is counted with its entry.
type callAsk struct {
	d      *Daemon
	run    *run
	call   toolCall
	args   rules.Args
	digest audit.Hash

	known  bool // the grants allow it, or would with a person
	noCall bool // it is some other message, which counts as no call

	// Of the newest judgement.
	pin      string
	policy   *rules.Compiled
	verdict  rules.Verdict
	observed bool // the policy only logs

	stood rules.Verdict // the newest that stood against it

	// What a person was asked about.
	asked           bool
	askPin, askRule string // pin and version of the policy
	approvalID      string

	seq  uint64
	when time.Time
	took *taken
}

// who is the event of a call, as far as it is known before it is judged.
func (a *callAsk) who() meterEvent {
	e := meterEvent{subject: a.run.subject, server: a.call.server, tool: a.call.tool, seq: a.seq, at: a.when, policy: a.policy}
	if a.run.launch != nil {
		e.launch = a.run.launch.id
	}
	return e
}

func (a *callAsk) question(now time.Time) rules.Call {
	return rules.Call{Tool: a.call.tool, Args: a.args, Now: now}
}

// search looks for what the rules find in the arguments before anything is locked:
// it may take a while, and looks at paths. The arguments remember it.
func (a *callAsk) search() {
	if policy := a.d.state().policyOf(a.run.subject, a.call.server); policy != nil {
		policy.Judge(&rules.Meter{}, a.question(a.d.clock.now()))
	}
}

// judge judges by pin and policy what the grants allow or gate. Whoever calls a server
// that is not there, or is run by somebody else than the call says, is told nothing by
// that, and the operator before anything of grants.
func (a *callAsk) judge(v *verdict) {
	st := a.d.state()
	a.pin, a.policy, a.verdict, a.observed = "", nil, rules.Verdict{}, false
	if hosted := st.isHosted(a.call.server); hosted != a.call.hosted {
		v.outcome, v.reason, v.cause = grants.Denied, wire.AccessDenied, causeNoServer
		if hosted {
			v.cause = causeHosted
		}
		return
	}
	if v.outcome == grants.Denied {
		return
	}
	a.known = true
	if pin, ok := a.pinned(st); ok {
		a.pin = pin
	} else {
		v.outcome, v.reason, v.cause = grants.Denied, wire.AccessDenied, causeWithheld
		return
	}
	a.policy = st.policyOf(a.run.subject, a.call.server)
	if a.stopped(st, v) || a.policy == nil {
		return
	}
	a.observed = st.observes(a.policy, a.d.clock.reached())
	a.verdict = st.meters.judge(a.who(), a.policy, a.question(a.d.clock.now()))
	a.follow(v)
}

// stopped refuses calls of a hosted server that a rule has stopped for the subject,
// whatever its policy says now, or whether there still is one: only a restart lets it
// run again.
func (a *callAsk) stopped(st *state, v *verdict) bool {
	if !a.call.hosted {
		return false
	}
	by := st.meters.stoppedBy(a.run.subject, a.call.server)
	if by != "" {
		a.stood = rules.Verdict{Outcome: rules.Blocked, Policy: by, Action: rules.Kill}
		v.outcome, v.reason, v.cause = grants.Denied, wire.PolicyBlocked, causeServerKilled
	}
	return by != ""
}

// pinned is the pin that the tool is judged by, and whether it may be called as far
// as what was trusted says. Only a wrapped server may be without trust. It takes mu.
func (a *callAsk) pinned(st *state) (pin string, ok bool) {
	if !a.call.hosted && !st.trusted(a.call.server) {
		// What its server offers nobody knows: another case may be the same tool there.
		st.mu.RLock()
		defer st.mu.RUnlock()
		return "", !st.set.LikeCall(a.run.subject, a.call.server+"/"+a.call.tool)
	}
	return st.callable(a.call.server, a.call.tool, a.call.offer)
}

// follow puts what the policy says into the verdict, where it is stricter.
func (a *callAsk) follow(v *verdict) {
	if a.observed {
		return
	}
	switch a.verdict.Outcome {
	case rules.Forwarded:
	case rules.Asked:
		if v.outcome == grants.Allowed {
			v.outcome, v.reason = grants.Pending, wire.ApprovalPending
		}
	default:
		a.stood = a.verdict
		v.outcome, v.reason, v.cause = grants.Denied, wire.PolicyBlocked, policyWords[a.verdict.Policy]
		switch {
		case a.verdict.Outcome == rules.Killed && a.call.hosted:
			v.cause = stopWord + v.cause
		case a.verdict.Outcome == rules.Killed:
			v.cause = killWord + v.cause
		case a.verdict.Action == rules.Kill && a.call.hosted: // one before did
			v.cause = causeServerKilled
		}
	}
}

// person asks one.
func (a *callAsk) person(_ context.Context, capability grants.Capability, v verdict) (gateAnswer, error) {
	g := gateAsk{
		run: a.run, server: a.call.server, tool: a.call.tool, capability: capability.String(), args: a.call.args, argsDigest: a.digest,
		pin: a.pin, why: a.d.whyGated(a.run, v.grant, a.call.server+"/"+a.call.tool), waiting: a.wait,
	}
	if a.policy != nil {
		g.policy, g.share = a.policy.Version(), a.policy.Policy().ShareApprovals
		if g.wait = a.policy.Policy().ApprovalWait; g.wait == 0 {
			g.wait = -1
		}
		if a.verdict.Outcome == rules.Asked {
			g.why = a.verdict.Detail
		}
	}
	a.asked, a.askPin, a.askRule = true, g.pin, g.policy
	answer, err := a.d.gateOn(a.call.ctx, g)
	a.approvalID = answer.id
	if args, failed := rules.ParseArgs(a.call.args); failed == nil && answer.outcome == gateApproved {
		a.args = args // what was found by paths may have moved while a person was asked
		a.search()
	}
	if by := a.d.killedBy(a.run, a.call.server); by != "" && err == nil && answer.outcome != gateApproved && answer.outcome != gateReplay {
		a.stood = rules.Verdict{Outcome: rules.Blocked, Policy: by, Action: rules.Kill}
		answer.outcome, answer.reason, answer.cause = gateDenied, wire.PolicyBlocked, policyWords[by]
		if a.call.hosted {
			answer.cause = causeServerKilled
		}
	}
	return answer, err
}

func (a *callAsk) wait(approvalID string) {
	if a.call.waiting != nil {
		a.call.waiting(approvalID)
	}
}

// asking is the policy because of which a person is asked.
func (a *callAsk) asking() string {
	if a.verdict.Outcome == rules.Asked {
		return a.verdict.Policy
	}
	return rules.ApprovalPolicy
}

// at says which entry it will be.
func (a *callAsk) at(seq uint64, now time.Time) { a.seq, a.when = seq, now }

// take judges for good and counts the call, or is stricter. What a person was asked
// about must still be the same.
func (a *callAsk) take(v *verdict) {
	if a.asked {
		version := ""
		if a.policy != nil {
			version = a.policy.Version()
		}
		if a.pin != a.askPin || version != a.askRule {
			v.outcome, v.reason, v.cause = grants.Denied, wire.ApprovalDenied, causePolicyChanged
			return
		}
	}
	st := a.d.state()
	var said rules.Verdict
	said, a.took = st.meters.take(a.who(), a.policy, a.question(a.when), func(said rules.Verdict) bool {
		return a.observed || said.Outcome == rules.Forwarded || said.Outcome == rules.Asked && a.asked
	})
	if a.policy != nil {
		a.verdict = said
	}
	if a.took == nil {
		a.follow(v)
		if v.outcome == grants.Allowed { // there is no such verdict
			v.outcome, v.reason = grants.Denied, wire.PolicyBlocked
		}
	}
}

// causePolicyChanged: what a person was asked about is not so any more.
const causePolicyChanged = "POLICY_CHANGED"

// tell completes the entry, and lets a rule that kills do so.
func (a *callAsk) tell(e *audit.Entry, v verdict) {
	e.Pin = a.pin
	if a.policy != nil {
		e.Policy = a.policy.Version()
	}
	e.Count = 0
	switch {
	case v.outcome == grants.Allowed && !v.failed:
		if a.took != nil {
			e.Count = a.took.event.micros
			if v.limited {
				a.d.state().meters.charged(a.took, v.grant)
			}
		}
		switch {
		case a.observed && a.verdict.Outcome != rules.Forwarded:
			e.Cause = observeWord + policyWords[a.verdict.Policy]
		case len(a.verdict.Warned) > 0:
			e.Cause = warnWord + policyWords[a.verdict.Warned[0]]
		}
	case strings.HasPrefix(v.cause, killWord), strings.HasPrefix(v.cause, stopWord):
		kill := a.who()
		kill.what, kill.killedBy = meterKill, a.stood.Policy
		if a.call.hosted {
			kill.what = meterStop
		}
		a.d.state().meters.note(kill)
	}
}

// giveBack undoes take.
func (a *callAsk) giveBack() {
	if a.took != nil {
		a.d.state().meters.giveBack(a.took)
		a.took = nil
	}
}

// strict reports whether the entry has to be durable before the call is forwarded.
// Only a policy can do without, and not where a secret is used or a person was
// asked.
func (a *callAsk) strict() bool {
	if a.policy == nil || a.policy.Policy().Audit != rules.Grouped || a.asked {
		return true
	}
	return a.d.state().usesSecrets(a.call.server, a.call.tool)
}

// usesSecrets reports whether calls of a tool use a secret for the subject. It takes
// mu.
func (s *state) usesSecrets(server, tool string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if known, ok := s.servers[server]; ok && len(known.Secrets()) > 0 {
		return true
	}
	declared, _ := s.set.Tool(server + "/" + tool)
	for _, p := range declared.Requires {
		if p.Action == grants.Use {
			return true
		}
	}
	return false
}

// key is what the call is counted under. A name that nobody was granted may be any.
func (a *callAsk) key() callKey {
	k := callKey{subject: a.run.subject, server: a.call.server}
	if a.known {
		k.tool = a.call.tool
	}
	return k
}

// forwarded is a call on its way. It ends once.
type forwarded struct {
	ask   *callAsk
	seq   uint64 // of the entry that allowed it
	began time.Time
	gate  gateAnswer
	once  sync.Once
}

// approved reports whether a person approved it, so that its answer is wanted.
func (f *forwarded) approved() bool { return f.gate.outcome == gateApproved }

// end notes how it ended, in an entry that nobody waits for. answer is kept where a
// person approved the call, and delivered says whether somebody has it.
func (f *forwarded) end(end rules.End, answer []byte, delivered bool) {
	f.once.Do(func() {
		a := f.ask
		d := a.d
		d.calls.done(a.key(), end, time.Since(f.began))
		if f.gate.settle != nil {
			f.gate.settle(endWords[end], answer, end == rules.EndError, delivered)
		}
		log := d.log()
		if log == nil {
			return
		}
		e := a.run.entry(kindCallDone)
		e.Server, e.Tool, e.Cause, e.Count = a.call.server, d.maskedTool(a.call.server, a.call.tool), endWords[end], f.seq
		e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
		if end != rules.EndOK {
			e.Decision, e.ReasonCode = decisionError, ""
		}
		st := d.state()
		done := meterEvent{what: meterDone, subject: a.run.subject, server: a.call.server, tool: a.call.tool, end: end}
		if a.run.launch != nil {
			done.launch = a.run.launch.id
		}
		done.policy = st.policyOf(done.subject, done.server)
		noted := false
		_, _ = log.AppendGrouped(func(seq uint64, now time.Time) (audit.Entry, error) {
			done.seq, done.at, noted = seq, now, true
			st.meters.note(done)
			return e, nil
		})
		if !noted { // it is not in the log, and happened all the same
			done.at = d.clock.now()
			st.meters.note(done)
		}
	})
}

// beginMethod judges a message that is no call of a tool, by the list of methods
// alone, and gives it its place in the log.
func (d *Daemon) beginMethod(ctx context.Context, r *run, server, method string) *judging {
	g := &judging{d: d, ask: &callAsk{d: d, run: r, call: toolCall{server: server}}}
	if g.noted.err = d.admit(ctx, r.peer, r.subject); g.noted.err != nil {
		return g
	}
	e := r.entry(audit.Call)
	e.Server, e.Action = server, d.methodWord(method)
	st := d.state()
	policy := st.policyOf(r.subject, server)
	if policy != nil {
		e.Policy = policy.Version()
	}
	now := d.clock.reached()
	switch {
	case st.isHosted(server): // no method of it goes through a relay
		e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.AccessDenied), causeHosted
		g.noted = d.noteDenial(r.peer, e)
		g.then = unjudged(wire.AccessDenied)
		return g
	case policy != nil && policy.AllowsMethod(method):
	case policy != nil && policy.Observes(now) || st.observed(server, now):
		e.Cause = observeWord + policyWords[methodPolicy]
	default:
		e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.PolicyBlocked), policyWords[methodPolicy]
		g.noted = d.noteDenial(r.peer, e)
		g.then = judged{
			code: codeBlocked, reason: wire.PolicyBlocked, policy: methodPolicy, action: string(rules.Block), next: nextStep,
			message: "blocked by " + methodPolicy + " (block). " + nextStep,
		}
		return g
	}
	e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
	g.noted.ticket, g.noted.err = d.log().Append(func(uint64, time.Time) (audit.Entry, error) {
		if d.over(r) || d.state().policyOf(r.subject, server) != policy {
			return audit.Entry{}, wire.Deny(wire.RunEnded)
		}
		return e, nil
	})
	g.then = judged{forward: true, reason: wire.Allowed}
	return g
}

// unjudged is what an agent is told of a message that is no call of a tool and was
// not judged.
func unjudged(reason wire.Reason) judged {
	return judged{code: codeBlocked, reason: reason, next: nextStep, message: wire.Deny(reason).Message + ". " + nextStep}
}

// methodWord is a method as it may stand in the log as an action.
func (d *Daemon) methodWord(method string) string {
	word := strings.ReplaceAll(method, "/", ".")
	for i := range len(word) {
		c := word[i]
		letter := 'a' <= c && c <= 'z'
		if !letter && (i == 0 || (c < '0' || c > '9') && c != '.' && c != '_' && c != '-') {
			return d.mask(method)
		}
	}
	if word == "" || len(word) > 64 {
		return d.mask(method)
	}
	return word
}
