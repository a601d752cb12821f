package policy

import (
	"errors"
	"strings"

	"go.yaml.in/yaml/v4"

	"subjectbroker/grants"
)

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
		case "servers":
			p.entries(value, "servers", p.readServer)
		case "policies":
			p.items(value, "policies", p.readPolicy)
		case "tenants":
			p.items(value, "tenants", p.readTenant)
		case "grants":
			p.items(value, "grants", p.readGrant)
		default:
			p.unknown(key, what)
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
	for name, s := range d.Servers {
		s.Owner = d.Owner
		d.Servers[name] = s
	}
	for key, one := range d.Policies {
		one.Owner = d.Owner
		d.Policies[key] = one
	}
	for name, t := range d.Tenants {
		t.Owner = d.Owner
		d.Tenants[name] = t
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

func (p *parser) readTenant(n *yaml.Node) {
	before := len(p.problems)
	name := parsed(p, n, "name of a tenant", parseName)
	switch _, twice := p.document.Tenants[name]; {
	case len(p.problems) > before:
	case twice:
		p.report(n.Line, "tenant %s is there twice", name)
	default:
		if p.document.Tenants == nil {
			p.document.Tenants = map[string]grants.Tenant{}
		}
		p.document.Tenants[name] = grants.Tenant{Name: name}
	}
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

func parseName(s string) (string, error) { return s, grants.CheckName(s) }

// parseCapability reads a capability pattern. On the command line a bare name
// means read; a document that is kept says so.
func parseCapability(s string) (grants.Pattern, error) {
	if !strings.Contains(s, ":") {
		return grants.Pattern{}, errors.New("the action is missing, as in read:NAME")
	}
	return grants.ParsePattern(s)
}
