package grants

import "slices"

// Ceiling is what a run can reach at most: what the tools of its profile
// require, narrowed by the profile's caps, and the call of each of those tools.
// It is made when the run opens and never changes, whatever becomes of the
// profile and the tools. It gives nothing: inside it grants are judged live.
//
// A nil Ceiling is that of a run without a profile and covers everything.
type Ceiling struct {
	profile string // its name
	subject string // whose runs it is for
	within  [actionCount][]requirement
	caps    []Pattern // nil: not narrowed
	own     []string  // built-in tools that the profile lists

	approval Approval // of the profile
}

// requirement is one pattern that a tool requires.
type requirement struct {
	pattern Pattern
	tool    string
	call    bool // the call of the tool itself, which the list of tools allows and caps do not narrow
	gated   bool // a person approves what the tool does
}

// NewCeiling returns the ceiling of a run that opens under p now. Of tools only
// those that p lists count, and what p lists but neither tools nor the shim has
// adds nothing.
func NewCeiling(p Profile, tools []Tool) *Ceiling {
	c := &Ceiling{profile: p.Name, subject: p.Subject, caps: slices.Clone(p.Caps), approval: p.Approval}
	for _, name := range p.Tools {
		if IsBuiltin(name) {
			c.own = append(c.own, name)
			c.add(p.Approval, Tool{Name: name, Requires: BuiltinRequires(name)})
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
			switch {
			case a.gated == b.gated:
				return 0
			case b.gated:
				return -1
			}
			return 1
		})
	}
	return c
}

func (c *Ceiling) add(approval Approval, t Tool) {
	gated := t.Gate || approval == ApprovalAlways || approval == ApprovalAuto && t.Approval
	for _, p := range t.Requires {
		if int(p.Action) < actionCount {
			c.within[p.Action] = append(c.within[p.Action], requirement{pattern: p, tool: t.Name, gated: gated})
		}
	}
	if !IsBuiltin(t.Name) {
		call := requirement{pattern: Pattern{Action: Call, Object: t.Name}, tool: t.Name, call: true, gated: gated}
		c.within[Call] = append(c.within[Call], call)
	}
}

// Covers reports whether a run under c can reach capability, if its grants allow
// it. If not, cause says why: no tool of the profile requires it
// ([CauseToolNotListed]), or one does but caps leave it out ([CauseCapsNarrowed]).
func (c *Ceiling) Covers(capability Capability) (ok bool, cause Cause) {
	if c == nil {
		return true, ""
	}
	_, cause = c.find(Pattern{Action: capability.Action, Object: capability.Object})
	return cause == "", cause
}

// Lists reports whether a run under c has that built-in tool. Without a profile
// it has them all.
func (c *Ceiling) Lists(builtin string) bool { return c == nil || slices.Contains(c.own, builtin) }

// find returns the requirement that all of q is for, and why it is not covered all
// the same. It does not allocate.
func (c *Ceiling) find(q Pattern) (found *requirement, cause Cause) {
	if int(q.Action) >= actionCount {
		return nil, CauseToolNotListed
	}
	narrowed := c.caps != nil && !coveredByAny(c.caps, q)
	cause = CauseToolNotListed
	list := c.within[q.Action]
	for i := range list {
		switch r := &list[i]; {
		case !r.pattern.Covers(q):
		case !narrowed || r.call:
			return r, ""
		case found == nil:
			found, cause = r, CauseCapsNarrowed
		}
	}
	return found, cause
}

func coveredByAny(patterns []Pattern, q Pattern) bool {
	for _, p := range patterns {
		if p.Covers(q) {
			return true
		}
	}
	return false
}
