package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents"
	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// What happens to a server of a configuration.
const (
	wouldHost  = "would be hosted"
	hosted     = "hosted"
	hostedSame = "unchanged" // hosted by an earlier import
)

// hostItem is one server that an import looks at, and its JSON shape.
type hostItem struct {
	Entry   string `json:"entry"` // its name in the configuration
	Project string `json:"project,omitempty"`
	Line    int    `json:"line"`
	Server  string `json:"server,omitempty"` // its name behind the broker
	Result  string `json:"result"`
	Reason  string `json:"reason,omitempty"`

	index   int // in the configuration
	from    *agents.Server
	want    *operatorv1.Server // nil: left as it is
	missing bool               // it is not there yet
}

// hostView is the JSON shape of an import that hosts servers.
type hostView struct {
	importView
	SubjectID string     `json:"subjectId"`
	Servers   []hostItem `json:"servers"`
	Next      []string   `json:"next"`
}

// hostJob is one import of servers from a configuration.
type hostJob struct {
	importJob
	servers *agents.Servers
	hosts   []hostItem
}

// host puts the servers of a configuration behind the broker: it seals their tokens,
// adds them, and then, when asked to, replaces their entries by that of sb-mcp. A
// crash at any point leaves the file as it was or rewritten whole, and never without
// a server that is not hosted.
func (c importMCPCmd) host(ctx context.Context, a *app, doing string, file *agents.File, found *agents.Settings) error {
	if c.Subject == "" {
		return refuse(doing, "--host needs --subject: whose agent calls the servers")
	}
	servers, err := agents.ReadServers(file)
	if err != nil {
		return agentFailure(err, doing)
	}
	job := hostJob{importJob: importJob{doing: doing, file: file, subject: c.Subject, rewrite: c.Rewrite, dryRun: c.DryRun, servers: true}, servers: servers}
	if err := a.importSubject(ctx, doing, c.Subject); err != nil {
		return err
	}
	job.hosts = judgeServers(servers, c.Server)
	job.items = settingsOf(found, file, func(s agents.Setting) string {
		for _, h := range job.hosts {
			if h.Entry == s.Server && h.Project == s.Project {
				if h.want == nil {
					return "its server is left"
				}
				return ""
			}
		}
		return "its server is left"
	})
	values := 0
	for _, item := range job.items {
		if item.value != nil {
			values++
		}
	}
	if err := checkImported(doing, values); err != nil {
		return err
	}
	if err := a.nameItems(ctx, doing, job.items); err != nil {
		return err
	}
	job.fill()
	if err := a.compareServers(ctx, &job); err != nil {
		return err
	}
	return a.hostServers(ctx, job)
}

var notInServers = regexp.MustCompile(`[^a-z0-9-]+`)

// longestServer is how long the name of a server may be, in bytes.
const longestServer = 32

// judgeServers says of each server whether it can be hosted, and what it is called.
func judgeServers(servers *agents.Servers, only string) []hostItem {
	var all []hostItem
	for i := range servers.List {
		s := &servers.List[i]
		if s.Shim() {
			continue
		}
		item := hostItem{Entry: s.Name, Project: s.Project, Line: s.Line, Result: leftAsItIs, index: i, from: s}
		name := strings.Trim(notInServers.ReplaceAllString(strings.ToLower(s.Name), "-"), "-")
		name = strings.TrimRight(name[:min(len(name), longestServer)], "-")
		switch {
		case only != "" && s.Name != only:
			item.Reason = "another server"
		case s.Off:
			item.Reason = "the agent does not start it"
		case s.Why != "":
			item.Reason = s.Why
		case name == "":
			item.Reason = "its name has no letter or digit that a server's name can have"
		default:
			item.Server = name
			if item.want, item.Reason = wanted(s, name); item.want == nil {
				item.Server = ""
			}
		}
		all = append(all, item)
	}
	for i := range all {
		for j := range all[:i] {
			if all[i].want == nil || all[j].want == nil || all[i].Server != all[j].Server {
				continue
			}
			if a, b := all[i].from, all[j].from; !slices.Equal(a.Command, b.Command) || a.URL != b.URL || !maps.Equal(a.Env, b.Env) || !maps.Equal(a.Headers, b.Headers) {
				all[i].want, all[i].Server = nil, ""
				all[i].Reason = fmt.Sprintf("line %d has another server of that name", all[j].Line)
			}
			break
		}
	}
	return all
}

// wanted is a server as it would be hosted, its tokens still in clear; nil and why
// when it cannot be.
func wanted(s *agents.Server, name string) (want *operatorv1.Server, why string) {
	want = &operatorv1.Server{Name: name, Url: s.URL, Env: map[string]string{}, Headers: map[string]string{}}
	if stray := agents.TokenWithin(s.URL); stray != "" {
		return nil, "its address " + stray + ": put it into a header first"
	}
	for _, word := range s.Command {
		if stray := agents.TokenWithin(word); stray != "" {
			return nil, "an argument of it " + stray + ": put it into env first"
		}
		if strings.Contains(word, "${") {
			return nil, "its command has something in it that the agent expands"
		}
	}
	if len(s.Command) > 0 {
		first := s.Command[0]
		if strings.Contains(first, "/") && !filepath.IsAbs(first) {
			if s.Project == "" {
				return nil, "its command is a relative path"
			}
			first = filepath.Join(s.Project, first)
		}
		path, err := program("", first)
		if err != nil {
			return nil, "there is no command " + s.Command[0] + " here"
		}
		want.Command = append([]string{path}, s.Command[1:]...)
		want.Cwd = s.Cwd
		if want.Cwd == "" && filepath.IsAbs(s.Project) {
			want.Cwd = filepath.Clean(s.Project)
		}
		if want.Cwd != "" && !filepath.IsAbs(want.Cwd) {
			return nil, "its working directory is a relative path"
		}
	}
	for _, table := range []struct{ from, to map[string]string }{{s.Env, want.GetEnv()}, {s.Headers, want.GetHeaders()}} {
		for key, value := range table.from {
			if agents.From(value) {
				return nil, key + " comes from the agent's environment: seal it, and write sb://NAME there"
			}
			table.to[key] = value
			if before, resource, ok := agents.Reference(value); ok {
				table.to[key] = before + secretReference(resource)
			}
		}
	}
	if len(s.Dropped) > 0 {
		why = "without its " + strings.Join(s.Dropped, ", ")
	}
	return want, why
}

// fill puts references to what is sealed in the place of tokens.
func (j *hostJob) fill() {
	for _, item := range j.items {
		if item.value == nil {
			continue
		}
		for _, h := range j.hosts {
			if h.want == nil || h.Entry != item.Server || h.Project != item.Project {
				continue
			}
			for _, table := range []struct{ from, to map[string]string }{{h.from.Env, h.want.GetEnv()}, {h.from.Headers, h.want.GetHeaders()}} {
				if value, there := table.from[item.Key]; there && strings.HasSuffix(value, string(item.value)) {
					table.to[item.Key] = strings.TrimSuffix(value, string(item.value)) + secretReference(item.ResourceID)
				}
			}
		}
	}
}

// settingsOf are the settings of a configuration as items of an import; left says why
// one is left, or nothing.
func settingsOf(found *agents.Settings, file *agents.File, left func(agents.Setting) string) []importItem {
	var items []importItem
	for _, s := range found.Settings {
		item := importItem{
			Server: s.Server, Project: s.Project, Table: s.Table, Key: s.Key, Line: s.Line, Result: leftAsItIs, Reason: s.Why, same: -1,
		}
		if why := left(s); why != "" {
			item.Reason = why
		} else if s.Token {
			item.value, item.base = s.Value, nameFrom(s.Server+"."+s.Key)
			item.source = s.Place() + " of " + file.Path()
			if s.Project != "" {
				item.source = s.Place() + " for " + s.Project + " of " + file.Path()
			}
			item.same = slices.IndexFunc(items, func(other importItem) bool {
				return other.same < 0 && other.value != nil && string(other.value) == string(s.Value)
			})
		}
		items = append(items, item)
	}
	return items
}

// compareServers looks at what is behind the broker already: the same server stays,
// another of its name is not touched.
func (a *app) compareServers(ctx context.Context, job *hostJob) error {
	there, err := a.servers(ctx, job.doing)
	if err != nil {
		return err
	}
	for i := range job.hosts {
		h := &job.hosts[i]
		if h.want == nil {
			continue
		}
		h.Result, h.missing = wouldHost, true
		for _, s := range there {
			if s.GetName() != h.Server || !s.GetHosted() {
				continue
			}
			if !slices.Equal(s.GetCommand(), h.want.GetCommand()) || s.GetUrl() != h.want.GetUrl() || s.GetCwd() != h.want.GetCwd() ||
				!maps.Equal(s.GetEnv(), h.want.GetEnv()) || !maps.Equal(s.GetHeaders(), h.want.GetHeaders()) {
				h.want, h.Server, h.Result, h.missing = nil, "", leftAsItIs, false
				h.Reason = fmt.Sprintf("a server %s is behind the broker already, and is another one", s.GetName())
				break
			}
			h.Result, h.missing = hostedSame, false
		}
	}
	for i := range job.items { // what belongs to a server that is left after all is not sealed
		item := &job.items[i]
		owned := slices.ContainsFunc(job.hosts, func(h hostItem) bool {
			return h.want != nil && h.Entry == item.Server && h.Project == item.Project
		})
		if item.value != nil && !owned {
			item.value, item.ResourceID, item.Result, item.Reason = nil, "", leftAsItIs, "its server is left"
			for k := range job.items {
				if job.items[k].same == i {
					return refuse(job.doing, "line %d: %s stands in a server that is left, and in one that is not: give each its own first", item.Line, item.Key)
				}
			}
		}
	}
	return nil
}

// document is what the broker is brought to: JSON, which is YAML too.
func (j *hostJob) document(held []*operatorv1.Grant) ([]byte, error) {
	type server struct {
		Command []string          `json:"command,omitempty"`
		Cwd     string            `json:"cwd,omitempty"`
		URL     string            `json:"url,omitempty"`
		Env     map[string]string `json:"env,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
	}
	type grant struct {
		Subject    string `json:"subject"`
		Capability string `json:"capability"`
	}
	type resource struct {
		Kind string `json:"kind"`
	}
	out := struct {
		Version   int                 `json:"version"`
		Resources map[string]resource `json:"resources,omitempty"`
		Servers   map[string]server   `json:"servers,omitempty"`
		Grants    []grant             `json:"grants,omitempty"`
	}{Version: 1, Resources: map[string]resource{}, Servers: map[string]server{}}
	for _, name := range names(j.items) {
		out.Resources[name] = resource{content.Secret}
	}
	for _, h := range j.hosts {
		if h.want == nil {
			continue
		}
		out.Servers[h.Server] = server{h.want.GetCommand(), h.want.GetCwd(), h.want.GetUrl(), h.want.GetEnv(), h.want.GetHeaders()}
	}
	for _, capability := range j.capabilities() {
		// What is granted already keeps its conditions.
		if !slices.ContainsFunc(held, func(g *operatorv1.Grant) bool {
			return g.GetSubject() == j.subject && g.GetCapability() == capability && g.GetEffect() == decisionAllow
		}) {
			out.Grants = append(out.Grants, grant{j.subject, capability})
		}
	}
	return json.Marshal(out)
}

// capabilities are what the subject needs to call the servers.
func (j *hostJob) capabilities() []string {
	var all []string
	for _, h := range j.hosts {
		if h.want == nil {
			continue
		}
		all = append(all, "call:"+h.Server+"/*")
		for _, secret := range secretsOf(h.want) {
			all = append(all, "use:"+secret)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// hostServers does what was judged, and says what is left to do.
func (a *app) hostServers(ctx context.Context, job hostJob) error {
	var gone []int
	for _, h := range job.hosts {
		if h.want != nil {
			gone = append(gone, h.index)
		}
	}
	view := hostView{
		importView: importView{File: job.file.Path(), DryRun: job.dryRun, Items: append([]importItem{}, job.items...), Grants: []string{}, Copies: []string{}, Rotate: names(job.items)},
		SubjectID:  job.subject, Servers: append([]hostItem{}, job.hosts...), Next: []string{},
	}
	if len(gone) == 0 {
		return a.printHosting(view)
	}
	held, err := call(ctx, a, job.doing, &operatorv1.ListGrantsRequest{Subject: job.subject}, operatorv1.OperatorServiceClient.ListGrants)
	if err != nil {
		return err
	}
	document, err := job.document(held.GetGrants())
	if err != nil {
		return fail(err, "%s", job.doing)
	}
	// Everything is judged before anything is done.
	request := &operatorv1.ApplyRequest{Document: document, DryRun: true}
	trial, err := call(ctx, a, job.doing, request, operatorv1.OperatorServiceClient.Apply)
	if err != nil {
		return err
	}
	var after []byte
	if job.rewrite {
		config, err := a.agentConfig(string(agents.Claude), job.subject, "")
		if err == nil {
			config.Shim, err = sibling("sb-mcp")
		}
		if err != nil {
			return fail(err, "%s", job.doing)
		}
		if after, err = job.servers.Replace(gone, config); err != nil {
			return agentFailure(err, job.doing)
		}
		if err := job.file.Replaceable(); err != nil {
			return agentFailure(err, job.doing)
		}
	}
	for _, change := range trial.GetChanges() {
		if change.GetWhat() == "grant" {
			view.Grants = append(view.Grants, change.GetName())
		}
	}
	if job.dryRun {
		return a.printHosting(view)
	}
	var values []content.Bytes
	for _, item := range job.items {
		if item.value != nil {
			values = append(values, item.value)
		}
	}
	if err := a.sealItems(ctx, job.doing, view.Items); err != nil {
		return err
	}
	request.DryRun = false
	if _, err := call(ctx, a, job.doing, request, operatorv1.OperatorServiceClient.Apply); err != nil {
		return halfImported(err, job.importJob)
	}
	for i := range view.Servers {
		if h := &view.Servers[i]; h.missing {
			h.Result = hosted
		}
	}
	if after != nil {
		if err := job.file.Replace(after); err != nil {
			return a.notRewritten(err, job.importJob)
		}
		view.Rewritten = true
	}
	there, err := a.servers(ctx, job.doing)
	if err != nil {
		return err
	}
	for _, s := range there {
		if s.GetTrusted() == 0 && slices.ContainsFunc(view.Servers, func(h hostItem) bool { return h.Server == s.GetName() }) {
			view.Next = append(view.Next, a.paste("server", "trust", s.GetName()))
		}
	}
	found, err := a.findCopies(ctx, job.file, values)
	if err != nil {
		return fail(err, "%s", job.doing)
	}
	view.Copies = append(view.Copies, found.Files...)
	if err := a.printHosting(view); err != nil {
		return err
	}
	if !view.Rewritten {
		a.done("the agent still starts them itself, beside the broker: the same command with --rewrite puts sb-mcp in their place")
	}
	if len(values) > 0 {
		a.sayCopies(view.File, uint32(job.file.Mode()), view.Rewritten, found, view.Rotate)
	}
	return nil
}

// printHosting shows what was, or would be, done.
func (a *app) printHosting(view hostView) error {
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	list := ui.List{Head: []string{"LINE", "ENTRY", "SERVER", "RESULT", "WHY"}}
	for _, h := range view.Servers {
		entry := h.Entry
		if h.Project != "" {
			entry += " (" + h.Project + ")"
		}
		if h.Server != "" {
			list.IDs = append(list.IDs, h.Server)
		}
		list.Rows = append(list.Rows, []string{fmt.Sprint(h.Line), entry, h.Server, h.Result, h.Reason})
	}
	if err := a.list(list, "there is no server in it to host"); err != nil {
		return err
	}
	var rows [][]string
	for _, item := range view.Items {
		result := item.Result
		if item.Version > 1 {
			result += fmt.Sprintf(" (version %d)", item.Version)
		}
		rows = append(rows, []string{fmt.Sprint(item.Line), item.Server, item.Table + " " + item.Key, item.ResourceID, result, item.Reason})
	}
	if err := a.out.Section("Values", []string{"LINE", "ENTRY", "SETTING", "RESOURCE", "RESULT", "WHY"}, rows); err != nil {
		return err
	}
	switch {
	case view.DryRun:
		a.done("nothing was changed")
	case view.Rewritten:
		a.done("rewritten: %s starts sb-mcp for %s in their place", view.File, view.SubjectID)
	}
	if a.out.Quiet {
		return nil
	}
	var text strings.Builder
	for _, next := range view.Next {
		text.WriteString("next: " + ui.Safe(next) + "\n")
	}
	_, err := fmt.Fprint(a.stdout, text.String())
	return err
}
