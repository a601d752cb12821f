package agents

import (
	"errors"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

// jsonCodec is how one agent writes a server down in JSON.
type jsonCodec struct {
	dialect   jsonedit.Dialect
	container []string
	head      []jsonedit.Field // what a new file starts with
	// fields is the entry; for one that exists already only what the command
	// needs, so that an operator's own settings stay.
	fields func(want command, exists bool) []jsonedit.Field
	read   func(server *jsonedit.Value) command
	off    func(server *jsonedit.Value) bool
}

func (c jsonCodec) fresh(name string, want command) []byte {
	return jsonedit.New(c.container, name, c.fields(want, false), c.head...)
}

// parse reads a configuration. local is the way to servers that hold in one
// project alone; nil: this agent has none, or no project is looked at.
func (c jsonCodec) parse(path string, text []byte, local []string) (*jsonDoc, error) {
	doc := &jsonDoc{codec: c, path: path, text: text, local: local}
	if text == nil {
		return doc, nil
	}
	root, err := jsonedit.Parse(text, c.dialect)
	if err != nil {
		return nil, malformed(path, err)
	}
	doc.root = root
	if _, _, err := jsonedit.Container(text, &doc.root, c.container); err != nil {
		return nil, malformed(path, err)
	}
	return doc, nil
}

// malformed is "PATH:LINE: what is wrong".
func malformed(path string, err error) error {
	if fault, ok := errors.AsType[*jsonedit.SyntaxError](err); ok {
		return fmt.Errorf("%w: %s:%d: %s", ErrInvalid, path, fault.Line, fault.Msg)
	}
	return fmt.Errorf("%w: %s: %w", ErrInvalid, path, err)
}

// jsonDoc is a JSON configuration.
type jsonDoc struct {
	codec jsonCodec
	path  string
	text  []byte
	root  jsonedit.Value
	local []string
}

func (d *jsonDoc) entries() []entry {
	found := d.servers(d.codec.container, "")
	if d.local != nil {
		found = append(found, d.servers(d.local, "local")...)
	}
	return found
}

func (d *jsonDoc) servers(way []string, place string) []entry {
	container, depth, err := jsonedit.Container(d.text, &d.root, way)
	if err != nil || depth < len(way) {
		return nil
	}
	var found []entry
	for i := range container.Members {
		m := &container.Members[i]
		found = append(found, entry{
			name: m.Key, line: jsonedit.Line(d.text, m.Start), place: place,
			command: d.codec.read(&m.Value), off: d.codec.off(&m.Value),
		})
	}
	return found
}

func (d *jsonDoc) insert(name string, want command) ([]textedit.Edit, error) {
	edit, err := jsonedit.Insert(d.text, &d.root, d.codec.container, name, d.codec.fields(want, false))
	if err != nil {
		return nil, malformed(d.path, err)
	}
	return []textedit.Edit{edit}, nil
}

func (d *jsonDoc) set(have entry, want command) ([]textedit.Edit, error) {
	found, err := jsonedit.Find(d.text, &d.root, d.codec.container, have.name)
	if err != nil {
		return nil, malformed(d.path, err)
	}
	edit, err := jsonedit.Set(d.text, &d.root, found, len(d.codec.container)+1, d.codec.fields(want, true))
	if err != nil {
		return nil, malformed(d.path, err)
	}
	return []textedit.Edit{edit}, nil
}

func (d *jsonDoc) remove(name string) ([]textedit.Edit, bool, error) {
	edit, empty, err := jsonedit.Remove(d.text, &d.root, d.codec.container, name, d.codec.head...)
	if err != nil {
		return nil, false, malformed(d.path, err)
	}
	return []textedit.Edit{edit}, empty, nil
}

// readPair reads the form most agents share: "command" and "args".
func readPair(server *jsonedit.Value) command {
	var c command
	if m := server.Member("type"); m != nil && m.Value.Text != "stdio" {
		return c
	}
	if m := server.Member("command"); m != nil && m.Value.Kind == jsonedit.String {
		c.program = m.Value.Text
	}
	if m := server.Member("args"); m != nil {
		c.args, _ = m.Value.Strings()
	}
	return c
}
