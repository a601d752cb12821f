package rules

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// finding is what the rules of one policy found in the arguments of a call of one
// tool. It is kept, so that to judge again under a lock costs no search and touches
// no file.
type finding struct {
	by   *Compiled
	tool string
	hits []hit
}

// hit is a rule that is violated.
type hit struct {
	rule   *rule
	detail string
}

// Judge judges a call. It does not change the meter; it remembers in the arguments
// what the rules found in them, so that judging the same call again is quick and
// touches no file: whoever judges under a lock judges once before.
func (c *Compiled) Judge(m *Meter, call Call) Verdict { return c.judge(m, call, false) }

// Explain is Judge with its trace: the steps that were taken, in order.
func (c *Compiled) Explain(m *Meter, call Call) Verdict { return c.judge(m, call, true) }

// judging is one walk along the chain.
type judging struct {
	c     *Compiled
	m     *Meter
	call  Call
	trace bool
	v     Verdict
}

func (c *Compiled) judge(m *Meter, call Call, trace bool) Verdict {
	j := judging{c: c, m: m, call: call, trace: trace}
	if m.KilledBy != "" {
		j.stop(m.KilledBy, Kill, "", "the session was killed before")
		j.v.Outcome = Blocked // there is nothing left to kill
		return j.v
	}
	for _, step := range []func(*judging) bool{
		(*judging).lists, (*judging).arguments, (*judging).calls, (*judging).runtime, (*judging).rate, (*judging).breaker, (*judging).budget,
	} {
		if !step(&j) {
			return j.v
		}
	}
	if c.holds(c.approval, call.Tool) {
		j.stop(ApprovalPolicy, RequestApproval, "", "the policy wants a person to approve calls of this tool")
	} else {
		j.pass(ApprovalPolicy, "no person is asked")
	}
	if j.v.Outcome == 0 {
		j.v.Outcome = Forwarded
	}
	return j.v
}

func (j *judging) pass(policy, detail string) bool {
	if j.trace {
		j.v.Trace = append(j.v.Trace, Step{policy, "pass", detail})
	}
	return true
}

// violates does about a violation what the policy says, and reports whether the call
// is still judged further.
func (j *judging) violates(policy, format string, args ...any) bool {
	return j.stop(policy, j.c.policy.Rules.OnViolation, "", fmt.Sprintf(format, args...))
}

// stop does about a violation what action says. What comes first decides, except
// that what blocks wins over what asks.
func (j *judging) stop(policy string, action Action, rule, detail string) bool {
	if j.trace {
		word := string(action)
		if action == RequestApproval {
			word = "ask"
		}
		j.v.Trace = append(j.v.Trace, Step{policy, word, detail})
	}
	outcome := Blocked
	switch action {
	case Block:
	case Warn:
		j.warn(policy)
		return true
	case RequestApproval:
		if j.v.Outcome != 0 {
			return true
		}
		outcome = Asked
	case Kill:
		outcome = Killed
	}
	j.v.Outcome, j.v.Policy, j.v.Action, j.v.Rule, j.v.Detail = outcome, policy, action, rule, detail
	return outcome == Asked
}

func (j *judging) warn(policy string) {
	if !slices.Contains(j.v.Warned, policy) {
		j.v.Warned = append(j.v.Warned, policy)
	}
}

// lists judges by the lists of tools.
func (j *judging) lists() bool {
	tool := j.call.Tool
	if j.c.holds(j.c.denied, tool) {
		if !j.violates(DeniedToolsPolicy, "denied_tools holds the tool") {
			return false
		}
	} else {
		j.pass(DeniedToolsPolicy, "denied_tools does not hold the tool")
	}
	switch {
	case len(j.c.allowed) == 0:
		return j.pass(AllowedToolsPolicy, "every tool is allowed")
	case !j.c.allowed[tool]:
		return j.violates(AllowedToolsPolicy, "allowed_tools leaves the tool out")
	}
	return j.pass(AllowedToolsPolicy, "allowed_tools holds the tool")
}

// arguments judges by the rules about the tool's arguments.
func (j *judging) arguments() bool {
	hits := j.c.find(j.call)
	for _, h := range hits {
		if !j.stop(GranularAccessPolicy, h.rule.action, h.rule.id, h.detail) {
			return false
		}
	}
	if len(hits) == 0 && j.trace {
		detail := "no rule is about the tool"
		switch n := len(j.c.rulesOf(j.call.Tool)); {
		case n == 1:
			detail = "the one rule about the tool does not stand against it"
		case n > 1:
			detail = fmt.Sprintf("none of the %d rules about the tool stands against it", n)
		}
		j.pass(GranularAccessPolicy, detail)
	}
	return true
}

// find returns the rules that a call violates, in their order.
func (c *Compiled) find(call Call) []hit {
	rules := c.rulesOf(call.Tool)
	if len(rules) == 0 {
		return nil
	}
	found := call.Args.found
	if found != nil && found.by == c && found.tool == call.Tool {
		return found.hits
	}
	var hits []hit
	for _, r := range rules {
		if detail := r.violated(call.Args, c.resolve); detail != "" {
			hits = append(hits, hit{r, detail})
		}
	}
	if found != nil {
		*found = finding{c, call.Tool, hits}
	}
	return hits
}

// violated says in words how args violate r; empty when they do not. The words hold
// names of arguments as the rule writes them, and no values.
func (r *rule) violated(args Args, resolve Resolver) string {
	if len(r.deny) > 0 && !slices.ContainsFunc(r.deny, func(a argument) bool {
		if v := args.at(a.steps); v != nil && a.finds(v, true, resolve) {
			return false
		}
		return !slices.ContainsFunc(args.like(a.steps), func(v *value) bool { return a.finds(v, true, resolve) })
	}) {
		return fmt.Sprintf("rule %d: deny_if matches %s", r.number, keysOf(r.deny))
	}
	for _, a := range r.allow {
		switch v := args.at(a.steps); {
		case v == nil:
			return fmt.Sprintf("rule %d: allow_if needs %s, which is not there", r.number, a.key)
		case !a.finds(v, false, resolve):
			return fmt.Sprintf("rule %d: allow_if does not match %s", r.number, a.key)
		case len(args.like(a.steps)) > 0:
			return fmt.Sprintf("rule %d: allow_if matches %s, which is there in another case, too", r.number, a.key)
		}
	}
	return ""
}

func keysOf(all []argument) string {
	keys := make([]string, 0, len(all))
	for _, a := range all {
		keys = append(keys, a.key)
	}
	return strings.Join(keys, ", ")
}

func (j *judging) calls() bool {
	most := j.c.policy.Rules.Limits.MaxToolCalls
	switch {
	case most == nil:
		return j.pass(MaxToolCallsPolicy, "calls are not limited")
	case j.m.Calls >= *most:
		return j.violates(MaxToolCallsPolicy, "%d calls were forwarded, of %d", j.m.Calls, *most)
	}
	return j.pass(MaxToolCallsPolicy, "calls are left")
}

func (j *judging) runtime() bool {
	most := j.c.policy.Rules.Limits.MaxRuntime
	switch {
	case most == 0:
		return j.pass(MaxRuntimePolicy, "the session is not limited in time")
	case !j.m.Began.IsZero() && since(j.m.Began.UnixMilli(), j.call.Now) >= most:
		return j.violates(MaxRuntimePolicy, "the session began more than %s ago", most)
	}
	return j.pass(MaxRuntimePolicy, "the session has time left")
}

// since returns how long ago a moment was; not less than 0, as if a clock that was set
// back had stood still.
func since(millis int64, now time.Time) time.Duration {
	ago := now.UnixMilli() - millis
	return time.Duration(min(max(ago, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func (j *judging) rate() bool {
	r := j.c.policy.Rules.Limits.Rate
	if r == nil {
		return j.pass(RateLimitPolicy, "the rate is not limited")
	}
	if n := uint64(len(j.m.times)); n >= r.Calls && since(j.m.times[n-r.Calls], j.call.Now) < r.Window {
		return j.violates(RateLimitPolicy, "%d calls were forwarded in the last %s", r.Calls, r.Window)
	}
	return j.pass(RateLimitPolicy, "the window has room")
}

func (j *judging) breaker() bool {
	limit := j.c.policy.Rules.Limits.Breaker
	if limit == nil {
		return j.pass(CircuitBreakerPolicy, "failures are not counted")
	}
	b := j.m.breakers[breakerOf(j.call.Tool)]
	switch {
	case b == nil || b.opened == 0:
		return j.pass(CircuitBreakerPolicy, "closed")
	case since(b.opened, j.call.Now) < limit.Reset:
		return j.violates(CircuitBreakerPolicy, "open: the tool failed %d times in a row", limit.Failures)
	case b.probe != 0 && since(b.probe, j.call.Now) < limit.Reset:
		return j.violates(CircuitBreakerPolicy, "half-open: another call probes")
	}
	return j.pass(CircuitBreakerPolicy, "half-open: this call probes")
}

func (j *judging) budget() bool {
	b := j.c.policy.Rules.Limits.Budget
	if b == nil {
		return j.pass(BudgetPolicy, "costs are not limited")
	}
	after := add(j.m.Spent, j.c.Cost(j.call.Tool))
	if after > b.Max {
		return j.violates(BudgetPolicy, "%s of %s %s are spent, the call costs %s", decimal(j.m.Spent), decimal(b.Max), b.Currency, decimal(j.c.Cost(j.call.Tool)))
	}
	if after > 0 && float64(after) >= float64(b.Max)*float64(b.Warn)/1e6 {
		j.warn(BudgetPolicy)
		if j.trace {
			j.v.Trace = append(j.v.Trace, Step{BudgetPolicy, string(Warn), "most of the budget is spent"})
		}
		return true
	}
	return j.pass(BudgetPolicy, "the budget has enough left")
}

// decimal writes millionths as a number of units.
func decimal(micros uint64) string {
	text := fmt.Sprintf("%d.%06d", micros/1_000_000, micros%1_000_000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// add adds without starting anew from nothing.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
