package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type serverCmd struct {
	Add     serverAddCmd     `cmd:"" help:"Put an MCP server behind the broker"`
	List    serverListCmd    `cmd:"" default:"1" help:"List servers"`
	Show    serverShowCmd    `cmd:"" help:"Show one server, its tools and its processes"`
	Diff    serverDiffCmd    `cmd:"" help:"Show what is different from what was trusted"`
	Trust   serverTrustCmd   `cmd:"" help:"Let what a server offers now reach agents"`
	Restart serverRestartCmd `cmd:"" help:"End a server's processes, and lift a kill"`
	Logs    serverLogsCmd    `cmd:"" help:"Show what a server's processes wrote to their standard error"`
	Rm      serverRmCmd      `cmd:"" help:"Remove a server with what names it"`
}

// Help is the manual of server.
func (serverCmd) Help() string {
	return `An MCP server behind the broker is hosted: the daemon has it run where no agent
reaches it, gives it the secrets that it needs and no agent sees, and judges and
records every call. An agent that has sb-mcp sees its tools there, as NAME_tool.
It needs three things: the server is added, a subject holds a grant to call it, and
what it offers was trusted.

A server that an agent starts itself with "sb-mcp wrap" is listed here too, once
it was seen or trusted. Wrapping guides, hosting enforces: the agent could start
the same command without the wrapper.`
}

// serverPatience bounds a call that may have to start a server first.
const serverPatience = 2 * time.Minute

// How a tool stands beside what was trusted.
const (
	toolTrusted  = "trusted"
	toolNew      = "new"
	toolChanged  = "changed"
	toolGone     = "gone"
	toolWithheld = "withheld"
)

type processView struct {
	SubjectID   string   `json:"subjectId,omitempty"`
	State       string   `json:"state"`
	PID         int32    `json:"pid,omitempty"`
	Started     string   `json:"started,omitempty"`
	Starts      uint32   `json:"starts"`
	Open        uint32   `json:"open"`
	Cause       string   `json:"cause,omitempty"`
	Confinement []string `json:"confinement"`
}

type serverView struct {
	Server         string            `json:"server"`
	Hosted         bool              `json:"hosted"`
	Command        []string          `json:"command,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	URL            string            `json:"url,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
	ObserveUntil   string            `json:"observeUntil,omitempty"`
	Created        string            `json:"created,omitempty"`
	Owner          string            `json:"owner,omitempty"`
	Trusted        string            `json:"trusted,omitempty"`
	TrustedTools   uint32            `json:"trustedTools"`
	UntrustedTools uint32            `json:"untrustedTools"`
	Subjects       []string          `json:"subjects"`
	Disclosed      string            `json:"disclosed,omitempty"`
	Processes      []processView     `json:"processes"`
}

func viewServer(s *operatorv1.Server) serverView {
	view := serverView{
		Server: s.GetName(), Hosted: s.GetHosted(), Command: s.GetCommand(), Cwd: s.GetCwd(), URL: s.GetUrl(), Env: masked(s.GetEnv()), Headers: masked(s.GetHeaders()),
		ObserveUntil: ui.Stamp(s.GetObserveUntil()), Created: ui.Stamp(s.GetCreated()), Owner: s.GetOwner(), Trusted: ui.Stamp(s.GetTrusted()),
		TrustedTools: s.GetTrustedTools(), UntrustedTools: s.GetUntrustedTools(), Subjects: append([]string{}, s.GetSubjects()...), Disclosed: s.GetDisclosed(),
		Processes: []processView{},
	}
	for _, p := range s.GetProcesses() {
		view.Processes = append(view.Processes, processView{
			p.GetSubject(), p.GetState(), p.GetPid(), ui.Stamp(p.GetStarted()), p.GetStarts(), p.GetOpen(), p.GetCause(), append([]string{}, p.GetConfinement()...),
		})
	}
	return view
}

// masked are variables or headers without what stands in them in clear after all:
// a document may have put it there, and an agent may be reading.
func masked(values map[string]string) map[string]string {
	shown := map[string]string{}
	for name, value := range values {
		if why := agents.Token(name, value); why != "" {
			value = fmt.Sprintf("[masked %d bytes]", len(value))
		}
		shown[name] = value
	}
	return shown
}

// pairs are variables or headers for people, in order.
func pairs(values map[string]string, between string) string {
	var all []string
	shown := masked(values)
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		all = append(all, name+between+shown[name])
	}
	return strings.Join(all, ", ")
}

// reachedBy says how a server is reached.
func reachedBy(s *operatorv1.Server) string {
	switch {
	case len(s.GetCommand()) > 0:
		var words []string
		for _, word := range s.GetCommand() {
			words = append(words, shellQuote(word))
		}
		return strings.Join(words, " ")
	case s.GetUrl() != "":
		return s.GetUrl()
	}
	return "started by agents (sb-mcp wrap)"
}

// toolsOf says how much of a server was trusted.
func toolsOf(s *operatorv1.Server) string {
	words := fmt.Sprintf("%d trusted", s.GetTrustedTools())
	if n := s.GetUntrustedTools(); n > 0 {
		words += fmt.Sprintf(", %d not", n)
	}
	return words
}

// processesOf counts a server's processes by how they are.
func processesOf(s *operatorv1.Server) string {
	counts := map[string]int{}
	for _, p := range s.GetProcesses() {
		counts[p.GetState()]++
	}
	var words []string
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%d %s", counts[state], state))
	}
	return strings.Join(words, ", ")
}

type serverListCmd struct{}

// Help is the manual of server list.
func (serverListCmd) Help() string {
	return `Also those that are only wrapped, as far as they were seen, trusted, or named in a
policy. SUBJECTS hold a grant to call it.

Examples:
  sbctl server list
  sbctl servers -q`
}

// Run lists servers.
func (serverListCmd) Run(ctx context.Context, a *app) error {
	servers, err := a.servers(ctx, "listing servers")
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"SERVER", "REACHED BY", "TOOLS", "PROCESSES", "SUBJECTS", "RULES"}}
	views := make([]serverView, 0, len(servers))
	for _, s := range servers {
		list.IDs = append(list.IDs, s.GetName())
		list.Rows = append(list.Rows, []string{
			s.GetName(), reachedBy(s), toolsOf(s), processesOf(s), strings.Join(s.GetSubjects(), ", "), a.observing(s.GetObserveUntil()),
		})
		views = append(views, viewServer(s))
	}
	list.Items = views
	return a.list(list, "there are no servers")
}

// observing says that rules only log, and until when; empty where they are in force.
func (a *app) observing(until int64) string {
	if until == 0 || until <= a.now().UnixMilli() {
		return ""
	}
	return "only log until " + a.out.When(until)
}

// servers are all servers, sorted by name.
func (a *app) servers(ctx context.Context, doing string) ([]*operatorv1.Server, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListServersRequest{}, operatorv1.OperatorServiceClient.ListServers)
	return got.GetServers(), err
}

// server is one server with its tools; with refresh it is started to see what it
// offers now, if nobody runs it.
func (a *app) server(ctx context.Context, doing, name string, refresh bool) (*operatorv1.GetServerResponse, error) {
	return callWithin(ctx, a, serverPatience, doing, &operatorv1.GetServerRequest{Name: name, Refresh: refresh}, operatorv1.OperatorServiceClient.GetServer)
}

type serverShowCmd struct {
	Server  string `arg:"" help:"Name of the server."`
	Refresh bool   `help:"Start it, if nobody runs it, to see what it offers now."`
}

// Help is the manual of server show.
func (serverShowCmd) Help() string {
	return `Tools are shown as they stand beside what was trusted: trusted, new, changed, gone,
or withheld when the name under which agents would see it is longer than 64
characters. Agents see what is trusted, and nothing else.

"disclosed" says whether an agent could get at the server's secrets: "no" where
each subject that may call it runs in launches or under another uid, and else
"reachable".

Examples:
  sbctl server show github
  sbctl server show github --refresh -o json`
}

type toolView struct {
	Tool         string          `json:"tool,omitempty"`
	Instructions bool            `json:"instructions,omitempty"`
	State        string          `json:"state"`
	Exposed      string          `json:"exposed,omitempty"`
	Pin          string          `json:"pin,omitempty"`
	Trusted      json.RawMessage `json:"trusted,omitempty"`
	Seen         json.RawMessage `json:"seen,omitempty"`
}

func viewTool(t *operatorv1.ServerToolState) toolView {
	return toolView{
		Tool: t.GetName(), Instructions: t.GetName() == "", State: t.GetState(), Exposed: t.GetExposed(), Pin: t.GetPin(),
		Trusted: rawJSON(t.GetName(), t.GetTrusted()), Seen: rawJSON(t.GetName(), t.GetSeen()),
	}
}

func viewTools(tools []*operatorv1.ServerToolState) []toolView {
	views := make([]toolView, 0, len(tools))
	for _, t := range tools {
		views = append(views, viewTool(t))
	}
	return views
}

// rawJSON is a tool's object as it is, and instructions as a JSON string.
func rawJSON(tool string, text []byte) json.RawMessage {
	if len(text) == 0 {
		return nil
	}
	if tool != "" && json.Valid(text) {
		return text
	}
	encoded, err := json.Marshal(string(text))
	if err != nil {
		return nil
	}
	return encoded
}

// exposedOf is the name under which agents see a tool: that of a wrapped server is
// not changed.
func exposedOf(s *operatorv1.Server, t *operatorv1.ServerToolState) string {
	if !s.GetHosted() {
		return t.GetName()
	}
	return t.GetExposed()
}

// toolName is what a tool, or the instructions, are called for people.
func toolName(t *operatorv1.ServerToolState) string {
	if t.GetName() == "" {
		return "(instructions)"
	}
	return t.GetName()
}

type serverFullView struct {
	serverView
	Tools    []toolView `json:"tools"`
	Policies []string   `json:"policies"` // subjects that have one around it
}

// Run shows one server.
func (c serverShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing server " + c.Server
	got, err := a.server(ctx, doing, c.Server, c.Refresh)
	if err != nil {
		return a.nearServer(ctx, err, "show", c.Server)
	}
	policies, err := call(ctx, a, doing, &operatorv1.ListPoliciesRequest{Server: c.Server}, operatorv1.OperatorServiceClient.ListPolicies)
	if err != nil {
		return err
	}
	var around []string
	for _, p := range policies.GetPolicies() {
		around = append(around, p.GetSubject())
	}
	fields := append(a.serverFields(got.GetServer()), ui.Field{Name: "policies of", Value: strings.Join(around, ", ")})
	err = a.out.Object(ui.Object{
		ID: c.Server, Fields: fields,
		Value: serverFullView{viewServer(got.GetServer()), viewTools(got.GetTools()), append([]string{}, around...)},
	})
	if err != nil {
		return err
	}
	var rows [][]string
	for _, t := range got.GetTools() {
		rows = append(rows, []string{toolName(t), t.GetState(), exposedOf(got.GetServer(), t), shortPin(t.GetPin())})
	}
	if err := a.out.Section("Tools", []string{"TOOL", "STATE", "AGENTS SEE", "PIN"}, rows); err != nil {
		return err
	}
	rows = nil
	for _, p := range got.GetServer().GetProcesses() {
		rows = append(rows, []string{
			orWord(p.GetSubject(), "(looking)"), p.GetState(), pidWord(p.GetPid()), a.out.When(p.GetStarted()), fmt.Sprint(p.GetStarts()), fmt.Sprint(p.GetOpen()),
			strings.Join(p.GetConfinement(), ", "), p.GetCause(),
		})
	}
	if err := a.out.Section("Processes", []string{"SUBJECT", "STATE", "PID", "STARTED", "STARTS", "CALLS", "HOLDS", "CAUSE"}, rows); err != nil {
		return err
	}
	a.sayTools(got)
	return nil
}

// sayTools says what a person would do next about a server's tools.
func (a *app) sayTools(got *operatorv1.GetServerResponse) {
	name, s := got.GetServer().GetName(), got.GetServer()
	switch {
	case !s.GetHosted() && s.GetTrusted() == 0:
		a.done("nothing of it was trusted: what it offers reaches agents as it is, until you trust it: %s", a.paste("server", "trust", name))
	case s.GetUntrustedTools() > 0:
		a.done("what is not trusted is withheld from agents: %s", a.paste("server", "trust", name))
	case len(got.GetTools()) == 0 && s.GetHosted():
		a.done("nobody has seen yet what it offers: %s", a.paste("server", "trust", name))
	}
}

func (a *app) serverFields(s *operatorv1.Server) []ui.Field {
	kind := "hosted"
	if !s.GetHosted() {
		kind = "wrapped"
	}
	return []ui.Field{
		{Name: "server", Value: s.GetName()},
		{Name: "kind", Value: kind},
		{Name: "reached by", Value: reachedBy(s)},
		{Name: "cwd", Value: s.GetCwd()},
		{Name: "env", Value: pairs(s.GetEnv(), "=")},
		{Name: "headers", Value: pairs(s.GetHeaders(), ": ")},
		{Name: "tools", Value: toolsOf(s)},
		{Name: "trusted", Value: a.whenSet(s.GetTrusted())},
		{Name: "subjects", Value: strings.Join(s.GetSubjects(), ", ")},
		{Name: "disclosed", Value: s.GetDisclosed()},
		{Name: "rules", Value: a.observing(s.GetObserveUntil())},
		{Name: "created", Value: a.whenSet(s.GetCreated())},
		{Name: "owner", Value: s.GetOwner()},
	}
}

// whenSet is a time for people; empty where there is none.
func (a *app) whenSet(ms int64) string {
	if ms == 0 {
		return ""
	}
	return a.out.When(ms)
}

// shortPin is enough of a pin for people to compare.
func shortPin(pin string) string { return pin[:min(len(pin), 16)] }

func pidWord(pid int32) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprint(pid)
}

// nearServer adds to a refusal of a server that there is none of the nearest name.
func (a *app) nearServer(ctx context.Context, err error, verb, name string) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || failed.code != wire.InvalidArgument || failed.hint != "" {
		return err
	}
	servers, _ := a.servers(ctx, "")
	var names []string
	for _, s := range servers {
		if s.GetName() == name {
			return err // it is there, and something else was wrong
		}
		names = append(names, s.GetName())
	}
	if near, ok := nearest.Name(name, names); ok {
		failed.hint = fmt.Sprintf("sbctl server %s %s", verb, near)
	} else {
		failed.hint = "sbctl server list"
	}
	return failed
}
