package agents

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/agents/tomledit"
	"subjectbroker/cmd/sbctl/internal/content"
)

// Setting is one variable or header that a configuration gives to an MCP server.
type Setting struct {
	Server  string
	Project string // directory for which alone it holds; "" for all
	Table   string // as the file calls it: env, environment, headers, http_headers
	Key     string
	Line    int

	// Token says that it holds a token in clear, and Why by what it was
	// recognised; else Why says why it is left as it is.
	Token bool
	Why   string

	// Value is the secret without the scheme before it ("Bearer"); nil unless
	// Token. The caller wipes it.
	Value content.Bytes

	scheme  string
	replace func(text string) textedit.Edit
}

// Place is where the setting stands, for people: SERVER env KEY.
func (s Setting) Place() string { return s.Server + " " + s.Table + " " + s.Key }

// Stray is a token in a place that is not rewritten: an argument, an address.
type Stray struct {
	Server  string
	Project string
	Place   string // args, url
	Line    int
	Why     string
}

// Settings are what the MCP servers of one configuration are given, whoever's
// agent reads it.
type Settings struct {
	file     *File
	Settings []Setting
	Strays   []Stray
	Servers  []string // every server, sorted

	counted, lines int // how many line ends are before an offset
}

// line is the number, from 1, of the line that holds offset at. It counts on
// from where it was asked last: files of many settings are read in order.
func (s *Settings) line(at int) int {
	if at < s.counted {
		s.counted, s.lines = 0, 0
	}
	s.lines += bytes.Count(s.file.Text()[s.counted:at], []byte("\n"))
	s.counted = at
	return s.lines + 1
}

// tables are the names under which variables and headers stand.
var tables = []string{"env", "environment", "headers", "http_headers"}

// ReadSettings reads a configuration with MCP servers: JSON, with or without
// comments, as of Claude Code, Claude Desktop, Gemini CLI, opencode and others,
// or TOML as of Codex, which a name that ends in .toml says.
//
// Errors: ErrInvalid with path and line; no error quotes the file.
func ReadSettings(file *File) (*Settings, error) {
	s := &Settings{file: file}
	var err error
	if strings.EqualFold(filepath.Ext(file.Path()), ".toml") {
		err = s.readTOML()
	} else {
		err = s.readJSON()
	}
	if err != nil {
		s.Wipe()
		return nil, err
	}
	slices.Sort(s.Servers)
	s.Servers = slices.Compact(s.Servers)
	return s, nil
}

// Wipe overwrites the values.
func (s *Settings) Wipe() {
	for _, setting := range s.Settings {
		setting.Value.Wipe()
	}
}

// Rewrite is the text of the file in which settings, by their index, hold a
// reference to the resource that names gives them. It reads the text back, so
// that a fault in the editing never reaches the disk.
func (s *Settings) Rewrite(names map[int]string) ([]byte, error) {
	var edits []textedit.Edit
	for i, name := range names {
		setting := s.Settings[i]
		edits = append(edits, setting.replace(setting.scheme+Scheme+name))
	}
	after := textedit.Apply(s.file.Text(), edits...)
	again, err := ReadSettings(&File{file: &file{path: s.file.path, before: after}})
	if err != nil {
		return nil, fmt.Errorf("checking the edited text: %w", err)
	}
	defer again.Wipe()
	if len(again.Settings) != len(s.Settings) {
		return nil, fmt.Errorf("checking the edited text of %s: it has another number of settings", s.file.path)
	}
	for i, now := range again.Settings {
		was := s.Settings[i]
		_, rewritten := names[i]
		if now.Place() != was.Place() || now.Token != (was.Token && !rewritten) {
			return nil, fmt.Errorf("checking the edited text of %s: %s is not as it should be", s.file.path, was.Place())
		}
	}
	return after, nil
}

// add judges one setting.
func (s *Settings) add(setting Setting, text string) {
	v := judgeSetting(setting.Key, text)
	setting.Token, setting.Why, setting.scheme = v.token, v.why, v.scheme
	if v.token {
		setting.Value = content.Bytes(text[len(v.scheme):])
	}
	s.Settings = append(s.Settings, setting)
}

// judge adds a stray if text, under its key, holds a token.
func (s *Settings) judge(at Stray, key, text string, line int) {
	at.Line, at.Why = line, strayIn(text)
	if v := judgeSetting(key, text); v.token && at.Why == "" {
		at.Why = v.why
	}
	if at.Why != "" {
		s.Strays = append(s.Strays, at)
	}
}

// readJSON reads every liberty over JSON that one of the agents takes: whether
// its agent reads the file is not the question here.
func (s *Settings) readJSON() error {
	root, err := jsonedit.Parse(s.file.Text(), jsonedit.Dialect{Comments: true, TrailingCommas: true})
	if err != nil {
		return malformed(s.file.path, err)
	}
	// Where servers stand: of most agents; VS Code; Zed; opencode, old and new.
	for _, way := range [][]string{{"mcpServers"}, {"servers"}, {"context_servers"}, {"mcp"}, {"mcp", "servers"}, {"mcp", "mcpServers"}} {
		if err := s.serversBelow(&root, way, ""); err != nil {
			return err
		}
	}
	projects := root.Member("projects") // Claude Code
	if projects == nil {
		return nil
	}
	for i := range projects.Value.Members {
		project := &projects.Value.Members[i]
		if err := s.serversBelow(&project.Value, []string{"mcpServers"}, project.Key); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) serversBelow(from *jsonedit.Value, way []string, project string) error {
	container := from
	for _, key := range way {
		found := container.Member(key)
		if found == nil {
			return nil
		}
		container = &found.Value
	}
	if len(way) > 1 && isServer(container) {
		return nil // a server that is called so, and was read as one
	}
	for i := range container.Members {
		server := &container.Members[i]
		if len(way) == 1 && way[0] == "mcp" && (server.Key == "servers" || server.Key == "mcpServers") && !isServer(&server.Value) {
			continue // a container of its own
		}
		if err := s.server(server, project); err != nil {
			return err
		}
	}
	return nil
}

// isServer tells a server from an object of servers.
func isServer(v *jsonedit.Value) bool {
	return v.Member("type") != nil || v.Member("command") != nil || v.Member("enabled") != nil
}

func (s *Settings) server(server *jsonedit.Member, project string) error {
	if server.Value.Kind != jsonedit.Object {
		return nil
	}
	s.Servers = append(s.Servers, server.Key)
	for i := range server.Value.Members {
		m := &server.Value.Members[i]
		if !slices.Contains(tables, m.Key) || m.Value.Kind != jsonedit.Object {
			s.strays(Stray{Server: server.Key, Project: project, Place: m.Key}, m.Key, &m.Value)
			continue
		}
		seen := map[string]bool{}
		for j := range m.Value.Members {
			entry := &m.Value.Members[j]
			line := s.line(entry.Start)
			if seen[entry.Key] {
				return fmt.Errorf("%w: %s:%d: %q is given twice", ErrInvalid, s.file.path, line, entry.Key)
			}
			seen[entry.Key] = true
			if entry.Value.Kind != jsonedit.String {
				continue // no agent passes it on as a text
			}
			s.add(Setting{
				Server: server.Key, Project: project, Table: m.Key, Key: entry.Key, Line: line,
				replace: func(text string) textedit.Edit { return jsonedit.Replace(&entry.Value, text) },
			}, entry.Value.Text)
		}
	}
	return nil
}

// strays looks at every text of a value that is no table of settings. key is
// what the value, or the list it stands in, is called.
func (s *Settings) strays(at Stray, key string, v *jsonedit.Value) {
	if v.Kind == jsonedit.String {
		s.judge(at, key, v.Text, s.line(v.Start))
	}
	for i := range v.Elements {
		s.strays(at, key, &v.Elements[i])
	}
	for i := range v.Members {
		below := at
		below.Place += " " + v.Members[i].Key
		s.strays(below, v.Members[i].Key, &v.Members[i].Value)
	}
}

// largestTOML bounds what is read of it, in bytes: looking for what is given
// twice takes longer with every table.
const largestTOML = 1 << 20

func (s *Settings) readTOML() error {
	if len(s.file.Text()) > largestTOML {
		return fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, s.file.path, largestTOML)
	}
	doc, err := tomledit.Parse(s.file.Text())
	if err != nil {
		return malformedTOML(s.file.path, err)
	}
	for _, table := range doc.Tables {
		if len(table.Path) >= 2 && table.Path[0] == codexTable {
			s.Servers = append(s.Servers, table.Path[1])
		}
	}
	for _, leaf := range doc.Leaves([]string{codexTable}) {
		if len(leaf.Path) < 3 {
			continue
		}
		server, line := leaf.Path[1], s.line(leaf.Start)
		s.Servers = append(s.Servers, server)
		if len(leaf.Path) == 4 && slices.Contains(tables, leaf.Path[2]) {
			if leaf.Value.Kind == tomledit.String {
				s.add(Setting{
					Server: server, Table: leaf.Path[2], Key: leaf.Path[3], Line: line,
					replace: func(text string) textedit.Edit { return tomledit.Replace(&leaf.Value, text) },
				}, leaf.Value.Text)
			}
			continue
		}
		if leaf.Path[2] == codexHeaderNames {
			continue
		}
		s.straysTOML(Stray{Server: server, Place: strings.Join(leaf.Path[2:], " ")}, leaf.Path[len(leaf.Path)-1], &leaf.Value)
	}
	return nil
}

// codexHeaderNames is the table of headers whose values are names of variables.
const codexHeaderNames = "env_http_headers"

func (s *Settings) straysTOML(at Stray, key string, v *tomledit.Value) {
	if v.Kind == tomledit.String {
		s.judge(at, key, v.Text, s.line(v.Start))
	}
	for i := range v.Elements {
		s.straysTOML(at, key, &v.Elements[i])
	}
	for i := range v.Pairs {
		s.straysTOML(at, v.Pairs[i].Path[len(v.Pairs[i].Path)-1], &v.Pairs[i].Value)
	}
}
