package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What comes after the grants when a tool of a server is called.

// callAfter says what else stands between a subject and a tool that its grants
// concern.
type callAfter struct {
	Server string `json:"server"`
	Tool   string `json:"tool"`
	State  string `json:"toolState"` // as in server show, or unknown
	Pin    string `json:"pin,omitempty"`
	Policy string `json:"policy,omitempty"` // version of the policy around the server

	Steps []stepView `json:"steps"`

	names []string
}

// Results of what comes after the grants, in the words of a trace.
const (
	stepPass = "pass"
	stepFail = "fail"
	stepSkip = "skip"
)

// toolUnknown is the state of a tool that nobody has seen.
const toolUnknown = "unknown"

// afterGrants looks at trust and policy for a capability to call one tool; nil for
// any other.
func (a *app) afterGrants(ctx context.Context, subject, capability string) *callAfter {
	object, isCall := strings.CutPrefix(capability, "call:")
	server, tool, one := strings.Cut(object, "/")
	if !isCall || !one || strings.HasSuffix(tool, "*") {
		return nil
	}
	after := &callAfter{Server: server, Tool: tool, State: toolUnknown, Steps: []stepView{}}
	got, err := a.server(ctx, "", server, false)
	if err != nil {
		after.add("server", stepSkip, "none of that name is known")
		return after
	}
	s := got.GetServer()
	for _, t := range got.GetTools() {
		if t.GetName() != "" {
			after.names = append(after.names, t.GetName())
		}
		if t.GetName() == tool {
			after.State, after.Pin = t.GetState(), t.GetPin()
		}
	}
	switch {
	case s.GetHosted():
		after.add("server", stepPass, "hosted by the broker")
	default:
		after.add("server", stepPass, "started by agents, with sb-mcp wrap")
	}
	switch pinned := s.GetTrusted() > 0; {
	case after.State == toolTrusted:
		after.add("trust", stepPass, "the tool is as it was trusted, pin "+shortPin(after.Pin))
	case !pinned && !s.GetHosted():
		after.add("trust", stepSkip, "nothing of it was trusted: what it offers is not compared")
	case after.State == toolUnknown:
		after.add("trust", stepFail, "nobody has seen a tool of that name")
	default:
		after.add("trust", stepFail, "the tool is "+after.State+": withheld until it is trusted")
	}
	after.judgeHost(ctx, a, s, subject)
	policies, _ := a.policies(ctx, "", subject, server)
	if len(policies) == 0 {
		after.add("policy", stepSkip, "there is none around it for "+subject+": no limits")
		return after
	}
	after.judgePolicy(a, policies[0])
	return after
}

func (c *callAfter) add(check, result, detail string) {
	c.Steps = append(c.Steps, stepView{Check: check, Result: result, Detail: detail})
}

// judgePolicy says what of a policy does not depend on the arguments.
func (c *callAfter) judgePolicy(a *app, p *operatorv1.Policy) {
	c.Policy = p.GetVersion()
	result, words := stepPass, "version "+p.GetVersion()+" judges the call with its arguments"
	for _, step := range listSteps(p, c.Tool, a.now()) {
		switch step.Result {
		case stepPass, "warn":
		case "ask":
			words = "version " + p.GetVersion() + ": a person is asked, as " + step.Detail
		default:
			result, words = stepFail, "version "+p.GetVersion()+": "+step.Detail
		}
	}
	if state := meterStates(p); state != "" {
		result, words = stepFail, words+"; now: "+state
	}
	if observing := a.observing(p.GetObserveUntil()); observing != "" {
		result, words = stepPass, words+"; its rules "+observing
	}
	c.add("policy", result, words)
}

// listSteps are the steps in which a policy judges a tool by its lists of tools.
func listSteps(p *operatorv1.Policy, tool string, now time.Time) []policy.AttemptStep {
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\npolicies:\n- subject: %s\n  server: %s\n", quotedYAML(p.GetSubject()), quotedYAML(p.GetServer()))
	if len(p.GetRules()) > 0 {
		text.WriteString("  rules:\n")
		for line := range strings.Lines(string(p.GetRules())) {
			text.WriteString("    " + line)
		}
	}
	document, err := policy.Parse([]byte(text.String()), envWith(now, p.GetSubject()))
	if err != nil {
		return nil
	}
	trial, err := document.Try(policy.Pair{Subject: p.GetSubject(), Server: p.GetServer()}, nil)
	if err != nil {
		return nil
	}
	attempt, err := trial.Call(tool, nil, policy.EndOK, now)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(attempt.Trace, func(s policy.AttemptStep) bool {
		return s.Policy != "DeniedToolsPolicy" && s.Policy != "AllowedToolsPolicy" && s.Policy != "ApprovalPolicy"
	})
}

// stopped says that the call is refused although the grants allow it.
func (c *callAfter) stopped() bool {
	return slices.ContainsFunc(c.Steps, func(s stepView) bool { return s.Result == stepFail })
}

// say tells a person what would be done about it.
func (c *callAfter) say(a *app, subject string, allowed bool) {
	if near, ok := nearest.Name(c.Tool, c.names); ok && c.State == toolUnknown {
		a.done("no tool of %s is named %s, did you mean %s?", c.Server, c.Tool, near)
	}
	switch {
	case !allowed:
	case c.State == toolNew || c.State == toolChanged:
		a.done("the grants allow it, and it is withheld: %s", a.paste("server", "trust", c.Server))
	case c.Policy != "":
		a.done("with arguments: %s", a.paste("policy", "show", subject, c.Server)+", and "+
			a.paste("policy", "test", "FILE", "--call", fmt.Sprintf(`{"tool": %s, "arguments": {}}`, quotedYAML(c.Tool))))
	}
}

// sayUnknownServers says which servers that capabilities name are not there: a grant
// of them is legal, and most often a mistake.
func (a *app) sayUnknownServers(ctx context.Context, capabilities []string) {
	var names []string
	for _, capability := range capabilities {
		object, isCall := strings.CutPrefix(capability, "call:")
		server, _, _ := strings.Cut(object, "/")
		if isCall && server != "" && !strings.HasSuffix(server, "*") {
			names = append(names, server)
		}
	}
	if len(names) == 0 {
		return
	}
	servers, err := a.servers(ctx, "")
	if err != nil {
		return
	}
	var known []string
	for _, s := range servers {
		known = append(known, s.GetName())
	}
	for i, name := range names {
		if slices.Contains(known, name) || slices.Contains(names[:i], name) {
			continue
		}
		words := fmt.Sprintf("no server is named %s", name)
		if near, ok := nearest.Name(name, known); ok {
			words += ", did you mean " + near + "?"
		}
		a.done("%s", words)
	}
}
