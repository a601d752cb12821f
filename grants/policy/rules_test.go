package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

const servers = `version: 1
owner: laptop
resources:
  github.token: {kind: secret}
subjects:
  worker: {}
servers:
  files: {command: [npx, -y, server, /data], cwd: /data}
  github: {command: [github-mcp], env: {GITHUB_TOKEN: "${secret:github.token}", MODE: ro}}
  remote: {url: "https://mcp.example.com/mcp", headers: {Authorization: "Bearer ${secret:github.token}"}}
policies:
- subject: worker
  server: github
  approvalWait: 1m30s
  methods: [tasks/get]
  observeUntil: "2030-06-02T00:00:00Z"
  rules:
    global: {on_violation: kill}
    limits:
      max_tool_calls: 100
      max_runtime_seconds: 0.5
      rate_limit: {calls_per_window: 30, window_seconds: 60}
      budget: {max_cost: 5, currency: EUR, warn_threshold: 0.9, cost_per_call: 0.05, tool_costs: {search: 0.000001}}
      circuit_breaker: {failure_threshold: 3, reset_timeout_seconds: 10, counts: errors}
    security:
      denied_tools: [delete_repo]
      allowed_tools: [create_issue, search]
      require_approval: [create_issue]
      granular_rules:
      - {tool: search, allow_if: {arguments: {/filter/owner: {exact: "me"}, path: {path: [/data, /srv]}}}, action: request_approval}
      - {tool: search, deny_if: {arguments: {q: "token|password", n: {oneOf: ["1", "2"]}, url: {host: "*.evil.example"}, ref: {prefix: "pr-"}}}}
- subject: worker
  server: files
  audit: grouped
`

func TestParsePolicies(t *testing.T) {
	got, warnings, err := ParseNoting([]byte(servers), Env{Now: noon})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	calls, exact := uint64(100), "me"
	want := &Document{
		Owner:     "laptop",
		Resources: map[string]Resource{"github.token": {Kind: KindSecret, Owner: "laptop"}},
		Subjects:  map[string]Subject{"worker": {Owner: "laptop"}},
		Profiles:  map[string]grants.Profile{}, Tools: map[string]grants.Tool{},
		Servers: map[string]grants.Server{
			"files":  {Name: "files", Command: []string{"npx", "-y", "server", "/data"}, Cwd: "/data", Hosted: true, Owner: "laptop"},
			"github": {Name: "github", Command: []string{"github-mcp"}, Env: map[string]string{"GITHUB_TOKEN": "${secret:github.token}", "MODE": "ro"}, Hosted: true, Owner: "laptop"},
			"remote": {Name: "remote", URL: "https://mcp.example.com/mcp", Headers: map[string]string{"Authorization": "Bearer ${secret:github.token}"}, Hosted: true, Owner: "laptop"},
		},
		Policies: map[Pair]rules.Policy{
			{"worker", "files"}: {Subject: "worker", Server: "files", Audit: rules.Grouped, ApprovalWait: 25 * time.Second, Rules: rules.Rules{OnViolation: rules.Block}, Owner: "laptop"},
			{"worker", "github"}: {
				Subject: "worker", Server: "github", Audit: rules.Strict, ApprovalWait: 90 * time.Second, Methods: []string{"tasks/get"},
				ObserveUntil: time.Date(2030, 6, 2, 0, 0, 0, 0, time.UTC), Owner: "laptop",
				Rules: rules.Rules{
					OnViolation: rules.Kill,
					Limits: rules.Limits{
						MaxToolCalls: &calls, MaxRuntime: 500 * time.Millisecond, Rate: &rules.Rate{Calls: 30, Window: time.Minute},
						Budget:  &rules.Budget{Max: 5_000_000, Currency: "EUR", Warn: 900_000, PerCall: 50_000, ToolCosts: map[string]uint64{"search": 1}},
						Breaker: &rules.Breaker{Failures: 3, Reset: 10 * time.Second, Counts: rules.CountErrors},
					},
					Security: rules.Security{
						DeniedTools: []string{"delete_repo"}, AllowedTools: []string{"create_issue", "search"}, RequireApproval: []string{"create_issue"},
						Granular: []rules.Rule{
							{Tool: "search", AllowIf: map[string]rules.Matcher{"/filter/owner": {Exact: &exact}, "path": {Path: []string{"/data", "/srv"}}}, Action: rules.RequestApproval},
							{Tool: "search", DenyIf: map[string]rules.Matcher{
								"q": {Regex: "token|password"}, "n": {OneOf: []string{"1", "2"}}, "url": {Host: []string{"*.evil.example"}}, "ref": {Prefix: []string{"pr-"}},
							}, Action: rules.Block},
						},
					},
				},
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMarshalPolicies(t *testing.T) {
	document, err := Parse([]byte(servers), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	const want = `version: 1
owner: laptop
resources:
  github.token: {kind: secret}
subjects:
  worker: {}
servers:
  files: {command: [npx, -y, server, /data], cwd: /data}
  github: {command: [github-mcp], env: {GITHUB_TOKEN: "${secret:github.token}", MODE: "ro"}}
  remote: {url: "https://mcp.example.com/mcp", headers: {Authorization: "Bearer ${secret:github.token}"}}
policies:
- subject: worker
  server: files
  audit: grouped
- subject: worker
  server: github
  approvalWait: 1m30s
  methods: [tasks/get]
  observeUntil: "2030-06-02T00:00:00Z"
  rules:
    global: {on_violation: kill}
    limits:
      max_tool_calls: 100
      max_runtime_seconds: 0.5
      rate_limit: {calls_per_window: 30, window_seconds: 60}
      budget: {max_cost: 5, currency: EUR, warn_threshold: 0.9, cost_per_call: 0.05, tool_costs: {search: 0.000001}}
      circuit_breaker: {failure_threshold: 3, reset_timeout_seconds: 10, counts: errors}
    security:
      denied_tools: [delete_repo]
      allowed_tools: [create_issue, search]
      require_approval: [create_issue]
      granular_rules:
      - {tool: search, allow_if: {arguments: {/filter/owner: {exact: "me"}, path: {path: ["/data", "/srv"]}}}, action: request_approval}
      - {tool: search, deny_if: {arguments: {n: {oneOf: ["1", "2"]}, q: "token|password", ref: {prefix: "pr-"}, url: {host: "*.evil.example"}}}}
`
	got, err := Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	// What limits nothing is written as nothing, and a server that was only ever
	// wrapped is no part of a document.
	document = &Document{Servers: map[string]grants.Server{"wrapped": {Name: "wrapped"}}}
	if got, err := Marshal(document); err != nil || string(got) != "version: 1\n" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := MarshalRules(rules.Rules{OnViolation: rules.Block}); err != nil || got != nil {
		t.Errorf("%s, %v", got, err)
	}
}

// ruleRefusals begin on line 5: "…" is a policy's head, and what follows is its rules.
var ruleRefusals = []struct{ name, text, want string }{
	{"an unknown key in a policy", "  rule: {}", `line 6: unknown key "rule" in a policy`},
	{"another audit", "  audit: none", "line 6: audit: audit is strict or grouped"},
	{"a wait of a number", "  approvalWait: 25", "line 6: approvalWait must be text, not a number"},
	{"a long wait", "  approvalWait: 6m", "line 6: approvalWait: approvalWait is from 0s to 5m0s"},
	{"a wait that is none", "  approvalWait: soon", "line 6: approvalWait: a span of time is"},
	{"a method that is a call", "  methods: [a, tools/call]", "line 6: methods: tools/call is a call of a tool"},
	{"observed until now", "  observeUntil: 2030-06-01T12:00:00Z", "line 6: observeUntil is past"},
	{"another policy of the same", "- subject: worker\n  server: files", "line 6: the same subject and server as on line 4"},
	{"a list of rules", "  rules: []", "line 6: rules must be a mapping, not a list"},
	{"an unknown part", "  rules: {limit: {}}", `line 6: unknown key "limit" in rules`},
	{"what only the predecessor has", "  rules: {global: {max_retries: 3}}", `line 6: unknown key "max_retries" in global`},
	{"an action that only the predecessor has", "  rules:\n    global:\n      on_violation: sandbox", "line 8: on_violation: an action is warn, block"},
	{"calls of text", "  rules:\n    limits:\n      max_tool_calls: many", "line 8: max_tool_calls must be a whole number from 0 in plain digits, not text"},
	{"calls of a fraction", "  rules:\n    limits:\n      max_tool_calls: 1.0", "line 8: max_tool_calls must be a whole number from 0"},
	{"no runtime", "  rules:\n    limits:\n      max_runtime_seconds: 0", "line 8: max_runtime_seconds must be written as a number of seconds from 0.001"},
	{"a negative runtime", "  rules:\n    limits:\n      max_runtime_seconds: -1", "line 8: max_runtime_seconds must be written as"},
	{"an exponent", "  rules:\n    limits:\n      max_runtime_seconds: 1e3", "line 8: max_runtime_seconds must be"},
	{"infinitely long", "  rules:\n    limits:\n      max_runtime_seconds: .inf", "line 8: max_runtime_seconds must be"},
	{"a rate without calls", "  rules:\n    limits:\n      rate_limit: {}", "line 8: rate_limit needs calls_per_window"},
	{"a rate that is too high", "  rules:\n    limits:\n      rate_limit:\n        calls_per_window: 10001", "line 9: calls_per_window: calls_per_window is from 1 to 10000"},
	{"a budget without a cost", "  rules:\n    limits:\n      budget: {currency: USD}", "line 8: budget needs max_cost"},
	{"a cost of too many digits", "  rules:\n    limits:\n      budget: {max_cost: 0.0000001}", "line 8: max_cost must be written as a number from 0 with at most six digits"},
	{"a cost of text", "  rules:\n    limits:\n      budget: {max_cost: \"1\"}", "line 8: max_cost must be a number from 0 with at most six digits after the point, not text"},
	{"a threshold of ten", "  rules:\n    limits:\n      budget:\n        max_cost: 1\n        warn_threshold: 10", "line 10: warn_threshold: warn_threshold is from 0 to 1"},
	{"a breaker that counts what there is not", "  rules:\n    limits:\n      circuit_breaker:\n        counts: all", "line 9: counts: counts is transport or errors"},
	{"an unknown key in security", "  rules:\n    security:\n      allowed_tool: [a]", `line 8: unknown key "allowed_tool" in security`},
	{"an empty list of what is allowed", "  rules:\n    security:\n      allowed_tools: []", "line 8: an empty allowed_tools may mean every tool or none"},
	{"a number for a tool", "  rules:\n    security:\n      denied_tools: [1]", "line 8: an item of denied_tools must be text, not a number"},
	{"a tool twice", "  rules:\n    security:\n      denied_tools:\n      - a\n      - a", `line 10: denied_tools: "a" is there twice`},
	{"approval of what is denied", "  rules:\n    security:\n      denied_tools: [a]\n      require_approval:\n      - b\n      - a", "line 11: require_approval: this can never matter: denied_tools holds \"a\""},
	{"a rule for what is not allowed", "  rules:\n    security:\n      allowed_tools: [b]\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: y}}", "line 10: tool: this can never matter: allowed_tools leaves \"a\" out"},
	{"a rule without a tool", "  rules:\n    security:\n      granular_rules:\n      - deny_if: {arguments: {x: y}}", "line 9: a rule needs tool"},
	{"a rule without arguments", "  rules:\n    security:\n      granular_rules:\n      - {tool: a}", "line 9: granular_rules: a rule needs allow_if or deny_if"},
	{"no arguments in a rule", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        allow_if: {arguments: {}}", "line 10: allow_if needs arguments"},
	{"arguments without their key", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        allow_if: {path: x}", `line 10: unknown key "path" in allow_if`},
	{"another action in a rule", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: y}}\n        action: ask", "line 11: action: an action is warn, block"},
	{"a pattern that is none", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if:\n          arguments:\n            x: \"(\"", "line 12: x: not a pattern of RE2"},
	{"a pattern that repeats", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if:\n          arguments:\n            x: (a+)+", "line 12: x: a pattern must not repeat what repeats"},
	{"an empty pattern", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: \"\"}}", "line 10: a pattern must not be empty"},
	{"a number for a pattern", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: 5}}", "line 10: a pattern must be text, not a number"},
	{"two matchers", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {exact: a, regex: b}}}", "line 10: x: a matcher is a pattern, or one of"},
	{"a matcher that is none", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {glob: a}}}", `line 10: unknown key "glob" in a matcher`},
	{"one of a text", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {oneOf: a}}}", "line 10: oneOf must be a list, not text"},
	{"exactly a list", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {exact: [a]}}}", "line 10: exact must be text, a number, true or false, not a list"},
	{"exactly nothing", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {exact: null}}}", "line 10: exact must be text, a number, true or false, not nothing"},
	{"a path that is not clean", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if: {arguments: {x: {path: /a/../b}}}", "line 10: x: a path is absolute, or relative"},
	{"a rule that never matches", "  rules:\n    security:\n      granular_rules:\n      - tool: a\n        deny_if:\n          arguments:\n            x: {exact: a}\n            /x: {exact: b}", "line 13: /x: the rule can never match"},
	{"grouped and asked for", "  audit: grouped\n  rules:\n    security:\n      require_approval: [a]", "line 9: require_approval: a person is asked here"},
}

func TestParseRefusesRules(t *testing.T) {
	for _, test := range ruleRefusals {
		t.Run(test.name, func(t *testing.T) {
			text := "version: 1\nsubjects: {worker: {}}\npolicies:\n- subject: worker\n  server: files\n" + test.text + "\n"
			document, err := Parse([]byte(text), Env{Now: noon})
			if err == nil {
				t.Fatalf("accepted as %+v", document)
			}
			if refusal, ok := errors.AsType[*Error](err); !ok || !strings.HasPrefix(refusal.Error(), test.want) {
				t.Errorf("refused with\n  %s\nwant one that begins with\n  %s", err, test.want)
			}
		})
	}
}

func TestParseRefusesServers(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"a list", "servers: []", "line 3: servers must be a mapping, not a list"},
		{"a name with a capital", "servers: {Files: {command: [a]}}", "line 3: server Files: a server is named by"},
		{"neither command nor url", "servers: {a: {}}", "line 3: server a: a server needs either command or url"},
		{"an empty command", "servers: {a: {command: []}}", "line 3: server a: a server needs either"},
		{"both", "servers: {a: {command: [x], url: \"https://x/\"}}", "line 3: server a: a server has either"},
		{"a command of text", "servers: {a: {command: x}}", "line 3: command must be a list, not text"},
		{"a number in a command", "servers: {a: {command: [x, 5]}}", "line 3: a word of command must be text, not a number"},
		{"a secret in a command", "servers: {a: {command: [x, \"${secret:key}\"]}}", "line 3: server a: a secret does not go into command"},
		{"http elsewhere", "servers: {a: {url: \"http://example.com/\"}}", "line 3: server a: url is https, or http to this machine"},
		{"a user in a url", "servers: {a: {url: \"https://u:p@example.com/\"}}", "line 3: server a: url is https"},
		{"a secret in a url", "servers: {a: {url: \"https://example.com/${secret:key}\"}}", "line 3: server a: url is https"},
		{"headers of a command", "servers: {a: {command: [x], headers: {A: b}}}", "line 3: server a: headers belong to a url"},
		{"env of a url", "servers: {a: {url: \"https://x/\", env: {A: b}}}", "line 3: server a: cwd and env belong to a command"},
		{"our own variable", "servers: {a: {command: [x], env: {SB_HOME: /x}}}", "line 3: server a: env: names that start with SB_"},
		{"a variable that is none", "servers: {a: {command: [x], env: {\"A=\": b}}}", "line 3: server a: env: a name is"},
		{"a header of two lines", "servers: {a: {url: \"https://x/\", headers: {A: \"b\\nC: d\"}}}", "line 3: server a: headers: the value of A is at most"},
		{"a number for a value", "servers: {a: {command: [x], env: {A: 1}}}", "line 3: a value in env must be text, not a number"},
		{"a variable to expand", "servers: {a: {command: [x], env: {A: \"${HOME}\"}}}", "line 3: server a: env: the value of A: '${' begins"},
		{"a secret that is not closed", "servers: {a: {command: [x], env: {A: \"${secret:key\"}}}", "line 3: server a: env: the value of A: '${' begins"},
		{"a secret that is nowhere", "servers:\n  a:\n    command: [x]\n    env:\n      A: \"${secret:ghost}\"", `line 7: server a: no resource "ghost"`},
		{"a relative folder", "servers: {a: {command: [x], cwd: x}}", "line 3: server a: cwd is an absolute, clean path"},
		{"an unknown key", "servers: {a: {command: [x], hosted: true}}", `line 3: unknown key "hosted" in a server`},
		{"a policy of nobody", "policies: [{subject: ghost, server: a}]", `line 3: no subject "ghost"`},
		{"a policy without subject", "policies: [{server: a}]", "line 3: a policy needs subject"},
		{"a policy without server", "policies: [{subject: worker}]", "line 3: a policy needs server"},
		{"a policy around what is no name", "policies: [{subject: worker, server: A}]", "line 3: server: a server is named by"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := "version: 1\nsubjects: {worker: {}}\n" + test.text + "\n"
			document, err := Parse([]byte(text), Env{Now: noon})
			if err == nil {
				t.Fatalf("accepted as %+v", document)
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("refused with\n  %s\nwant one that begins with\n  %s", err, test.want)
			}
		})
	}
}

// A log that is less durable does not go with secrets and gates, whichever of them
// is declared first.
func TestGrouped(t *testing.T) {
	const head = "version: 1\nsubjects: {worker: {}}\nresources: {key: {kind: secret}}\n"
	const grouped = "policies: [{subject: worker, server: a, audit: grouped}]\n"
	for name, part := range map[string]string{
		"a secret in the environment": "servers: {a: {command: [x], env: {A: \"${secret:key}\"}}}\n",
		"a gate":                      "tools: {a/b: {requires: [], gate: always}}\n",
		"an approval":                 "tools: {a/b: {requires: [], approval: always}}\n",
		"a use":                       "tools: {a/b: {requires: [\"use:key\"]}}\n",
	} {
		if _, err := Parse([]byte(head+part+grouped), Env{Now: noon}); err == nil || !strings.Contains(err.Error(), "audit must be strict") {
			t.Errorf("%s, at once: %v", name, err)
		}
		for _, order := range [][2]string{{part, grouped}, {grouped, part}} {
			current, err := Parse([]byte(head+order[0]), Env{Now: noon})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Parse([]byte("version: 1\n"+order[1]), Env{Now: noon, Current: current}); err == nil || !strings.Contains(err.Error(), "audit must be strict") {
				t.Errorf("%s, after %q: %v", name, order[0], err)
			}
		}
	}
	for _, part := range []string{
		"servers: {a: {command: [x], env: {A: \"b\"}}}\n", "servers: {b: {command: [x], env: {A: \"${secret:key}\"}}}\n", "tools: {ab/b: {requires: [], gate: always}}\n",
	} {
		if _, err := Parse([]byte(head+part+grouped), Env{Now: noon}); err != nil {
			t.Errorf("the control, %q: %v", part, err)
		}
	}
}

func TestLintServersAndRules(t *testing.T) {
	text := `version: 1
subjects: {worker: {}}
servers:
  a:
    command: [x]
    env:
      A_TOKEN: "123"
      LEVEL: "1"
policies:
- subject: worker
  server: a
  rules:
    security:
      granular_rules:
      - tool: read
        allow_if:
          arguments:
            path: ^/data/
`
	warnings, err := Lint([]byte(text), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	want := []string{
		"line 7: server a: A_TOKEN stands here in clear; seal it, and write ${secret:NAME}",
		"line 18: path: a regex sees text, and /data/../etc/passwd begins with /data/: path is the matcher for files",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlanPolicies(t *testing.T) {
	const base = "subjects: {worker: {}, boss: {}}\nservers: {a: {command: [x]}}\npolicies:\n- {subject: worker, server: a, rules: {limits: {max_tool_calls: 1}}}\ngrants: [{subject: boss, capability: \"call:a/*\"}, {subject: boss, capability: \"call:*\"}]\n"
	current := state(t, "laptop", base)
	kept := current.Policies[Pair{"worker", "a"}]
	kept.Created = noon
	current.Policies[Pair{"worker", "a"}] = kept
	wantPlan(t, plan(t, current, wanted(t, "laptop", base), true))

	changed := strings.NewReplacer("[x]", "[x, y z]", "max_tool_calls: 1", "max_tool_calls: 2, rate_limit: {calls_per_window: 3}").Replace(base)
	wantPlan(t, plan(t, current, wanted(t, "laptop", changed), true),
		`change server a (command: "x" -> "x" "y z")`,
		"change policy worker a (max_tool_calls: 1 -> 2, rate_limit: none -> {calls_per_window: 3, window_seconds: 60})")
	changes, err := Plan(current, wanted(t, "other", changed), false)
	if err != nil || changes[1].Policy.Owner != "laptop" || !changes[1].Policy.Created.Equal(noon) {
		t.Errorf("it does not keep its owner and its age: %+v, %v", changes, err)
	}
	more := base + "tools: {}\nresources: {key: {kind: text}}\n"
	more = strings.Replace(more, "{command: [x]}", "{command: [x], env: {A: \"${secret:key}\"}}, b: {url: \"https://x/\"}", 1)
	wantPlan(t, plan(t, current, wanted(t, "laptop", more), true), "add resource key", "change server a (env.A: new)", "add server b")

	// With a server go its policies and the grants for its tools, not those of others;
	// with a subject its policies.
	wantPlan(t, plan(t, current, wanted(t, "laptop", "subjects: {worker: {}, boss: {}}\ngrants: [{subject: boss, capability: \"call:*\"}]\n"), true),
		"remove grant boss allow call:a/*", "remove policy worker a", "remove server a")
	others := join(state(t, "laptop", "servers: {a: {command: [x]}}\n"), state(t, "", "subjects: {worker: {}}\n"))
	others.Servers = current.Servers
	others.Policies = map[Pair]rules.Policy{{"worker", "a"}: {Subject: "worker", Server: "a"}}
	others.Grants = []grants.Grant{{ID: "aaaa", Subject: "worker", Pattern: pattern("call:a/b"), Effect: grants.Allow}, {ID: "bbbb", Subject: "worker", Pattern: pattern("call:ab/b"), Effect: grants.Allow}}
	wantPlan(t, plan(t, others, wanted(t, "laptop", ""), true),
		"remove grant worker allow call:a/b (goes with its server)", "remove policy worker a (goes with its server)", "remove server a")
	others.Subjects["worker"] = Subject{Owner: "laptop"}
	others.Servers = nil
	wantPlan(t, plan(t, others, wanted(t, "laptop", ""), true),
		"remove grant worker allow call:a/b (goes with its subject)", "remove grant worker allow call:ab/b (goes with its subject)",
		"remove policy worker a (goes with its subject)", "remove subject worker")
}

// Pruning takes nothing from under what stays.
func TestPruneKeepsWhatIsNamed(t *testing.T) {
	current := state(t, "laptop", "subjects: {worker: {}}\nresources: {key: {kind: text}}\nservers: {a: {command: [x], env: {A: \"${secret:key}\"}}, b: {command: [x]}}\n")
	for _, test := range []struct{ name, text, want string }{
		{"a policy and its subject", "policies: [{subject: worker, server: b}]\n", "policy worker b names subject worker"},
		{"a policy and its server", "subjects: {worker: {}}\npolicies: [{subject: worker, server: b}]\n", "policy worker b names server b"},
		{"a grant and its server", "subjects: {worker: {}}\ngrants: [{subject: worker, capability: \"call:b/*\"}]\n", "grant worker allow call:b/* names server b"},
		{"a server and its secret", "servers: {a: {command: [x], env: {A: \"${secret:key}\"}}}\n", "server a names resource key"},
	} {
		want, err := Parse([]byte("version: 1\nowner: laptop\n"+test.text), Env{Now: noon, Current: current})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		if _, err := Plan(current, want, true); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}
