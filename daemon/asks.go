package daemon

import (
	"context"
	"slices"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
)

// What asks a person is lifted only by somebody who could answer: see whenAsked. It
// asks on behalf of a grant that needs an approval, of a rule of a policy, of a tool
// with a gate or an approval, or of a profile. The functions here say, on the side of
// asking for too much, whether a change may let pass unasked what is asked about now.
// Their callers hold mu or changing.mu.

// policyAsks reports whether some rule of a policy has a person asked.
func policyAsks(p *rules.Policy) bool {
	s := &p.Rules.Security
	return len(s.RequireApproval) > 0 || p.Rules.OnViolation == rules.RequestApproval ||
		slices.ContainsFunc(s.Granular, func(r rules.Rule) bool { return r.Action == rules.RequestApproval })
}

// policyAsksOf is policyAsks for the policy around a server for a subject.
func (s *state) policyAsksOf(subject, server string) bool {
	compiled := s.policyLocked(subject, server)
	return compiled != nil && policyAsks(compiled.Policy())
}

// grantAsks reports whether a grant lets pass only what a person approved.
func grantAsks(g *grants.Grant) bool { return g.Effect == grants.Allow && g.RequireApproval }

// profileAsks reports whether a person is asked in runs under a profile.
func (s *state) profileAsks(p *grants.Profile) bool {
	return p.Approval == grants.ApprovalAlways || slices.ContainsFunc(p.Tools, func(name string) bool {
		t, _ := s.set.Tool(name)
		return t.Gate || t.Approval && p.Approval == grants.ApprovalAuto
	})
}

// callsOf is the pattern of all calls of a server.
func callsOf(server string) grants.Pattern {
	return grants.Pattern{Action: grants.Call, Object: server + "/", Prefix: true}
}

// grantLifts reports whether an allow grant may let pass unasked what another one has a
// person asked about, or a rule for another subject: whoever may grant it could be that
// other one as well. What was revoked counts as what it was, or it would be revoked
// first.
func (s *state) grantLifts(g *grants.Grant) bool {
	if g.Effect != grants.Allow || g.RequireApproval {
		return false
	}
	asked := func(other *grants.Grant) bool { return grantAsks(other) && other.Pattern.Overlaps(g.Pattern) }
	for other := range s.set.Each() {
		if asked(&other) {
			return true
		}
	}
	if slices.ContainsFunc(s.ended, func(e endedGrant) bool { return asked(&e.Grant) }) {
		return true
	}
	for k, compiled := range s.policies {
		if k.subject != g.Subject && callsOf(k.server).Overlaps(g.Pattern) && policyAsks(compiled.Policy()) && !s.policyAsksOf(g.Subject, k.server) {
			return true
		}
	}
	return false
}

// revokingLifts reports whether a right that stays may let pass unasked what a grant
// that goes had a person asked about. A grant that goes is remembered: see grantLifts;
// where there is no room for that, it does not go unasked either.
func (s *state) revokingLifts(gone []grants.Grant) bool {
	remembered := 0
	for i := range s.ended {
		if grantAsks(&s.ended[i].Grant) {
			remembered++
		}
	}
	going := func(id string) bool {
		return slices.ContainsFunc(gone, func(g grants.Grant) bool { return g.ID == id })
	}
	for i := range gone {
		g := &gone[i]
		if !grantAsks(g) {
			continue
		}
		if remembered++; remembered > keptEnded/2 {
			return true
		}
		for other := range s.set.Each() {
			if other.Effect == grants.Allow && !other.RequireApproval && other.Subject == g.Subject && other.Pattern.Overlaps(g.Pattern) && !going(other.ID) {
				return true
			}
		}
	}
	return false
}

// asksAround reports whether a person is asked before some call of a server.
func (s *state) asksAround(server string) bool {
	if server == "" {
		return false
	}
	for k, compiled := range s.policies {
		if k.server == server && policyAsks(compiled.Policy()) {
			return true
		}
	}
	for g := range s.set.Each() {
		if grantAsks(&g) && g.Pattern.Overlaps(callsOf(server)) {
			return true
		}
	}
	all := callsOf(server)
	return slices.ContainsFunc(s.set.Tools(), func(t grants.Tool) bool {
		return (t.Gate || t.Approval) && all.Matches(grants.Capability{Action: grants.Call, Object: t.Name})
	})
}

// needOfServer is what adding a server, or running it another way, needs: another way
// to what a person is asked about, by its name or with its secrets, lifts that.
func (s *state) needOfServer(server *grants.Server) need {
	if s.asksAround(server.Name) {
		return whenAsked
	}
	for name, other := range s.servers {
		shared := slices.ContainsFunc(other.Secrets(), func(secret string) bool { return slices.Contains(server.Secrets(), secret) })
		if name != server.Name && shared && s.asksAround(name) {
			return whenAsked
		}
	}
	return whenRaised
}

// needAround is what a verb needs that lets through more of a server's tools.
func (s *state) needAround(server string) need {
	if s.asksAround(server) {
		return whenAsked
	}
	return whenRaised
}

// asksOf reports whether a person is asked about anything that a subject does. All of
// that goes with it, and a later one of its name begins without.
func (s *state) asksOf(subject string) bool {
	for k, compiled := range s.policies {
		if k.subject == subject && policyAsks(compiled.Policy()) {
			return true
		}
	}
	return slices.ContainsFunc(s.set.GrantsOf(subject), func(g grants.Grant) bool { return grantAsks(&g) }) ||
		slices.ContainsFunc(s.set.ProfilesOf(subject), func(p grants.Profile) bool { return s.profileAsks(&p) })
}

// needOfTool is what declaring a tool needs, or not declaring it any more. What is not
// declared has no gate and requires nothing.
func (s *state) needOfTool(c policy.Change) need {
	old, exists := s.set.Tool(c.Tool.Name)
	if !exists {
		return whenRaised
	}
	if c.Verb == policy.Remove {
		if old.Gate || old.Approval {
			return whenAsked
		}
		return whenRaised
	}
	if old.Gate && !c.Tool.Gate || old.Approval && !c.Tool.Approval {
		return whenAsked
	}
	// What another tool of a profile has a person asked about is free when one that
	// asks nobody requires it, too.
	if !slices.Equal(grants.SortedPatterns(old.Requires), grants.SortedPatterns(c.Tool.Requires)) {
		for _, p := range s.set.Profiles() {
			asks := c.Tool.Gate || p.Approval == grants.ApprovalAlways || c.Tool.Approval && p.Approval == grants.ApprovalAuto
			if slices.Contains(p.Tools, old.Name) && !asks && s.profileAsks(&p) {
				return whenAsked
			}
		}
	}
	return whenRaised
}

// needOfProfile is what another profile of a name needs, or none.
func (s *state) needOfProfile(c policy.Change) need {
	least := whenRaised
	if c.Verb == policy.Remove {
		least = nothing
	}
	old, exists := s.set.Profile(c.Name)
	if !exists || !s.profileAsks(&old) {
		return least
	}
	strictness := []grants.Approval{grants.ApprovalNever, grants.ApprovalAuto, grants.ApprovalAlways}
	rank := func(a grants.Approval) int { return slices.Index(strictness, a) }
	switch {
	case c.Verb == policy.Remove, rank(c.Profile.Approval) < rank(old.Approval):
		return whenAsked
	case c.Profile.Approval == grants.ApprovalAlways:
		return least
	case slices.ContainsFunc(c.Profile.Tools, func(name string) bool { return !slices.Contains(old.Tools, name) }):
		return whenAsked
	}
	return least
}

// tellable reports whether an operator can be told from other processes of the
// daemon's uid. It reads the vault: the caller does not hold mu.
func (d *Daemon) tellable() (bool, error) {
	if len(d.doors.operators) > 0 {
		return true, nil
	}
	known, err := d.recognise()
	return known.verifier != nil, err
}

// liftedUnasked is what an operator is told who lifts what asks a person where nobody
// could be asked: it let nothing pass before. Empty where that is not so.
const liftedUnasked = "what this lifts had a person asked, and was denied as long as nobody can be told from other processes of this uid: set a passphrase with sbctl operator set-passphrase"

// lifted is liftedUnasked, where a change with that need says it. The caller holds
// changing.mu, and not mu.
func (d *Daemon) lifted(n need, st *state) []string {
	if n.now(st) != whenAsked {
		return nil
	}
	if can, err := d.tellable(); err != nil || can {
		return nil
	}
	d.logger.Warn("what asked a person is lifted, and nobody could be asked")
	return []string{liftedUnasked}
}

// liftedHere is lifted for the row of the call that is under way.
func (d *Daemon) liftedHere(ctx context.Context, st *state) []string {
	if a, ok := ctx.Value(askedKey{}).(asked); ok {
		return d.lifted(a.row(st, a.req), st)
	}
	return nil
}
