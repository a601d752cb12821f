package rules

import (
	"reflect"
	"slices"
)

// Widens reports whether p may let through what now does not; now is nil when there
// is no policy. When it cannot be told, it may: only what takes the place of a rule
// with one that is at least as strict, and what adds rules, does not.
//
// Other limits are wider whatever their numbers are: what was counted under the ones
// before counts no more.
func (p *Policy) Widens(now *Policy) bool {
	if now == nil {
		return len(p.Methods) > 0 || p.Audit != Strict
	}
	was, is := &now.Rules, &p.Rules
	switch {
	case now.Audit == Strict && p.Audit != Strict,
		p.ObserveUntil.After(now.ObserveUntil),
		!holdsAll(now.Methods, p.Methods),
		is.OnViolation.strength() < was.OnViolation.strength(),
		p.LimitsVersion() != now.LimitsVersion() && !reflect.ValueOf(was.Limits).IsZero():
		return true
	}
	return is.Security.widens(&was.Security)
}

func (s *Security) widens(was *Security) bool {
	switch {
	case !holdsAll(s.DeniedTools, was.DeniedTools), !holdsAll(s.RequireApproval, was.RequireApproval):
		return true
	case len(was.AllowedTools) > 0 && (len(s.AllowedTools) == 0 || !holdsAll(was.AllowedTools, s.AllowedTools)):
		return true
	}
	ids := make([]string, 0, len(s.Granular))
	for i := range s.Granular {
		ids = append(ids, ruleID(&s.Granular[i]))
	}
	return slices.ContainsFunc(was.Granular, func(r Rule) bool { return !slices.Contains(ids, ruleID(&r)) })
}

// holdsAll reports whether list holds everything of part.
func holdsAll(list, part []string) bool {
	return !slices.ContainsFunc(part, func(one string) bool { return !slices.Contains(list, one) })
}

// strength orders actions by how much they hold back.
func (a Action) strength() int {
	return slices.Index([]Action{Warn, RequestApproval, Block, Kill}, a)
}
