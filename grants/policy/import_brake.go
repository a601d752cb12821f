package policy

import (
	"errors"
	"slices"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// ImportAgentBrake reads a policy file of the proxy agent-brake, YAML or JSON, and
// returns it as a document without owner that holds one policy: that of subject
// around server. The warnings, by line, are for people.
//
//	version: "3.0"
//	agent: {name, trust_level: sandbox|limited|trusted|privileged}
//	policies:
//	  global: {on_violation, max_retries}
//	  limits: {max_tool_calls, max_runtime_seconds, rate_limit: {calls_per_window, window_seconds},
//	    budget: {max_cost, currency, warn_threshold}, circuit_breaker: {failure_threshold, reset_timeout_seconds}}
//	  security: {denied_tools, allowed_tools, require_approval,
//	    granular_rules: [{tool, allow_if: {arguments: {NAME: regex}}, deny_if: {arguments: {NAME: regex}}, action}]}
//
// Every key is optional, and no other is taken. It is as strict as [Parse]. What did
// nothing in the proxy gets its plain meaning here or is refused by name: on_violation
// is what is done when a list of tools or a limit is violated, warn_threshold is
// noted; max_retries has no meaning here, and a trust level that asks for
// confinement is not something that a file of rules gives. The action sandbox is
// block. A refused file is a [*Error].
func ImportAgentBrake(data []byte, subject, server string, env Env) (*Document, []Problem, error) {
	r := rulesReader{parser: newParser(env), lines: map[string]int{}, foreign: true}
	if err := errors.Join(grants.CheckName(subject), grants.CheckServer(server)); err != nil {
		r.report(0, "%v", err)
	} else if root := r.load(data); root != nil && r.plain(root) {
		r.readFile(root, subject, server)
	}
	if len(r.problems) == 0 {
		r.checkPolicies()
	}
	if len(r.problems) > 0 {
		return nil, nil, &Error{byLine(r.problems)}
	}
	return r.document, byLine(r.warnings), nil
}

func (r *rulesReader) readFile(root *yaml.Node, subject, server string) {
	one := newPolicy()
	one.Subject, one.Server = subject, server
	r.closed(root, "the file", "", map[string]func(*yaml.Node, string){
		"version": func(n *yaml.Node, _ string) {
			if n.Tag != "!!str" || n.Value != "3.0" {
				r.report(n.Line, `version must be the text "3.0", or left out`)
			}
		},
		"agent":    func(n *yaml.Node, at string) { r.readAgent(n, at, subject) },
		"policies": func(n *yaml.Node, _ string) { r.readRules(n, "policies", &one.Rules) },
	})
	if len(r.problems) > 0 {
		return
	}
	if one.Version() == emptyVersion() {
		r.warn(root.Line, "the file limits nothing")
	}
	r.take(one)
}

func emptyVersion() string {
	one := newPolicy()
	return one.Version()
}

// readAgent reads what the proxy was told about the agent.
func (r *rulesReader) readAgent(n *yaml.Node, at, subject string) {
	r.closed(n, "agent", at, map[string]func(*yaml.Node, string){
		"name": func(n *yaml.Node, _ string) {
			if name, ok := r.text(n, "name"); ok && name != subject {
				r.warn(n.Line, "the agent's name says nothing here: the policy is that of subject %s", subject)
			}
		},
		"trust_level": func(n *yaml.Node, _ string) {
			word, _ := r.word(n, "trust_level")
			switch {
			case slices.Contains([]string{"trusted", "privileged"}, word):
				r.warn(n.Line, "trust_level %s gives nothing here: grants say what the subject may do", word)
			case slices.Contains([]string{"sandbox", "limited"}, word):
				r.report(n.Line, "trust_level %s confines nothing here: take it out, and demand a minTier of the subject instead", word)
			case word != "":
				r.report(n.Line, "trust_level is sandbox, limited, trusted or privileged")
			}
		},
	})
}

// readRetries takes what is said where nothing is.
func (r *rulesReader) readRetries(n *yaml.Node, _ string) {
	const usual = 3
	v, ok := digits(n)
	switch {
	case !ok:
		r.wrongTypeOr(n, "max_retries", "a whole number from 0 in plain digits", "!!int")
	case v == usual:
		r.warn(n.Line, "max_retries means nothing here: a call that was refused may be made again, and is refused again")
	default:
		r.report(n.Line, "max_retries means nothing here: take it out, and limit calls with max_tool_calls or rate_limit")
	}
}
