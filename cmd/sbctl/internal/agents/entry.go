package agents

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

// shimName is what the shim's program file is called.
const shimName = "sb-mcp"

// wrapVerb is the first argument of a shim that wraps another server.
const wrapVerb = "wrap"

// command is what an agent runs for a server.
type command struct {
	program string
	args    []string
}

func (c command) equal(other command) bool {
	return c.program == other.program && slices.Equal(c.args, other.args)
}

// option is the value of a flag of the shim, in either spelling, "" if absent. What
// stands behind -- is another program's.
func (c command) option(name string) string {
	for i, arg := range c.args {
		if arg == "--" {
			return ""
		}
		flag, value, joined := strings.Cut(arg, "=")
		if flag != "-"+name && flag != "--"+name {
			continue
		}
		if joined {
			return value
		}
		if i+1 < len(c.args) {
			return c.args[i+1]
		}
	}
	return ""
}

// entry is one MCP server in an agent's configuration.
type entry struct {
	name    string
	line    int
	command command
	off     bool   // the agent does not start it
	place   string // where in the file, if not the usual place
	fixed   bool   // in a form that set and remove do not edit
}

// shim reports whether the entry starts sb-mcp for a subject.
func (e *entry) shim() bool {
	return filepath.Base(e.command.program) == shimName && e.subject() != ""
}

// wraps is the name of the server that the entry has sb-mcp wrap, "" if it is the
// broker's own.
func (e *entry) wraps() string {
	if len(e.command.args) == 0 || e.command.args[0] != wrapVerb || !e.shim() {
		return ""
	}
	return cmp.Or(e.command.option("server"), e.name)
}

// ours reports whether Connect could have written the entry.
func (e *entry) ours() bool {
	named := e.name == entryName || strings.HasPrefix(e.name, entryName+"-")
	return named && e.shim() && e.wraps() == "" && e.place == ""
}

func (e *entry) subject() string { return e.command.option("subject") }

// document is a parsed configuration. Its edits are in terms of the text that
// was parsed.
type document interface {
	entries() []entry // every server, ours or not
	insert(name string, want command) ([]textedit.Edit, error)
	set(have entry, want command) ([]textedit.Edit, error)             // none if it is so already
	remove(name string) (edits []textedit.Edit, empty bool, err error) // empty: as if the file had been made for it
}

// spec is what there is to know about one agent.
type spec struct {
	title string
	// file is the absolute path of its configuration.
	file func(scope Scope, userHome, projectDir string, getenv func(string) string) string
	// parse reads a configuration; nil (a missing file) has no entries. Entries
	// that hold in projectDir alone are included. The error names path and line.
	parse func(path string, text []byte, projectDir string) (document, error)
	// fresh is the text of a file that holds one entry alone.
	fresh func(name string, want command) []byte
	// notes are sentences about a scope that the operator should know.
	notes map[Scope]string
}
