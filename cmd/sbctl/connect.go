package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type connectCmd struct {
	Agent   string `arg:"" optional:"" enum:",claude,codex,gemini,opencode" default:"" help:"claude, codex, gemini or opencode."`
	Subject string `placeholder:"S" help:"Subject that the agent is; created when it does not exist. Default: the agent's name."`
	Scope   string `enum:"user,project" default:"user" placeholder:"user|project" help:"Where: for you everywhere (default), or in this directory."`
	Print   bool   `xor:"how" help:"Print what would be written, and write nothing."`
	List    bool   `xor:"how" help:"List what is connected."`
}

// Help is the manual of connect.
func (connectCmd) Help() string {
	return `Writes one entry into the agent's own configuration and touches nothing else:
the absolute path of sb-mcp, the subject, and the home when it is not the
default. Shows the difference, and ends with "sb-mcp check". Doing it again
changes nothing.

--list shows each entry that starts sb-mcp; one that wraps a server of the agent's
own says so under CONNECTED, and "disconnect" leaves it.

--print and --list need no daemon.

Examples:
  sbctl connect claude --subject worker
  sbctl connect codex --print
  sbctl connect --list`
}

type connectView struct {
	Agent     string   `json:"agent"`
	Scope     string   `json:"scope"`
	File      string   `json:"file"`
	Names     []string `json:"names"`
	SubjectID string   `json:"subjectId,omitempty"`
	Changed   bool     `json:"changed"`
	Diff      string   `json:"diff"`
	Snippet   string   `json:"snippet,omitempty"`
	Warnings  []string `json:"warnings"`
}

// Run connects an agent.
func (c connectCmd) Run(ctx context.Context, a *app) error {
	if c.List {
		return a.listAgents(ctx)
	}
	const doing = "connecting"
	if c.Agent == "" {
		return refuse(doing, "say which agent: claude, codex, gemini or opencode").withHint("sbctl connect --list")
	}
	if c.Subject == "" {
		c.Subject = c.Agent
	}
	config, err := a.agentConfig(c.Agent, c.Subject, c.Scope)
	if err != nil {
		return err
	}
	if config.Shim, err = sibling("sb-mcp"); err != nil {
		return fail(err, doing)
	}
	config.DryRun = true
	planned, err := agents.Connect(ctx, config)
	if err != nil {
		return agentFailure(err, "connecting "+c.Agent)
	}
	if c.Print {
		return a.printSnippet(planned)
	}
	if err := a.ensureSubject(ctx, c.Subject); err != nil {
		return err
	}
	config.DryRun = false
	done, err := agents.Connect(ctx, config)
	if err != nil {
		return agentFailure(err, "connecting "+c.Agent)
	}
	if err := a.printConnection(done); err != nil {
		return err
	}
	return a.checkShim(ctx, config)
}

// printSnippet prints what a person can paste.
func (a *app) printSnippet(planned agents.Result) error {
	for _, warning := range planned.Warnings {
		a.say("warning: %s", warning)
	}
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{ID: planned.File, Value: viewConnection(planned)})
	}
	a.done("for %s:", planned.File)
	_, err := fmt.Fprint(a.stdout, planned.Snippet)
	return err
}

func (a *app) printConnection(done agents.Result) error {
	for _, warning := range done.Warnings {
		a.say("warning: %s", warning)
	}
	if a.out.Format == ui.JSON || a.out.Quiet {
		return a.out.Object(ui.Object{ID: done.File, Value: viewConnection(done)})
	}
	if !done.Changed {
		a.done("%s says so already", done.File)
	}
	_, err := fmt.Fprint(a.stdout, ui.SafeText(done.Diff))
	return err
}

func viewConnection(r agents.Result) connectView {
	return connectView{
		Agent: string(r.Agent), Scope: string(r.Scope), File: r.File, Names: append([]string{}, r.Names...), SubjectID: r.Subject,
		Changed: r.Changed, Diff: r.Diff, Snippet: r.Snippet, Warnings: append([]string{}, r.Warnings...),
	}
}

// ensureSubject creates the subject when it does not exist.
func (a *app) ensureSubject(ctx context.Context, name string) error {
	doing := "adding subject " + name
	subjects, err := a.subjects(ctx, doing)
	if err != nil {
		return err
	}
	for _, s := range subjects {
		if s.GetName() == name {
			return nil
		}
	}
	if _, err := call(ctx, a, doing, &operatorv1.AddSubjectRequest{Name: name}, operatorv1.OperatorServiceClient.AddSubject); err != nil {
		return err
	}
	a.done("subject %s added: it may read nothing yet", name)
	return nil
}

// checkShim starts the shim as the agent will, to see that it connects.
func (a *app) checkShim(ctx context.Context, config agents.Config) error {
	check := exec.CommandContext(ctx, config.Shim, append([]string{"check"}, agents.ShimArgs(config)...)...)
	check.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + config.UserHome} // what the strictest agent leaves
	var said bytes.Buffer
	check.Stdout, check.Stderr = &said, &said
	err := check.Run()
	for line := range strings.Lines(said.String()) {
		a.done("%s", strings.TrimRight(line, "\n"))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		last := strings.TrimSpace(said.String())
		return &failure{code: wire.BrokerUnavailable, doing: "checking the connection", what: oneLine(last), hint: "sbctl doctor", exit: exit.ExitCode(), cause: err}
	}
	return fail(err, "checking the connection")
}

// agentConfig says whom and what is meant.
func (a *app) agentConfig(agent, subject, scope string) (agents.Config, error) {
	places, err := a.places()
	if err != nil {
		return agents.Config{}, err
	}
	known, err := agents.ParseAgent(agent)
	if err != nil {
		return agents.Config{}, refuse("finding the agent", "%v", err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return agents.Config{}, fail(err, "finding your home directory")
	}
	here, err := os.Getwd()
	if err != nil {
		return agents.Config{}, fail(err, "finding the working directory")
	}
	return agents.Config{
		Agent: known, Subject: subject, Scope: agents.Scope(scope), Home: places.Home, SocketDir: places.SocketDir,
		UserHome: home, ProjectDir: here, Getenv: os.Getenv,
	}, nil
}

// agentFailure is an error of the agents' configurations as the operator sees it.
func agentFailure(err error, doing string) error {
	failed := &failure{code: wire.InternalError, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
	for _, refused := range []error{agents.ErrInvalid, agents.ErrConflict, agents.ErrNotFound, agents.ErrUnsafe} {
		if errors.Is(err, refused) {
			failed.code, failed.exit = wire.InvalidArgument, wire.ExitUsage
		}
	}
	if errors.Is(err, agents.ErrNotFound) {
		failed.hint = "sbctl connect --list"
	}
	return failed
}

// sibling is the absolute path of another of our programs, beside this one.
func sibling(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", name, err)
	}
	path := filepath.Join(filepath.Dir(self), name)
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return path, nil
	}
	// Where this is a link, the programs may lie beside what it points to.
	if real, err := filepath.EvalSymlinks(self); err == nil {
		path = filepath.Join(filepath.Dir(real), name)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("finding %s: it is not beside %s", name, self)
	}
	return path, nil
}

type agentView struct {
	Agent     string   `json:"agent"`
	Scope     string   `json:"scope"`
	File      string   `json:"file"`
	Exists    bool     `json:"exists"`
	Connected bool     `json:"connected"`
	Name      string   `json:"name,omitempty"`
	SubjectID string   `json:"subjectId,omitempty"`
	Wraps     string   `json:"wraps,omitempty"` // the server that the entry wraps
	Shim      string   `json:"shim,omitempty"`
	Home      string   `json:"home,omitempty"`
	Problem   string   `json:"problem,omitempty"`
	Warnings  []string `json:"warnings"`
}

func (a *app) listAgents(ctx context.Context) error {
	const doing = "listing agents"
	found, err := a.agents(ctx, doing)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"AGENT", "SCOPE", "CONNECTED", "SUBJECT", "ENTRY", "FILE", "PROBLEM"}}
	views := make([]agentView, 0, len(found))
	for _, l := range found {
		views = append(views, agentView{
			string(l.Agent), string(l.Scope), l.File, l.Exists, l.Connected, l.Name, l.Subject, l.Wraps, l.Shim, l.Home, l.Problem, append([]string{}, l.Warnings...),
		})
		problem := l.Problem
		if problem == "" {
			problem = strings.Join(l.Warnings, "; ")
		}
		connected := yesNo(l.Connected)
		if l.Wraps != "" && l.Connected {
			connected = "wraps " + l.Wraps
		}
		list.IDs = append(list.IDs, string(l.Agent))
		list.Rows = append(list.Rows, []string{string(l.Agent), string(l.Scope), connected, l.Subject, l.Name, l.File, problem})
	}
	list.Items = views
	return a.out.List(list)
}

// agents is what is connected here, for the person and for this directory.
func (a *app) agents(ctx context.Context, doing string) ([]agents.Listing, error) {
	config, err := a.agentConfig(string(agents.Claude), "", "")
	if err != nil {
		return nil, err
	}
	found, err := agents.List(ctx, config)
	if err != nil {
		return nil, agentFailure(err, doing)
	}
	return found, nil
}

type disconnectCmd struct {
	Agent   string `arg:"" enum:"claude,codex,gemini,opencode" help:"claude, codex, gemini or opencode."`
	Subject string `placeholder:"S" help:"Only the entry of this subject; every entry of ours without it."`
	Scope   string `enum:"user,project" default:"user" placeholder:"user|project" help:"Where: for you everywhere (default), or in this directory."`
}

// Help is the manual of disconnect.
func (disconnectCmd) Help() string {
	return `Takes our entry out of the agent's configuration and touches nothing else. The
subject and its grants stay. Needs no daemon.

Examples:
  sbctl disconnect claude`
}

// Run disconnects an agent.
func (c disconnectCmd) Run(ctx context.Context, a *app) error {
	config, err := a.agentConfig(c.Agent, c.Subject, c.Scope)
	if err != nil {
		return err
	}
	done, err := agents.Disconnect(ctx, config)
	if err != nil {
		return agentFailure(err, "disconnecting "+c.Agent)
	}
	return a.printConnection(done)
}
