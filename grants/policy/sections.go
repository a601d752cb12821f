package policy

import (
	"errors"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// later names the sections that the format reserves and this version does not
// read. They are refused by name: ignoring one would look like applying it.
var later = []string{"servers", "policies", "tenants"}

func (p *parser) readDocument(root *yaml.Node) {
	const what = "the document"
	var version bool
	p.entries(root, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "version":
			version = true
			p.readVersion(value)
		case "owner":
			p.document.Owner = parsed(p, value, "owner", parseName)
		case "resources":
			p.entries(value, "resources", p.readResource)
		case "subjects":
			p.entries(value, "subjects", p.readSubject)
		case "tools":
			p.entries(value, "tools", p.readTool)
		case "profiles":
			p.entries(value, "profiles", p.readProfile)
		case "grants":
			p.items(value, "grants", p.readGrant)
		default:
			p.unknownSection(key, what)
		}
	})
	if root.Kind == yaml.MappingNode && !version {
		p.report(root.Line, "version: 1 is missing")
	}
	p.setOwner()
}

func (p *parser) readVersion(n *yaml.Node) {
	if n.Tag != "!!int" || n.Value != "1" {
		p.report(n.Line, "version must be the number 1")
	}
}

func (p *parser) unknownSection(key *yaml.Node, what string) {
	for _, name := range later {
		if key.Value == name {
			p.report(key.Line, "%s come with a later version", name)
			return
		}
	}
	p.unknown(key, what)
}

// setOwner marks everything with the document's owner, wherever in the document
// that was said.
func (p *parser) setOwner() {
	d := p.document
	for name, r := range d.Resources {
		r.Owner = d.Owner
		d.Resources[name] = r
	}
	for name, s := range d.Subjects {
		s.Owner = d.Owner
		d.Subjects[name] = s
	}
	for name, t := range d.Tools {
		t.Owner = d.Owner
		d.Tools[name] = t
	}
	for name, one := range d.Profiles {
		one.Owner = d.Owner
		d.Profiles[name] = one
	}
	for i := range d.Grants {
		d.Grants[i].Owner = d.Owner
	}
}

func (p *parser) readResource(name, body *yaml.Node) {
	const what = "a resource"
	if err := grants.CheckName(name.Value); err != nil {
		p.report(name.Line, "name of a resource: %v", err)
		return
	}
	before := len(p.problems)
	var r Resource
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "kind":
			r.Kind, _ = p.word(value, "kind")
		case "file":
			r.File, _ = p.word(value, "file")
		case "pin":
			r.Pin, _ = p.word(value, "pin")
		case "sha256":
			r.SHA256, _ = p.word(value, "sha256")
		case "domain":
			r.Domain, _ = p.word(value, "domain")
		case "note":
			r.Note, _ = p.text(value, "note")
		default:
			p.unknown(key, what)
		}
	})
	if r.File != "" && r.Pin == "" {
		r.Pin = PinContent
	}
	if len(p.problems) > before {
		return
	}
	if err := r.check(); err != nil {
		p.report(name.Line, "resource %s: %v", name.Value, err)
		return
	}
	p.document.Resources[name.Value] = r
}

func (p *parser) readSubject(name, body *yaml.Node) {
	const what = "a subject"
	if err := grants.CheckName(name.Value); err != nil {
		p.report(name.Line, "name of a subject: %v", err)
		return
	}
	var s Subject
	p.places[place{ASubject, name.Value, ""}] = name.Line
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "minTier":
			s.MinTier = parsed(p, value, "minTier", grants.ParseMinTier)
		case "enabled":
			enabled := p.boolean(value, "enabled")
			s.Enabled = &enabled
		case "uid":
			s.UID = p.uid(value)
		default:
			p.unknown(key, what)
		}
	})
	p.document.Subjects[name.Value] = s
}

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
				if slices.Contains(one.Tools, tool) {
					p.report(item.Line, "%s is in tools already", tool)
				}
				one.Tools = append(one.Tools, tool)
				p.places[place{AProfile, name.Value, tool}] = item.Line
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
	p.items(n, what, func(item *yaml.Node) {
		pattern := parsed(p, item, "a capability in "+what, parseCapability)
		if slices.Contains(list, pattern) {
			p.report(item.Line, "%s is in %s already", pattern, what)
		}
		list = append(list, pattern)
	})
	sortPatterns(list)
	return list
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

func (p *parser) readGrant(body *yaml.Node) {
	const what = "a grant"
	before := len(p.problems)
	g := grants.Grant{Effect: grants.Allow}
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "subject":
			g.Subject, _ = p.word(value, "subject")
		case "capability":
			g.Pattern = parsed(p, value, "capability", parseCapability)
		case "effect":
			g.Effect = parsed(p, value, "effect", grants.ParseEffect)
		case "until":
			g.Until = p.instant(value, "until")
		case "uses":
			g.Uses = p.count(value, "uses")
		case "tier":
			g.Tier = parsed(p, value, "tier", grants.ParseMinTier)
		case "requireApproval":
			g.RequireApproval = p.boolean(value, "requireApproval")
		case "disclose":
			g.Disclose = p.boolean(value, "disclose")
		case "note":
			g.Note, _ = p.text(value, "note")
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	switch err := g.CheckConditions(); {
	case g.Subject == "":
		p.report(body.Line, "a grant needs subject")
		return
	case g.Pattern == grants.Pattern{}:
		p.report(body.Line, "a grant needs capability")
		return
	case err != nil:
		p.report(body.Line, "%v", err)
		return
	}
	p.document.Grants = append(p.document.Grants, g)
	p.lines = append(p.lines, body.Line)
}

func parseTool(s string) (string, error) { return s, grants.CheckTool(s) }

func parseName(s string) (string, error) { return s, grants.CheckName(s) }

// parseCapability reads a capability pattern. On the command line a bare name
// means read; a document that is kept says so.
func parseCapability(s string) (grants.Pattern, error) {
	if !strings.Contains(s, ":") {
		return grants.Pattern{}, errors.New("the action is missing, as in read:NAME")
	}
	return grants.ParsePattern(s)
}
