package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"subjectbroker/cmd/sbctl/internal/agents"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// said is what probes come to, a line each.
func said(probes []probe) string {
	var lines []string
	for _, p := range probes {
		lines = append(lines, strings.TrimSpace(p.Status+" "+p.Summary+" → "+p.Fix))
	}
	return strings.Join(lines, "\n")
}

func TestProbeServers(t *testing.T) {
	a := &app{now: func() time.Time { return time.UnixMilli(1000) }}
	fine := &operatorv1.Server{Name: "a", Hosted: true, Trusted: 1, TrustedTools: 2, Subjects: []string{"s"}}
	for name, test := range map[string]struct {
		servers []*operatorv1.Server
		want    []string // parts of what is said; one that begins with "!" is not
	}{
		"none":      {nil, []string{"ok none is behind the broker", "!warn"}},
		"fine":      {[]*operatorv1.Server{fine}, []string{"ok 1 server behind", "!warn"}},
		"not yet":   {[]*operatorv1.Server{{Name: "b", Hosted: true, Subjects: []string{"s"}}}, []string{"warn nothing of b was trusted yet", "→ sbctl server trust b"}},
		"changed":   {[]*operatorv1.Server{{Name: "b", Trusted: 1, UntrustedTools: 2, Subjects: []string{"s"}}}, []string{"2 parts new or changed, withheld", "→ sbctl server diff b"}},
		"only seen": {[]*operatorv1.Server{{Name: "b", UntrustedTools: 2}}, []string{"ok none is behind the broker", "!warn"}},
		"nobody":    {[]*operatorv1.Server{{Name: "b", Hosted: true, Trusted: 1}}, []string{"no subject may call b → sbctl grant SUBJECT 'call:b/*'"}},
		"observed":  {[]*operatorv1.Server{{Name: "b", Hosted: true, Trusted: 1, Subjects: []string{"s"}, ObserveUntil: 2000}}, []string{"only log until 1970-01-01T00:00:02"}},
		"not now":   {[]*operatorv1.Server{{Name: "b", Hosted: true, Trusted: 1, Subjects: []string{"s"}, ObserveUntil: 900}}, []string{"!only log"}},
		"killed":    {[]*operatorv1.Server{{Name: "b", Hosted: true, Trusted: 1, Subjects: []string{"s"}, Processes: []*operatorv1.ServerProcess{{Subject: "s", State: "killed", Cause: "the policy"}}}}, []string{"b of s does not run: the policy → sbctl server restart b"}},
		"does well": {[]*operatorv1.Server{{Name: "b", Hosted: true, Trusted: 1, Subjects: []string{"s"}, Processes: []*operatorv1.ServerProcess{{Subject: "s", State: "running"}}}}, []string{"!warn"}},
	} {
		got := said(a.judgeServersTrust(test.servers))
		for _, want := range test.want {
			absent, isAbsent := strings.CutPrefix(want, "!")
			if isAbsent == strings.Contains(got, absent) {
				t.Errorf("%s: %q:\n%s", name, want, got)
			}
		}
	}
}

func TestProbePolicies(t *testing.T) {
	servers := []*operatorv1.Server{{Name: "a", Subjects: []string{"s"}, Hosted: true}}
	for name, test := range map[string]struct {
		policies []*operatorv1.Policy
		want     string
	}{
		"none":             {nil, "ok there is none"},
		"used":             {[]*operatorv1.Policy{{Subject: "s", Server: "a"}}, "ok 1 policy,"},
		"unused":           {[]*operatorv1.Policy{{Subject: "t", Server: "a"}}, "the policy of t around a does nothing: the subject may not call it → sbctl policy rm t a"},
		"of no server":     {[]*operatorv1.Policy{{Subject: "s", Server: "b"}}, "around b does nothing"},
		"stopped":          {[]*operatorv1.Policy{{Subject: "s", Server: "a", Meters: []*operatorv1.PolicyMeter{{Killed: true, OpenBreakers: []string{"x"}}}}}, "stops calls: killed, breaker open: x → sbctl server restart a --subject s"},
		"stopped, wrapped": {[]*operatorv1.Policy{{Subject: "s", Server: "b", Meters: []*operatorv1.PolicyMeter{{Killed: true}}}}, "stops calls: killed → sbctl policy reset s b"},
		"rests":            {[]*operatorv1.Policy{{Subject: "s", Server: "a", Meters: []*operatorv1.PolicyMeter{{OpenBreakers: []string{"x"}}}}}, "stops calls: breaker open: x → sbctl policy show s a"},
	} {
		if got := said(judgePolicies(servers, test.policies)); !strings.Contains(got, test.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestProbeBypass(t *testing.T) {
	const shim = `"sb": {"command": "/o/sb-mcp", "args": ["--subject", "s"]}`
	for name, test := range map[string]struct{ servers, want string }{
		"beside it":    {shim + `, "x": {"command": "x"}, "y": {"url": "https://y"}`, "starts x, y beside sb-mcp: what s does there is judged and recorded by nobody → sbctl import"},
		"not to host":  {shim + `, "x": {"type": "sse", "url": "https://x"}`, "recorded by nobody; the agent alone can run it, and may do so behind sb-mcp wrap where it is a command"},
		"alone":        {shim, ""},
		"no shim":      {`"x": {"command": "x"}`, ""},
		"switched off": {shim + `, "x": {"command": "x", "disabled": true}`, ""},
		"wrapped":      {shim + `, "x": {"command": "/o/sb-mcp", "args": ["wrap", "--subject", "s", "--", "x"]}`, ""},
	} {
		path := filepath.Join(t.TempDir(), "mcp.json")
		if err := os.WriteFile(path, []byte(`{"mcpServers": {`+test.servers+`}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := agents.OpenFile(path, false)
		if err != nil {
			t.Fatal(err)
		}
		servers, err := agents.ReadServers(file)
		if err != nil {
			t.Fatal(err)
		}
		p, found := judgeBypass(path, servers)
		if got := said([]probe{p}); found != (test.want != "") || found && !strings.Contains(got, test.want) || strings.Contains(got, "wrap") && p.Fix != "" {
			t.Errorf("%s: %v %s", name, found, got)
		}
	}
}
