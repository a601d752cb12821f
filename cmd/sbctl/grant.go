package main

import (
	"context"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type grantCmd struct {
	Subject         string   `arg:"" help:"Name of the subject."`
	Capabilities    []string `arg:"" name:"cap" help:"Capabilities, or patterns that end in *; without an action they are read:."`
	Deny            bool     `help:"Deny instead of allow; any matching deny wins."`
	TTL             string   `name:"ttl" xor:"end" placeholder:"D" help:"How long it holds: 90m, 2h, 7d; none says that no default limit may apply."`
	Until           string   `xor:"end" placeholder:"T" help:"When it ends: 18:00, \"tomorrow 09:00\" or RFC 3339."`
	Uses            *uint64  `placeholder:"N" help:"How often it may be used."`
	Tier            string   `placeholder:"TIER" help:"Minimum tier of the run: cooperative, bound or sandboxed."`
	Disclose        bool     `help:"Let the subject see content of kind secret."`
	RequireApproval bool     `help:"Every use needs a person's approval."`
	Note            string   `placeholder:"T" help:"A note for people."`
}

// Help is the manual of grant.
func (grantCmd) Help() string {
	return `All capabilities are granted, or none. The same subject, capability and effect
again replaces the conditions and the number of uses, and keeps the id.

A capability is ACTION:OBJECT. A pattern is an object followed by one * after
one of : / . - _ and is judged when asked, so it covers later names too;
wildcards never match content of kind secret.

Reading a secret needs --disclose: the agent sees the value and may keep it in
its transcript. Such a grant without a limit gets one hour; --ttl none says that
it really has none. What is personal is granted only by the operator who put it.

call:SERVER/TOOL lets the subject call a tool of a server behind the broker, and
call:SERVER/* all of them; what a policy around the server says comes on top. With
--require-approval a person is asked each time.

memory.read:TENANT lets the subject search what agents wrote down in a tenant, and
memory.write:TENANT add to it.

Examples:
  sbctl grant worker design-doc
  sbctl grant worker 'read:docs.*' --until "tomorrow 09:00"
  sbctl grant worker github.token --disclose --uses 1
  sbctl grant worker read:payroll --deny
  sbctl grant worker 'call:github/*' use:github.token
  sbctl grant worker memory.read:acme memory.write:acme`
}

// Run grants.
func (c grantCmd) Run(ctx context.Context, a *app) error {
	doing := "granting to " + c.Subject
	request := &operatorv1.CreateGrantsRequest{
		Subject: c.Subject, Deny: c.Deny, Tier: c.Tier, Disclose: c.Disclose, RequireApproval: c.RequireApproval, Note: c.Note,
	}
	for _, word := range c.Capabilities {
		request.Capabilities = append(request.Capabilities, readCapability(word))
	}
	if c.Uses != nil {
		if *c.Uses == 0 {
			return refuse(doing, "--uses 0 would never hold: leave it out for no limit")
		}
		request.Uses = *c.Uses
	}
	switch {
	case c.TTL == noLimit:
		request.NoLimit = true
	case c.TTL != "":
		span, err := policy.ParseTTL(c.TTL)
		if err != nil {
			return refuse(doing, "--ttl: %v", err)
		}
		request.TtlMs = span.Milliseconds()
	case c.Until != "":
		at, err := policy.ParseUntil(c.Until, a.now())
		if err != nil {
			return refuse(doing, "--until: %v", err)
		}
		request.Until = at.UnixMilli()
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.CreateGrants)
	if err != nil {
		return err
	}
	for _, warning := range got.GetWarnings() {
		a.say("%s", warning)
	}
	for _, g := range got.GetGrants() {
		a.echoEnd(g.GetGrantId(), g.GetUntil())
	}
	a.sayUnknownServers(ctx, request.GetCapabilities())
	return a.printGrants(got.GetGrants(), len(c.Capabilities) == 1)
}

// printGrants prints one grant as its object, several as a list.
func (a *app) printGrants(grants []*operatorv1.Grant, one bool) error {
	if one && len(grants) == 1 {
		g := grants[0]
		return a.out.Object(ui.Object{
			ID: g.GetGrantId(),
			Fields: []ui.Field{
				{Name: "grant", Value: g.GetGrantId()},
				{Name: "subject", Value: g.GetSubject()},
				{Name: "effect", Value: g.GetEffect()},
				{Name: "capability", Value: g.GetCapability()},
				{Name: "until", Value: a.out.When(g.GetUntil())},
				{Name: "used", Value: usesOf(g)},
				{Name: "conditions", Value: conditionsOf(g)},
				{Name: "state", Value: g.GetState()},
				{Name: "granted by", Value: uidWords(g.GrantedBy)},
				{Name: "note", Value: g.GetNote()},
			},
			Value: viewGrant(g),
		})
	}
	return a.list(ui.List{Head: grantHead, Rows: a.grantRows(grants), IDs: grantIDs(grants), Items: viewGrants(grants)}, "there are no grants")
}

type revokeCmd struct {
	What    []string `arg:"" optional:"" name:"what" placeholder:"GRANT | S CAP" help:"The id of a grant, or a subject and a capability as it was granted."`
	Subject string   `placeholder:"S" help:"With --all: the subject."`
	All     bool     `help:"Revoke every grant of the subject."`
}

// Help is the manual of revoke.
func (revokeCmd) Help() string {
	return `Takes effect before it returns: the next request is judged without it. Runs stay
open, and agents that watch their list are told that it changed. A capability is
named exactly as it was granted, * included.

Examples:
  sbctl revoke kmpxwhrtqd
  sbctl revoke worker design-doc
  sbctl revoke --subject worker --all`
}

// Run revokes.
func (c revokeCmd) Run(ctx context.Context, a *app) error {
	const doing = "revoking"
	request := &operatorv1.RevokeGrantsRequest{}
	switch {
	case c.All && c.Subject != "" && len(c.What) == 0:
		request.Subject, request.All = c.Subject, true
	case !c.All && c.Subject == "" && len(c.What) == 1:
		request.GrantId = c.What[0]
	case !c.All && c.Subject == "" && len(c.What) == 2:
		request.Subject, request.Capability = c.What[0], readCapability(c.What[1])
	default:
		return refuse(doing, "say the id of a grant, or a subject and a capability, or --subject S --all").withHint("sbctl revoke --help")
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.RevokeGrants)
	if err != nil {
		return err
	}
	return a.printGrants(got.GetGrants(), !c.All)
}

type grantsCmd struct {
	Subject string `placeholder:"S" help:"Only those of this subject."`
	All     bool   `help:"Also those that have ended."`
}

// Help is the manual of grants.
func (grantsCmd) Help() string {
	return `BY is the uid of the operator who granted it.

Examples:
  sbctl grants
  sbctl grants --subject worker --all`
}

// Run lists grants.
func (c grantsCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "listing grants", &operatorv1.ListGrantsRequest{Subject: c.Subject, All: c.All}, operatorv1.OperatorServiceClient.ListGrants)
	if err != nil {
		return err
	}
	return a.printGrants(got.GetGrants(), false)
}

type explainCmd struct {
	Subject    string `arg:"" help:"Name of the subject."`
	Capability string `arg:"" name:"cap" help:"The capability; without an action it is read:."`
	Profile    string `placeholder:"P" help:"Profile of the run to assume; without it the run has none."`
	Tier       string `placeholder:"TIER" help:"Tier of the run to assume (default: cooperative)."`
}

// Help is the manual of explain.
func (explainCmd) Help() string {
	return `The trace comes from the evaluator that also decides; nothing is used up. Under a
profile a run reaches at most what the tools that it lists require, narrowed by its
caps: the trace names the step that stops it. The exit code is 0 for allow and 3
for anything else.

Of call:SERVER/TOOL the trace goes on to whether the tool is as it was trusted, and
to the policy around the server, which judges the arguments too ("sbctl policy
test"). What stops a call there makes the exit code 3.

Examples:
  sbctl explain worker design-doc
  sbctl explain worker use:github.token --tier bound
  sbctl explain worker call:github/create_issue
  sbctl explain worker reach:api.github.com --profile coder`
}

type stepView struct {
	Check   string `json:"check"`
	Result  string `json:"result"`
	Detail  string `json:"detail"`
	GrantID string `json:"grantId,omitempty"`
}

type explainView struct {
	SubjectID  string     `json:"subjectId"`
	Capability string     `json:"capability"`
	Tier       string     `json:"tier"`
	Profile    string     `json:"profile,omitempty"`
	Decision   string     `json:"decision"`
	ReasonCode string     `json:"reasonCode"`
	Cause      string     `json:"cause,omitempty"`
	GrantID    string     `json:"grantId,omitempty"`
	Steps      []stepView `json:"steps"`
	Call       *callAfter `json:"call,omitempty"` // what comes after the grants
}

// Run explains.
func (c explainCmd) Run(ctx context.Context, a *app) error {
	capability := readCapability(c.Capability)
	got, err := call(ctx, a, fmt.Sprintf("explaining %s for %s", capability, c.Subject),
		&operatorv1.ExplainRequest{Subject: c.Subject, Capability: capability, Tier: c.Tier, Profile: c.Profile}, operatorv1.OperatorServiceClient.Explain)
	if err != nil {
		return err
	}
	view := explainView{
		SubjectID: c.Subject, Capability: capability, Tier: c.Tier, Profile: c.Profile, Decision: got.GetDecision(), ReasonCode: got.GetReasonCode(),
		Cause: got.GetCause(), GrantID: got.GetGrantId(), Steps: []stepView{},
	}
	if view.Tier == "" {
		view.Tier = tierCooperative
	}
	var rows [][]string
	for _, step := range got.GetSteps() {
		view.Steps = append(view.Steps, stepView{step.GetCheck(), step.GetResult(), step.GetDetail(), step.GetGrantId()})
		rows = append(rows, []string{step.GetCheck(), step.GetResult(), step.GetGrantId(), step.GetDetail()})
	}
	view.Call = a.afterGrants(ctx, c.Subject, capability)
	stopped := ""
	if view.Call != nil {
		for _, step := range view.Call.Steps {
			rows = append(rows, []string{step.Check, step.Result, "", step.Detail})
		}
		if view.Call.stopped() && view.Decision != "deny" {
			stopped = "the grants do not stop it, and what comes after them does"
		}
	}
	err = a.out.Object(ui.Object{
		ID: view.Decision,
		Fields: []ui.Field{
			{Name: "decision", Value: view.Decision},
			{Name: "but", Value: stopped},
			{Name: "reason", Value: view.ReasonCode},
			{Name: "cause", Value: withMeaning(view.Cause)},
			{Name: "profile", Value: view.Profile},
			{Name: "grant", Value: view.GrantID},
		},
		Value: view,
	})
	if err != nil {
		return err
	}
	if err := a.out.Section("Trace", []string{"CHECK", "RESULT", "GRANT", "DETAIL"}, rows); err != nil {
		return err
	}
	if view.Call != nil {
		view.Call.say(a, c.Subject, view.Decision != "deny")
	}
	if view.Decision != decisionAllow || stopped != "" {
		a.sayNearest(ctx, cause(view.Cause), c.Subject, capability)
		return exitCode(wire.ExitDenied)
	}
	return nil
}

// decisionAllow is the decision that lets something through.
const decisionAllow = "allow"
