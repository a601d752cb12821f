package policy

import (
	"maps"
	"slices"

	"subjectbroker/grants"
)

// key is what makes two grants the same grant.
type key struct {
	subject string
	pattern grants.Pattern
	effect  grants.Effect
}

func keyOf(g *grants.Grant) key { return key{g.Subject, g.Pattern, g.Effect} }

// checkGrants judges the grants against each other and against what they name,
// which the document may say before or after them.
func (p *parser) checkGrants() {
	seen := map[key]int{}
	for i := range p.document.Grants {
		g, line := &p.document.Grants[i], p.lines[i]
		if first, twice := seen[keyOf(g)]; twice {
			p.report(line, "the same subject, capability and effect as on line %d", first)
			continue
		}
		seen[keyOf(g)] = line
		p.checkReferences(g, line)
		if !g.Until.IsZero() && !p.env.Now.IsZero() && !p.env.Now.Before(g.Until) {
			p.report(line, "until is past")
		}
	}
}

// checkUIDs refuses a uid that two subjects would have. It is taken even if the
// other one is to give it up: which of two changes comes first is nothing that a
// document says.
func (p *parser) checkUIDs() {
	owners := map[uint32]string{}
	if p.env.Current != nil {
		for name, s := range p.env.Current.Subjects {
			if s.UID != nil {
				owners[*s.UID] = name
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.document.Subjects)) {
		s := p.document.Subjects[name]
		if s.UID == nil {
			continue
		}
		if other, taken := owners[*s.UID]; taken && other != name {
			p.report(p.places[place{ASubject, name, ""}], "subject %s: uid %d is that of subject %s", name, *s.UID, other)
			continue
		}
		owners[*s.UID] = name
	}
}

// checkProfiles judges the profiles against what they name.
func (p *parser) checkProfiles() {
	for _, name := range slices.Sorted(maps.Keys(p.document.Profiles)) {
		one := p.document.Profiles[name]
		line := p.places[place{AProfile, name, ""}]
		if !p.knowsSubject(one.Subject) {
			p.report(line, "profile %s: no subject %q; declare it under subjects", name, one.Subject)
		}
		for _, tool := range one.Tools {
			if _, ok := p.tool(tool); !ok && !grants.IsBuiltin(tool) && !p.env.Elsewhere {
				p.report(p.places[place{AProfile, name, tool}], "profile %s: no tool %q; declare it under tools", name, tool)
			}
		}
	}
}

// lint warns of what is legal but likely not meant.
func (p *parser) lint() {
	for i := range p.document.Grants {
		p.lintDisclosure(&p.document.Grants[i], p.lines[i])
	}
	p.lintDenied()
	for _, name := range slices.Sorted(maps.Keys(p.document.Servers)) {
		s := p.document.Servers[name]
		p.lintServer(&s)
	}
	for _, name := range slices.Sorted(maps.Keys(p.document.Profiles)) {
		if len(p.warnings) >= maxProblems {
			return
		}
		one := p.document.Profiles[name]
		p.lintCaps(&one, p.places[place{AProfile, name, ""}])
	}
}

func (p *parser) tool(name string) (grants.Tool, bool) {
	t, known := p.document.Tools[name]
	if !known && p.env.Current != nil {
		t, known = p.env.Current.Tools[name]
	}
	return t, known
}

// lintCaps warns of tools that a profile lists and its caps make useless, and of
// caps that leave nothing in.
func (p *parser) lintCaps(one *grants.Profile, line int) {
	if one.Caps == nil {
		return
	}
	overlap := func(list []grants.Pattern, q grants.Pattern) bool { return slices.ContainsFunc(list, q.Overlaps) }
	var all []grants.Pattern
	for _, name := range one.Tools {
		requires := grants.BuiltinRequires(name)
		if t, ok := p.tool(name); ok {
			requires = t.Requires
		}
		all = append(all, requires...)
		for _, need := range requires {
			if !overlap(one.Caps, need) {
				p.warn(p.places[place{AProfile, one.Name, name}], "profile %s: %s requires %s, which caps leave out", one.Name, name, need)
			}
		}
	}
	for _, pattern := range one.Caps {
		if !overlap(all, pattern) {
			p.warn(line, "profile %s: no tool requires %s, which caps name", one.Name, pattern)
		}
	}
}

func (p *parser) checkReferences(g *grants.Grant, line int) {
	if !p.knowsSubject(g.Subject) {
		p.report(line, "no subject %q; declare it under subjects", g.Subject)
	}
	if g.Pattern.Action.NamesTenant() {
		p.checkTenant(g, line)
	}
	if !g.Pattern.Action.NamesResource() || g.Pattern.Prefix {
		return
	}
	r, known := p.resource(g.Pattern.Object)
	switch {
	case !known:
		p.report(line, "no resource %q; declare it under resources", g.Pattern.Object)
	case r.Kind == KindSecret && g.Pattern.Action == grants.Read && g.Effect == grants.Allow && !g.Disclose:
		p.report(line, "resource %s is a secret: reading it needs disclose: true, and use:%s does not show it", g.Pattern.Object, g.Pattern.Object)
	}
}

// checkTenant judges a grant about memory.
func (p *parser) checkTenant(g *grants.Grant, line int) {
	if g.RequireApproval {
		p.report(line, "requireApproval is not for %s: nobody is asked about single entries", g.Pattern.Action)
	}
	if g.Pattern.Prefix {
		return
	}
	_, known := p.document.Tenants[g.Pattern.Object]
	if !known && p.env.Current != nil {
		_, known = p.env.Current.Tenants[g.Pattern.Object]
	}
	if !known {
		p.report(line, "no tenant %q; declare it under tenants", g.Pattern.Object)
	}
}

func (p *parser) knowsSubject(name string) bool {
	_, known := p.document.Subjects[name]
	if !known && p.env.Current != nil {
		_, known = p.env.Current.Subjects[name]
	}
	return known || p.env.Elsewhere
}

func (p *parser) resource(name string) (Resource, bool) {
	r, known := p.document.Resources[name]
	if !known && p.env.Current != nil {
		r, known = p.env.Current.Resources[name]
	}
	return r, known || p.env.Elsewhere
}

func (p *parser) lintDisclosure(g *grants.Grant, line int) {
	if !g.Disclose {
		return
	}
	r, _ := p.resource(g.Pattern.Object)
	switch {
	case g.Pattern.Prefix:
		p.warn(line, "disclose does nothing: a pattern with '*' never matches kind secret")
	case g.Pattern.Action != grants.Read || r.Kind != KindSecret:
		p.warn(line, "disclose does nothing: it is for read: of kind secret")
	case g.Until.IsZero() && g.Uses == 0:
		p.warn(line, "discloses a secret without until or uses")
	}
}

// lintDenied warns of allows that a deny without end always overrides.
func (p *parser) lintDenied() {
	denies := map[string][]grants.Pattern{}
	for _, g := range p.document.Grants {
		if g.Effect == grants.Deny && g.Until.IsZero() {
			denies[g.Subject] = append(denies[g.Subject], g.Pattern)
		}
	}
	for i, g := range p.document.Grants {
		if g.Effect != grants.Allow {
			continue
		}
		for _, deny := range denies[g.Subject] {
			if deny.Covers(g.Pattern) {
				p.warn(p.lines[i], "never allows anything: %s is denied", deny)
				break
			}
		}
	}
}
