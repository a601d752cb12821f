package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What doctor finds in the configurations of agents.

// probeAgents looks at the configurations of the agents that are known.
func (a *app) probeAgents(ctx context.Context) []probe {
	found, err := a.agents(ctx, "looking at agents")
	if err != nil {
		return []probe{{"agents", probeWarn, err.Error(), ""}}
	}
	var probes []probe
	connected := 0
	for _, l := range found {
		if l.Connected {
			connected++
		}
		problems := slices.DeleteFunc(slices.Clone(l.Warnings), func(w string) bool { return w == agents.SeesSeveral })
		if l.Problem != "" {
			problems = append([]string{l.Problem}, problems...)
		}
		if len(problems) > 0 {
			probes = append(probes, probe{"agents", probeWarn, fmt.Sprintf("%s (%s): %s", l.Agent, l.File, strings.Join(problems, "; ")), "sbctl connect --list"})
		}
	}
	if connected == 0 {
		probes = append(probes, passed("agents", "no agent's configuration here names the broker"))
	} else {
		probes = append(probes, passed("agents", "connected by %s", count(connected, "entry")))
	}
	return slices.Concat(probes, a.probeContexts(ctx, found), a.probeBypass(), a.probeTokens())
}

// mostProjects bounds the projects whose contexts are looked at.
const mostProjects = 50

// probeContexts finds agents that see more than one subject, here or in another
// project. Nothing keeps what an agent reads as one of them from what it does as
// the other.
func (a *app) probeContexts(ctx context.Context, here []agents.Listing) []probe {
	var probes []probe
	for _, agent := range agents.All() {
		if p, found := judgeContext(inForce(here, agent), agent, ""); found {
			probes = append(probes, p)
		}
	}
	config, err := a.agentConfig(string(agents.Claude), "", "")
	if err != nil {
		return append(probes, probe{"contexts", probeWarn, err.Error(), ""})
	}
	projects, err := agents.Projects(config)
	if err != nil {
		return append(probes, probe{"contexts", probeWarn, err.Error(), ""})
	}
	working := config.ProjectDir
	for _, dir := range projects[:min(len(projects), mostProjects)] {
		if dir == working || !filepath.IsAbs(dir) {
			continue
		}
		config.ProjectDir = dir
		there, err := agents.List(ctx, config)
		if err != nil {
			continue
		}
		if p, found := judgeContext(inForce(there, agents.Claude), agents.Claude, dir); found {
			probes = append(probes, p)
		}
	}
	if len(probes) == 0 {
		probes = append(probes, passed("contexts", "no agent's configuration sees more than one subject"))
	}
	return probes
}

// judgeContext says what the entries that one agent starts, in one directory,
// come to. dir is empty for the working directory.
func judgeContext(entries []agents.Listing, agent agents.Agent, dir string) (p probe, found bool) {
	var subjects, places []string
	fix := ""
	for _, l := range entries {
		if slices.Contains(subjects, l.Subject) {
			continue
		}
		subjects = append(subjects, l.Subject)
		places = append(places, fmt.Sprintf("%s (%s)", l.Subject, l.File))
		switch l.Scope {
		case agents.User:
			fix = "sbctl disconnect " + string(agent) + " --subject " + shellQuote(l.Subject)
		case agents.Project:
			fix = "sbctl disconnect " + string(agent) + " --subject " + shellQuote(l.Subject) + " --scope project"
		}
	}
	if len(subjects) < 2 {
		return probe{}, false
	}
	where := ""
	if dir != "" {
		where = "in " + dir + " "
		if strings.HasSuffix(fix, " --scope project") {
			fix = "" // it would have to be given there
		}
	}
	return probe{"contexts", probeWarn, fmt.Sprintf("%s%s sees %s: %s", where, agent.Title(), strings.Join(places, " and "), unionWords(subjects)), fix}, true
}

// unionWords says what several subjects in one place come to.
func unionWords(subjects []string) string {
	return fmt.Sprintf("its effective authority is the union of %s, as what it reads as one it can use as another", strings.Join(subjects, " and "))
}

// inForce are the entries that an agent really starts here: of those with one
// name the nearest one wins.
func inForce(found []agents.Listing, agent agents.Agent) []agents.Listing {
	rank := func(l agents.Listing) int {
		switch l.Scope {
		case agents.User:
			return 0
		case agents.Project:
			return 1
		}
		return 2
	}
	best := map[string]agents.Listing{}
	for _, l := range found {
		if l.Agent != agent || l.Name == "" {
			continue
		}
		if have, taken := best[l.Name]; !taken || rank(l) > rank(have) {
			best[l.Name] = l
		}
	}
	var entries []agents.Listing
	for _, l := range found {
		if l.Agent == agent && l.Connected && best[l.Name].File == l.File && best[l.Name].Scope == l.Scope {
			entries = append(entries, l)
		}
	}
	return entries
}

// mostTokens is how many settings one line names.
const mostTokens = 6

// probeTokens looks for tokens that stand in configurations in clear.
func (a *app) probeTokens() []probe {
	config, err := a.agentConfig(string(agents.Claude), "", "")
	if err != nil {
		return []probe{{"tokens", probeWarn, err.Error(), ""}}
	}
	files, err := agents.KnownFiles(config)
	if err != nil {
		return []probe{{"tokens", probeWarn, err.Error(), ""}}
	}
	var probes []probe
	looked := 0
	for _, path := range files {
		file, err := agents.OpenFile(path, false)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var found *agents.Settings
		if err == nil {
			found, err = agents.ReadSettings(file)
			file.Wipe()
		}
		if err != nil {
			probes = append(probes, probe{"tokens", probeWarn, "not looked at: " + oneLine(err.Error()), ""})
			continue
		}
		found.Wipe()
		looked++
		if p, any := judgeTokens(path, found); any {
			probes = append(probes, p)
		}
	}
	if len(probes) == 0 {
		return []probe{passed("tokens", "none stands in clear in %s of agents, as far as names and shapes tell", count(looked, "configuration"))}
	}
	return probes
}

func judgeTokens(path string, found *agents.Settings) (p probe, any bool) {
	var names []string
	for _, s := range found.Settings {
		if s.Token {
			names = append(names, s.Place())
		}
	}
	sealable := len(names)
	for _, s := range found.Strays {
		names = append(names, s.Server+" "+s.Place)
	}
	if len(names) == 0 {
		return probe{}, false
	}
	listed := strings.Join(names[:min(len(names), mostTokens)], ", ")
	if more := len(names) - mostTokens; more > 0 {
		listed += fmt.Sprintf(" and %d more", more)
	}
	p = probe{"tokens", probeWarn, fmt.Sprintf("%s has %s in clear: %s", path, count(len(names), "token"), listed), ""}
	if sealable > 0 {
		p.Fix = "sbctl import mcp-config " + shellQuote(path) + " --rewrite"
	}
	if strays := len(found.Strays); strays > 0 {
		p.Summary += "; those in arguments and addresses are yours to move"
	}
	return p, true
}

// probeParents finds processes that started shims of more than one subject: what
// the configuration of no known agent shows.
func probeParents(runs []*operatorv1.Run, parent func(pid int32) (pid2 int, name string)) []probe {
	type parentOfShims struct {
		name     string
		subjects []string
	}
	contexts := map[int]*parentOfShims{}
	var order []int
	for _, r := range runs {
		pid, name := parent(r.GetPid())
		if pid <= 1 || r.GetLaunchId() != "" {
			continue
		}
		c := contexts[pid]
		if c == nil {
			c = &parentOfShims{name: name}
			contexts[pid] = c
			order = append(order, pid)
		}
		if !slices.Contains(c.subjects, r.GetSubject()) {
			c.subjects = append(c.subjects, r.GetSubject())
		}
	}
	var probes []probe
	for _, pid := range order {
		if c := contexts[pid]; len(c.subjects) > 1 {
			probes = append(probes, probe{"contexts", probeWarn, fmt.Sprintf("process %d (%s) started shims of %s: %s", pid, c.name, strings.Join(c.subjects, " and "), unionWords(c.subjects)), "sbctl runs"})
		}
	}
	return probes
}

// parentOf is the process that started pid, and its name; 0 where that cannot be
// told.
func parentOf(pid int32) (parent int, name string) {
	status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	if err != nil {
		return 0, ""
	}
	for line := range strings.Lines(string(status)) {
		if number, found := strings.CutPrefix(line, "PPid:"); found {
			if _, err := fmt.Sscan(number, &parent); err != nil {
				return 0, ""
			}
		}
	}
	comm, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(parent), "comm"))
	if err != nil {
		return 0, ""
	}
	return parent, strings.TrimSpace(string(comm))
}
