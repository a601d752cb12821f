package policy

import (
	"strings"
	"testing"
	"time"
)

// What is tried is judged, and counted, as the daemon would.
func TestTry(t *testing.T) {
	const head = "version: 1\nsubjects: {s: {}}\npolicies:\n- subject: s\n  server: n\n"
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		policy string
		calls  []string // TOOL ARGUMENTS, one after the other
		want   string
	}{
		"no rules":                {"", []string{"a {}"}, "forward"},
		"denied":                  {"  rules: {security: {denied_tools: [a]}}\n", []string{"a {}", "b {}"}, "block:DeniedToolsPolicy forward"},
		"counted":                 {"  rules: {limits: {max_tool_calls: 2}}\n", []string{"a {}", "a", "a {}"}, "forward forward block:MaxToolCallsPolicy"},
		"asked":                   {"  rules: {security: {require_approval: [a]}}\n", []string{"a {}"}, "pending:ApprovalPolicy"},
		"killed":                  {"  rules: {global: {on_violation: kill}, security: {denied_tools: [a]}}\n", []string{"b {}", "a {}", "b {}"}, "forward kill:DeniedToolsPolicy block:DeniedToolsPolicy"},
		"a path":                  {"  rules: {security: {granular_rules: [{tool: a, allow_if: {arguments: {p: {path: /data}}}}]}}\n", []string{`a {"p":"/data/x"}`, `a {"p":"/data/../etc"}`}, "forward block:GranularAccessPolicy"},
		"a link":                  {"  rules: {security: {granular_rules: [{tool: a, allow_if: {arguments: {p: {path: /data}}}}]}}\n", []string{`a {"p":"/data/link"}`}, "block:GranularAccessPolicy"},
		"refused are not counted": {"  rules: {limits: {max_tool_calls: 1}, security: {denied_tools: [a]}}\n", []string{"a {}", "b {}"}, "block:DeniedToolsPolicy forward"},
		"observed":                {"  observeUntil: \"2026-01-01T13:00:00Z\"\n  rules: {limits: {max_tool_calls: 1}}\n", []string{"a {}", "a {}"}, "forward block:MaxToolCallsPolicy(observed)"},
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
		for _, call := range test.calls {
			tool, arguments, _ := strings.Cut(call, " ")
			a, err := trial.Call(tool, []byte(arguments), at)
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
		if _, err := trial.Call("a", []byte(wrong), at); err == nil {
			t.Errorf("%s was judged", wrong)
		}
	}
}
