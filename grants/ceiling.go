package grants

import "slices"

// Ceiling is what a run can reach at most: what the tools of its profile
// require, the call of each of those tools included, narrowed by the profile's
// caps. It is made when the run opens and never changes, whatever becomes of the
// profile and the tools. It gives nothing: inside it grants are judged live.
//
// A nil Ceiling is that of a run without a profile and covers everything.
type Ceiling struct {
	subject string // whose runs it is for
	within  [actionCount][]requirement
	caps    []Pattern // nil: not narrowed
}

// requirement is one pattern that a tool requires.
type requirement struct {
	pattern Pattern
	tool    string
	gated   bool // a person approves what the tool does
}

// NewCeiling returns the ceiling of a run that opens under p now. Of tools only
// those that p lists count, and a tool that is not among them adds nothing.
func NewCeiling(p Profile, tools []Tool) *Ceiling {
	c := &Ceiling{subject: p.Subject, caps: slices.Clone(p.Caps)}
	for _, name := range p.Tools {
		if IsBuiltin(name) {
			c.add(p.Approval, builtin(name))
		}
	}
	for _, t := range tools {
		if !IsBuiltin(t.Name) && slices.Contains(p.Tools, t.Name) {
			c.add(p.Approval, t)
		}
	}
	// What no person needs to approve comes first, so that it is found first.
	for _, list := range c.within {
		slices.SortStableFunc(list, func(a, b requirement) int {
			if a.gated == b.gated {
				return 0
			}
			if b.gated {
				return -1
			}
			return 1
		})
	}
	return c
}

func (c *Ceiling) add(approval Approval, t Tool) {
	gated := t.Gate || approval == ApprovalAlways || approval == ApprovalAuto && t.Approval
	requires := t.Requires
	if !IsBuiltin(t.Name) {
		requires = append(slices.Clone(requires), Pattern{Action: Call, Object: t.Name})
	}
	for _, p := range requires {
		if int(p.Action) < actionCount {
			c.within[p.Action] = append(c.within[p.Action], requirement{p, t.Name, gated})
		}
	}
}

// Covers reports whether a run under c can reach capability, if its grants allow
// it. If not, cause says why: no tool of the profile requires it
// ([CauseToolNotListed]), or one does but caps leave it out ([CauseCapsNarrowed]).
func (c *Ceiling) Covers(capability Capability) (ok bool, cause Cause) {
	_, cause = c.find(capability)
	return cause == "", cause
}

// find returns the requirement that capability is for. It does not allocate.
func (c *Ceiling) find(capability Capability) (*requirement, Cause) {
	if c == nil {
		return nil, ""
	}
	if int(capability.Action) >= actionCount {
		return nil, CauseToolNotListed
	}
	list := c.within[capability.Action]
	for i := range list {
		if !list[i].pattern.Matches(capability) {
			continue
		}
		if c.caps != nil && !matchesAny(c.caps, capability) {
			return &list[i], CauseCapsNarrowed
		}
		return &list[i], ""
	}
	return nil, CauseToolNotListed
}

func matchesAny(patterns []Pattern, c Capability) bool {
	for _, p := range patterns {
		if p.Matches(c) {
			return true
		}
	}
	return false
}
