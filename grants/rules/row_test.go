package rules

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRow(t *testing.T) {
	p := whole()
	row, err := Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"v":1,"subject":"worker","server":"files","audit":"strict","approvalWait":0,"methods":["a","tasks/get"],"observeUntil":"2030-06-01T12:00:00Z",` +
		`"rules":{"onViolation":"kill","limits":{"maxToolCalls":0,"maxRuntime":90000000000,"rate":{"calls":30,"window":60000000000},` +
		`"budget":{"max":5000000,"currency":"EUR","warn":500000,"perCall":10000,"toolCosts":{"ok":0}},"breaker":{"failures":5,"reset":60000000000,"counts":"transport"}},` +
		`"security":{"deniedTools":["bad","z"],"allowedTools":["ok","send"],"requireApproval":["send"],"granular":[` +
		`{"tool":"ok","allowIf":{"path":{"path":["/a","/data"]}},"denyIf":{"/o/url":{"host":["*.example.com"]}},"action":"request_approval"},` +
		`{"tool":"ok","denyIf":{"mode":{"exact":""},"name":{"oneOf":["a","b"]},"x":{"prefix":["p"]},"y":{"regex":"\u003c\u0026\u003e"}},"action":"warn"}]}},` +
		`"created":"2030-06-01T12:00:00Z","owner":"laptop"}`
	if diff := cmp.Diff(want, string(row)); diff != "" {
		t.Error(diff)
	}
	got, err := Decode(row)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Canonical(), got); diff != "" {
		t.Error(diff)
	}
	for name, raw := range map[string][]byte{
		"a space":             bytes.Replace(row, []byte(`,"server"`), []byte(`, "server"`), 1),
		"a list out of order": bytes.Replace(row, []byte(`["ok","send"]`), []byte(`["send","ok"]`), 1),
		"a key that is none":  bytes.Replace(row, []byte(`{"v":1`), []byte(`{"v":1,"w":1`), 1),
		"another version":     bytes.Replace(row, []byte(`{"v":1`), []byte(`{"v":2`), 1),
		"something after":     slices.Concat(row, []byte("{}")),
		"a key in capitals":   bytes.Replace(row, []byte(`"subject"`), []byte(`"Subject"`), 1),
		"an invalid policy":   bytes.Replace(row, []byte(`"subject":"worker"`), []byte(`"subject":""`), 1),
	} {
		if _, err := Decode(raw); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// The version is that of what judges, whatever the order of lists, and of nothing else.
func TestVersions(t *testing.T) {
	p, other := whole(), whole()
	slices.Reverse(other.Rules.Security.AllowedTools)
	slices.Reverse(other.Rules.Security.Granular[0].AllowIf["path"].Path)
	slices.Reverse(other.Methods)
	other.Owner, other.Created, other.ObserveUntil, other.ApprovalWait = "", time.Time{}, time.Time{}, time.Second
	if p.Version() != other.Version() || p.LimitsVersion() != other.LimitsVersion() {
		t.Error("another version of the same rules")
	}
	if len(p.Version()) != 16 {
		t.Error(p.Version())
	}
	other.Rules.Security.DeniedTools = nil
	if p.Version() == other.Version() || p.LimitsVersion() != other.LimitsVersion() {
		t.Error("other lists of tools are other rules, and no other limits")
	}
	other.Rules.Limits.MaxToolCalls = count(1)
	if p.LimitsVersion() == other.LimitsVersion() {
		t.Error("the same version of other limits")
	}
	c, err := Compile(p, nil)
	if err != nil || c.Version() != p.Version() || c.LimitsVersion() != p.LimitsVersion() {
		t.Errorf("compiled, it is of another version: %v", err)
	}
}

func TestWidens(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Policy)
		widens bool
	}{
		{"the same", func(*Policy) {}, false},
		{"another owner", func(p *Policy) { p.Owner = "" }, false},
		{"a longer wait", func(p *Policy) { p.ApprovalWait = time.Minute }, false},
		{"grouped", func(p *Policy) { p.Audit = Grouped }, true},
		{"one method less", func(p *Policy) { p.Methods = p.Methods[:1] }, false},
		{"another method", func(p *Policy) { p.Methods = append(p.Methods, "x") }, true},
		{"observed for longer", func(p *Policy) { p.ObserveUntil = p.ObserveUntil.Add(1) }, true},
		{"observed no more", func(p *Policy) { p.ObserveUntil = time.Time{} }, false},
		{"a weaker action", func(p *Policy) { p.Rules.OnViolation = Block }, true},
		{"limits that are stricter, under which all counts anew", func(p *Policy) { p.Rules.Limits.Rate.Calls-- }, true},
		{"one denied tool more", func(p *Policy) { p.Rules.Security.DeniedTools = append(p.Rules.Security.DeniedTools, "x") }, false},
		{"one denied tool less", func(p *Policy) { p.Rules.Security.DeniedTools = []string{"bad"} }, true},
		{"one allowed tool less", func(p *Policy) { p.Rules.Security.AllowedTools = []string{"ok"} }, false},
		{"one allowed tool more", func(p *Policy) { p.Rules.Security.AllowedTools = []string{"ok", "send", "x"} }, true},
		{"every tool", func(p *Policy) { p.Rules.Security.AllowedTools = nil }, true},
		{"no approval", func(p *Policy) { p.Rules.Security.RequireApproval = nil }, true},
		{"more approval", func(p *Policy) { p.Rules.Security.RequireApproval = []string{"ok", "send"} }, false},
		{"a rule less", func(p *Policy) { p.Rules.Security.Granular = p.Rules.Security.Granular[:1] }, true},
		{"another rule instead", func(p *Policy) { p.Rules.Security.Granular[1].Action = Block }, true},
		{"rules in another order", func(p *Policy) { slices.Reverse(p.Rules.Security.Granular) }, false},
		{"a rule more", func(p *Policy) {
			p.Rules.Security.Granular = append(p.Rules.Security.Granular, Rule{Tool: "ok", DenyIf: map[string]Matcher{"z": {Regex: "z"}}, Action: Block})
		}, false},
	} {
		now, p := whole(), whole()
		tc.change(&p)
		if got := p.Widens(&now); got != tc.widens {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.widens)
		}
	}
	bare := policy(Rules{})
	limited := whole()
	for name, tc := range map[string]struct {
		p, now *Policy
		widens bool
	}{
		"where there was none":            {&bare, nil, false},
		"methods where there was none":    {&limited, nil, true},
		"limits where there were none":    {&limited, &Policy{Audit: Strict, Methods: limited.Methods, ObserveUntil: limited.ObserveUntil, Rules: Rules{OnViolation: Warn}}, false},
		"no limits where there were some": {&bare, &limited, true},
	} {
		if got := tc.p.Widens(tc.now); got != tc.widens {
			t.Errorf("%s: %v, want %v", name, got, tc.widens)
		}
	}
}
