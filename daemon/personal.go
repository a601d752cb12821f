package daemon

import (
	"slices"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// A personal resource is one operator's: of the uid that put it, which is kept in
// its record. For every other operator it does not exist, in no list and under no
// verb, and grants of theirs never match it. What they cannot be kept from is the
// log, which is one chain for all, names resources, and is whole for every
// operator, counted by denials too; and whatever ends access without naming
// anything: revoking all of a subject, removing the subject, panic.

// personal reports whether a record is of a personal resource.
func personal(r vault.Record) bool { return r.Domain == policy.DomainPersonal }

// hiddenFrom reports whether what is of owner does not exist for an operator; nil:
// it is every operator's.
func hiddenFrom(uid uint32, owner *uint32) bool { return owner != nil && *owner != uid }

// hidden reports whether there is a resource of that name that does not exist for
// an operator. The caller holds changing.mu or mu.
func (s *state) hidden(uid uint32, name string) bool { return hiddenFrom(uid, s.catalog[name].owner) }

// known returns the facts of a resource that must exist for an operator. The
// caller holds changing.mu or mu.
func (s *state) known(uid uint32, name string) (facts, error) {
	f, ok := s.catalog[name]
	if !ok || hiddenFrom(uid, f.owner) {
		return facts{}, unknown(wire.UnknownResource, name)
	}
	return f, nil
}

// free refuses a name that an operator cannot take because a resource that does
// not exist for them has it: names are unique. The caller holds changing.mu.
func (s *state) free(uid uint32, name string) error {
	if s.hidden(uid, name) {
		return refuse("%s cannot be used as a name: choose another", name)
	}
	return nil
}

// namesHidden reports whether a grant names a resource that does not exist for an
// operator. The caller holds changing.mu or mu.
func (s *state) namesHidden(uid uint32, p grants.Pattern) bool {
	return !p.Prefix && p.Action.NamesResource() && s.hidden(uid, p.Object)
}

// seen is what of a list of grants exists for an operator. The caller holds
// changing.mu or mu.
func (s *state) seen(uid uint32, all []grants.Grant) []grants.Grant {
	return slices.DeleteFunc(slices.Clone(all), func(g grants.Grant) bool { return s.namesHidden(uid, g.Pattern) })
}

// replaceable refuses to grant again what another operator granted with a pattern:
// it would be the later one's, and the subject would lose what of the former one's
// is personal, although nobody took it away. The words do not depend on whether
// there is any. A name needs no such care: to whom it names anything personal is
// settled. The caller holds changing.mu.
func (s *state) replaceable(uid uint32, g *grants.Grant, at reading) error {
	old, ok := s.set.Find(g.Subject, g.Pattern, g.Effect)
	switch {
	case !ok || g.Effect != grants.Allow || !g.Pattern.Prefix || !g.Pattern.Action.NamesResource():
		return nil
	case old.GrantedBy == nil || *old.GrantedBy == uid || s.grantState(old, at) != grants.Active:
		return nil
	}
	return refuse("%s has %s from the operator of uid %d, for whose personal content it counts: revoke it first, or grant other names",
		g.Subject, g.Pattern, *old.GrantedBy)
}

// count is how many resources exist for an operator. The caller holds mu.
func (s *state) count(uid uint32) int {
	n := 0
	for _, f := range s.catalog {
		if !hiddenFrom(uid, f.owner) {
			n++
		}
	}
	return n
}

// setFor is what an operator may be told that a decision about a subject rests
// on. The caller holds mu.
func (s *state) setFor(uid uint32, subject string, capability grants.Capability) *grants.Set {
	if !s.touchesHidden(uid, capability) {
		return s.set
	}
	set := grants.NewSet()
	holder, ok := s.set.Subject(subject)
	if !ok || set.PutSubject(holder) != nil {
		return set
	}
	for _, g := range s.seen(uid, s.set.GrantsOf(subject)) {
		if err := set.PutGrant(g); err != nil {
			panic(err) // it is in a set already
		}
	}
	if tool, declared := s.set.Tool(capability.Object); declared {
		must(set.PutTool(tool))
	}
	return set
}

// explained is the question of request with what an operator may know of its objects.
// The caller holds mu.
func (s *state) explained(uid uint32, who asker, capability grants.Capability, at reading) grants.Request {
	q := s.request(who, capability, at)
	if capability.Action.NamesResource() && s.hidden(uid, capability.Object) {
		q.Object = grants.Object{}
	}
	q.Resource = func(name string) grants.Object {
		if s.hidden(uid, name) {
			return grants.Object{}
		}
		return s.object(grants.Capability{Object: name})
	}
	return q
}

// touchesHidden reports whether a decision about a capability looks at what does not
// exist for an operator: the resource itself, or one that a tool requires. The caller
// holds mu.
func (s *state) touchesHidden(uid uint32, capability grants.Capability) bool {
	if capability.Action.NamesResource() {
		return s.hidden(uid, capability.Object)
	}
	tool, _ := s.set.Tool(capability.Object)
	return capability.Action == grants.Call && slices.ContainsFunc(tool.Requires, func(q grants.Pattern) bool {
		return q.Action.NamesResource() && !q.Prefix && s.hidden(uid, q.Object)
	})
}

// unnamed takes from a message about a launch the names of what was personal when
// it was disclosed, for another operator than the one who opened the launch.
func (l *launch) unnamed(uid uint32, m *operatorv1.Launch) *operatorv1.Launch {
	if hiddenFrom(uid, &l.uid) {
		m.Disclosed = slices.DeleteFunc(slices.Clone(m.Disclosed), func(name string) bool { return slices.Contains(l.personal, name) })
	}
	return m
}

// ownerOf is the operator whose a record is; nil when it is not personal.
func ownerOf(r vault.Record) *uint32 {
	if !personal(r) {
		return nil
	}
	uid := r.ByUID
	return &uid
}
