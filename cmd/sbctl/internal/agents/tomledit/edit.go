package tomledit

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

// Field is one key of a table that is written: a string, a list of strings or a
// truth value.
type Field struct {
	Key   string
	Value any // string, []string or bool
}

// Leaf is one value of a document under its full path; inline tables are
// opened, arrays are not.
type Leaf struct {
	Path  []string
	Value Value
	Plain bool // stands in a table with a header of its own, as the last part of its path
	Start int
}

// Leaves are the values below path, in source order. What arrays of tables hold
// is left out: a value in them has no path.
func (d *Document) Leaves(path []string) []Leaf {
	var found []Leaf
	for _, table := range d.Tables {
		if d.inArray(table) {
			continue
		}
		for _, pair := range table.Pairs {
			found = leaves(found, table.Path, pair, len(pair.Path) == 1 && len(table.Path) > 0)
		}
	}
	return slices.DeleteFunc(found, func(l Leaf) bool { return !hasPrefix(l.Path, path) })
}

func leaves(found []Leaf, base []string, pair Pair, plain bool) []Leaf {
	path := slices.Concat(base, pair.Path)
	if pair.Value.Kind != Inline {
		return append(found, Leaf{Path: path, Value: pair.Value, Plain: plain, Start: pair.Start})
	}
	for _, inner := range pair.Value.Pairs {
		found = leaves(found, path, inner, false)
	}
	return found
}

func (d *Document) inArray(table Table) bool {
	for _, other := range d.Tables {
		if other.Array && hasPrefix(table.Path, other.Path) {
			return true
		}
	}
	return false
}

// Table is the table opened by the header [path]; nil if there is none.
func (d *Document) Table(path []string) *Table {
	for i := range d.Tables {
		if t := &d.Tables[i]; !t.Array && len(t.Path) > 0 && slices.Equal(t.Path, path) {
			return t
		}
	}
	return nil
}

// Insert adds the table [path] at the end of the document, after an empty line.
// A document without a line break at its end stays without one, which is how
// Remove tells an empty file from none. A path that leads through a value, such
// as an inline table, or through an array of tables is a *SyntaxError, since no
// header can add to these.
func Insert(src []byte, doc *Document, path []string, fields []Field) (textedit.Edit, error) {
	for _, table := range doc.Tables {
		if table.Array && hasPrefix(path, table.Path) {
			return textedit.Edit{}, &SyntaxError{Line(src, table.Start), fmt.Sprintf("%q is an array of tables", strings.Join(table.Path, "."))}
		}
		for _, pair := range table.Pairs {
			if at := slices.Concat(table.Path, pair.Path); hasPrefix(path, at) {
				return textedit.Edit{}, &SyntaxError{Line(src, pair.Start), fmt.Sprintf("%q is written as a value, to which no table can be added", strings.Join(at, "."))}
			}
		}
	}
	eol := lineBreak(src)
	text := strings.TrimSuffix(section(path, fields, eol), eol)
	switch {
	case len(src) == 0:
	case bytes.HasSuffix(src, []byte("\n")):
		text = eol + text + eol
	default:
		text = eol + eol + text
	}
	return textedit.Edit{At: len(src), Insert: text}, nil
}

// New is the document that holds the table and nothing else; it is what a
// missing file becomes.
func New(path []string, fields []Field) []byte { return []byte(section(path, fields, "\n")) }

func lineBreak(src []byte) string {
	if i := bytes.IndexByte(src, '\n'); i > 0 && src[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

func section(path []string, fields []Field, eol string) string {
	parts := make([]string, len(path))
	for i, part := range path {
		parts[i] = key(part)
	}
	var b strings.Builder
	b.WriteString("[" + strings.Join(parts, ".") + "]" + eol)
	for _, field := range fields {
		b.WriteString(key(field.Key) + " = " + value(field.Value) + eol)
	}
	return b.String()
}

func key(part string) string {
	for _, c := range []byte(part) {
		if !isBare(c) {
			return quote(part)
		}
	}
	if part == "" {
		return quote(part)
	}
	return part
}

func value(v any) string {
	switch v := v.(type) {
	case []string:
		quoted := make([]string, len(v))
		for i, text := range v {
			quoted[i] = quote(text)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case bool:
		return fmt.Sprint(v)
	default:
		return quote(fmt.Sprint(v))
	}
}

// quote is a basic string.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Set gives keys of the table [path] new values and adds those it lacks, after
// its header; its other keys stay. The table must exist with a header of its own.
func Set(src []byte, doc *Document, path []string, fields []Field) []textedit.Edit {
	table := doc.Table(path)
	if table == nil {
		return nil
	}
	var edits []textedit.Edit
	added := ""
	for _, field := range fields {
		i := slices.IndexFunc(table.Pairs, func(p Pair) bool { return len(p.Path) == 1 && p.Path[0] == field.Key })
		switch {
		case i < 0:
			added += lineBreak(src) + key(field.Key) + " = " + value(field.Value)
		case !table.Pairs[i].Value.equals(field.Value):
			v := table.Pairs[i].Value
			edits = append(edits, textedit.Edit{At: v.Start, Delete: v.End - v.Start, Insert: value(field.Value)})
		}
	}
	if added != "" {
		at := table.Start + len(bytes.TrimSuffix(firstLine(src[table.Start:]), []byte("\r")))
		edits = append(edits, textedit.Edit{At: at, Insert: added})
	}
	return edits
}

func firstLine(text []byte) []byte {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line
}

func (v *Value) equals(want any) bool {
	switch want := want.(type) {
	case string:
		return v.Kind == String && v.Text == want
	case []string:
		have, ok := v.Strings()
		return ok && slices.Equal(have, want)
	case bool:
		return v.Kind == Other && v.Text == fmt.Sprint(want)
	}
	return false
}

// Remove takes the table [path] and the tables below it away, each with the
// empty line that Insert puts before. empty reports that the document held
// nothing else and ended in a line break, as New writes it, so that the file
// itself can go.
func Remove(src []byte, doc *Document, path []string) (edits []textedit.Edit, empty bool) {
	for _, table := range doc.Tables {
		if len(table.Path) == 0 || !hasPrefix(table.Path, path) {
			continue
		}
		start, end := table.Start, table.End
		start = bytes.LastIndexByte(src[:start], '\n') + 1
		if strings.Trim(string(src[start:table.Start]), " \t") != "" {
			start = table.Start // a byte order mark
		}
		atEnd := end == len(src)
		if !atEnd {
			end += 1 + bytes.IndexByte(src[end:], '\n')
		}
		start = dropLineBreak(src, start, start > 0 && atEnd)
		if n := len(edits); n > 0 {
			start = max(start, edits[n-1].At+edits[n-1].Delete)
		}
		edits = append(edits, textedit.Edit{At: start, Delete: end - start})
	}
	if len(edits) == 1 && edits[0].At == 0 && edits[0].Delete == len(src) && bytes.HasSuffix(src, []byte("\n")) {
		return edits, true
	}
	return edits, false
}

// dropLineBreak moves start back over the empty line before it, and at the end
// of a document without a last line break over the break before that, too.
func dropLineBreak(src []byte, start int, both bool) int {
	before := src[:start]
	for _, blank := range []string{"\r\n", "\n"} {
		rest, found := bytes.CutSuffix(before, []byte(blank))
		if !found {
			continue
		}
		if both {
			rest = bytes.TrimSuffix(bytes.TrimSuffix(rest, []byte("\n")), []byte("\r"))
			return len(rest)
		}
		if len(rest) == 0 || rest[len(rest)-1] == '\n' {
			return len(rest)
		}
		return start
	}
	return start
}

// Replace gives a value of a document another text, and leaves all around it as
// it is.
func Replace(v *Value, text string) textedit.Edit {
	return textedit.Edit{At: v.Start, Delete: v.End - v.Start, Insert: quote(text)}
}
