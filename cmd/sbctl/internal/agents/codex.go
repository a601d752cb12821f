package agents

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/agents/tomledit"
)

// Codex keeps servers as tables [mcp_servers.NAME] of ~/.codex/config.toml, or
// of $CODEX_HOME/config.toml, and of .codex/config.toml in a project that its
// user has marked as trusted, which wins. A name is letters, digits, dash and
// underscore. (Documentation and behaviour of 0.171.)
const codexTable = "mcp_servers"

func codexFile(scope Scope, userHome, projectDir string, getenv func(string) string) string {
	if scope == Project {
		return filepath.Join(projectDir, ".codex", "config.toml")
	}
	if dir := getenv("CODEX_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "config.toml")
	}
	return filepath.Join(userHome, ".codex", "config.toml")
}

func codexFresh(name string, want command) []byte {
	return tomledit.New([]string{codexTable, name}, codexFields(want))
}

func codexFields(want command) []tomledit.Field {
	return []tomledit.Field{{Key: "command", Value: want.program}, {Key: "args", Value: want.args}}
}

func codexParse(path string, text []byte, _ string) (document, error) {
	doc, err := tomledit.Parse(text)
	if err != nil {
		return nil, malformedTOML(path, err)
	}
	return &codexDoc{path: path, text: text, doc: doc}, nil
}

func malformedTOML(path string, err error) error {
	if fault, ok := errors.AsType[*tomledit.SyntaxError](err); ok {
		return fmt.Errorf("%w: %s:%d: %s", ErrInvalid, path, fault.Line, fault.Msg)
	}
	return fmt.Errorf("%w: %s: %w", ErrInvalid, path, err)
}

// codexDoc is a Codex configuration.
type codexDoc struct {
	path string
	text []byte
	doc  *tomledit.Document
}

func (d *codexDoc) entries() []entry {
	var found []entry
	at := func(name string, start int) *entry {
		i := slices.IndexFunc(found, func(e entry) bool { return e.name == name })
		if i < 0 {
			i = len(found)
			plain := d.doc.Table([]string{codexTable, name}) != nil
			found = append(found, entry{name: name, line: tomledit.Line(d.text, start), fixed: !plain})
		}
		return &found[i]
	}
	for _, table := range d.doc.Tables {
		if len(table.Path) == 2 && table.Path[0] == codexTable {
			at(table.Path[1], table.Start)
		}
	}
	for _, leaf := range d.doc.Leaves([]string{codexTable}) {
		if len(leaf.Path) < 2 {
			continue
		}
		e := at(leaf.Path[1], leaf.Start)
		if len(leaf.Path) != 3 {
			continue
		}
		// A value of this entry outside the table of its own header.
		e.fixed = e.fixed || !leaf.Plain
		switch leaf.Path[2] {
		case "command":
			e.command.program = leaf.Value.Text
		case "args":
			e.command.args, _ = leaf.Value.Strings()
		case "enabled":
			e.off = leaf.Value.Text == "false"
		}
	}
	return found
}

func (d *codexDoc) insert(name string, want command) ([]textedit.Edit, error) {
	edit, err := tomledit.Insert(d.text, d.doc, []string{codexTable, name}, codexFields(want))
	if err != nil {
		return nil, malformedTOML(d.path, err)
	}
	return []textedit.Edit{edit}, nil
}

func (d *codexDoc) set(have entry, want command) ([]textedit.Edit, error) {
	if have.command.equal(want) {
		return nil, nil
	}
	if have.fixed {
		return nil, d.foreign(have)
	}
	return tomledit.Set(d.text, d.doc, []string{codexTable, have.name}, codexFields(want)), nil
}

func (d *codexDoc) remove(name string) ([]textedit.Edit, bool, error) {
	for _, e := range d.entries() {
		if e.name == name && e.fixed {
			return nil, false, d.foreign(e)
		}
	}
	edits, empty := tomledit.Remove(d.text, d.doc, []string{codexTable, name})
	return edits, empty, nil
}

func (d *codexDoc) foreign(e entry) error {
	return fmt.Errorf("%w: %s:%d: the entry %q is not written as a table [%s.%s]; change it by hand", ErrConflict, d.path, e.line, e.name, codexTable, e.name)
}
