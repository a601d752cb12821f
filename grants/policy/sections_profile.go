package policy

import (
	"errors"
	"slices"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

func (p *parser) readTool(name, body *yaml.Node) {
	const what = "a tool"
	before := len(p.problems)
	t := grants.Tool{Name: name.Value}
	var requires bool
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "requires":
			requires = true
			t.Requires = p.patterns(value, "requires")
		case "approval":
			t.Approval = parsed(p, value, "approval", parseToolApproval)
		case "gate":
			t.Gate = parsed(p, value, "gate", parseGate)
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	switch err := t.Validate(); {
	case err != nil:
		p.report(name.Line, "tool %s: %v", name.Value, err)
	case !requires:
		p.report(name.Line, "tool %s needs requires; [] is a tool that reaches nothing", name.Value)
	default:
		p.document.Tools[name.Value] = t
	}
}

func (p *parser) readProfile(name, body *yaml.Node) {
	const what = "a profile"
	before := len(p.problems)
	one := grants.Profile{Name: name.Value}
	var tools bool
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "subject":
			one.Subject, _ = p.word(value, "subject")
		case "tools":
			tools = true
			p.items(value, "tools", func(item *yaml.Node) {
				tool := parsed(p, item, "a tool", parseTool)
				here := place{AProfile, name.Value, tool}
				if p.places[here] != 0 {
					p.report(item.Line, "%s is in tools already", tool)
				}
				p.places[here] = item.Line
				one.Tools = append(one.Tools, tool)
			})
		case "caps":
			one.Caps = p.patterns(value, "caps")
		case "approval":
			one.Approval = parsed(p, value, "approval", grants.ParseApproval)
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	switch err := one.Validate(); {
	case one.Subject == "":
		p.report(name.Line, "profile %s needs subject", name.Value)
	case err != nil:
		p.report(name.Line, "profile %s: %v", name.Value, err)
	case !tools:
		p.report(name.Line, "profile %s needs tools", name.Value)
	default:
		slices.Sort(one.Tools)
		p.places[place{AProfile, name.Value, ""}] = name.Line
		p.document.Profiles[name.Value] = one
	}
}

// patterns reads a list of capability patterns and sorts it. An empty list is
// not nil.
func (p *parser) patterns(n *yaml.Node, what string) []grants.Pattern {
	list := []grants.Pattern{}
	seen := map[grants.Pattern]bool{}
	p.items(n, what, func(item *yaml.Node) {
		pattern := parsed(p, item, "a capability in "+what, parseCapability)
		if seen[pattern] {
			p.report(item.Line, "%s is in %s already", pattern, what)
		}
		seen[pattern] = true
		list = append(list, pattern)
	})
	return grants.SortedPatterns(list)
}

func parseToolApproval(s string) (bool, error) {
	if s != "always" && s != "never" {
		return false, errors.New("approval of a tool is always or never")
	}
	return s == "always", nil
}

func parseGate(s string) (bool, error) {
	if s != "always" {
		return false, errors.New("gate is always, or left out")
	}
	return true, nil
}

func parseTool(s string) (string, error) { return s, grants.CheckTool(s) }
