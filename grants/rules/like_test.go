package rules

import (
	"fmt"
	"strings"
	"testing"

	"subjectbroker/grants"
)

// A tool whose name differs in case alone from one that the policy holds is that one:
// some servers do not mind case. Where the policy holds both, they are two.
func TestToolsInAnotherCase(t *testing.T) {
	r := Rules{
		OnViolation: Block,
		Limits:      Limits{Budget: &Budget{Max: 1000, Currency: "EUR", PerCall: 1, ToolCosts: map[string]uint64{"dear": 600, "Dear": 700, "free": 0}}},
		Security: Security{
			DeniedTools: []string{"drop", "Merge"}, RequireApproval: []string{"merge", "pay"},
			Granular: []Rule{{Tool: "read", DenyIf: map[string]Matcher{"path": {Prefix: []string{"/etc"}}}, Action: Block}},
		},
	}
	c, err := Compile(policy(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]struct {
		outcome Outcome
		policy  string
		cost    uint64
	}{
		"drop":  {Blocked, DeniedToolsPolicy, 1},
		"DROP":  {Blocked, DeniedToolsPolicy, 1},
		"dRop":  {Blocked, DeniedToolsPolicy, 1},
		"drop2": {Forwarded, "", 1},
		"pay":   {Asked, ApprovalPolicy, 1},
		"Pay":   {Asked, ApprovalPolicy, 1},
		"read":  {Blocked, GranularAccessPolicy, 1},
		"READ":  {Blocked, GranularAccessPolicy, 1},
		"merge": {Asked, ApprovalPolicy, 1}, // both are named: these are two tools
		"Merge": {Blocked, DeniedToolsPolicy, 1},
		"MERGE": {Blocked, DeniedToolsPolicy, 1}, // this may be either
		"dear":  {Forwarded, "", 600},
		"DEAR":  {Forwarded, "", 700},
		"free":  {Forwarded, "", 0},
		"Free":  {Forwarded, "", 1}, // and costs what it may cost at most
	} {
		args, err := ParseArgs([]byte(`{"path":"/etc/passwd"}`))
		if err != nil {
			t.Fatal(err)
		}
		v := c.Judge(&Meter{}, Call{Tool: tool, Args: args, Now: noon})
		if v.Outcome != want.outcome || v.Policy != want.policy || c.Cost(tool) != want.cost {
			t.Errorf("%s: %v by %q for %d, want %+v", tool, v.Outcome, v.Policy, c.Cost(tool), want)
		}
		if got := c.Offers(tool); got != (want.policy != DeniedToolsPolicy) {
			t.Errorf("%s is offered: %v", tool, got)
		}
	}
	// What is not in allowed_tools as it is written is not allowed.
	r.Security.DeniedTools, r.Security.AllowedTools, r.Limits = nil, []string{"read", "merge", "pay"}, Limits{}
	if c, err = Compile(policy(r), nil); err != nil {
		t.Fatal(err)
	}
	if v := c.Judge(&Meter{}, Call{Tool: "READ", Now: noon}); v.Policy != AllowedToolsPolicy || c.Offers("READ") {
		t.Errorf("a tool that is not allowed as it is written: %+v", v)
	}
}

// Lists that are too long are refused for that, and not read: to read them takes the
// square of their length. What else is wrong in them is not reported.
func TestMuchIsRefusedAtOnce(t *testing.T) {
	many := func(n int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("t%d", i)
		}
		all[n-1] = all[0] // twice
		return all
	}
	costs := map[string]uint64{}
	for i := range MaxTools + 1 {
		costs[fmt.Sprintf("a\n%d", i)] = 1 // no name of a tool
	}
	for name, change := range map[string]func(*Policy){
		"denied_tools":     func(p *Policy) { p.Rules.Security.DeniedTools = many(MaxTools + 1) },
		"allowed_tools":    func(p *Policy) { p.Rules.Security.AllowedTools = many(MaxTools + 1) },
		"require_approval": func(p *Policy) { p.Rules.Security.RequireApproval = many(MaxTools + 1) },
		"granular_rules":   func(p *Policy) { p.Rules.Security.Granular = make([]Rule, MaxTools+1) },
		"tool_costs": func(p *Policy) {
			p.Rules.Limits.Budget = &Budget{Max: 1, Currency: "EUR", PerCall: 1, ToolCosts: costs}
		},
		"methods": func(p *Policy) { p.Methods = many(maxMethods + 1) },
	} {
		p := policy(Rules{OnViolation: Block})
		change(&p)
		wrong, _ := p.Check()
		if len(wrong) != 1 || !strings.HasSuffix(wrong[0].Where, name) || !strings.HasPrefix(wrong[0].Text, "at most") {
			t.Errorf("%s: %d problems, the first %+v", name, len(wrong), wrong[:min(len(wrong), 1)])
		}
	}
}

// Patterns stay in memory, so that a policy has as much of them as fits there.
func TestPatternsTogether(t *testing.T) {
	rulesWith := func(n int) Policy {
		r := Rules{OnViolation: Block}
		for i := range n {
			deny := map[string]Matcher{}
			for j := range 10 {
				deny[fmt.Sprintf("a%d", j)] = Matcher{Regex: fmt.Sprintf("%s%d", strings.Repeat("x{0,30}", 60), i)}
			}
			r.Security.Granular = append(r.Security.Granular, Rule{Tool: "t", Action: Block, DenyIf: deny})
		}
		return policy(r)
	}
	some := rulesWith(2)
	if err := some.Validate(); err != nil {
		t.Errorf("a policy with some: %v", err)
	}
	many := rulesWith(16)
	last := &many.Rules.Security.Granular[15]
	last.DenyIf["a9"] = Matcher{Regex: "("} // it is not looked at any more
	wrong, _ := many.Check()
	if len(wrong) != 1 || !strings.Contains(wrong[0].Text, "too large together") {
		t.Errorf("a policy with too many: %+v", wrong)
	}
}

// A policy can name whatever tool can be granted.
func TestLongestTool(t *testing.T) {
	longest := "s/"
	for name := longest + "a"; ; name += "a" {
		if _, err := grants.ParseCapability("call:" + name); err != nil {
			break
		}
		longest = name
	}
	r := Rules{OnViolation: Block, Security: Security{DeniedTools: []string{strings.TrimPrefix(longest, "s/")}}}
	p := policy(r)
	if err := p.Validate(); err != nil {
		t.Errorf("a tool of %d bytes: %v", len(longest)-len("s/"), err)
	}
}
