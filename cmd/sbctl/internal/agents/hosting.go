package agents

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/agents/tomledit"
)

// Server is one MCP server of a configuration, as its agent starts or reaches it.
type Server struct {
	Name    string
	Project string // directory for which alone it holds; "" for all
	Line    int

	Command []string // program and arguments; nil for a url
	Cwd     string
	URL     string
	Env     map[string]string
	Headers map[string]string

	Off     bool     // the agent does not start it
	Subject string   // the subject of an entry that starts sb-mcp, else ""
	Why     string   // why nobody but this agent can run it; "" if somebody can
	Dropped []string // settings that have no meaning elsewhere, sorted

	way []string // to the container that it stands in
}

// Shim reports whether the entry starts sb-mcp for a subject.
func (s *Server) Shim() bool { return s.Subject != "" }

// Servers are the MCP servers of one configuration.
type Servers struct {
	file *File
	toml bool
	List []Server
}

// ReadServers reads the MCP servers of a configuration, in the forms that
// [ReadSettings] reads.
//
// Errors: ErrInvalid with path and line; no error quotes the file.
func ReadServers(file *File) (*Servers, error) {
	s := &Servers{file: file, toml: strings.EqualFold(filepath.Ext(file.Path()), ".toml")}
	if s.toml {
		return s, s.readTOML()
	}
	return s, s.readJSON()
}

// Settings that say nothing which matters to who runs a server.
var ownSettings = []string{
	"type", "transport", "command", "args", "env", "environment", "url", "serverUrl", "httpUrl", "headers", "http_headers", "cwd", "workingDirectory",
	"disabled", "enabled", "timeout", "trust", "autoApprove", "alwaysAllow", "description", "name", "source", "includeTools", "excludeTools",
	"startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec", "required", "enabled_tools", "disabled_tools",
}

// Settings by which the agent gets a secret, or a log-in, from somewhere.
var agentSettings = []string{
	"envFile", "env_file", "oauth", "auth", "authProviderType", "headersHelper", "bearer_token_env_var", "env_http_headers", "env_vars", "inputs",
}

// judge says of a setting by its name whether somebody else can do without it.
func (s *Server) judge(key string) {
	switch {
	case slices.Contains(agentSettings, key):
		s.Why = key + " is something that this agent does for it"
	case !slices.Contains(ownSettings, key):
		s.Dropped = append(s.Dropped, key)
	}
}

// settle judges a server that was read as a whole.
func (s *Server) settle(kind string) {
	slices.Sort(s.Dropped)
	ours := len(s.Command) > 1 && filepath.Base(s.Command[0]) == shimName
	if ours && s.Command[1] != wrapVerb {
		s.Subject = command{s.Command[0], s.Command[1:]}.option("subject")
	}
	switch {
	case s.Why != "":
	case ours && s.Subject == "":
		s.Why = "sb-mcp starts it already"
	case kind == "sse":
		s.Why = "it speaks SSE, and the broker Streamable HTTP"
	case kind == "ws" || kind == "websocket":
		s.Why = "it speaks over a WebSocket"
	case len(s.Command) == 0 && s.URL == "":
		s.Why = "it has neither a command nor an address"
	case len(s.Command) > 0 && s.URL != "":
		s.Why = "it has both a command and an address"
	}
}

func (s *Servers) readJSON() error {
	root, err := jsonedit.Parse(s.file.Text(), lenient)
	if err != nil {
		return malformed(s.file.path, err)
	}
	for _, way := range [][]string{{"mcpServers"}, {"servers"}, {"context_servers"}, {"mcp"}, {"mcp", "servers"}, {"mcp", "mcpServers"}} {
		s.below(&root, way, "")
	}
	projects := root.Member("projects") // Claude Code
	if projects == nil {
		return nil
	}
	for i := range projects.Value.Members {
		project := projects.Value.Members[i].Key
		s.below(&root, []string{"projects", project, "mcpServers"}, project)
	}
	return nil
}

// lenient takes every liberty over JSON that one of the agents takes.
var lenient = jsonedit.Dialect{Comments: true, TrailingCommas: true}

func (s *Servers) below(root *jsonedit.Value, way []string, project string) {
	container := root
	for _, key := range way {
		found := container.Member(key)
		if found == nil {
			return
		}
		container = &found.Value
	}
	if project == "" && len(way) > 1 && isServer(container) {
		return
	}
	for i := range container.Members {
		m := &container.Members[i]
		inner := len(way) == 1 && way[0] == "mcp" && (m.Key == "servers" || m.Key == "mcpServers") && !isServer(&m.Value)
		if m.Value.Kind == jsonedit.Object && !inner {
			s.List = append(s.List, s.server(m, way, project))
		}
	}
}

func (s *Servers) server(m *jsonedit.Member, way []string, project string) Server {
	one := Server{
		Name: m.Key, Project: project, Line: jsonedit.Line(s.file.Text(), m.Start), Env: map[string]string{}, Headers: map[string]string{}, way: way,
	}
	kind := ""
	var args []string
	for i := range m.Value.Members {
		field := &m.Value.Members[i]
		v := &field.Value
		one.judge(field.Key)
		switch field.Key {
		case "type", "transport":
			kind = v.Text
		case "command":
			one.Command = []string{v.Text}
			if words, ok := v.Strings(); ok {
				one.Command = words
			}
		case "args":
			words, ok := v.Strings()
			if !ok {
				one.Why = "its args are no list of texts"
			}
			args = words
		case "cwd", "workingDirectory":
			one.Cwd = v.Text
		case "url", "serverUrl", "httpUrl":
			one.URL = v.Text
		case "disabled":
			one.Off = one.Off || v.IsTrue()
		case "enabled":
			one.Off = one.Off || v.IsFalse()
		case "env", "environment":
			one.texts(v, one.Env)
		case "headers", "http_headers":
			one.texts(v, one.Headers)
		}
	}
	if len(one.Command) == 1 && one.Command[0] == "" {
		one.Command = nil
	}
	if len(one.Command) > 0 {
		one.Command = append(one.Command, args...)
	}
	one.settle(kind)
	return one
}

func (s *Server) texts(v *jsonedit.Value, into map[string]string) {
	for i := range v.Members {
		m := &v.Members[i]
		if m.Value.Kind != jsonedit.String {
			s.Why = m.Key + " is no text"
			continue
		}
		into[m.Key] = m.Value.Text
	}
}

func (s *Servers) readTOML() error {
	if len(s.file.Text()) > largestTOML {
		return fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, s.file.path, largestTOML)
	}
	doc, err := tomledit.Parse(s.file.Text())
	if err != nil {
		return malformedTOML(s.file.path, err)
	}
	found := map[string]*Server{}
	args := map[string][]string{}
	var order []string
	at := func(name string, start int) *Server {
		if found[name] == nil {
			order = append(order, name)
			found[name] = &Server{
				Name: name, Line: tomledit.Line(s.file.Text(), start), Env: map[string]string{}, Headers: map[string]string{}, way: []string{codexTable},
			}
		}
		return found[name]
	}
	for _, table := range doc.Tables {
		if len(table.Path) >= 2 && table.Path[0] == codexTable {
			at(table.Path[1], table.Start)
		}
	}
	for _, leaf := range doc.Leaves([]string{codexTable}) {
		if len(leaf.Path) < 3 {
			continue
		}
		one, key := at(leaf.Path[1], leaf.Start), leaf.Path[2]
		if len(leaf.Path) == 3 || key != "env" && key != "http_headers" {
			one.judge(key)
		}
		if len(leaf.Path) == 4 && (key == "env" || key == "http_headers") {
			into := one.Env
			if key == "http_headers" {
				into = one.Headers
			}
			if leaf.Value.Kind != tomledit.String {
				one.Why = leaf.Path[3] + " is no text"
				continue
			}
			into[leaf.Path[3]] = leaf.Value.Text
			continue
		}
		switch key {
		case "command":
			one.Command = []string{leaf.Value.Text}
		case "args":
			args[one.Name], _ = leaf.Value.Strings()
		case "cwd":
			one.Cwd = leaf.Value.Text
		case "url":
			one.URL = leaf.Value.Text
		case "enabled":
			one.Off = leaf.Value.Text == "false"
		}
	}
	for _, name := range order {
		one := found[name]
		if len(one.Command) > 0 {
			one.Command = append(one.Command, args[name]...)
		}
		one.settle("")
		s.List = append(s.List, *one)
	}
	return nil
}

// From says that a value of a variable or header comes from somewhere that only the
// agent, or the shell that starts it, knows; a reference of ours does not.
func From(text string) bool {
	secret := text[len(schemes.FindString(text)):]
	return !strings.HasPrefix(secret, Scheme) && (strings.Contains(text, "${") || isReference(secret))
}

// Reference is the resource that a value of a variable or header refers to after an
// earlier import, and what stands before it; ok is false when it refers to none.
func Reference(text string) (before, resource string, ok bool) {
	before = schemes.FindString(text)
	resource, ok = strings.CutPrefix(text[len(before):], Scheme)
	return before, resource, ok && IsName(resource)
}

// SchemeOf is what stands before the secret in a value that was taken for a token.
func SchemeOf(text string) string { return judgeSetting("token", text).scheme }

// Replace is the text of the file without the servers of the given indexes, and with
// an entry that starts the shim of cfg wherever one of them is gone and none is yet.
// It reads the text back. Of cfg it uses Subject, Shim, Home and SocketDir.
//
// Errors: ErrConflict when an entry cannot be taken out, or starts sb-mcp for
// another subject.
func (s *Servers) Replace(gone []int, cfg Config) ([]byte, error) {
	want := command{program: cfg.Shim, args: ShimArgs(cfg)}
	ways := map[string][]string{}
	for _, i := range gone {
		ways[strings.Join(s.List[i].way, "\x00")] = s.List[i].way
	}
	text := s.file.Text()
	for _, key := range slices.SortedFunc(maps.Keys(ways), func(a, b string) int { return len(ways[a]) - len(ways[b]) }) {
		var err error
		if text, err = s.withShim(text, ways[key], cfg.Subject, want); err != nil {
			return nil, err
		}
	}
	for _, i := range gone {
		var err error
		if text, err = s.without(text, s.List[i]); err != nil {
			return nil, err
		}
	}
	return text, s.proveReplaced(text, gone, cfg.Subject)
}

// withShim adds the shim's entry to a container, unless one that holds there is in
// the text already.
func (s *Servers) withShim(text []byte, way []string, subject string, want command) ([]byte, error) {
	now, err := ReadServers(&File{file: &file{path: s.file.path, before: text}})
	if err != nil {
		return nil, err
	}
	name, taken := entryName, map[string]bool{}
	for _, one := range now.List {
		holds := slices.Equal(one.way, way) || one.Project == ""
		switch {
		case !holds || one.Off:
		case one.Subject == subject:
			return text, nil
		case one.Shim():
			return nil, fmt.Errorf("%w: %s:%d: the entry %q starts sb-mcp for subject %s already, and one agent should see one subject", ErrConflict, s.file.path, one.Line, one.Name, one.Subject)
		}
		taken[one.Name] = taken[one.Name] || slices.Equal(one.way, way)
	}
	if taken[name] {
		name = nameFor(subject)
	}
	if taken[name] {
		return nil, fmt.Errorf("%w: %s: the entry %q does not start sb-mcp; rename or remove it first", ErrConflict, s.file.path, name)
	}
	if s.toml {
		doc, err := tomledit.Parse(text)
		if err != nil {
			return nil, malformedTOML(s.file.path, err)
		}
		edit, err := tomledit.Insert(text, doc, []string{codexTable, name}, codexFields(want))
		if err != nil {
			return nil, malformedTOML(s.file.path, err)
		}
		return textedit.Apply(text, edit), nil
	}
	root, err := jsonedit.Parse(text, lenient)
	if err != nil {
		return nil, malformed(s.file.path, err)
	}
	fields := geminiCodec.fields(want, false)
	switch {
	case way[0] == "mcp":
		fields = opencodeCodec.fields(want, false)
	case filepath.Base(s.file.path) == ".claude.json" || way[0] == "servers":
		fields = claudeCodec.fields(want, false)
	}
	edit, err := jsonedit.Insert(text, &root, way, name, fields)
	if err != nil {
		return nil, malformed(s.file.path, err)
	}
	return textedit.Apply(text, edit), nil
}

func (s *Servers) without(text []byte, one Server) ([]byte, error) {
	if s.toml {
		doc, err := tomledit.Parse(text)
		if err != nil {
			return nil, malformedTOML(s.file.path, err)
		}
		codex := &codexDoc{path: s.file.path, text: text, doc: doc}
		edits, _, err := codex.remove(one.Name)
		if err != nil {
			return nil, err
		}
		return textedit.Apply(text, edits...), nil
	}
	root, err := jsonedit.Parse(text, lenient)
	if err != nil {
		return nil, malformed(s.file.path, err)
	}
	edit, _, err := jsonedit.Remove(text, &root, one.way, one.Name)
	if err != nil {
		return nil, malformed(s.file.path, err)
	}
	return textedit.Apply(text, edit), nil
}

// proveReplaced reads the edited text back, so that a fault in the editing never
// reaches the disk: the servers that should be gone are, every other is as it was,
// and each place has the shim.
func (s *Servers) proveReplaced(text []byte, gone []int, subject string) error {
	again, err := ReadServers(&File{file: &file{path: s.file.path, before: text}})
	if err != nil {
		return fmt.Errorf("checking the edited text: %w", err)
	}
	key := func(one Server) string { return strings.Join(append(slices.Clone(one.way), one.Name), "\x00") }
	now := map[string]Server{}
	for _, one := range again.List {
		now[key(one)] = one
	}
	for i, was := range s.List {
		is, there := now[key(was)]
		removed := slices.Contains(gone, i)
		if removed == there || there && !(slices.Equal(was.Command, is.Command) && was.URL == is.URL && maps.Equal(was.Env, is.Env) && maps.Equal(was.Headers, is.Headers)) {
			return fmt.Errorf("checking the edited text of %s: %s is not as it should be", s.file.path, was.Name)
		}
	}
	for _, i := range gone {
		if !slices.ContainsFunc(again.List, func(one Server) bool {
			return one.Subject == subject && !one.Off && (one.Project == "" || slices.Equal(one.way, s.List[i].way))
		}) {
			return fmt.Errorf("checking the edited text of %s: nothing starts sb-mcp in the place of %s", s.file.path, s.List[i].Name)
		}
	}
	return nil
}
