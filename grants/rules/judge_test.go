package rules

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// policy is one with these rules, and what a policy needs beside them.
func policy(r Rules) Policy {
	if r.OnViolation == "" {
		r.OnViolation = Block
	}
	return Policy{Subject: "worker", Server: "files", Audit: Strict, ApprovalWait: DefaultApprovalWait, Rules: r}
}

func compile(t testing.TB, r Rules) *Compiled {
	t.Helper()
	c, err := Compile(policy(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func call(t testing.TB, tool, args string, at time.Duration) Call {
	t.Helper()
	parsed, err := ParseArgs([]byte(args))
	if err != nil {
		t.Fatal(err)
	}
	return Call{tool, parsed, noon.Add(at)}
}

func count(n uint64) *uint64 { return &n }

var envRule = Rule{Tool: "ok", DenyIf: map[string]Matcher{"path": {Regex: `\.env`}}, Action: Block}

func TestJudgeByTools(t *testing.T) {
	lists := Security{AllowedTools: []string{"ok", "send"}, DeniedTools: []string{"bad"}, RequireApproval: []string{"send"}, Granular: []Rule{envRule}}
	for _, tc := range []struct {
		name     string
		security Security
		on       Action
		tool     string
		args     string
		want     Verdict
	}{
		{"nothing stands against it", lists, "", "ok", `{"path":"/var/data"}`, Verdict{Outcome: Forwarded}},
		{"denied", Security{DeniedTools: []string{"ok"}, AllowedTools: []string{"ok"}}, "", "ok", "", Verdict{Outcome: Blocked, Policy: DeniedToolsPolicy, Action: Block}},
		{"not allowed", lists, "", "evil", "", Verdict{Outcome: Blocked, Policy: AllowedToolsPolicy, Action: Block}},
		{"another spelling is another tool", lists, "", "OK", "", Verdict{Outcome: Blocked, Policy: AllowedToolsPolicy, Action: Block}},
		{"an argument", lists, "", "ok", `{"path":"/app/.env"}`, Verdict{Outcome: Blocked, Policy: GranularAccessPolicy, Action: Block, Rule: ruleID(&envRule)}},
		{"the argument is not there", lists, "", "ok", `{}`, Verdict{Outcome: Forwarded}},
		{"a person is asked", lists, "", "send", `{}`, Verdict{Outcome: Asked, Policy: ApprovalPolicy, Action: RequestApproval}},
		{"killed", lists, Kill, "evil", "", Verdict{Outcome: Killed, Policy: AllowedToolsPolicy, Action: Kill}},
		{"noted", lists, Warn, "evil", "", Verdict{Outcome: Forwarded, Warned: []string{AllowedToolsPolicy}}},
		{"asked for a violation", lists, RequestApproval, "evil", "", Verdict{Outcome: Asked, Policy: AllowedToolsPolicy, Action: RequestApproval}},
	} {
		c := compile(t, Rules{OnViolation: tc.on, Security: tc.security})
		got := c.Judge(&Meter{}, call(t, tc.tool, tc.args, 0))
		if got.Detail == "" && got.Policy != "" {
			t.Errorf("%s: no words", tc.name)
		}
		got.Detail = ""
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
		if offered := c.Offers(tc.tool); offered != (got.Policy != DeniedToolsPolicy && got.Policy != AllowedToolsPolicy || !got.Action.stops()) {
			t.Errorf("%s: offered is %v, and the verdict %s", tc.name, offered, got.Policy)
		}
	}
}

func TestJudgeByArguments(t *testing.T) {
	both := Rule{
		Tool: "t", Action: Block,
		AllowIf: map[string]Matcher{"path": {Path: []string{"/data"}}, "/options/mode": {OneOf: []string{"r", "w"}}},
		DenyIf:  map[string]Matcher{"path": {Regex: `\.env$`}, "force": {Exact: text("true")}},
	}
	for name, tc := range map[string]struct {
		args string
		want string // of Detail
	}{
		"all is well":                     {`{"path":"/data/x","options":{"mode":"r"},"force":false}`, ""},
		"one of two denials":              {`{"path":"/data/.env","options":{"mode":"r"},"force":false}`, ""},
		"both denials":                    {`{"path":"/data/.env","options":{"mode":"r"},"force":true}`, "deny_if matches force, path"},
		"one of two conditions":           {`{"path":"/data/x","options":{"mode":"x"}}`, "allow_if does not match /options/mode"},
		"the other condition":             {`{"path":"/data/../x","options":{"mode":"r"}}`, "allow_if does not match path"},
		"an argument that is not there":   {`{"path":"/data/x"}`, "needs /options/mode, which is not there"},
		"an argument further in that way": {`{"path":"/data/x","/options/mode":"r"}`, "needs /options/mode, which is not there"},
	} {
		c := compile(t, Rules{Security: Security{Granular: []Rule{both}}})
		got := c.Judge(&Meter{}, call(t, "t", tc.args, 0))
		if (got.Outcome == Forwarded) != (tc.want == "") || !strings.Contains(got.Detail, tc.want) {
			t.Errorf("%s: %v %q, want %q", name, got.Outcome, got.Detail, tc.want)
		}
	}
}

// What blocks wins over what asks, whichever comes first in the chain: a call that is
// blocked anyway is never a question to a person.
func TestBlockedIsNeverAsked(t *testing.T) {
	asks := Rule{Tool: "t", DenyIf: map[string]Matcher{"a": {Exact: text("1")}}, Action: RequestApproval}
	none := Rules{Limits: Limits{MaxToolCalls: count(0)}, Security: Security{Granular: []Rule{asks}}}
	if got := compile(t, none).Judge(&Meter{}, call(t, "t", `{"a":1}`, 0)); got.Outcome != Blocked || got.Policy != MaxToolCallsPolicy {
		t.Errorf("%+v", got)
	}
	none.Limits = Limits{}
	if got := compile(t, none).Judge(&Meter{}, call(t, "t", `{"a":1}`, 0)); got.Outcome != Asked || got.Rule != ruleID(&asks) {
		t.Errorf("the control: %+v", got)
	}
}

// The chain in its order: each rule is violated, and the first that is still there
// decides.
func TestOrder(t *testing.T) {
	r := Rules{
		Limits: Limits{
			MaxToolCalls: count(1), MaxRuntime: time.Minute, Rate: &Rate{1, time.Hour},
			Budget: &Budget{Max: 1, Currency: "EUR", PerCall: 1}, Breaker: &Breaker{1, time.Hour, CountErrors},
		},
		Security: Security{Granular: []Rule{{Tool: "t", DenyIf: map[string]Matcher{"a": {Exact: text("1")}}, Action: Block}}, RequireApproval: []string{"t"}},
	}
	c := compile(t, r)
	m := &Meter{}
	c.Take(m, call(t, "t", "", 0))
	c.Settle(m, "t", EndError, noon)
	late := call(t, "t", `{"a":1}`, 2*time.Minute)
	r.Security.AllowedTools, r.Security.DeniedTools, r.OnViolation = nil, nil, Block
	lift := []struct {
		policy string
		lift   func(*Rules)
	}{
		{GranularAccessPolicy, func(r *Rules) { r.Security.Granular = nil }},
		{MaxToolCallsPolicy, func(r *Rules) { r.Limits.MaxToolCalls = nil }},
		{MaxRuntimePolicy, func(r *Rules) { r.Limits.MaxRuntime = 0 }},
		{RateLimitPolicy, func(r *Rules) { r.Limits.Rate = nil }},
		{CircuitBreakerPolicy, func(r *Rules) { r.Limits.Breaker = nil }},
		{BudgetPolicy, func(r *Rules) { r.Limits.Budget = nil }},
		{ApprovalPolicy, func(r *Rules) { r.Security.RequireApproval = nil }},
	}
	for _, step := range lift {
		late.Args.found.by = nil
		if got := compile(t, r).Judge(m, late); got.Policy != step.policy {
			t.Errorf("%s decides, want %s", got.Policy, step.policy)
		}
		step.lift(&r)
	}
	if got := compile(t, r).Judge(m, late); got.Outcome != Forwarded {
		t.Errorf("nothing is left: %+v", got)
	}
}

func TestLimits(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{MaxToolCalls: count(2), MaxRuntime: time.Minute, Rate: &Rate{2, 10 * time.Second}}})
	m := &Meter{}
	judge := func(at time.Duration) string { return c.Judge(m, call(t, "t", "", at)).Policy }
	if got := judge(0); got != "" {
		t.Error(got)
	}
	first := c.Take(m, call(t, "t", "", 0))
	c.Take(m, call(t, "t", "", time.Second))
	if got := judge(2 * time.Second); got != MaxToolCallsPolicy {
		t.Error(got)
	}
	c.Undo(m, first)
	if got := judge(2 * time.Second); got != "" {
		t.Errorf("after one was given back: %s", got)
	}
	if got := judge(time.Minute); got != MaxRuntimePolicy {
		t.Error(got)
	}
	m.Calls = 0
	c.Take(m, call(t, "t", "", 2*time.Second))
	if got := judge(10999 * time.Millisecond); got != RateLimitPolicy {
		t.Errorf("two in the window: %q", got)
	}
	if got := judge(11 * time.Second); got != "" {
		t.Errorf("the first has left the window: %s", got)
	}
}

// A clock that was set back neither opens a window nor ends a session.
func TestClockSetBack(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{Rate: &Rate{1, time.Minute}, MaxRuntime: time.Hour, Breaker: &Breaker{1, time.Minute, CountErrors}}})
	m := &Meter{}
	c.Take(m, call(t, "t", "", 0))
	if got := c.Judge(m, call(t, "t", "", -24*time.Hour)); got.Policy != RateLimitPolicy {
		t.Errorf("%+v", got)
	}
	m.times = nil
	c.Settle(m, "t", EndError, noon)
	if got := c.Judge(m, call(t, "t", "", -24*time.Hour)); got.Policy != CircuitBreakerPolicy {
		t.Errorf("%+v", got)
	}
}

func TestBudget(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{Budget: &Budget{Max: 20_000, Currency: "USD", Warn: 800_000, PerCall: 10_000, ToolCosts: map[string]uint64{"free": 0, "dear": 20_001}}}})
	m := &Meter{}
	for i, want := range []Verdict{{Outcome: Forwarded}, {Outcome: Forwarded, Warned: []string{BudgetPolicy}}, {Outcome: Blocked}} {
		got := c.Judge(m, call(t, "t", "", 0))
		if got.Outcome != want.Outcome || len(got.Warned) != len(want.Warned) {
			t.Errorf("call %d: %+v, want %+v", i, got, want)
		}
		if got.Outcome == Forwarded {
			if cost := c.Take(m, call(t, "t", "", 0)); cost.Micros != 10_000 {
				t.Errorf("cost %d", cost.Micros)
			}
		}
	}
	if got := c.Judge(m, call(t, "free", "", 0)); got.Outcome != Forwarded {
		t.Errorf("what costs nothing: %+v", got)
	}
	if got := c.Judge(&Meter{}, call(t, "dear", "", 0)); got.Outcome != Blocked || !strings.Contains(got.Detail, "0 of 0.02 USD are spent, the call costs 0.020001") {
		t.Errorf("what costs too much: %+v", got)
	}
	if got := c.Judge(&Meter{Spent: ^uint64(0)}, call(t, "t", "", 0)); got.Outcome != Blocked {
		t.Errorf("the sum starts anew from nothing: %+v", got)
	}
}

func TestBreaker(t *testing.T) {
	for _, tc := range []struct {
		name   string
		counts Counts
		steps  string // of a second each: j judge and expect forward, x judge and expect block, t take, o ok, e error, l isError, r transport, c cancelled, + ten seconds pass, - five
	}{
		{"opens after two in a row, and not before", CountErrors, "jtej te x"},
		{"an answer in between", CountErrors, "te to te j te x"},
		{"results that say isError", CountErrors, "tl tl x"},
		{"the server did not answer", CountErrors, "tr tr x"},
		{"a cancelled call says nothing", CountErrors, "te tc te x"},
		{"only transport", CountTransport, "te te tl tl j tr tr x"},
		{"an error is an answer", CountTransport, "tr te tr j tr x"},
		{"one probe, and another waits", CountErrors, "te te x + j t x x"},
		{"a probe that is well closes it", CountErrors, "te te + jt o j te j te x"},
		{"a probe that fails opens it anew", CountErrors, "te te + jt e x x + j"},
		{"a probe that is cancelled lets another probe", CountErrors, "te te + jt x c j"},
		{"a probe that never ended does not block for ever", CountErrors, "te te + jt x + j"},
		{"an answer from before it opened", CountErrors, "ttt e e x o x"},
		{"a failure from before it opened keeps it open no longer", CountErrors, "ttt e e - e - j"},
		{"a probe that fails late opens it for as long", CountErrors, "te te + jt - e - x - j"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := compile(t, Rules{Limits: Limits{Breaker: &Breaker{2, 9 * time.Second, tc.counts}}})
			m, at := &Meter{}, time.Duration(0)
			ends := map[rune]End{'o': EndOK, 'e': EndError, 'l': EndToolError, 'r': EndTransport, 'c': EndCancelled}
			for i, step := range tc.steps {
				at += 100 * time.Millisecond
				switch step {
				case 'j', 'x':
					got := c.Judge(m, call(t, "t", "", at))
					if (got.Outcome == Forwarded) != (step == 'j') {
						t.Fatalf("step %d (%c): %+v", i, step, got)
					}
					if other := c.Judge(m, call(t, "other", "", at)); other.Outcome != Forwarded {
						t.Fatalf("step %d: another tool is stopped, too", i)
					}
				case 't':
					c.Take(m, call(t, "t", "", at))
				case '+':
					at += 10 * time.Second
				case '-':
					at += 5 * time.Second
				case ' ':
				default:
					c.Settle(m, "t", ends[step], noon.Add(at))
				}
			}
		})
	}
}

// A call that is forwarded although the breaker is open is no probe.
func TestNoProbeWhileOpen(t *testing.T) {
	c := compile(t, Rules{OnViolation: Warn, Limits: Limits{Breaker: &Breaker{1, time.Minute, CountErrors}}})
	m := &Meter{}
	c.Settle(m, "t", EndError, noon)
	c.Take(m, call(t, "t", "", time.Second))
	c.Settle(m, "t", EndOK, noon.Add(2*time.Second))
	if got := c.Judge(m, call(t, "t", "", 3*time.Second)); !slices.Contains(got.Warned, CircuitBreakerPolicy) {
		t.Errorf("closed by a call that was no probe: %+v", got)
	}
	c.Take(m, call(t, "t", "", time.Minute))
	c.Settle(m, "t", EndOK, noon.Add(time.Minute))
	if got := c.Judge(m, call(t, "t", "", time.Minute)); len(got.Warned) > 0 {
		t.Errorf("the control, closed by a probe: %+v", got)
	}
}

// Of what asks for a person, the first in the chain is what the person is told.
func TestFirstQuestion(t *testing.T) {
	rule := func(key string) Rule {
		return Rule{Tool: "t", DenyIf: map[string]Matcher{key: {Exact: text("1")}}, Action: RequestApproval}
	}
	a, b := rule("a"), rule("b")
	c := compile(t, Rules{Security: Security{Granular: []Rule{a, b}, RequireApproval: []string{"t"}}})
	for args, want := range map[string]string{`{"a":1,"b":1}`: ruleID(&a), `{"b":1}`: ruleID(&b), `{}`: ""} {
		got := c.Judge(&Meter{}, call(t, "t", args, 0))
		if got.Outcome != Asked || got.Rule != want || (got.Policy == ApprovalPolicy) != (want == "") {
			t.Errorf("%s: %+v, want rule %q", args, got, want)
		}
	}
}

// What was found for one tool is not what is found for another, and many goroutines
// may judge by one policy.
func TestFindingsAreOfOneTool(t *testing.T) {
	other := Rule{Tool: "other", DenyIf: map[string]Matcher{"path": {Exact: text("x")}}, Action: Block}
	c := compile(t, Rules{Security: Security{Granular: []Rule{envRule, other}}})
	one := call(t, "ok", `{"path":".env"}`, 0)
	for tool, want := range map[string]Outcome{"ok": Blocked, "other": Forwarded} {
		one.Tool = tool
		if got := c.Judge(&Meter{}, one); got.Outcome != want {
			t.Errorf("%s: %v, want %v", tool, got.Outcome, want)
		}
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				if got := c.Judge(&Meter{}, call(t, "ok", `{"path":".env"}`, 0)); got.Outcome != Blocked {
					t.Errorf("%+v", got)
				}
			}
		})
	}
	all.Wait()
}

// A meter remembers tools of long names by short ones, each for itself.
func TestBreakersOfLongNames(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{Breaker: &Breaker{1, time.Minute, CountErrors}}})
	m := &Meter{}
	long := func(i int) string { return strings.Repeat("ü", 500) + fmt.Sprint(i) }
	for i := range maxBreakers {
		c.Retake(m, long(i), noon, 0)
		c.Settle(m, long(i), EndError, noon)
	}
	if n := len(m.Append(nil)); n > maxBreakers*2*maxBreakerName {
		t.Errorf("a meter takes %d bytes", n)
	}
	judged := func(tool string, at time.Time) Outcome { return c.Judge(m, Call{Tool: tool, Now: at}).Outcome }
	if got := judged(long(1), noon); got != Blocked {
		t.Errorf("one that failed: %v", got)
	}
	if got := judged(long(maxBreakers), noon); got != Forwarded {
		t.Errorf("one that did not: %v", got)
	}
	if open := m.OpenBreakers(); len(open) != maxBreakers || !utf8.ValidString(open[0]) {
		t.Errorf("%d are open, %q", len(open), open[0])
	}
	later := noon.Add(time.Minute)
	cost := c.Retake(m, long(1), later, 0)
	c.Undo(m, cost)
	c.Retake(m, long(1), later, 0)
	c.Settle(m, long(1), EndOK, later)
	if got := judged(long(1), later); got != Forwarded {
		t.Errorf("after a probe that went well: %v", got)
	}
}

// However many tools fail, a meter does not grow for ever.
func TestBreakersAreBounded(t *testing.T) {
	c := compile(t, Rules{Limits: Limits{Breaker: &Breaker{2, time.Minute, CountErrors}}})
	m := &Meter{}
	c.Settle(m, "open", EndError, noon)
	c.Settle(m, "open", EndError, noon)
	for i := range 2 * maxBreakers {
		c.Settle(m, fmt.Sprint(i), EndError, noon.Add(time.Duration(i)*time.Second))
	}
	if len(m.breakers) != maxBreakers {
		t.Errorf("%d breakers, want %d", len(m.breakers), maxBreakers)
	}
	if diff := cmp.Diff([]string{"open"}, m.OpenBreakers()); diff != "" {
		t.Error(diff)
	}
	if m.breakers["0"] != nil || m.breakers[fmt.Sprint(2*maxBreakers-1)] == nil {
		t.Error("not the one that was used longest ago was forgotten")
	}
	for i := range 2 * maxBreakers {
		c.Settle(m, fmt.Sprint("x", i), EndError, noon)
		c.Settle(m, fmt.Sprint("x", i), EndError, noon)
	}
	if n := len(m.breakers); n != maxBreakers || m.breakers["open"] == nil {
		t.Errorf("%d breakers, all open", n)
	}
}

func TestKilled(t *testing.T) {
	c := compile(t, Rules{})
	m := &Meter{KilledBy: RateLimitPolicy}
	got := c.Judge(m, call(t, "t", "", 0))
	got.Detail = ""
	if diff := cmp.Diff(Verdict{Outcome: Blocked, Policy: RateLimitPolicy, Action: Kill}, got); diff != "" {
		t.Error(diff)
	}
}

// The trace says the same as the verdict.
func TestExplain(t *testing.T) {
	c := compile(t, Rules{OnViolation: Warn, Limits: Limits{Rate: &Rate{1, time.Minute}}, Security: Security{Granular: []Rule{envRule}, DeniedTools: []string{"bad"}, RequireApproval: []string{"ok"}}})
	m := &Meter{}
	c.Take(m, call(t, "ok", "", 0))
	got := c.Explain(m, call(t, "ok", `{"path":"x"}`, 0))
	var steps []string
	for _, s := range got.Trace {
		steps = append(steps, s.Policy+" "+s.Result)
		if s.Detail == "" {
			t.Errorf("%s: no words", s.Policy)
		}
	}
	want := []string{
		"DeniedToolsPolicy pass", "AllowedToolsPolicy pass", "GranularAccessPolicy pass", "MaxToolCallsPolicy pass", "MaxRuntimePolicy pass",
		"RateLimitPolicy warn", "CircuitBreakerPolicy pass", "BudgetPolicy pass", "ApprovalPolicy ask",
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Error(diff)
	}
	got.Trace = nil
	if diff := cmp.Diff(c.Judge(m, call(t, "ok", `{"path":"x"}`, 0)), got); diff != "" {
		t.Errorf("judged, and explained: %s", diff)
	}
}

// A policy that was compiled again does not believe what another one found.
func TestFindingsAreOfOnePolicy(t *testing.T) {
	one := call(t, "ok", `{"path":".env"}`, 0)
	for _, want := range []Outcome{Blocked, Forwarded, Blocked} {
		rules := []Rule{envRule}
		if want == Forwarded {
			rules[0].DenyIf = map[string]Matcher{"path": {Exact: text("x")}}
		}
		if got := compile(t, Rules{Security: Security{Granular: rules}}).Judge(&Meter{}, one); got.Outcome != want {
			t.Errorf("%v, want %v", got.Outcome, want)
		}
	}
	c := compile(t, Rules{Security: Security{Granular: []Rule{envRule}}})
	if got := c.Judge(&Meter{}, Call{Tool: "ok", Now: noon}); got.Outcome != Forwarded {
		t.Errorf("no arguments at all: %+v", got)
	}
}

func BenchmarkJudge(b *testing.B) {
	r := Rules{
		Limits:   Limits{MaxToolCalls: count(1 << 40), MaxRuntime: time.Hour, Rate: &Rate{1000, time.Minute}, Budget: &Budget{Max: MaxMicros, Currency: "USD", Warn: 800_000, PerCall: 1}, Breaker: &Breaker{5, time.Minute, CountErrors}},
		Security: Security{AllowedTools: []string{"ok", "a", "b"}, DeniedTools: []string{"c"}, Granular: []Rule{envRule, {Tool: "ok", AllowIf: map[string]Matcher{"path": {Path: []string{"/data"}}}, Action: Block}}},
	}
	c := compile(b, r)
	m := &Meter{}
	one := call(b, "ok", `{"path":"/data/a/b/c.txt","content":"some text that is not looked at"}`, 0)
	b.Run("parsed and searched", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c.Judge(m, call(b, "ok", `{"path":"/data/a/b/c.txt","content":"some text that is not looked at"}`, 0)).Outcome != Forwarded {
				b.Fatal("not forwarded")
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if c.Judge(m, one).Outcome != Forwarded {
				b.Fatal("not forwarded")
			}
		}
	})
}

// Some servers read names of arguments without minding case: what is written in
// another one counts against the call, too.
func TestNamesInAnotherCase(t *testing.T) {
	c := compile(t, Rules{Security: Security{Granular: []Rule{
		{Tool: "read", AllowIf: map[string]Matcher{"path": {Path: []string{"/data"}}}, Action: Block},
		{Tool: "write", DenyIf: map[string]Matcher{"/to/path": {Path: []string{"/etc"}}}, Action: Block},
	}}})
	for _, tc := range []struct {
		tool, args string
		want       Outcome
	}{
		{"read", `{"path":"/data/x"}`, Forwarded},
		{"read", `{"path":"/data/x","Path":"/etc/passwd"}`, Blocked},
		{"read", `{"PATH":"/data/x","path":"/data/x"}`, Blocked},
		{"read", `{"path":"/data/x","paths":"/etc/passwd","sub":{"Path":"/etc"}}`, Forwarded},
		{"write", `{"to":{"path":"/data/x"}}`, Forwarded},
		{"write", `{"to":{"path":"/etc/x"}}`, Blocked},
		{"write", `{"to":{"Path":"/etc/x"}}`, Blocked},
		{"write", `{"TO":{"path":"/etc/x"}}`, Blocked},
		{"write", `{"to":{"path":"/data/x"},"To":{"PATH":"/etc/x"}}`, Blocked},
		{"write", `{"to":{"path":"/data/x"},"To":{"PATH":"/data/y"}}`, Forwarded},
	} {
		if got := c.Judge(&Meter{}, call(t, tc.tool, tc.args, 0)); got.Outcome != tc.want {
			t.Errorf("%s %s: %v, want %v", tc.tool, tc.args, got.Outcome, tc.want)
		}
	}
}
