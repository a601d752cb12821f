package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"subjectbroker/grants/rules"
	"subjectbroker/proto/links"
)

// A rule about a path judges where it leads.
func TestRulesFollowLinks(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("data/sub"), 0o700), os.MkdirAll(at("etc/deep"), 0o700), os.WriteFile(at("etc/passwd"), nil, 0o600),
		os.Symlink("../etc", at("data/link")), os.Symlink("loop", at("data/loop")), os.Symlink(at("etc/deep"), at("data/deep")),
		os.Symlink(at("nowhere"), at("data/dangling")), os.Symlink("/proc/self/cwd", at("data/here")), os.Symlink("data/here", at("other")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	judge := func(value string, r rules.Rule) rules.Outcome {
		p := rules.Policy{Subject: "w", Server: "s", Audit: rules.Strict, Rules: rules.Rules{OnViolation: rules.Block, Security: rules.Security{Granular: []rules.Rule{r}}}}
		c, err := rules.Compile(p, links.Resolve)
		if err != nil {
			t.Fatal(err)
		}
		args, err := rules.ParseArgs([]byte(`{"path":"` + value + `"}`))
		if err != nil {
			t.Fatal(err)
		}
		return c.Judge(&rules.Meter{}, rules.Call{Tool: "t", Args: args}).Outcome
	}
	allow := rules.Rule{Tool: "t", AllowIf: map[string]rules.Matcher{"path": {Path: []string{at("data")}}}, Action: rules.Block}
	deny := rules.Rule{Tool: "t", DenyIf: map[string]rules.Matcher{"path": {Path: []string{at("etc")}}}, Action: rules.Block}
	for _, own := range []string{"/proc/self/cwd/etc/x", "/proc/1/root/x", "/dev/fd/3", "/proc/../proc/thread-self/root/x"} {
		if got := judge(own, deny); got != rules.Blocked {
			t.Errorf("%s, denied below etc: %v", own, got)
		}
	}
	for name, want := range map[string][2]rules.Outcome{ // by allow, by deny
		"data/sub/x":       {rules.Forwarded, rules.Forwarded},
		"data/../etc/x":    {rules.Blocked, rules.Blocked},
		"data/link/x":      {rules.Blocked, rules.Blocked},
		"data/dangling":    {rules.Blocked, rules.Forwarded},
		"data/loop/x":      {rules.Blocked, rules.Blocked},
		"new/../data/x":    {rules.Forwarded, rules.Forwarded},
		"data/link/../etc": {rules.Blocked, rules.Blocked},
		"data/here/etc/x":  {rules.Blocked, rules.Blocked},
	} {
		if got := judge(base+"/"+name, allow); got != want[0] {
			t.Errorf("%s, allowed below data: %v, want %v", name, got, want[0])
		}
		if got := judge(base+"/"+name, deny); got != want[1] {
			t.Errorf("%s, denied below etc: %v, want %v", name, got, want[1])
		}
	}
}
