package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What doctor finds around the servers of others.

// probeServers looks at servers behind the broker, the policies around them, and at
// whether somebody can answer where a person is asked.
func (a *app) probeServers(ctx context.Context, s *operatorv1.StatusResponse) []probe {
	const doing = "looking at servers"
	servers, err := a.servers(ctx, doing)
	if err != nil {
		return []probe{{"servers", probeWarn, oneLine(err.Error()), "sbctl server list"}}
	}
	policies, err := a.policies(ctx, doing, "", "")
	if err != nil {
		return []probe{{"policies", probeWarn, oneLine(err.Error()), "sbctl policy list"}}
	}
	probes := append(a.judgeServersTrust(servers), judgePolicies(servers, policies)...)
	if p, found := a.probeGates(ctx, s, policies); found {
		probes = append(probes, p)
	}
	return probes
}

// judgeServersTrust says what of servers is withheld, and what stopped.
func (a *app) judgeServersTrust(servers []*operatorv1.Server) []probe {
	var probes []probe
	hosting := 0
	for _, s := range servers {
		if s.GetHosted() {
			hosting++
		}
		name := s.GetName()
		switch {
		case s.GetHosted() && s.GetTrusted() == 0:
			probes = append(probes, probe{"servers", probeWarn, "nothing of " + name + " was trusted yet: agents see none of its tools", fmt.Sprintf("sbctl server trust %s", name)})
		case s.GetTrusted() > 0 && s.GetUntrustedTools() > 0:
			probes = append(probes, probe{"servers", probeWarn,
				fmt.Sprintf("%s is not as it was trusted: %s withheld from agents", name, count(s.GetUntrustedTools(), "part")+" new or changed,"), fmt.Sprintf("sbctl server diff %s", name)})
		}
		if s.GetHosted() && len(s.GetSubjects()) == 0 {
			probes = append(probes, probe{"servers", probeWarn, "no subject may call " + name, fmt.Sprintf("sbctl grant SUBJECT %s", shellQuote("call:"+name+"/*"))})
		}
		if s.GetObserveUntil() > a.now().UnixMilli() {
			probes = append(probes, probe{"servers", probeWarn, "the rules around " + name + " only log until " + ui.Stamp(s.GetObserveUntil()), fmt.Sprintf("sbctl policy list --server %s", name)})
		}
		for _, p := range s.GetProcesses() {
			if p.GetState() == "killed" || p.GetState() == "waiting" {
				probes = append(probes, probe{"servers", probeWarn,
					fmt.Sprintf("%s of %s does not run: %s", name, orWord(p.GetSubject(), "nobody"), orWord(p.GetCause(), p.GetState())), fmt.Sprintf("sbctl server restart %s", name)})
			}
		}
	}
	if len(probes) == 0 {
		if hosting == 0 {
			return []probe{passed("servers", "none is behind the broker")}
		}
		return []probe{passed("servers", "%s behind the broker, as trusted as far as they were seen", count(hosting, "server"))}
	}
	return probes
}

// judgePolicies finds policies around what their subjects may not call.
func judgePolicies(servers []*operatorv1.Server, policies []*operatorv1.Policy) []probe {
	var probes []probe
	for _, p := range policies {
		if !callsServer(servers, p.GetSubject(), p.GetServer()) {
			probes = append(probes, probe{"policies", probeWarn,
				fmt.Sprintf("the policy of %s around %s does nothing: the subject may not call it", p.GetSubject(), p.GetServer()),
				"sbctl policy rm " + shellQuote(p.GetSubject()) + " " + p.GetServer()})
		}
		if states := meterStates(p); states != "" {
			probes = append(probes, probe{"policies", probeWarn,
				fmt.Sprintf("the policy of %s around %s stops calls: %s", p.GetSubject(), p.GetServer(), states),
				liftOf(servers, p)})
		}
	}
	switch {
	case len(policies) == 0:
		return []probe{passed("policies", "there is none: calls have no limits but their grants")}
	case len(probes) == 0:
		return []probe{passed("policies", "%s, each around what its subject may call", count(len(policies), "policy"))}
	}
	return probes
}

// liftOf is the command that ends what a policy has stopped, or shows it where only
// time does.
func liftOf(servers []*operatorv1.Server, p *operatorv1.Policy) string {
	subject, server := shellQuote(p.GetSubject()), p.GetServer()
	if !slices.ContainsFunc(p.GetMeters(), (*operatorv1.PolicyMeter).GetKilled) {
		return fmt.Sprintf("sbctl policy show %s %s", subject, server)
	}
	for _, s := range servers {
		if s.GetName() == server && s.GetHosted() {
			return fmt.Sprintf("sbctl server restart %s --subject %s", server, subject)
		}
	}
	return fmt.Sprintf("sbctl policy reset %s %s", subject, server)
}

// probeGates says whether anybody can answer where a person is asked.
func (a *app) probeGates(ctx context.Context, s *operatorv1.StatusResponse, policies []*operatorv1.Policy) (p probe, found bool) {
	gated := a.gated(ctx, policies)
	switch {
	case len(gated) == 0:
		return probe{}, false
	case s.GetApprovable():
		return passed("approvals", "%s can be answered (%s)", count(len(gated), "thing")+" that a person approves", listed(gated)), true
	}
	return probe{"approvals", probeFail,
		"nobody can approve, as no passphrase is set and there is no other operator: denied is what wants a person, " + listed(gated), "sbctl operator set-passphrase"}, true
}

// listed names a few of many.
func listed(all []string) string {
	words := strings.Join(all[:min(len(all), mostTokens)], ", ")
	if more := len(all) - mostTokens; more > 0 {
		words += fmt.Sprintf(" and %d more", more)
	}
	return words
}

// gated is where a person is asked: by a grant, a tool, a profile, or a policy.
func (a *app) gated(ctx context.Context, policies []*operatorv1.Policy) []string {
	var all []string
	got, _ := call(ctx, a, "", &operatorv1.ListGrantsRequest{}, operatorv1.OperatorServiceClient.ListGrants)
	for _, g := range got.GetGrants() {
		if g.GetRequireApproval() {
			all = append(all, "the grant "+g.GetGrantId()+" of "+g.GetSubject())
		}
	}
	for _, p := range policies {
		if rules := string(p.GetRules()); strings.Contains(rules, "require_approval:") || strings.Contains(rules, "request_approval") {
			all = append(all, "the policy of "+p.GetSubject()+" around "+p.GetServer())
		}
	}
	exported, err := call(ctx, a, "", &operatorv1.ExportRequest{}, operatorv1.OperatorServiceClient.Export)
	if err != nil {
		return all
	}
	document, err := policy.Parse(exported.GetDocument(), policy.Env{})
	if err != nil {
		return all
	}
	var declared []string
	for name, tool := range document.Tools {
		if tool.Gate || tool.Approval {
			declared = append(declared, "the tool "+name)
		}
	}
	for name, profile := range document.Profiles {
		if profile.Approval.String() == "always" {
			declared = append(declared, "the profile "+name)
		}
	}
	slices.Sort(declared)
	return append(all, declared...)
}

// probeBypass finds configurations that start sb-mcp for a subject and other servers
// directly: what the agent does through those is judged by nobody.
func (a *app) probeBypass() []probe {
	config, err := a.agentConfig(string(agents.Claude), "", "")
	if err != nil {
		return nil // said elsewhere
	}
	files, err := agents.KnownFiles(config)
	if err != nil {
		return nil
	}
	var probes []probe
	for _, path := range files {
		file, err := agents.OpenFile(path, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			continue // said with the tokens
		}
		servers, err := agents.ReadServers(file)
		file.Wipe()
		if err != nil {
			continue
		}
		if p, found := judgeBypass(path, servers); found {
			probes = append(probes, p)
		}
	}
	return probes
}

func judgeBypass(path string, servers *agents.Servers) (p probe, found bool) {
	subject, hostable := "", false
	var direct []string
	for _, s := range servers.List {
		switch {
		case s.Off:
		case s.Shim():
			subject = orWord(subject, s.Subject)
		case wrapped(s.Command):
		case !slices.Contains(direct, s.Name):
			direct = append(direct, ui.Safe(s.Name))
			hostable = hostable || s.Why == ""
		}
	}
	if subject == "" || len(direct) == 0 {
		return probe{}, false
	}
	p = probe{"bypass", probeWarn, fmt.Sprintf("%s starts %s beside sb-mcp: what %s does there is judged and recorded by nobody", path, listed(direct), subject), ""}
	if hostable {
		p.Fix = "sbctl import mcp-config " + shellQuote(path) + " --host --rewrite --subject " + shellQuote(subject)
	} else {
		p.Summary += "; the agent alone can run it, and may do so behind sb-mcp wrap where it is a command"
	}
	return p, true
}

// wrapped says whether a command is that of "sb-mcp wrap".
func wrapped(command []string) bool {
	return len(command) > 1 && strings.HasSuffix("/"+command[0], "/sb-mcp") && command[1] == "wrap"
}
