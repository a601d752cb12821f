package grants

import (
	"fmt"
	"time"
)

// Check is what a step of a decision looked at.
type Check string

// Checks.
const (
	CheckSubject  Check = "subject"
	CheckTier     Check = "tier"
	CheckProfile  Check = "profile"
	CheckCeiling  Check = "ceiling"
	CheckResource Check = "resource"
	CheckTenant   Check = "tenant"
	CheckGrant    Check = "grant"
	CheckApproval Check = "approval"
	CheckRequires Check = "requires" // what a tool that is called requires
)

// Result is what a step of a decision found.
type Result string

// Results.
const (
	Pass  Result = "pass"
	Fail  Result = "fail"
	Skip  Result = "skip"  // it matches, but does not count
	Match Result = "match" // it matches and counts
)

// Step is one step of a decision, for the operator.
type Step struct {
	Check   Check
	Result  Result
	Detail  string // in words
	GrantID string // grant that the step is about; empty: none
}

// trace collects steps. A nil trace collects nothing and formats nothing, which
// is what keeps Decide from allocating.
type trace struct{ steps []Step }

func (t *trace) add(check Check, result Result, detail, grantID string) {
	if t != nil {
		t.steps = append(t.steps, Step{check, result, detail, grantID})
	}
}

func (t *trace) grant(result Result, g *Grant, detail string) {
	if t != nil {
		t.add(CheckGrant, result, fmt.Sprintf("%s %s: %s", g.Effect, g.Pattern, detail), g.ID)
	}
}

func (t *trace) tier(result Result, has, minimum Tier, grantID string) {
	if t == nil {
		return
	}
	if minimum == 0 {
		minimum = Cooperative
	}
	run := "a run of tier " + has.String()
	if has == 0 {
		run = "a run of no tier"
	}
	t.add(CheckTier, result, fmt.Sprintf("%s, %s is demanded", run, minimum), grantID)
}

// ceiling tells which tool's requirement covers what was asked for; nil: none.
func (t *trace) ceiling(result Result, found *requirement, rest string) {
	switch {
	case t == nil:
	case found == nil:
		t.add(CheckCeiling, result, "no tool of the profile requires it", "")
	case found.call:
		t.add(CheckCeiling, result, "the profile lists "+found.tool+rest, "")
	default:
		t.add(CheckCeiling, result, found.tool+" requires "+found.pattern.String()+rest, "")
	}
}

// outside tells why the ceiling does not cover what was asked for, which the tool
// of found requires if it was caps that left it out.
func (t *trace) outside(found *requirement, cause Cause) {
	if cause == CauseCapsNarrowed {
		t.ceiling(Fail, found, ", but caps leave it out")
	} else {
		t.ceiling(Fail, nil, "")
	}
}

func (t *trace) expired(g *Grant, r *Request) {
	switch {
	case t == nil:
	case r.ClockBehind || r.Now.IsZero():
		t.grant(Fail, g, "counts as expired while the wall clock is not confirmed")
	default:
		t.grant(Fail, g, "expired, its end was "+g.Until.UTC().Format(time.RFC3339))
	}
}

func (t *trace) exhausted(g *Grant) {
	if t != nil {
		t.grant(Fail, g, fmt.Sprintf("used up, all %d of its uses", g.Uses))
	}
}
