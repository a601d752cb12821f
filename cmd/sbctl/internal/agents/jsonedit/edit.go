package jsonedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

// Field is one member of an entry that is written: a string, a list of strings
// or a truth value.
type Field struct {
	Key   string
	Value any // string, []string or bool
}

// New is the document that holds one entry below path and, before it, the
// members of head; it is what a missing file becomes.
//
// Layout is how Remove tells what Insert found, without notes kept elsewhere:
//
//	no file         New's text exactly            removing it leaves no file
//	no container    "container": {⏎ entry ⏎}      closing brace set off by white space
//	empty container {…entry}                      closing brace right after the entry
//
// and the same for an empty root. So adding and removing gives back the bytes
// that were there, as long as nobody changed the layout in between.
func New(path []string, name string, fields []Field, head ...Field) []byte {
	st := style{unit: "  ", eol: "\n"}
	var b strings.Builder
	b.WriteString("{")
	for _, field := range head {
		b.WriteString(st.newline(1) + quote(field.Key) + ": " + st.value(field.Value) + ",")
	}
	for depth, key := range path {
		b.WriteString(st.newline(depth+1) + quote(key) + ": {")
	}
	depth := len(path) + 1
	b.WriteString(st.newline(depth) + quote(name) + ": " + st.entry(fields, depth))
	for depth := len(path); depth >= 0; depth-- {
		b.WriteString(st.newline(depth) + "}")
	}
	b.WriteString("\n")
	return []byte(b.String())
}

// Container walks path from root. It returns the deepest object it found and
// how many keys of the path led there. A value on the way that is no object, or
// a key given twice, is a *SyntaxError.
func Container(src []byte, root *Value, path []string) (*Value, int, error) {
	at := root
	for depth, key := range path {
		found, err := unique(src, at, key)
		if err != nil {
			return nil, 0, err
		}
		if found == nil {
			return at, depth, nil
		}
		if found.Value.Kind != Object {
			return nil, 0, &SyntaxError{Line(src, found.Start), fmt.Sprintf("%q is not an object", key)}
		}
		at = &found.Value
	}
	return at, len(path), nil
}

// Find returns the member called name below path, nil if there is none.
func Find(src []byte, root *Value, path []string, name string) (*Member, error) {
	container, depth, err := Container(src, root, path)
	if err != nil || depth < len(path) {
		return nil, err
	}
	return unique(src, container, name)
}

func unique(src []byte, object *Value, key string) (*Member, error) {
	var found *Member
	for i := range object.Members {
		if object.Members[i].Key != key {
			continue
		}
		if found != nil {
			return nil, &SyntaxError{Line(src, object.Members[i].Start), fmt.Sprintf("%q is given twice", key)}
		}
		found = &object.Members[i]
	}
	return found, nil
}

// Insert adds an entry called name below path, which must not be there yet.
func Insert(src []byte, root *Value, path []string, name string, fields []Field) (textedit.Edit, error) {
	container, depth, err := Container(src, root, path)
	if err != nil {
		return textedit.Edit{}, err
	}
	st := styleOf(src, root)
	// What the container lacks is written inside out: the entry, wrapped in
	// each missing object.
	level := len(path) + 1
	text := quote(name) + st.colon() + st.entry(fields, level)
	for i := len(path) - 1; i >= depth; i-- {
		level--
		text = quote(path[i]) + st.colon() + "{" + st.gap(level+1) + text + st.gap(level) + "}"
	}
	return st.add(src, container, text, level), nil
}

// add appends a member, given as text, to an object.
func (st style) add(src []byte, object *Value, text string, level int) textedit.Edit {
	if len(object.Members) == 0 {
		// After what stands between the braces, so that it can be told apart later.
		at := object.End - 1
		if open := endsInLineComment(src[object.Start+1 : at]); open {
			text = st.eol + text
		}
		return textedit.Edit{At: at, Insert: text}
	}
	last := &object.Members[len(object.Members)-1]
	at := last.Value.End
	if last.comma >= 0 {
		at = last.comma + 1
	}
	// A comment behind the last member belongs to it and stays there.
	remark := src[at : at+remarkLength(src[at:object.End-1])]
	between := st.before(src, object, level)
	if len(remark) > 0 && !strings.Contains(between, "\n") {
		between = st.eol
	}
	if last.comma >= 0 {
		return textedit.Edit{At: at + len(remark), Insert: between + text + ","}
	}
	return textedit.Edit{At: at, Delete: len(remark), Insert: "," + string(remark) + between + text}
}

// remarkLength is the length of the rest of a line that holds comments, 0 if it
// holds none or does not end before rest does.
func remarkLength(rest []byte) int {
	end := bytes.IndexByte(rest, '\n')
	if end < 0 {
		return 0
	}
	line := bytes.TrimSuffix(rest[:end], []byte("\r"))
	for at := bytes.IndexByte(line, '/'); at >= 0 && at+1 < len(line); {
		if line[at+1] == '/' {
			return len(line)
		}
		closing := bytes.Index(line[at+2:], []byte("*/"))
		if closing < 0 {
			return 0
		}
		after := at + 2 + closing + 2
		next := bytes.IndexByte(line[after:], '/')
		if next < 0 {
			return len(line)
		}
		at = after + next
	}
	return 0
}

// endsInLineComment reports whether more text appended to between would be
// swallowed by a line comment.
func endsInLineComment(between []byte) bool {
	line := between[bytes.LastIndexByte(between, '\n')+1:]
	at := bytes.Index(line, []byte("//"))
	return at >= 0 && !bytes.Contains(line[at:], []byte("*/"))
}

// before is the white space that goes between a comma and the next key: as
// before the object's last key, blank lines aside.
func (st style) before(src []byte, object *Value, level int) string {
	from := object.Start + 1
	if n := len(object.Members); n > 1 {
		from = object.Members[n-2].comma + 1
	}
	between := src[from:object.Members[len(object.Members)-1].Start]
	line := between[bytes.LastIndexByte(between, '\n')+1:]
	switch indent := string(line); {
	case strings.Trim(indent, " \t\r") != "":
		return st.newline(level)
	case len(line) < len(between):
		return st.eol + indent
	default:
		return indent
	}
}

// Set gives fields of an existing entry new values, and adds those it lacks;
// its other members stay. No difference gives an empty Edit.
func Set(src []byte, root *Value, entry *Member, level int, fields []Field) (textedit.Edit, error) {
	st := styleOf(src, root)
	object := entry.Value
	start := object.Start
	text := slices.Clone(src[object.Start:object.End])
	for _, field := range fields {
		// Offsets move with each change, so the entry is read again.
		current, err := Parse(text, Dialect{Comments: true, TrailingCommas: true})
		if err != nil {
			return textedit.Edit{}, err
		}
		found, err := unique(text, &current, field.Key)
		if err != nil {
			return textedit.Edit{}, err
		}
		switch {
		case found == nil:
			member := quote(field.Key) + st.colon() + st.value(field.Value)
			text = textedit.Apply(text, st.add(text, &current, member, level+1))
		case !found.Value.equals(field.Value):
			v := found.Value
			text = textedit.Apply(text, textedit.Edit{At: v.Start, Delete: v.End - v.Start, Insert: st.value(field.Value)})
		}
	}
	return textedit.Trim(src, textedit.Edit{At: start, Delete: object.End - object.Start, Insert: string(text)}), nil
}

// Remove takes the member called name below path away. empty reports that the
// document is as New made it, with this head, so that the file itself can go.
func Remove(src []byte, root *Value, path []string, name string, head ...Field) (edit textedit.Edit, empty bool, err error) {
	entry, err := Find(src, root, path, name)
	if err != nil || entry == nil {
		return textedit.Edit{}, false, err
	}
	if isNew(src, path, name, entry, head) {
		return textedit.Edit{Delete: len(src)}, true, nil
	}
	// Containers that Insert made go with their last member.
	chain := []*Value{root}
	for _, key := range path {
		chain = append(chain, &chain[len(chain)-1].Member(key).Value)
	}
	key := name
	for depth := len(path); ; depth-- {
		object := chain[depth]
		if depth > 0 && len(object.Members) == 1 && setOff(src, object) {
			key = path[depth-1]
			continue
		}
		return without(src, object, key), false, nil
	}
}

// isNew reports whether src is what New made of this entry, whatever stands in
// the entry by now.
func isNew(src []byte, path []string, name string, entry *Member, head []Field) bool {
	const mark = "\x00"
	blank := New(path, name, []Field{{mark, true}}, head...)
	at := bytes.Index(blank, []byte(quote(mark)))
	if at < 0 {
		return false
	}
	before := blank[:bytes.LastIndexByte(blank[:at], '{')]
	after := blank[at+bytes.IndexByte(blank[at:], '}')+1:]
	return bytes.Equal(src[:entry.Value.Start], before) && bytes.Equal(src[entry.Value.End:], after)
}

// setOff reports whether the only member of object is set off from both braces
// by plain white space, as Insert writes a container it made.
func setOff(src []byte, object *Value) bool {
	only := object.Members[0]
	before := string(src[object.Start+1 : only.Start])
	after := string(src[only.Value.End : object.End-1])
	return before != "" && after != "" && strings.Trim(before+after, " \t\r\n") == ""
}

// without deletes one member and the comma that joined it to its neighbours.
func without(src []byte, object *Value, key string) textedit.Edit {
	i := slices.IndexFunc(object.Members, func(m Member) bool { return m.Key == key })
	m := object.Members[i]
	if i == 0 {
		end := m.Value.End
		if m.comma >= 0 {
			end = m.comma + 1
		}
		if len(object.Members) > 1 {
			// Up to the next key, so that it takes this one's place; a comment
			// in between stays.
			for end < object.Members[1].Start && strings.IndexByte(" \t\r\n", src[end]) >= 0 {
				end++
			}
		}
		if m.comma >= 0 && bytes.IndexByte(src[m.Value.End:m.comma], '/') >= 0 {
			// A comment between value and comma: it stays, the comma goes by itself.
			return textedit.Edit{At: m.Start, Delete: m.comma + 1 - m.Start, Insert: string(src[m.Value.End:m.comma])}
		}
		return textedit.Edit{At: m.Start, Delete: end - m.Start}
	}
	comma := object.Members[i-1].comma
	start := m.Start
	for start > comma+1 && (src[start-1] == ' ' || src[start-1] == '\t') {
		start--
	}
	// One line break at most: Insert wrote no more, the rest was there.
	for _, c := range []byte("\n\r") {
		if start > comma+1 && src[start-1] == c {
			start--
		}
	}
	if m.comma >= 0 {
		// The comma before joins the neighbours, or trails as this one did.
		return textedit.Edit{At: start, Delete: m.comma + 1 - start, Insert: string(src[m.Value.End:m.comma])}
	}
	return textedit.Edit{At: comma, Delete: m.Value.End - comma, Insert: string(src[comma+1 : start])}
}

// equals compares a written value with a field's.
func (v *Value) equals(want any) bool {
	switch want := want.(type) {
	case string:
		return v.Kind == String && v.Text == want
	case []string:
		have, ok := v.Strings()
		return ok && slices.Equal(have, want)
	case bool:
		return want && v.IsTrue() || !want && v.IsFalse()
	}
	return false
}

// style is the layout of a document, copied for what is added to it.
type style struct {
	unit    string // one level of indentation
	eol     string
	compact bool // the document has no line breaks
}

// styleOf reads the layout from the first member of the root.
func styleOf(src []byte, root *Value) style {
	st := style{unit: "  ", eol: "\n"}
	if i := bytes.IndexByte(src, '\n'); i > 0 && src[i-1] == '\r' {
		st.eol = "\r\n"
	}
	if len(root.Members) == 0 {
		return st
	}
	st.compact = bytes.IndexByte(src[root.Start:root.End], '\n') < 0
	first := root.Members[0].Start
	line := src[bytes.LastIndexByte(src[:first], '\n')+1 : first]
	if indent := string(line); indent != "" && strings.Trim(indent, " \t") == "" && len(indent) <= 8 {
		st.unit = indent
	}
	return st
}

func (st style) newline(level int) string {
	if st.compact {
		return ""
	}
	return st.eol + strings.Repeat(st.unit, level)
}

// gap sets a made container's member off from its braces.
func (st style) gap(level int) string {
	if st.compact {
		return " "
	}
	return st.newline(level)
}

func (st style) colon() string {
	if st.compact {
		return ":"
	}
	return ": "
}

func (st style) entry(fields []Field, level int) string {
	var b strings.Builder
	b.WriteString("{")
	for i, field := range fields {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(st.newline(level+1) + quote(field.Key) + st.colon() + st.value(field.Value))
	}
	b.WriteString(st.newline(level) + "}")
	return b.String()
}

func (st style) value(v any) string {
	list, ok := v.([]string)
	if !ok {
		return quote(v)
	}
	joint := ", "
	if st.compact {
		joint = ","
	}
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = quote(text)
	}
	return "[" + strings.Join(quoted, joint) + "]"
}

// quote is v in JSON, without the escapes that are meant for HTML.
func quote(v any) string {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return `""` // strings and truth values always encode
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Replace gives a value of a document another text, and leaves all around it as
// it is.
func Replace(v *Value, text string) textedit.Edit {
	return textedit.Edit{At: v.Start, Delete: v.End - v.Start, Insert: quote(text)}
}
