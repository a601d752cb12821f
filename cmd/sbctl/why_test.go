package main

import (
	"go/ast"
	goparser "go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// notCauses look like causes in the daemon's source, and are none.
var notCauses = []string{"NOTIFY_SOCKET", "ACCESS_DENIED", "APPROVAL_PENDING"}

// writtenCauses are the words of the daemon's and the evaluator's source that are
// causes: constants that are named so, and everything that is spelled like one.
func writtenCauses(t *testing.T) (words []string) {
	t.Helper()
	files, err := filepath.Glob("../../daemon/*.go")
	if err != nil {
		t.Fatal(err)
	}
	spelled := regexp.MustCompile(`^[A-Z]{2,}(_[A-Z]+)+$`)
	found := map[string]bool{}
	add := func(literal ast.Expr, named bool) {
		basic, ok := literal.(*ast.BasicLit)
		if !ok || basic.Kind != token.STRING {
			return
		}
		word, err := strconv.Unquote(basic.Value)
		if err == nil && (named || spelled.MatchString(word)) && !slices.Contains(notCauses, word) {
			found[word] = true
		}
	}
	for _, file := range append(files, "../../grants/decision.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := goparser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				for i, value := range n.Values {
					name := n.Names[min(i, len(n.Names)-1)].Name
					if words, ok := value.(*ast.CompositeLit); ok && (name == "policyWords" || name == "endWords") {
						for _, element := range words.Elts {
							if pair, ok := element.(*ast.KeyValueExpr); ok {
								add(pair.Value, true)
							}
						}
					}
					add(value, strings.HasPrefix(strings.ToLower(name), "cause"))
				}
			case *ast.BasicLit:
				add(n, false)
			}
			return true
		})
	}
	for word := range found {
		words = append(words, word)
	}
	slices.Sort(words)
	return words
}

// Every cause that the daemon can write means something to the operator.
func TestCausesMeanSomething(t *testing.T) {
	words := writtenCauses(t)
	for _, want := range []string{"NO_GRANT", "TOOL_WITHHELD", "BUDGET_POLICY", "TRANSPORT", "LOCKED", "TOO_MANY_RUNS", "FILE_GONE"} {
		if slices.Contains(words, want) == (want == "FILE_GONE") { // of which there is none
			t.Errorf("looking for causes: %s: %v", want, words)
		}
	}
	for _, word := range words {
		if cause(word).meaning() == "" {
			t.Errorf("%s means nothing", word)
		}
		if rest, ok := strings.CutSuffix(word, "_POLICY"); ok {
			for _, before := range []string{"KILL_", "STOP_", "OBSERVED_", "WARNED_"} {
				if meaning := cause(before + word).meaning(); meaning == "" || meaning == cause(word).meaning() {
					t.Errorf("%s%s means %q", before, rest, meaning)
				}
			}
		}
	}
	for code, meaning := range meanings() { // of what is no longer written
		if !slices.Contains(words, string(code)) && !slices.Contains(publicReasons, code) {
			t.Errorf("nothing writes %s: %s", code, meaning)
		}
	}
	for _, word := range []string{"KILL_", "KILL_NO_GRANT", "NEVER", ""} {
		if meaning := cause(word).meaning(); meaning != "" {
			t.Errorf("%q means %q", word, meaning)
		}
	}
}

// publicReasons stand as a cause where there is no other.
var publicReasons = []cause{causeVaultLocked, causeRateLimited, causeAuditFailed}

// The words that stand before a policy's are those of the daemon.
func TestCausePrefixes(t *testing.T) {
	source := text(t, "../../daemon/meters_row.go")
	var written []string
	for _, found := range regexp.MustCompile(`Word +=? +"([A-Z]+_)"`).FindAllStringSubmatch(source, -1) {
		written = append(written, found[1])
	}
	if diff := cmp.Diff(written, []string{killedBy, stoppedBy, observedBy, warnedBy}); diff != "" {
		t.Error(diff)
	}
}

func TestMendCall(t *testing.T) {
	tool := func(name, state string) *operatorv1.ServerToolState {
		return &operatorv1.ServerToolState{Name: name, State: state}
	}
	hosted := &operatorv1.Server{Name: "github", Hosted: true}
	reached := &operatorv1.Server{Name: "github", Hosted: true, Url: "https://x"}
	process := func(state string) *operatorv1.Server {
		return &operatorv1.Server{Name: "github", Hosted: true, Processes: []*operatorv1.ServerProcess{{Subject: "coder", State: state}, {Subject: "other", State: "running"}}}
	}
	policy := &operatorv1.Policy{Subject: "coder", Server: "github"}
	killed := &operatorv1.Policy{Subject: "coder", Server: "github", Meters: []*operatorv1.PolicyMeter{{Killed: true}}}
	refused := func(capability, cause string) *operatorv1.DenialGroup {
		return &operatorv1.DenialGroup{Subject: "coder", Capability: capability, Cause: cause, ReasonCode: "ACCESS_DENIED"}
	}
	tools := []*operatorv1.ServerToolState{tool("", "trusted"), tool("search", "trusted"), tool("fresh", "new"), tool("other", "changed"), tool("old", "gone"), tool("long", "withheld")}
	type group = operatorv1.DenialGroup
	for _, tc := range []struct {
		name, capability, cause string
		reason                  string // empty: ACCESS_DENIED
		known                   *operatorv1.Server
		policy                  *operatorv1.Policy
		needs                   *group
		secrets                 []*group
		near                    string
		want                    []string
	}{
		{name: "not granted", capability: "call:github/search", cause: "NO_GRANT", known: hosted, want: []string{"grant coder call:github/search"}},
		{name: "held, and more is missing", capability: "call:github/held", cause: "NO_GRANT", known: hosted},
		{name: "expired", capability: "call:github/search", cause: "GRANT_EXPIRED", known: hosted, want: []string{"grant coder call:github/search"}},
		{name: "not granted, and new", capability: "call:github/fresh", cause: "NO_GRANT", known: hosted, want: []string{"grant coder call:github/fresh", "server diff github", "server trust github --tool fresh"}},
		{name: "mistyped tool", capability: "call:github/serch", cause: "NO_GRANT", known: hosted, near: "search", want: []string{"grant coder call:github/search"}},
		{name: "mistyped server, which an agent may wrap", capability: "call:githup/search", cause: "NO_GRANT", near: "github", want: []string{"grant coder call:githup/search"}},
		{name: "a server as a whole", capability: "call:github/*", cause: "NO_GRANT", known: hosted, want: []string{"grant coder call:github/*"}},
		{name: "a server of which something is granted since", capability: "call:github/*", cause: "NO_GRANT", known: &operatorv1.Server{Name: "github", Hosted: true, Subjects: []string{"coder"}}},
		{
			name: "not granted, and neither is its secret", capability: "call:github/search", cause: "NO_GRANT", known: hosted, secrets: []*group{refused("use:token", "NO_GRANT")},
			want: []string{"grant coder call:github/search", "grant coder use:token"},
		},
		{name: "a tool's requirement", capability: "call:github/search", cause: "NO_GRANT", known: hosted, needs: refused("reach:api.github.com", "NO_GRANT"), want: []string{"grant coder reach:api.github.com"}},
		{name: "a tool's resource", capability: "call:github/search", cause: "UNKNOWN_RESOURCE", known: hosted, needs: refused("read:plam", "UNKNOWN_RESOURCE"), near: "plan", want: []string{"grant coder read:plan", "secret put plam"}},
		{name: "a tool's resource, mended since", capability: "call:github/search", cause: "UNKNOWN_RESOURCE", known: hosted},
		{name: "a denial of the call", capability: "call:github/denied", cause: "EXPLICIT_DENY", known: hosted, want: []string{"revoke kmpx"}},

		{name: "no such server", capability: "call:githup/*", cause: "NO_SERVER", near: "github", want: []string{"server list"}},
		{name: "added since", capability: "call:github/*", cause: "NO_SERVER", known: hosted},
		{name: "wrapped and hosted", capability: "call:github/*", cause: "SERVER_HOSTED", known: hosted, want: []string{"connect --list"}},
		{name: "not hosted any more", capability: "call:github/*", cause: "SERVER_HOSTED"},

		{name: "new", capability: "call:github/fresh", cause: "TOOL_WITHHELD", known: hosted, want: []string{"server diff github", "server trust github --tool fresh"}},
		{name: "changed", capability: "call:github/other", cause: "TOOL_CHANGED", known: hosted, want: []string{"server diff github", "server trust github --tool other"}},
		{name: "gone", capability: "call:github/old", cause: "TOOL_WITHHELD", known: hosted, want: []string{"server diff github"}},
		{name: "too long a name", capability: "call:github/long", cause: "TOOL_WITHHELD", known: hosted},
		{name: "trusted since", capability: "call:github/search", cause: "TOOL_WITHHELD", known: hosted},
		{name: "unknown", capability: "call:github/serch", cause: "TOOL_WITHHELD", known: hosted, near: "search", want: []string{"server diff github"}},
		{name: "of a server that is gone", capability: "call:githup/x", cause: "TOOL_WITHHELD", near: "github"},

		{
			name: "a secret without content", capability: "call:github/search", cause: "SECRET_MISSING", known: hosted, secrets: []*group{refused("use:token", "UNKNOWN_RESOURCE")},
			want: []string{"secret put token --kind secret", "grant coder use:token"},
		},
		{
			name: "a granted secret without content", capability: "call:github/search", cause: "SECRET_MISSING", known: hosted, secrets: []*group{refused("use:may", "NO_CONTENT")},
			want: []string{"secret put may --kind secret"},
		},
		{name: "a secret that is not granted", capability: "call:github/search", cause: "SECRET_DENIED", known: hosted, secrets: []*group{refused("use:token", "NO_GRANT")}, want: []string{"grant coder use:token"}},
		{name: "all secrets there by now", capability: "call:github/search", cause: "SECRET_MISSING", known: hosted},

		{name: "stopped", capability: "call:github/search", cause: "STOP_BUDGET_POLICY", reason: "POLICY_BLOCKED", known: hosted, policy: killed, want: []string{"policy show coder github", "server restart github --subject coder"}},
		{name: "stopped, and the policy is gone", capability: "call:github/search", cause: "SERVER_KILLED", known: process("killed"), want: []string{"server restart github --subject coder"}},
		{name: "restarted since", capability: "call:github/search", cause: "STOP_BUDGET_POLICY", reason: "POLICY_BLOCKED", known: process("stopped"), policy: policy},
		{name: "killed", capability: "call:github/search", cause: "KILL_MAX_TOOL_CALLS_POLICY", reason: "POLICY_BLOCKED", policy: killed, want: []string{"policy show coder github", "policy reset coder github"}},
		{name: "not killed any more", capability: "call:github/search", cause: "KILL_MAX_TOOL_CALLS_POLICY", reason: "POLICY_BLOCKED", policy: policy},
		{name: "budget", capability: "call:github/search", cause: "BUDGET_POLICY", reason: "POLICY_BLOCKED", policy: policy, want: []string{"policy show coder github", "policy reset coder github"}},
		{name: "budget of a policy that is gone", capability: "call:github/search", cause: "BUDGET_POLICY", reason: "POLICY_BLOCKED"},
		{name: "arguments", capability: "call:github/search", cause: "GRANULAR_ACCESS_POLICY", reason: "POLICY_BLOCKED", policy: policy, want: []string{"policy show coder github"}},
		{name: "method", capability: "method:github/roots.list", cause: "METHOD_POLICY", reason: "POLICY_BLOCKED", policy: policy, want: []string{"policy show coder github"}},
		{name: "method without a policy", capability: "method:github/roots.list", cause: "METHOD_POLICY", reason: "POLICY_BLOCKED"},

		{name: "died", capability: "call:github/search", cause: "SERVER_FAILED", reason: "SERVER_UNAVAILABLE", known: hosted, want: []string{"server show github", "server logs github --subject coder", "server restart github --subject coder"}},
		{name: "not reached", capability: "call:github/search", cause: "SERVER_FAILED", reason: "SERVER_UNAVAILABLE", known: reached, want: []string{"server show github", "server restart github --subject coder"}},
		{name: "runs again", capability: "call:github/search", cause: "SERVER_WAITS", reason: "SERVER_UNAVAILABLE", known: process("running")},
		{name: "busy", capability: "call:github/search", cause: "SERVER_BUSY", reason: "RATE_LIMITED", known: hosted, want: []string{"server show github"}},

		{name: "nobody answered", capability: "call:github/search", cause: "UNANSWERED", reason: "APPROVAL_EXPIRED", known: hosted, want: []string{"approvals list"}},
		{name: "a person said no", capability: "call:github/search", cause: "APPROVAL_REFUSED", reason: "APPROVAL_DENIED", known: hosted},
		{name: "somebody can approve by now", capability: "call:github/search", cause: "NO_APPROVER", reason: "APPROVAL_DENIED", known: hosted},
		{name: "malformed", capability: "call:github/~6~abcdef", cause: "MALFORMED", reason: "INVALID_ARGUMENT", known: hosted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := calledBy(tc.capability)
			c.servers, c.known, c.policy, c.needs, c.secrets = []string{"github", "web"}, tc.known, tc.policy, tc.needs, tc.secrets
			if tc.known != nil {
				c.tools = tools
			}
			k := &knowledge{
				subjects: map[string]*operatorv1.Subject{"coder": {Name: "coder", Enabled: true}}, subjectNames: []string{"coder"}, resourceNames: []string{"plan"}, called: c,
				grants: []*operatorv1.Grant{
					{GrantId: "held", Subject: "coder", Capability: "call:github/held", Effect: "allow", State: "active"},
					{GrantId: "may", Subject: "coder", Capability: "use:may*", Effect: "allow", State: "active"},
					{GrantId: "kmpx", Subject: "coder", Capability: "call:github/denied", Effect: "deny", State: "active"},
				},
			}
			d := refused(tc.capability, tc.cause)
			if tc.reason != "" {
				d.ReasonCode = tc.reason
			}
			near, commands := k.mend(d, "")
			var got []string
			for _, words := range commands {
				got = append(got, strings.Join(words, " "))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || near != tc.near {
				t.Errorf("nearest %q, want %q (-want +got)\n%s", near, tc.near, diff)
			}
			if _, commands := k.mend(d, decisionAllow); commands != nil {
				t.Errorf("allowed now, and still: %v", commands)
			}
		})
	}
}

func TestMendNoApprover(t *testing.T) {
	d := &operatorv1.DenialGroup{Subject: "coder", Capability: "read:plan", Cause: "NO_APPROVER", ReasonCode: "APPROVAL_DENIED"}
	for _, deaf := range []bool{false, true} {
		_, commands := (&knowledge{deaf: deaf}).mend(d, "")
		if got := len(commands) == 1 && strings.Join(commands[0], " ") == "operator set-passphrase"; got != deaf {
			t.Errorf("nobody can approve: %v: %v", deaf, commands)
		}
	}
}

func TestDocumentOfAPolicy(t *testing.T) {
	for _, tc := range []struct{ capability, cause, want string }{
		{"call:github/del", "DENIED_TOOLS_POLICY", "policies: subject coder, server github: rules: security: denied_tools"},
		{"method:github/roots.list", "METHOD_POLICY", "policies: subject coder, server github: methods: list roots/list"},
		{"method:github/~6~abcdef", "METHOD_POLICY", "policies: subject coder, server github: methods"},
		{"call:github/del", "BUDGET_POLICY", ""},
		{"call:github/del", "NO_GRANT", ""},
	} {
		c := calledBy(tc.capability)
		c.policy = &operatorv1.Policy{}
		d := &operatorv1.DenialGroup{Subject: "coder", Capability: tc.capability, Cause: tc.cause}
		if got := (&knowledge{called: c}).document(d); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.cause, got, tc.want)
		}
	}
}
