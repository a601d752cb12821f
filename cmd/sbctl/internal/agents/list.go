package agents

import (
	"context"
	"fmt"
	"os"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
)

// Listing is one entry that starts the shim, or an agent that has none.
type Listing struct {
	Agent     Agent    `json:"agent"`
	Scope     Scope    `json:"scope"`
	File      string   `json:"file"` // where it stands, or would be written
	Exists    bool     `json:"exists"`
	Connected bool     `json:"connected"`
	Name      string   `json:"name,omitempty"`
	Subject   string   `json:"subject,omitempty"`
	Wraps     string   `json:"wraps,omitempty"` // the server that this entry has sb-mcp wrap; "": it is the broker's own
	Shim      string   `json:"shim,omitempty"`
	Home      string   `json:"home,omitempty"`    // "": the default
	Problem   string   `json:"problem,omitempty"` // the file cannot be read: what is wrong with it
	Warnings  []string `json:"warnings,omitempty"`
}

// SeesSeveral is the warning of an entry whose agent has entries of more than
// one subject.
const SeesSeveral = "this agent sees more than one subject"

// List shows every known agent: one line for each entry that starts the shim,
// whoever wrote it, or one line saying that there is none. Of cfg it uses
// UserHome, ProjectDir and Getenv. A file that cannot be read is a line with a
// Problem, not an error.
func List(_ context.Context, cfg Config) ([]Listing, error) {
	var all []Listing
	for _, agent := range All() {
		cfg.Agent, cfg.Subject, cfg.Scope = agent, "", User
		s, err := cfg.settle(false)
		if err != nil {
			return nil, err
		}
		seen := s.look()
		subjects := map[string]bool{}
		for _, l := range seen {
			if l.Subject != "" {
				subjects[l.Subject] = true
			}
		}
		for i := range seen {
			if seen[i].Connected && len(subjects) > 1 {
				seen[i].Warnings = append(seen[i].Warnings, SeesSeveral)
			}
		}
		all = append(all, seen...)
	}
	return all, nil
}

// Projects are the directories for which Claude Code keeps servers in the user's
// own configuration, in its order. Of cfg it uses UserHome and Getenv. A file
// that cannot be read has none: List says what is wrong with it.
func Projects(cfg Config) ([]string, error) {
	cfg.Agent, cfg.Subject, cfg.Scope = Claude, "", User
	s, err := cfg.settle(false)
	if err != nil {
		return nil, err
	}
	f, err := openFile(s.file())
	if err != nil || f.before == nil {
		return nil, nil
	}
	root, err := jsonedit.Parse(f.before, claudeCodec.dialect)
	if err != nil {
		return nil, nil
	}
	var dirs []string
	if projects := root.Member("projects"); projects != nil {
		for i := range projects.Value.Members {
			project := &projects.Value.Members[i]
			if servers := project.Value.Member("mcpServers"); servers != nil && len(servers.Value.Members) > 0 {
				dirs = append(dirs, project.Key)
			}
		}
	}
	return dirs, nil
}

// look lists one agent, in both scopes.
func (s *setup) look() []Listing {
	var all []Listing
	for _, scope := range []Scope{User, Project} {
		if scope == Project && s.ProjectDir == "" {
			continue
		}
		path := s.spec.file(scope, s.UserHome, s.ProjectDir, s.getenv)
		blank := Listing{Agent: s.Agent, Scope: scope, File: path}
		entries, exists, err := s.read(path)
		blank.Exists = exists
		if err != nil {
			blank.Problem = err.Error()
		}
		found := 0
		for _, e := range entries {
			if !e.shim() {
				continue
			}
			found++
			line := blank
			line.Connected, line.Name, line.Subject, line.Wraps = !e.off, e.name, e.subject(), e.wraps()
			line.Shim, line.Home = e.command.program, e.command.option("home")
			if e.place != "" {
				line.Scope = Scope(e.place)
			}
			if e.off {
				line.Warnings = append(line.Warnings, "switched off in the agent's configuration")
			}
			if problem := shimProblem(e.command.program); problem != "" {
				line.Warnings = append(line.Warnings, problem)
			}
			all = append(all, line)
		}
		// A project without an entry is the usual case and not worth a line.
		if found == 0 && (scope == User || blank.Problem != "") {
			all = append(all, blank)
		}
	}
	return all
}

func (s *setup) read(path string) (entries []entry, exists bool, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, true, err
	}
	doc, err := s.spec.parse(f.path, f.before, s.ProjectDir)
	if err != nil {
		return nil, true, err
	}
	return doc.entries(), f.before != nil, nil
}

// shimProblem says why a program cannot be started, "" if it can.
func shimProblem(program string) string {
	info, err := os.Stat(program)
	switch {
	case err != nil:
		return fmt.Sprintf("%s does not exist", program)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fmt.Sprintf("%s is not a program", program)
	}
	return ""
}

// warnings are what the operator should know about the entry called name.
func (s *setup) warnings(name string) []string {
	var all []string
	if problem := shimProblem(s.Shim); problem != "" {
		all = append(all, problem)
	}
	if note := s.spec.notes[s.scope]; note != "" {
		all = append(all, note)
	}
	mine := s.file()
	for _, other := range s.look() {
		if !other.Connected || other.Subject == s.Subject {
			continue
		}
		replaced := other.Name == name && (other.File != mine || string(other.Scope) != string(s.scope))
		switch {
		case replaced && (other.Scope == User):
			all = append(all, fmt.Sprintf("in this project, the entry takes the place of the one for subject %q in %s", other.Subject, other.File))
		case replaced:
			all = append(all, fmt.Sprintf("in this project, the entry for subject %q in %s takes its place", other.Subject, other.File))
		default:
			all = append(all, fmt.Sprintf("%s would see two subjects: the entry %q in %s is for %q", s.spec.title, other.Name, other.File, other.Subject))
		}
	}
	return all
}
