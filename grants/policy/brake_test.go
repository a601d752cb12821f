package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants/rules"
)

const brake = `version: "3.0"
agent:
  name: coder
  trust_level: trusted
policies:
  global:
    on_violation: sandbox
    max_retries: 3
  limits:
    max_tool_calls: 50
    max_runtime_seconds: 3600
    rate_limit:
      calls_per_window: 30
    budget:
      max_cost: 1.5
    circuit_breaker: {}
  security:
    denied_tools: [shell]
    allowed_tools: []
    require_approval: [send]
    granular_rules:
    - tool: read
      allow_if:
        arguments:
          path: ^/var/data/
      deny_if:
        arguments:
          /odd/name: secret
      action: kill
`

func brakeEnv() Env {
	return Env{Now: noon, Current: &Document{Subjects: map[string]Subject{"worker": {}}}}
}

func TestImportAgentBrake(t *testing.T) {
	got, warnings, err := ImportAgentBrake([]byte(brake), "worker", "files", brakeEnv())
	if err != nil {
		t.Fatal(err)
	}
	calls := uint64(50)
	want := map[Pair]rules.Policy{{"worker", "files"}: {
		Subject: "worker", Server: "files", Audit: rules.Strict, ApprovalWait: rules.DefaultApprovalWait,
		Rules: rules.Rules{
			OnViolation: rules.Block,
			Limits: rules.Limits{
				MaxToolCalls: &calls, MaxRuntime: time.Hour, Rate: &rules.Rate{Calls: 30, Window: time.Minute},
				Budget:  &rules.Budget{Max: 1_500_000, Currency: "USD", Warn: 800_000, PerCall: 10_000},
				Breaker: &rules.Breaker{Failures: 5, Reset: time.Minute, Counts: rules.CountErrors},
			},
			Security: rules.Security{
				DeniedTools: []string{"shell"}, RequireApproval: []string{"send"},
				Granular: []rules.Rule{{
					Tool: "read", Action: rules.Kill, AllowIf: map[string]rules.Matcher{"path": {Regex: "^/var/data/"}},
					DenyIf: map[string]rules.Matcher{"/~1odd~1name": {Regex: "secret"}},
				}},
			},
		},
	}}
	if diff := cmp.Diff(want, got.Policies); diff != "" {
		t.Error(diff)
	}
	var lines []string
	for _, w := range warnings {
		lines = append(lines, w.String())
	}
	if diff := cmp.Diff([]string{
		"line 3: the agent's name says nothing here: the policy is that of subject worker",
		"line 4: trust_level trusted gives nothing here: grants say what the subject may do",
		"line 7: on_violation sandbox means block here: nothing runs the call in a sandbox of its own",
		"line 8: max_retries means nothing here: a call that was refused may be made again, and is refused again",
		"line 19: an empty allowed_tools allows every tool, as it did where the file comes from",
		"line 25: path: a regex sees text, and /data/../etc/passwd begins with /data/: path is the matcher for files",
	}, lines); diff != "" {
		t.Error(diff)
	}

	// What is imported is a part of a document like any other.
	got.Subjects["worker"] = Subject{}
	text, err := Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse(text, Env{Now: noon})
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("%s\nin\n%s", diff, text)
	}
}

// The key of an argument that looks like a pointer is a name where the file comes from.
func TestImportedNamesAreNames(t *testing.T) {
	d, _, err := ImportAgentBrake([]byte(`{"policies":{"security":{"granular_rules":[{"tool":"t","deny_if":{"arguments":{"/a~b/c":"^x$"}}}]}}}`), "worker", "files", brakeEnv())
	if err != nil {
		t.Fatal(err)
	}
	c, err := rules.Compile(d.Policies[Pair{"worker", "files"}], nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]rules.Outcome{`{"/a~b/c":"x"}`: rules.Blocked, `{"a~b":{"c":"x"}}`: rules.Forwarded} {
		args, err := rules.ParseArgs([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Judge(&rules.Meter{}, rules.Call{Tool: "t", Args: args, Now: noon}); got.Outcome != want {
			t.Errorf("%s: %v, want %v", text, got.Outcome, want)
		}
	}
}

func TestImportAgentBrakeAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"nothing but braces":  "{}",
		"JSON":                `{"version":"3.0","agent":{"name":"worker","trust_level":"privileged"},"policies":{}}`,
		"only an agent":       "agent: {name: unknown-agent}\n",
		"both lists":          "policies: {security: {denied_tools: [ok], allowed_tools: [ok]}}\n",
		"no calls at all":     "policies: {limits: {max_tool_calls: 0}}\n",
		"a rule that warns":   "policies: {security: {granular_rules: [{tool: a, deny_if: {arguments: {p: x}}, action: warn}]}}\n",
		"both sides":          "policies: {security: {granular_rules: [{tool: a, deny_if: {arguments: {p: x}}, allow_if: {arguments: {q: x}}}]}}\n",
		"a fraction of a sec": "policies: {limits: {max_runtime_seconds: 0.25}}\n",
	} {
		if _, _, err := ImportAgentBrake([]byte(text), "worker", "files", brakeEnv()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImportAgentBrakeRefuses(t *testing.T) {
	long := strings.Repeat("a", 513)
	for _, test := range []struct{ name, text, want string }{
		// Cases observed on the predecessor, by their names.
		{"config: unknown key refuses start (2)", `{"policies":{"security":{"allowed_tool":["a"]}}}`, `line 1: unknown key "allowed_tool" in security`},
		{"config: bad regex refuses start (2)", `{"policies":{"security":{"granular_rules":[{"tool":"t","deny_if":{"arguments":{"p":"("}}}]}}}`, "line 1: p: not a pattern of RE2"},
		{"config: pattern > 512 refuses start (2)", `{"policies":{"security":{"granular_rules":[{"tool":"t","deny_if":{"arguments":{"p":"` + long + `"}}}]}}}`, "line 1: p: a pattern is at most 512"},
		{"config: wrong type refuses start (2)", `{"policies":{"limits":{"max_tool_calls":"many"}}}`, "line 1: max_tool_calls must be a whole number"},
		{"config: empty file refuses start (2)", "", "the document is empty"},
		{"config: rule without allow_if/deny_if refuses start (2)", `{"policies":{"security":{"granular_rules":[{"tool":"t"}]}}}`, "line 1: granular_rules: a rule needs allow_if or deny_if"},
		{"config invalid + ALLOW_INVALID=1 -> defaults, 10-call cap", `{"policies":12}`, "line 1: policies must be a mapping, not a number"},

		{"a file of comments", "# nothing\n", "the document is empty"},
		{"null", "null\n", "line 1: the file must be a mapping, not nothing"},
		{"a list", "[]\n", "line 1: the file must be a mapping, not a list"},
		{"a second document", "{}\n---\n{}\n", "line 2: a second document begins here"},
		{"an unknown key at the top", "policy: {}\n", `line 1: unknown key "policy" in the file`},
		{"an unknown key in agent", "agent: {id: 1}\n", `line 1: unknown key "id" in agent`},
		{"an unknown key in global", "policies: {global: {x: 1}}\n", `line 1: unknown key "x" in global`},
		{"an unknown key in limits", "policies: {limits: {x: 1}}\n", `line 1: unknown key "x" in limits`},
		{"an unknown key in a rule", "policies: {security: {granular_rules: [{tool: a, name: b}]}}\n", `line 1: unknown key "name" in a rule`},
		{"a key twice", "policies: {}\npolicies: {}\n", `line 2: "policies" is in the file already, on line 1`},
		{"another version", "version: \"2.0\"\n", `line 1: version must be the text "3.0", or left out`},
		{"a version of a number", "version: 3.0\n", `line 1: version must be the text "3.0"`},
		{"a trust level that confines", "agent: {trust_level: sandbox}\n", "line 1: trust_level sandbox confines nothing here"},
		{"another that does", "agent: {trust_level: limited}\n", "line 1: trust_level limited confines nothing here"},
		{"a trust level that is none", "agent: {trust_level: root}\n", "line 1: trust_level is sandbox, limited, trusted or privileged"},
		{"retries", "policies: {global: {max_retries: 5}}\n", "line 1: max_retries means nothing here: take it out"},
		{"retries of text", "policies: {global: {max_retries: few}}\n", "line 1: max_retries must be a whole number"},
		{"another action", "policies: {global: {on_violation: stop}}\n", "line 1: on_violation: an action is"},
		{"no runtime", "policies: {limits: {max_runtime_seconds: 0}}\n", "line 1: max_runtime_seconds must be written as"},
		{"a window of nothing", "policies: {limits: {rate_limit: {calls_per_window: 0}}}\n", "line 1: calls_per_window must be written as"},
		{"no cost", "policies: {limits: {budget: {max_cost: 0}}}\n", "line 1: max_cost: max_cost is from"},
		{"costs of ours", "policies: {limits: {budget: {max_cost: 1, cost_per_call: 1}}}\n", `line 1: unknown key "cost_per_call" in budget`},
		{"a breaker of ours", "policies: {limits: {circuit_breaker: {counts: errors}}}\n", `line 1: unknown key "counts" in circuit_breaker`},
		{"a matcher of ours", "policies: {security: {granular_rules: [{tool: a, deny_if: {arguments: {p: {exact: x}}}}]}}\n", "line 1: a pattern must be text, not a mapping"},
		{"nested quantifiers", "policies: {security: {granular_rules: [{tool: a, deny_if: {arguments: {p: (x*)*}}}]}}\n", "line 1: p: a pattern must not repeat"},
		{"a look-ahead", "policies: {security: {granular_rules: [{tool: a, deny_if: {arguments: {p: \"(?=x)\"}}}]}}\n", "line 1: p: not a pattern of RE2"},
		{"a rule for what is denied", "policies:\n  security:\n    denied_tools: [a]\n    granular_rules:\n    - {tool: a, deny_if: {arguments: {p: x}}}\n", "line 5: tool: this can never matter: denied_tools holds \"a\""},
		{"a null list", "policies: {security: {denied_tools: }}\n", "line 1: denied_tools must be a list, not nothing"},
	} {
		t.Run(test.name, func(t *testing.T) {
			document, _, err := ImportAgentBrake([]byte(test.text), "worker", "files", brakeEnv())
			if err == nil {
				t.Fatalf("accepted as %+v", document.Policies)
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("refused with\n  %s\nwant one that begins with\n  %s", err, test.want)
			}
		})
	}
	for _, of := range [][2]string{{"ghost", "files"}, {"worker", "Files"}, {"", "files"}, {"worker", ""}} {
		if _, _, err := ImportAgentBrake([]byte("{}"), of[0], of[1], brakeEnv()); err == nil {
			t.Errorf("a policy of %q around %q is accepted", of[0], of[1])
		}
	}
}

// What is imported judges as it did where it comes from: the cases that need no
// transport, by their names.
func TestImportedPoliciesJudge(t *testing.T) {
	const rule = `{"policies":{"security":{"allowed_tools":["ok"],"granular_rules":[{"tool":"ok","deny_if":{"arguments":{"path":"\\.env"}},"action":"block"}]}}}`
	type call struct{ tool, args, policy, action string }
	for _, test := range []struct {
		name, text string
		calls      []call
	}{
		{"deny tool not in allow list", rule, []call{{"evil", "{}", rules.AllowedToolsPolicy, "block"}}},
		{"arg deny rule", rule, []call{{"ok", `{"path":"/app/.env"}`, rules.GranularAccessPolicy, "block"}}},
		{"allowed forwarded once", rule, []call{{"ok", `{"path":"/var/data/a"}`, "", ""}}},
		{"sandbox action = block", `{"policies":{"security":{"granular_rules":[{"tool":"ok","deny_if":{"arguments":{"p":"x"}},"action":"sandbox"}]}}}`, []call{{"ok", `{"p":"x"}`, rules.GranularAccessPolicy, "block"}}},
		{"warn action forwards", `{"policies":{"security":{"granular_rules":[{"tool":"ok","deny_if":{"arguments":{"p":"x"}},"action":"warn"}]}}}`, []call{{"ok", `{"p":"x"}`, "", ""}}},
		{"max_tool_calls 0 = none", `{"policies":{"limits":{"max_tool_calls":0}}}`, []call{{"ok", "", rules.MaxToolCallsPolicy, "block"}}},
		{"rate limit 2/60s blocks third", `{"policies":{"limits":{"rate_limit":{"calls_per_window":2,"window_seconds":60}}}}`, []call{{"ok", "", "", ""}, {"ok", "", "", ""}, {"ok", "", rules.RateLimitPolicy, "block"}}},
		{"budget 0.02 blocks third", `{"policies":{"limits":{"budget":{"max_cost":0.02}}}}`, []call{{"ok", "", "", ""}, {"ok", "", "", ""}, {"ok", "", rules.BudgetPolicy, "block"}}},
		{"approval: -32001 pending", `{"policies":{"security":{"require_approval":["send"]}}}`, []call{{"send", `{"a":1}`, rules.ApprovalPolicy, "request_approval"}, {"send", `{"a":2}`, rules.ApprovalPolicy, "request_approval"}}},
		{"denied_tools wins over allowed_tools", `{"policies":{"security":{"denied_tools":["ok"],"allowed_tools":["ok"]}}}`, []call{{"ok", "", rules.DeniedToolsPolicy, "block"}}},
		{"KNOWN BYPASS /var/data/../etc/passwd satisfies ^/var/data/", `{"policies":{"security":{"granular_rules":[{"tool":"ok","allow_if":{"arguments":{"path":"^/var/data/"}}}]}}}`, []call{{"ok", `{"path":"/var/data/../etc/passwd"}`, "", ""}}},
	} {
		d, _, err := ImportAgentBrake([]byte(test.text), "worker", "files", brakeEnv())
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		c, err := rules.Compile(d.Policies[Pair{"worker", "files"}], nil)
		if err != nil {
			t.Fatal(err)
		}
		m := &rules.Meter{}
		for i, one := range test.calls {
			args, err := rules.ParseArgs([]byte(one.args))
			if err != nil {
				t.Fatal(err)
			}
			asked := rules.Call{Tool: one.tool, Args: args, Now: noon}
			v := c.Judge(m, asked)
			if v.Policy != one.policy || string(v.Action) != one.action || (v.Outcome == rules.Forwarded) != (one.policy == "") {
				t.Errorf("%s, call %d: %+v", test.name, i, v)
			}
			if v.Outcome == rules.Forwarded {
				c.Take(m, asked)
			}
		}
	}
}

func FuzzImportAgentBrake(f *testing.F) {
	f.Add([]byte(brake))
	f.Add([]byte(`{"policies":{"security":{"granular_rules":[{"tool":"t","deny_if":{"arguments":{"p":"("}}}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d, _, err := ImportAgentBrake(data, "worker", "files", brakeEnv())
		if err != nil {
			return
		}
		d.Subjects["worker"] = Subject{}
		text, err := Marshal(d)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", d, err)
		}
		again, err := Parse(text, Env{Now: noon})
		if err != nil {
			t.Fatalf("%q is written as %q and then refused: %v", data, text, err)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Fatalf("%q is written as %q, which differs:\n%s", data, text, diff)
		}
	})
}
