package daemon_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

const guarded = `version: 1
owner: laptop
resources:
  files.token: {kind: secret}
subjects:
  worker: {}
servers:
  files: {command: [/bin/false, a b], env: {TOKEN: "${secret:files.token}"}}
policies:
- subject: worker
  server: files
  approvalWait: 1m0s
  methods: [tasks/get]
  rules:
    global: {on_violation: kill}
    limits:
      max_tool_calls: 3
      budget: {max_cost: 0.5}
    security:
      denied_tools: [delete]
      granular_rules:
      - {tool: read, allow_if: {arguments: {path: {path: "/data"}}}}
- subject: worker
  server: wrapped
  audit: grouped
  rules:
    limits:
      rate_limit: {calls_per_window: 5, window_seconds: 60}
grants:
- {subject: worker, capability: "call:files/*"}
`

func policies(t *testing.T, d *daemontest.Daemon, req *operatorv1.ListPoliciesRequest) map[string]*operatorv1.Policy {
	t.Helper()
	listed, err := d.Operator().ListPolicies(t.Context(), req)
	must(t, err)
	all := map[string]*operatorv1.Policy{}
	for _, p := range listed.GetPolicies() {
		all[p.GetSubject()+" "+p.GetServer()] = p
	}
	return all
}

// Servers and policies are applied, listed, kept over a restart, exported, and
// applied elsewhere to the same effect.
func TestApplyPolicies(t *testing.T) {
	d := daemontest.Start(t)
	done := applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(guarded)})
	if diff := cmp.Diff([]string{
		"add resource files.token", "add server files", "add subject worker", "add policy worker files", "add policy worker wrapped",
		"add grant worker allow call:files/*",
	}, summary(done)); diff != "" {
		t.Error(diff)
	}
	equal(t, "changes the second time", len(applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(guarded)}).GetChanges()), 0)

	check := func(what string, d *daemontest.Daemon) map[string]*operatorv1.Policy {
		t.Helper()
		all := policies(t, d, &operatorv1.ListPoliciesRequest{})
		equal(t, what+": policies", len(all), 2)
		files := all["worker files"]
		equal(t, what+": audit", files.GetAudit()+" "+all["worker wrapped"].GetAudit(), "strict grouped")
		equal(t, what+": wait", files.GetApprovalWaitMs(), 60_000)
		equal(t, what+": owner", files.GetOwner(), "laptop")
		equal(t, what+": version", len(files.GetVersion()), 16)
		const rules = `global: {on_violation: kill}
limits:
  max_tool_calls: 3
  budget: {max_cost: 0.5}
security:
  denied_tools: [delete]
  granular_rules:
  - {tool: read, allow_if: {arguments: {path: {path: "/data"}}}}
`
		if diff := cmp.Diff(rules, string(files.GetRules())); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
		return all
	}
	before := check("applied", d)
	equal(t, "of another subject", len(policies(t, d, &operatorv1.ListPoliciesRequest{Subject: "worker", Server: "other"})), 0)
	equal(t, "around one server", len(policies(t, d, &operatorv1.ListPoliciesRequest{Server: "files"})), 1)
	e := last(d, "policy.set")
	equal(t, "entry", e.SubjectID+" "+e.Server, "worker wrapped")
	equal(t, "its version", e.Policy, before["worker wrapped"].GetVersion())

	text := export(t, d, &operatorv1.ExportRequest{})
	d.Restart()
	after := check("after a restart", d)
	equal(t, "version after a restart", after["worker files"].GetVersion(), before["worker files"].GetVersion())
	equal(t, "exported after a restart", export(t, d, &operatorv1.ExportRequest{}), text)
	d.Lock()
	_, err := d.Operator().ListPolicies(t.Context(), &operatorv1.ListPoliciesRequest{})
	equal(t, "while locked", daemontest.Reason(err), wire.VaultLocked)
	d.Unlock()
	check("after a lock", d)

	other := daemontest.Start(t)
	applyTo(t, other, &operatorv1.ApplyRequest{Document: []byte(text)})
	equal(t, "exported elsewhere", export(t, other, &operatorv1.ExportRequest{}), text)
}

// Until when rules only log is a part of a document, and no document extends it by
// being applied again.
func TestObservedPolicies(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	doc := "version: 1\npolicies: [{subject: worker, server: files, observeUntil: \"" + until.Format(time.RFC3339) + "\", rules: {limits: {max_tool_calls: 0}}}]\n"
	applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(doc)})
	equal(t, "observed until", policies(t, d, &operatorv1.ListPoliciesRequest{})["worker files"].GetObserveUntil(), until.UnixMilli())
	if text := export(t, d, &operatorv1.ExportRequest{}); !strings.Contains(text, "observeUntil: \""+until.Format(time.RFC3339)) {
		t.Errorf("exported without it:\n%s", text)
	}
	for _, doc := range []string{
		"policies: [{subject: worker, server: files, observeUntil: \"2020-01-01T00:00:00Z\"}]",
		"policies: [{subject: ghost, server: files}]",
		"policies: [{subject: worker, server: Files}]",
		"policies: [{subject: worker, server: files, rules: {security: {denied_tools: [a], require_approval: [a]}}}]",
	} {
		_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\n" + doc + "\n")})
		equal(t, doc, daemontest.Reason(err), wire.InvalidArgument)
	}
	equal(t, "after what was refused", policies(t, d, &operatorv1.ListPoliciesRequest{})["worker files"].GetObserveUntil(), until.UnixMilli())
}

// A policy of the predecessor's becomes one of ours, with what a careful reader would
// say; a refused one changes nothing.
func TestImportAgentBrake(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	const file = `{"version":"3.0","agent":{"name":"unknown-agent"},"policies":{"limits":{"max_tool_calls":7,"circuit_breaker":{}},
"security":{"granular_rules":[{"tool":"read","allow_if":{"arguments":{"path":"^/data/"}},"action":"sandbox"}]}}}`
	req := &operatorv1.ApplyRequest{Document: []byte(file), Format: "agent-brake", Subject: "worker", Server: "files", DryRun: true}
	dry := applyTo(t, d, req)
	equal(t, "policies after a dry run", len(policies(t, d, &operatorv1.ListPoliciesRequest{})), 0)
	req.DryRun = false
	done := applyTo(t, d, req)
	if diff := cmp.Diff([]string{"add policy worker files"}, summary(done)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(dry.GetWarnings(), done.GetWarnings()); diff != "" || len(done.GetWarnings()) != 3 || !strings.HasPrefix(done.GetWarnings()[1], "line 2: ") {
		t.Errorf("%q %s", done.GetWarnings(), diff)
	}
	equal(t, "imported again", len(applyTo(t, d, req).GetChanges()), 0)
	imported := policies(t, d, &operatorv1.ListPoliciesRequest{})["worker files"]
	for _, part := range []string{"max_tool_calls: 7", "counts: errors", `path: "^/data/"`} {
		if !strings.Contains(string(imported.GetRules()), part) {
			t.Errorf("the rules do not say %s:\n%s", part, imported.GetRules())
		}
	}
	seq := d.Seq()
	for name, req := range map[string]*operatorv1.ApplyRequest{
		"an unknown key":     {Document: []byte(`{"policies":{"security":{"allowed_tool":["a"]}}}`), Format: "agent-brake", Subject: "worker", Server: "files"},
		"an empty file":      {Format: "agent-brake", Subject: "worker", Server: "files"},
		"nobody":             {Document: []byte("{}"), Format: "agent-brake", Subject: "ghost", Server: "files"},
		"no server":          {Document: []byte("{}"), Format: "agent-brake", Subject: "worker"},
		"pruning":            {Document: []byte("{}"), Format: "agent-brake", Subject: "worker", Server: "files", Prune: true},
		"another format":     {Document: []byte("{}"), Format: "agent-break", Subject: "worker", Server: "files"},
		"a document of ours": {Document: []byte("version: 1\n"), Subject: "worker"},
	} {
		_, err := d.Operator().Apply(t.Context(), req)
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
	equal(t, "changes by what was refused", len(d.Since(seq, "policy.set")), 0)
	equal(t, "the version after that", policies(t, d, &operatorv1.ListPoliciesRequest{})["worker files"].GetVersion(), imported.GetVersion())
}

// A policy goes when its subject or its server goes, when it is told to, and when the
// document that declared it does not hold it any more.
func TestPoliciesGo(t *testing.T) {
	for name, tc := range map[string]struct {
		remove func(*daemontest.Daemon) error
		left   []string
	}{
		"with the subject": {func(d *daemontest.Daemon) error { d.RemoveSubject("worker"); return nil }, []string{"other files"}},
		"with the server": {func(d *daemontest.Daemon) error {
			response, err := d.Operator().RemoveServer(context.Background(), &operatorv1.RemoveServerRequest{Name: "files"})
			if response.GetPolicies() != 2 {
				t.Errorf("%d policies went with the server", response.GetPolicies())
			}
			return err
		}, []string{"worker wrapped"}},
		"alone": {func(d *daemontest.Daemon) error {
			_, err := d.Operator().ResetPolicy(context.Background(), &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "files", Remove: true})
			return err
		}, []string{"other files", "worker wrapped"}},
		"by pruning": {func(d *daemontest.Daemon) error {
			_, err := d.Operator().Apply(context.Background(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nowner: laptop\n"), Prune: true})
			return err
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.Start(t)
			applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte(guarded)})
			d.AddSubject("other")
			applyTo(t, d, &operatorv1.ApplyRequest{Document: []byte("version: 1\npolicies: [{subject: other, server: files}]\n")})
			must(t, tc.remove(d))
			check := func(what string) {
				t.Helper()
				all := policies(t, d, &operatorv1.ListPoliciesRequest{})
				for _, key := range tc.left {
					if all[key] == nil {
						t.Errorf("%s: %s is gone", what, key)
					}
				}
				equal(t, what, len(all), len(tc.left))
			}
			check("policies that are left")
			equal(t, "removals in the log", len(d.Entries("policy.remove")), 3-len(tc.left))
			d.Restart()
			check("after a restart")
		})
	}
}

func TestResetPolicyRefuses(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	for name, req := range map[string]*operatorv1.ResetPolicyRequest{
		"nothing":     {},
		"no server":   {Subject: "worker"},
		"a bad name":  {Subject: "worker", Server: "A"},
		"no policy":   {Subject: "worker", Server: "files"},
		"no removing": {Subject: "worker", Server: "files", Remove: true},
	} {
		_, err := d.Operator().ResetPolicy(t.Context(), req)
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
}

// While a tier is raised, a rule that lets more through needs an authenticated
// operator, and one that takes away does not.
func TestPoliciesNeedAuthentication(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	apply := func(doc string) error {
		_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nowner: laptop\n" + doc + "\n"), Prune: strings.HasPrefix(doc, "#")})
		return err
	}
	policy := func(rest string) string { return "policies: [{subject: worker, server: files" + rest + "}]" }
	const limited = ", rules: {limits: {max_tool_calls: 1}, security: {denied_tools: [a]}}"
	widening := map[string]string{
		"no limits":        policy(", rules: {security: {denied_tools: [a]}}"),
		"more calls":       policy(", rules: {limits: {max_tool_calls: 2}, security: {denied_tools: [a]}}"),
		"one denied less":  policy(", rules: {limits: {max_tool_calls: 1}}"),
		"only logged":      policy(", observeUntil: 2999-01-01T00:00:00Z" + limited),
		"a method":         policy(", methods: [tasks/get]" + limited),
		"less durable":     policy(", audit: grouped" + limited),
		"a server":         "servers: {files: {command: [/bin/false]}}",
		"no policy at all": "# nothing",
	}
	narrowing := []string{ // one after the other
		policy(limited),
		policy(", rules: {limits: {max_tool_calls: 1}, security: {denied_tools: [a, b]}}"),
		policy(", rules: {limits: {max_tool_calls: 1}, security: {denied_tools: [a, b], allowed_tools: [c]}}"),
		"policies: [{subject: worker, server: other, rules: {limits: {max_tool_calls: 1}}}]",
	}
	must(t, apply(policy(limited)))
	for name, doc := range widening { // the control: nothing is raised
		if err := apply(doc); err != nil {
			t.Errorf("%s, while nothing is raised: %v", name, err)
		}
		must(t, apply(policy(limited)))
	}
	_, err := d.Operator().RemoveServer(t.Context(), &operatorv1.RemoveServerRequest{Name: "files"})
	must(t, err)
	must(t, apply(policy(limited)))
	d.Authenticate()
	must(t, apply("subjects: {high: {minTier: bound}}"))
	_, err = d.Operator().CloseSession(t.Context(), &operatorv1.CloseSessionRequest{})
	must(t, err)
	for name, doc := range widening {
		if err := apply(doc); daemontest.Reason(err) != wire.AccessDenied {
			t.Errorf("%s, without a session: %v", name, err)
		}
	}
	for _, doc := range narrowing {
		if err := apply(doc); err != nil {
			t.Errorf("%s, without a session: %v", doc, err)
		}
	}
}
