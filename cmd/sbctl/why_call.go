package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/nearest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// called is what is known of the server and the tool that a denied call was about.
type called struct {
	server, tool string // tool is * where it was the server as a whole
	method       string // of a message that calls no tool; else empty

	servers []string           // all that there are
	known   *operatorv1.Server // nil: there is none of that name
	tools   []*operatorv1.ServerToolState
	policy  *operatorv1.Policy // nil: there is none
	needs   *operatorv1.DenialGroup
	secrets []*operatorv1.DenialGroup // what keeps the server from being started, as denials
}

// needsWords begin the words of the evaluator about what a called tool requires.
const needsWords = "the tool requires "

// calledBy is what a capability to call says of server and tool, or nil.
func calledBy(capability string) *called {
	action, object, _ := strings.Cut(capability, ":")
	server, name, found := strings.Cut(object, "/")
	switch {
	case !found || server == "":
		return nil
	case action == "call":
		return &called{server: server, tool: name}
	case action == "method":
		return &called{server: server, tool: "*", method: name}
	}
	return nil
}

// learnCall asks for what a denied call is compared with, and whether somebody can
// approve where that is why.
func (a *app) learnCall(ctx context.Context, known *knowledge, d *operatorv1.DenialGroup) {
	if cause(d.GetCause()) == causeNoApprover {
		status, err := a.status(ctx, "")
		known.deaf = err == nil && !status.GetApprovable()
	}
	c := calledBy(d.GetCapability())
	if c == nil {
		return
	}
	known.called = c
	servers, _ := a.servers(ctx, "")
	for _, s := range servers {
		c.servers = append(c.servers, s.GetName())
	}
	if got, err := a.server(ctx, "", c.server, false); err == nil {
		c.known, c.tools = got.GetServer(), got.GetTools()
	}
	if policies, _ := a.policies(ctx, "", d.GetSubject(), c.server); len(policies) > 0 {
		c.policy = policies[0]
	}
	if known.subjects[d.GetSubject()] == nil || c.method != "" {
		return
	}
	if now, trace := a.refusedNow(ctx, d.GetSubject(), d.GetCapability()); now != nil {
		for _, step := range trace { // the last one is what was missing
			if needed, ok := strings.CutPrefix(step.GetDetail(), needsWords); ok && step.GetCheck() == "requires" {
				now.Capability, c.needs = needed, now
			}
		}
	}
	if c.known.GetHosted() {
		c.secrets = a.secretsRefused(ctx, c.known, d.GetSubject())
	}
}

// refusedNow is the denial that a request would be now, with its trace; nil where it
// would be none.
func (a *app) refusedNow(ctx context.Context, subject, capability string) (*operatorv1.DenialGroup, []*operatorv1.TraceStep) {
	got, err := call(ctx, a, "", &operatorv1.ExplainRequest{Subject: subject, Capability: capability}, operatorv1.OperatorServiceClient.Explain)
	if err != nil || got.GetDecision() != "deny" {
		return nil, nil
	}
	return &operatorv1.DenialGroup{Subject: subject, Capability: capability, Cause: got.GetCause(), ReasonCode: got.GetReasonCode()}, got.GetSteps()
}

// secretsRefused are the secrets of a server that it cannot be started with for a
// subject.
func (a *app) secretsRefused(ctx context.Context, s *operatorv1.Server, subject string) (refused []*operatorv1.DenialGroup) {
	for _, secret := range secretsOf(s) {
		if now, _ := a.refusedNow(ctx, subject, "use:"+secret); now != nil {
			refused = append(refused, now)
		}
	}
	return refused
}

// judgeHost says whether a hosted server could be started for a subject, or runs.
func (c *callAfter) judgeHost(ctx context.Context, a *app, s *operatorv1.Server, subject string) {
	if !s.GetHosted() {
		return
	}
	refused := a.secretsRefused(ctx, s, subject)
	for _, d := range refused {
		c.add("secrets", stepFail, "it cannot be started without "+resourceOf(d.GetCapability())+": "+withMeaning(d.GetCause()))
	}
	if n := len(secretsOf(s)); n > 0 && len(refused) == 0 {
		c.add("secrets", stepPass, "it may be started with the secrets that it needs")
	}
	if stateFor(s, subject) == processKilled {
		c.add("server", stepFail, "a policy stopped it for "+subject+" until it is restarted")
	}
}

// States of processes that say whether a server works.
const (
	processRunning = "running"
	processKilled  = "killed"
)

// stateFor is how the process of a server stands that runs for a subject; empty where
// none has.
func stateFor(s *operatorv1.Server, subject string) string {
	for _, p := range s.GetProcesses() {
		if p.GetSubject() == subject {
			return p.GetState()
		}
	}
	return ""
}

// state is how the tool stands beside what was trusted.
func (c *called) state() string {
	for _, t := range c.tools {
		if t.GetName() == c.tool {
			return t.GetState()
		}
	}
	return toolUnknown
}

// near is the name that was probably meant: of the server, or of the tool.
func (c *called) near() string {
	if c.known == nil {
		near, _ := nearest.Name(c.server, c.servers)
		return near
	}
	if c.tool == "*" || c.state() != toolUnknown {
		return ""
	}
	var names []string
	for _, t := range c.tools {
		if t.GetName() != "" {
			names = append(names, t.GetName())
		}
	}
	near, _ := nearest.Name(c.tool, names)
	return near
}

// killed says whether a policy keeps the subject from the server now.
func (c *called) killed(subject string) bool {
	return stateFor(c.known, subject) == processKilled ||
		slices.ContainsFunc(c.policy.GetMeters(), func(m *operatorv1.PolicyMeter) bool { return m.GetKilled() })
}

// document says what of a policy would have to change; empty where it is none.
func (c *called) document(d *operatorv1.DenialGroup) string {
	if c == nil {
		return ""
	}
	_, rule := cause(d.GetCause()).rule()
	key := map[cause]string{
		causeDeniedTools: "rules: security: denied_tools", causeAllowedTools: "rules: security: allowed_tools",
		causeGranularAccess: "rules: security: granular_rules", causeMethod: "methods",
	}[rule]
	if key == "" || c.policy == nil && rule != causeMethod {
		return ""
	}
	place := fmt.Sprintf("policies: subject %s, server %s: %s", d.GetSubject(), c.server, key)
	if rule == causeMethod && !strings.HasPrefix(c.method, "~") {
		place += ": list " + strings.ReplaceAll(c.method, ".", "/")
	}
	return place
}

// byList says whether a policy refused a tool by its name alone.
func byList(c cause) bool { return c == causeDeniedTools || c == causeAllowedTools }

// mendCall is mend for what calls are refused for, beside what everything is. It is
// pure.
func (k *knowledge) mendCall(d *operatorv1.DenialGroup) (near string, commands [][]string, ok bool) {
	c := k.called
	if c == nil {
		return "", nil, false
	}
	subject, why := d.GetSubject(), cause(d.GetCause())
	before, rule := why.rule()
	switch why {
	case causeNoGrant, causeGrantExpired, causeGrantExhausted:
		near, commands = k.mendNoCall(d)
		return near, commands, true
	case causeUnknownResource, causeNoContent, causeNoDisclosure, causePersonal: // of what the tool requires
		near, commands = k.mendNeeds()
		return near, commands, true
	case causeNoServer:
		if c.known.GetHosted() {
			return "", nil, true // mended since
		}
		return c.near(), [][]string{{"server", "list"}}, true
	case causeWrappedHosted:
		if !c.known.GetHosted() {
			return "", nil, true // mended since
		}
		return "", [][]string{{"connect", "--list"}}, true
	case causeWithheld, causeToolChanged:
		return c.near(), c.trust(), true
	case causeSecretDenied, causeSecretMissing:
		return "", k.mendSecrets(), true
	default:
	}
	switch {
	case before == stoppedBy, why == causeServerKilled:
		return "", c.lift(subject, [][]string{{"server", "restart", c.server, "--subject", subject}}), true
	case before == killedBy:
		return "", c.lift(subject, c.reset(subject)), true
	}
	switch rule {
	case causeDeniedTools, causeAllowedTools, causeGranularAccess, causeMethod, causeApprovalRule:
		return "", c.show(subject), true
	case causeMaxToolCalls, causeMaxRuntime, causeRateLimit, causeCircuitBreaker, causeBudget:
		return "", append(c.show(subject), c.reset(subject)...), true
	case causeServerFailed, causeServerExited, causeServerWaits, causeHostProtocol:
		return "", c.revive(subject), true
	case causeServerBusy:
		return "", [][]string{{"server", "show", c.server}}, true
	default:
		return "", nil, false
	}
}

// mendNoCall grants a call, with what else it would be refused for then.
func (k *knowledge) mendNoCall(d *operatorv1.DenialGroup) (near string, commands [][]string) {
	c := k.called
	if c.needs != nil { // the call itself is granted
		return k.mendNeeds()
	}
	capability := d.GetCapability()
	if c.tool == "*" && slices.Contains(c.known.GetSubjects(), d.GetSubject()) {
		return "", nil // mended since
	}
	if near = c.near(); near != "" && c.known != nil {
		return near, k.grant(d.GetSubject(), "call:"+c.server+"/"+near)
	}
	commands = k.grant(d.GetSubject(), capability)
	if state := c.state(); c.known.GetHosted() && (state == toolNew || state == toolChanged) {
		commands = append(commands, c.trust()...)
	}
	return near, append(commands, k.mendSecrets()...)
}

// mendNeeds mends what a tool requires.
func (k *knowledge) mendNeeds() (near string, commands [][]string) {
	if k.called.needs == nil {
		return "", nil
	}
	return k.without().mend(k.called.needs, "")
}

// mendSecrets mends what a server is started with.
func (k *knowledge) mendSecrets() (commands [][]string) {
	for _, d := range k.called.secrets {
		secret := resourceOf(d.GetCapability())
		switch cause(d.GetCause()) {
		case causeUnknownResource, causeNoContent:
			commands = append(commands, []string{"secret", "put", secret, "--kind", "secret"})
			if !k.holds(d.GetSubject(), d.GetCapability()) {
				commands = append(commands, k.grantWords(d.GetSubject(), d.GetCapability()))
			}
		default:
			_, mended := k.without().mend(d, "")
			commands = append(commands, mended...)
		}
	}
	return commands
}

// without is what is known but of the call.
func (k *knowledge) without() *knowledge {
	other := *k
	other.called = nil
	return &other
}

// holds says whether a grant of the subject covers capability now.
func (k *knowledge) holds(subject, capability string) bool {
	return slices.ContainsFunc(k.grants, func(g *operatorv1.Grant) bool {
		return g.GetSubject() == subject && g.GetEffect() == decisionAllow && g.GetState() == "active" && matches(g.GetCapability(), capability)
	})
}

// trust shows what is different, and lets it through; none where it is as it was
// trusted, or can never be.
func (c *called) trust() [][]string {
	look := []string{"server", "diff", c.server}
	switch c.state() {
	case toolTrusted, toolWithheld:
		return nil
	case toolNew, toolChanged:
		return [][]string{look, {"server", "trust", c.server, "--tool", c.tool}}
	}
	if c.known == nil {
		return nil
	}
	return [][]string{look}
}

// show shows the policy, if there still is one.
func (c *called) show(subject string) [][]string {
	if c.policy == nil {
		return nil
	}
	return [][]string{{"policy", "show", subject, c.server}}
}

// reset forgets what the policy has counted, if there still is one.
func (c *called) reset(subject string) [][]string {
	if c.policy == nil {
		return nil
	}
	return [][]string{{"policy", "reset", subject, c.server}}
}

// lift shows the policy that has killed, and lifts that; none where it is lifted.
func (c *called) lift(subject string, commands [][]string) [][]string {
	if !c.killed(subject) {
		return nil
	}
	return append(c.show(subject), commands...)
}

// revive looks for why a server does not run; none where it runs.
func (c *called) revive(subject string) [][]string {
	if c.known == nil || stateFor(c.known, subject) == processRunning {
		return nil
	}
	look := [][]string{{"server", "show", c.server}} // which has the cause
	if c.known.GetUrl() == "" {
		look = append(look, []string{"server", "logs", c.server, "--subject", subject})
	}
	return append(look, []string{"server", "restart", c.server, "--subject", subject})
}

// mendApproval is for what a person was to approve. Nothing is to be pasted where a
// person has said no.
func (k *knowledge) mendApproval(d *operatorv1.DenialGroup) (commands [][]string, ok bool) {
	switch cause(d.GetCause()) {
	case causeNoApprover:
		if !k.deaf {
			return nil, true // mended since
		}
		return [][]string{{"operator", "set-passphrase"}}, true
	case causeRefused, causeQuiet:
		return nil, true
	case causeTooMany, causeUnanswered, causeUnused, causeVoid, causeWithdrawn, causeGatedUse, causeGrantChanged, causePinChanged,
		causePolicyChanged, causeContentChanged, causeServerChanged:
		return [][]string{{"approvals", "list"}}, true
	default:
	}
	switch wire.Reason(d.GetReasonCode()) {
	case wire.ApprovalExpired, wire.ApprovalPending:
		return [][]string{{"approvals", "list"}}, true
	default:
		return nil, false
	}
}
