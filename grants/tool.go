package grants

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	maxRequires = 64  // patterns in the requires of a tool
	maxTools    = 256 // tools in a profile
	maxCaps     = 256 // patterns in the caps of a profile
)

var errTool = errors.New("a tool is named SERVER/tool, at most 256 letters, digits, '.', '_', '-', '/' or ':', or is one of " +
	strings.Join(builtins[:], ", "))

// Built-in tools, which the shim has itself. They are not declared.
const (
	ToolRead    = "read_resource"
	ToolList    = "list_resources"
	ToolExplain = "explain_decision"
	ToolReport  = "capability_report"

	ToolSearchKnowledge  = "search_knowledge"
	ToolBrowseRecent     = "browse_recent"
	ToolKnowledgeStats   = "knowledge_stats"
	ToolReadEntry        = "read_entry"
	ToolHistory          = "history"
	ToolCaptureKnowledge = "capture_knowledge"
)

var builtins = [...]string{
	ToolRead, ToolList, ToolExplain, ToolReport,
	ToolSearchKnowledge, ToolBrowseRecent, ToolKnowledgeStats, ToolReadEntry, ToolHistory, ToolCaptureKnowledge,
}

// Tool is something that an agent can call, and what it needs for that.
type Tool struct {
	Name     string    `json:"name"`               // SERVER/tool
	Requires []Pattern `json:"requires,omitempty"` // what it reaches, at most 64; order does not matter
	Approval bool      `json:"approval,omitempty"` // a person approves each call, where the profile leaves that to the tool
	Gate     bool      `json:"gate,omitempty"`     // a person approves each call, whatever the profile says
	Created  time.Time `json:"created,omitzero"`
	Owner    string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
}

// Validate returns an error that names the field that is wrong.
func (t *Tool) Validate() error {
	if !strings.Contains(t.Name, "/") {
		return errors.New("only tools named SERVER/tool are declared")
	}
	if err := CheckTool(t.Name); err != nil {
		return err
	}
	if err := checkPatterns(t.Requires, maxRequires); err != nil {
		return fmt.Errorf("requires: %w", err)
	}
	return checkStored(t.Owner, t.Created)
}

// canonical is the form in which t is stored.
func (t *Tool) canonical() Tool {
	c := *t
	c.Requires = SortedPatterns(t.Requires)
	c.Created = t.Created.UTC()
	return c
}

// CheckTool returns an error unless a profile may list name: SERVER/tool, where
// SERVER is a name ([CheckName]) and the whole an object of call, or the name of
// a built-in tool ([IsBuiltin]).
func CheckTool(name string) error {
	if IsBuiltin(name) {
		return nil
	}
	server, tool, _ := strings.Cut(name, "/")
	if CheckName(server) != nil || tool == "" || checkObject(Call, name) != nil {
		return errTool
	}
	return nil
}

// IsBuiltin reports whether name is a tool that the shim has itself.
func IsBuiltin(name string) bool { return slices.Contains(builtins[:], name) }

// BuiltinsFor returns the built-in tools that require some capability of action,
// sorted.
func BuiltinsFor(action Action) []string {
	var names []string
	for _, name := range builtins {
		if slices.ContainsFunc(BuiltinRequires(name), func(p Pattern) bool { return p.Action == action }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// BuiltinRequires returns what a built-in tool requires. What only explains or
// reports is always there and requires nothing.
func BuiltinRequires(name string) []Pattern {
	switch name {
	case ToolRead, ToolList:
		return []Pattern{{Action: Read, Prefix: true}}
	case ToolSearchKnowledge, ToolBrowseRecent, ToolKnowledgeStats, ToolReadEntry, ToolHistory:
		return []Pattern{{Action: MemoryRead, Prefix: true}}
	case ToolCaptureKnowledge:
		return []Pattern{{Action: MemoryWrite, Prefix: true}}
	}
	return nil
}

func checkPatterns(list []Pattern, most int) error {
	if len(list) > most {
		return fmt.Errorf("at most %d capabilities", most)
	}
	for i, p := range list {
		if err := p.check(); err != nil {
			return err
		}
		if slices.Contains(list[:i], p) {
			return fmt.Errorf("%s is there twice", p)
		}
	}
	return nil
}

// SortedPatterns returns a copy in the one order in which lists of patterns are
// stored and written. Nil stays nil.
func SortedPatterns(list []Pattern) []Pattern {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Pattern) int { return strings.Compare(a.String(), b.String()) })
	return list
}
