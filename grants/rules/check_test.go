package rules

import (
	"strings"
	"testing"
	"time"
)

// whole is a policy that says everything.
func whole() Policy {
	p := policy(Rules{
		OnViolation: Kill,
		Limits: Limits{
			MaxToolCalls: count(0), MaxRuntime: 90 * time.Second, Rate: &Rate{30, time.Minute},
			Budget:  &Budget{Max: 5_000_000, Currency: "EUR", Warn: 500_000, PerCall: 10_000, ToolCosts: map[string]uint64{"ok": 0}},
			Breaker: &Breaker{5, time.Minute, CountTransport},
		},
		Security: Security{
			DeniedTools: []string{"z", "bad"}, AllowedTools: []string{"send", "ok"}, RequireApproval: []string{"send"},
			Granular: []Rule{
				{Tool: "ok", AllowIf: map[string]Matcher{"path": {Path: []string{"/data", "/a"}}}, DenyIf: map[string]Matcher{"/o/url": {Host: []string{"*.example.com"}}}, Action: RequestApproval},
				{Tool: "ok", DenyIf: map[string]Matcher{"mode": {Exact: text("")}, "name": {OneOf: []string{"b", "a"}}, "x": {Prefix: []string{"p"}}, "y": {Regex: "<&>"}}, Action: Warn},
			},
		},
	})
	p.ApprovalWait, p.Methods, p.ObserveUntil, p.Created, p.Owner = 0, []string{"tasks/get", "a"}, noon.In(time.FixedZone("", 3600)), noon, "laptop"
	return p
}

func TestCheck(t *testing.T) {
	p := whole()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	rule := func(r Rule) func(*Policy) {
		return func(p *Policy) {
			if r.Action == "" {
				r.Action = Block
			}
			if r.Tool == "" {
				r.Tool = "ok"
			}
			p.Rules.Security.Granular = []Rule{r}
		}
	}
	deny := func(key string, m Matcher) func(*Policy) { return rule(Rule{DenyIf: map[string]Matcher{key: m}}) }
	many := make([]string, maxChoices+1)
	for i := range many {
		many[i] = strings.Repeat("x", i)
	}
	const granular = "rules.security.granular_rules[0]"
	for _, tc := range []struct {
		name        string
		change      func(*Policy)
		where, text string
	}{
		{"no subject", func(p *Policy) { p.Subject = "" }, "subject", "name"},
		{"a server with a capital", func(p *Policy) { p.Server = "Files" }, "server", "lower-case"},
		{"no audit", func(p *Policy) { p.Audit = "" }, "audit", "strict or grouped"},
		{"a long wait", func(p *Policy) { p.ApprovalWait = MaxApprovalWait + time.Millisecond }, "approvalWait", "5m0s"},
		{"a negative wait", func(p *Policy) { p.ApprovalWait = -1 }, "approvalWait", "0s"},
		{"a method that is a call", func(p *Policy) { p.Methods = []string{"tools/call"} }, "methods[0]", "call of a tool"},
		{"a method twice", func(p *Policy) { p.Methods = []string{"a", "a"} }, "methods[1]", "twice"},
		{"a method with a space", func(p *Policy) { p.Methods = []string{" a"} }, "methods[0]", "lower-case"},
		{"no action", func(p *Policy) { p.Rules.OnViolation = "sandbox" }, "rules.global.on_violation", "warn, block"},

		{"no calls in a window", func(p *Policy) { p.Rules.Limits.Rate.Calls = 0 }, "rules.limits.rate_limit.calls_per_window", "from 1"},
		{"more calls than can be remembered", func(p *Policy) { p.Rules.Limits.Rate.Calls = MaxPerCall + 1 }, "rules.limits.rate_limit.calls_per_window", "10000"},
		{"no window", func(p *Policy) { p.Rules.Limits.Rate.Window = 0 }, "rules.limits.rate_limit.window_seconds", "seconds"},
		{"a runtime of years", func(p *Policy) { p.Rules.Limits.MaxRuntime = MaxSpan + time.Second }, "rules.limits.max_runtime_seconds", "seconds"},
		{"no failures", func(p *Policy) { p.Rules.Limits.Breaker.Failures = 0 }, "rules.limits.circuit_breaker.failure_threshold", "from 1"},
		{"no reset", func(p *Policy) { p.Rules.Limits.Breaker.Reset = time.Microsecond }, "rules.limits.circuit_breaker.reset_timeout_seconds", "seconds"},
		{"counts what there is not", func(p *Policy) { p.Rules.Limits.Breaker.Counts = "all" }, "rules.limits.circuit_breaker.counts", "transport or errors"},
		{"no budget", func(p *Policy) { p.Rules.Limits.Budget.Max = 0 }, "rules.limits.budget.max_cost", "0.000001"},
		{"more than all of it", func(p *Policy) { p.Rules.Limits.Budget.Warn = 1_000_001 }, "rules.limits.budget.warn_threshold", "0 to 1"},
		{"no currency", func(p *Policy) { p.Rules.Limits.Budget.Currency = "" }, "rules.limits.budget.currency", "word"},
		{"nothing costs anything", func(p *Policy) { p.Rules.Limits.Budget.PerCall = 0 }, "rules.limits.budget", "never be used up"},
		{"the cost of a tool that is denied", func(p *Policy) { p.Rules.Limits.Budget.ToolCosts["bad"] = 1 }, "rules.limits.budget.tool_costs.bad", "never matter"},

		{"a tool twice", func(p *Policy) { p.Rules.Security.DeniedTools = []string{"a", "a"} }, "rules.security.denied_tools[1]", "twice"},
		{"a tool with a newline", func(p *Policy) { p.Rules.Security.DeniedTools = []string{"a\n"} }, "rules.security.denied_tools[0]", "one line"},
		{"approval of a tool that is denied", func(p *Policy) { p.Rules.Security.RequireApproval = []string{"bad"} }, "rules.security.require_approval[0]", "denied_tools"},
		{"approval of a tool that is not allowed", func(p *Policy) { p.Rules.Security.RequireApproval = []string{"other"} }, "rules.security.require_approval[0]", "allowed_tools"},

		{"a rule for a tool that is not allowed", rule(Rule{Tool: "other", DenyIf: map[string]Matcher{"a": {Regex: "a"}}}), granular + ".tool", "allowed_tools"},
		{"a rule without arguments", rule(Rule{}), granular, "allow_if or deny_if"},
		{"a rule without an action", func(p *Policy) { p.Rules.Security.Granular[0].Action = "" }, granular + ".action", "warn, block"},
		{"the same rule again", func(p *Policy) {
			p.Rules.Security.Granular = append(p.Rules.Security.Granular, p.Rules.Security.Granular[0])
		}, "rules.security.granular_rules[2]", "there already, as the 1. of the list"},
		{"a pattern that is none", deny("a", Matcher{Regex: "("}), granular + ".deny_if.a", "RE2"},
		{"a pointer that is none", deny("/a~", Matcher{Regex: "a"}), granular + ".deny_if./a~", "pointer"},
		{"no matcher", deny("a", Matcher{}), granular + ".deny_if.a", "one of regex"},
		{"two matchers", deny("a", Matcher{Regex: "a", Exact: text("a")}), granular + ".deny_if.a", "one of regex"},
		{"one of nothing", deny("a", Matcher{OneOf: []string{}}), granular + ".deny_if.a", "from 1 to"},
		{"one of too many", deny("a", Matcher{OneOf: many}), granular + ".deny_if.a", "from 1 to"},
		{"one of the same", deny("a", Matcher{OneOf: []string{"a", "a"}}), granular + ".deny_if.a", "twice"},
		{"an empty prefix", deny("a", Matcher{Prefix: []string{""}}), granular + ".deny_if.a", "everything"},
		{"a text that is longer than what is looked at", deny("a", Matcher{Exact: text(strings.Repeat("x", maxValue+1))}), granular + ".deny_if.a", "never match"},
		{"a path that is not clean", deny("a", Matcher{Path: []string{"/a/../b"}}), granular + ".deny_if.a", "clean"},
		{"a path that leads out", deny("a", Matcher{Path: []string{"../b"}}), granular + ".deny_if.a", "clean"},
		{"a path at home", deny("a", Matcher{Path: []string{"~/b"}}), granular + ".deny_if.a", "clean"},
		{"a host with a scheme", deny("a", Matcher{Host: []string{"https://example.com"}}), granular + ".deny_if.a", "scheme"},
		{"a host with a port", deny("a", Matcher{Host: []string{"example.com:80"}}), granular + ".deny_if.a", "scheme"},
		{"a host with a capital", deny("a", Matcher{Host: []string{"Example.com"}}), granular + ".deny_if.a", "lower case"},
		{"an address in another form", deny("a", Matcher{Host: []string{"::ffff:127.0.0.1"}}), granular + ".deny_if.a", "address"},
		{"two texts at once", rule(Rule{DenyIf: map[string]Matcher{"a": {Exact: text("x")}, "/a": {Exact: text("y")}}}), granular + ".deny_if./a", "never match"},
		{"a text that no other matcher finds", rule(Rule{DenyIf: map[string]Matcher{"a": {OneOf: []string{"x", "y"}}, "/a": {Regex: "z"}}}), granular + ".deny_if.a", "never match"},
		{"a text that is no path", rule(Rule{AllowIf: map[string]Matcher{"a": {Exact: text("x")}, "/a": {Prefix: []string{"z"}}}}), granular + ".allow_if.a", "no call could ever pass"},

		{"grouped with approval", func(p *Policy) { p.Audit, p.Rules.Security.Granular = Grouped, nil }, "rules.security.require_approval", "strict"},
		{"grouped with a rule that asks", func(p *Policy) { p.Audit, p.Rules.Security.RequireApproval = Grouped, nil }, granular + ".action", "strict"},
		{"grouped and asked for every violation", func(p *Policy) {
			p.Audit, p.Rules.Security.RequireApproval, p.Rules.Security.Granular, p.Rules.OnViolation = Grouped, nil, nil, RequestApproval
		}, "rules.global.on_violation", "strict"},
	} {
		p := whole()
		tc.change(&p)
		wrong, _ := p.Check()
		if len(wrong) != 1 || wrong[0].Where != tc.where || !strings.Contains(wrong[0].Text, tc.text) {
			t.Errorf("%s: %+v, want one problem at %s that says %q", tc.name, wrong, tc.where, tc.text)
		}
		if _, err := Compile(p, nil); err == nil {
			t.Errorf("%s: compiled", tc.name)
		}
	}
}

// What is legal but likely not meant.
func TestOdd(t *testing.T) {
	for name, tc := range map[string]struct {
		rules Rules
		want  string // empty: nothing
	}{
		"a regex on a path":                  {Rules{Security: Security{Granular: []Rule{{Tool: "t", AllowIf: map[string]Matcher{"path": {Regex: "^/data/"}}, Action: Block}}}}, "path is the matcher"},
		"a regex on a path further in":       {Rules{Security: Security{Granular: []Rule{{Tool: "t", AllowIf: map[string]Matcher{"/o/targetFile": {Regex: "^/data/"}}, Action: Block}}}}, "path is the matcher"},
		"a prefix of a path":                 {Rules{Security: Security{Granular: []Rule{{Tool: "t", AllowIf: map[string]Matcher{"where": {Prefix: []string{"/data/"}}}, Action: Block}}}}, "path is the matcher"},
		"a path":                             {Rules{Security: Security{Granular: []Rule{{Tool: "t", AllowIf: map[string]Matcher{"path": {Path: []string{"/data"}}}, Action: Block}}}}, ""},
		"a regex on something else":          {Rules{Security: Security{Granular: []Rule{{Tool: "t", AllowIf: map[string]Matcher{"title": {Regex: "^a"}}, Action: Block}}}}, ""},
		"allowed and denied":                 {Rules{Security: Security{AllowedTools: []string{"a"}, DeniedTools: []string{"a"}}}, "denied as well"},
		"a call costs more than there is":    {Rules{Limits: Limits{Budget: &Budget{Max: 1, Currency: "USD", PerCall: 2}}}, "no call is ever forwarded"},
		"a rule for what is denied but warn": {Rules{OnViolation: Warn, Security: Security{DeniedTools: []string{"a"}, RequireApproval: []string{"a"}}}, ""},
	} {
		p := policy(tc.rules)
		wrong, odd := p.Check()
		if len(wrong) > 0 {
			t.Errorf("%s: %+v", name, wrong)
		}
		if tc.want == "" && len(odd) > 0 || tc.want != "" && (len(odd) != 1 || !strings.Contains(odd[0].Text, tc.want)) {
			t.Errorf("%s: %+v, want %q", name, odd, tc.want)
		}
	}
}
