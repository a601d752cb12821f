package policy

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A policy is tried also where what the document names is declared elsewhere, which
// nothing else may overlook.
func TestTryWithoutTheRest(t *testing.T) {
	const text = `version: 1
profiles: {p: {subject: s, tools: [n/a]}}
servers: {n: {command: [x], env: {K: "${secret:token}"}}}
policies: [{subject: s, server: n, rules: {security: {denied_tools: [a]}}}]
grants: [{subject: s, capability: "use:token"}]
`
	d, err := Parse([]byte(text), Env{Elsewhere: true})
	if err != nil {
		t.Fatal(err)
	}
	trial, err := d.Try(Pair{"s", "n"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := trial.Call("a", nil, EndOK, time.Time{}); err != nil || a.Decision != TryBlock {
		t.Errorf("%v, %v", a, err)
	}
	_, err = Parse([]byte(text), Env{})
	for _, want := range []string{`no subject "s"`, `no tool "n/a"`, `no resource "token"`} {
		if err == nil || !strings.Contains(fmt.Sprint(err.(*Error).Problems), want) {
			t.Errorf("without it: %v, want %s", err, want)
		}
	}
}

// What is tried is judged, and counted, as the daemon would.
func TestTry(t *testing.T) {
	const head = "version: 1\nsubjects: {s: {}}\npolicies:\n- subject: s\n  server: n\n"
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		policy string
		calls  []string // TOOL ARGUMENTS [END], one after the other, 20 s apart
		want   string
	}{
		"no rules":                    {"", []string{"a {}"}, "forward"},
		"denied":                      {"  rules: {security: {denied_tools: [a]}}\n", []string{"a {}", "b {}"}, "block:DeniedToolsPolicy forward"},
		"counted":                     {"  rules: {limits: {max_tool_calls: 2}}\n", []string{"a {}", "a", "a {}"}, "forward forward block:MaxToolCallsPolicy"},
		"asked":                       {"  rules: {security: {require_approval: [a]}}\n", []string{"a {}"}, "pending:ApprovalPolicy"},
		"killed":                      {"  rules: {global: {on_violation: kill}, security: {denied_tools: [a]}}\n", []string{"b {}", "a {}", "b {}"}, "forward kill:DeniedToolsPolicy block:DeniedToolsPolicy"},
		"a path":                      {"  rules: {security: {granular_rules: [{tool: a, allow_if: {arguments: {p: {path: /data}}}}]}}\n", []string{`a {"p":"/data/x"}`, `a {"p":"/data/../etc"}`}, "forward block:GranularAccessPolicy"},
		"a link":                      {"  rules: {security: {granular_rules: [{tool: a, allow_if: {arguments: {p: {path: /data}}}}]}}\n", []string{`a {"p":"/data/link"}`}, "block:GranularAccessPolicy"},
		"refused are not counted":     {"  rules: {limits: {max_tool_calls: 1}, security: {denied_tools: [a]}}\n", []string{"a {}", "b {}"}, "block:DeniedToolsPolicy forward"},
		"no answer opens a breaker":   {"  rules: {limits: {circuit_breaker: {failure_threshold: 2, reset_timeout_seconds: 30}}}\n", []string{"a {} error", "a {} transport", "a {} transport", "a {}", "b {}", "a {} transport", "a {}"}, "forward forward forward block:CircuitBreakerPolicy forward forward block:CircuitBreakerPolicy"},
		"errors open one that counts": {"  rules: {limits: {circuit_breaker: {failure_threshold: 1, reset_timeout_seconds: 50, counts: errors}}}\n", []string{"a {} error", "a {}", "a {}", "a {}", "a {}"}, "forward block:CircuitBreakerPolicy block:CircuitBreakerPolicy forward forward"},
		"observed":                    {"  observeUntil: \"2026-01-01T13:00:00Z\"\n  rules: {limits: {max_tool_calls: 1}}\n", []string{"a {}", "a {}"}, "forward block:MaxToolCallsPolicy(observed)"},
	} {
		d, err := Parse([]byte(head+test.policy), Env{Now: at})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		trial, err := d.Try(Pair{"s", "n"}, func(path string) (string, error) { return strings.Replace(path, "/data/link", "/etc", 1), nil })
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for i, call := range test.calls {
			tool, arguments, _ := strings.Cut(call, " ")
			arguments, end, _ := strings.Cut(arguments, " ")
			a, err := trial.Call(tool, []byte(arguments), cmp.Or(End(end), EndOK), at.Add(time.Duration(i)*20*time.Second))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			word := a.Decision
			if a.Policy != "" {
				word += ":" + a.Policy
			}
			if a.Observed && a.Decision != TryForward {
				word += "(observed)"
			}
			if forwarded := a.Decision == TryForward || a.Observed; forwarded != (a.End != "") {
				t.Errorf("%s: %s ended %q", name, call, a.End)
			}
			if len(a.Trace) == 0 {
				t.Errorf("%s: %s has no trace", name, call)
			}
			got = append(got, word)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: %s, want %s", name, s, test.want)
		}
	}
	d, err := Parse([]byte(head), Env{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Try(Pair{"s", "other"}, nil); err == nil {
		t.Error("a policy that is not there was tried")
	}
	trial, err := d.Try(Pair{"s", "n"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{`[]`, `{"a":1,"a":2}`, `{`, `1`} {
		if _, err := trial.Call("a", []byte(wrong), EndOK, at); err == nil {
			t.Errorf("%s was judged", wrong)
		}
	}
	if _, err := trial.Call("a", nil, "lost", at); err == nil {
		t.Error("a call ended in a way that there is not")
	}
}
