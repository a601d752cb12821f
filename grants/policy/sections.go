package policy

import (
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

// later names the sections that the format reserves and this version does not
// read. They are refused by name: ignoring one would look like applying it.
var later = []string{"profiles", "tools", "servers", "policies", "tenants"}

func (p *parser) readDocument(root *yaml.Node) {
	const what = "the document"
	var version bool
	p.entries(root, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "version":
			version = true
			if value.Tag != "!!int" || value.Value != "1" {
				p.report(value.Line, "version must be the number 1")
			}
		case "owner":
			p.document.Owner = p.word(value, "owner")
			if err := grants.CheckName(p.document.Owner); err != nil {
				p.report(value.Line, "owner: %v", err)
			}
		case "resources":
			p.entries(value, "resources", p.readResource)
		case "subjects":
			p.entries(value, "subjects", p.readSubject)
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
			r.Kind = p.word(value, "kind")
		case "file":
			r.File = p.word(value, "file")
		case "pin":
			r.Pin = p.word(value, "pin")
		case "sha256":
			r.SHA256 = p.word(value, "sha256")
		case "domain":
			r.Domain = p.word(value, "domain")
		case "note":
			r.Note = p.text(value, "note")
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
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "minTier":
			s.MinTier = p.minTier(value, "minTier")
		case "enabled":
			enabled := p.boolean(value, "enabled")
			s.Enabled = &enabled
		case "uid":
			p.report(key.Line, "uid comes with a later version")
		default:
			p.unknown(key, what)
		}
	})
	p.document.Subjects[name.Value] = s
}

func (p *parser) readGrant(body *yaml.Node) {
	const what = "a grant"
	before := len(p.problems)
	g := grants.Grant{Effect: grants.Allow}
	p.entries(body, what, func(key, value *yaml.Node) {
		switch key.Value {
		case "subject":
			g.Subject = p.word(value, "subject")
		case "capability":
			g.Pattern = p.pattern(value)
		case "effect":
			effect, err := grants.ParseEffect(p.text(value, "effect"))
			if err != nil {
				p.report(value.Line, "%v", err)
			}
			g.Effect = effect
		case "until":
			g.Until = p.instant(value, "until")
		case "uses":
			g.Uses = p.count(value, "uses")
		case "tier":
			g.Tier = p.minTier(value, "tier")
		case "requireApproval":
			g.RequireApproval = p.boolean(value, "requireApproval")
		case "disclose":
			g.Disclose = p.boolean(value, "disclose")
		case "note":
			g.Note = p.text(value, "note")
		default:
			p.unknown(key, what)
		}
	})
	if len(p.problems) > before {
		return
	}
	if err := g.CheckConditions(); err != nil {
		p.report(body.Line, "%v", err)
		return
	}
	p.document.Grants = append(p.document.Grants, g)
	p.lines = append(p.lines, body.Line)
}

// pattern reads a capability pattern. On the command line a bare name means
// read; a document that is kept says so.
func (p *parser) pattern(n *yaml.Node) grants.Pattern {
	s := p.word(n, "capability")
	if s == "" {
		return grants.Pattern{}
	}
	if !strings.Contains(s, ":") {
		p.report(n.Line, "capability needs its action, as in read:NAME")
		return grants.Pattern{}
	}
	pattern, err := grants.ParsePattern(s)
	if err != nil {
		p.report(n.Line, "capability: %v", err)
	}
	return pattern
}
