// Package ui is the one place where sbctl writes data: tables for people, JSON
// for programs, ids alone for pipes. Data goes to standard output only; what is
// said about it goes elsewhere.
//
// It protects the reader's terminal: whatever another program put into a name,
// a note or a command line reaches a table or a JSON text with every character
// that does not print made visible. It does not judge what it is given, and
// content that was asked for byte for byte does not pass through here.
package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Format says who reads the output.
type Format string

// Formats of output.
const (
	Table Format = "table" // people
	JSON  Format = "json"  // programs
)

// schema is the number in every JSON list; it changes when a field's meaning does.
const schema = 1

// Printer writes data to one place in one format.
type Printer struct {
	// Out is where data goes; required.
	Out io.Writer
	// Format is Table when empty.
	Format Format
	// Quiet writes ids only, one a line, whatever the format.
	Quiet bool
	// Wide indents JSON, for a person who looks at it.
	Wide bool
	// Columns is how wide the terminal is that Out is, so that tables are folded to
	// fit; 0: Out is no terminal, and a line of a table is one line.
	Columns int
	// Now dates relative times; nil means time.Now.
	Now func() time.Time
	// Zone is the time zone of tables; nil means time.Local.
	Zone *time.Location
}

// List is several things of one kind.
type List struct {
	// Head names the columns.
	Head []string
	// Rows has one line of cells for each thing.
	Rows [][]string
	// IDs has one id for each thing, for Quiet.
	IDs []string
	// Items is a slice with one JSON shape for each thing.
	Items any
}

// Field is one line of a thing shown by itself.
type Field struct {
	Name, Value string
}

// Object is one thing.
type Object struct {
	// ID is its id, for Quiet.
	ID string
	// Fields are its lines; those with an empty value are left out.
	Fields []Field
	// Value is its JSON shape.
	Value any
}

// List writes l.
func (p *Printer) List(l List) error {
	switch {
	case p.Quiet:
		return p.ids(l.IDs)
	case p.Format == JSON:
		return p.json(listing{Schema: schema, Items: nonNil(l.Items)})
	}
	return p.table(l.Head, l.Rows)
}

// listing is the JSON shape of every list.
type listing struct {
	Schema int `json:"schema"`
	Items  any `json:"items"`
}

// nonNil makes an empty list [] and not null.
func nonNil(items any) any {
	if text, err := json.Marshal(items); err == nil && string(text) == "null" {
		return []any{}
	}
	return items
}

// Object writes o.
func (p *Printer) Object(o Object) error {
	switch {
	case p.Quiet:
		return p.ids([]string{o.ID})
	case p.Format == JSON:
		return p.json(o.Value)
	}
	return p.fields(o.Fields)
}

// Section writes a heading and a table below an object, for people only.
func (p *Printer) Section(title string, head []string, rows [][]string) error {
	if p.Quiet || p.Format == JSON || len(rows) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(p.Out, "\n%s\n", Safe(title)); err != nil {
		return err
	}
	return p.table(head, rows)
}

// Event writes one element of a stream: a line of JSON, or a line of text.
func (p *Printer) Event(value any, text string) error {
	if p.Format != JSON {
		_, err := fmt.Fprintln(p.Out, Safe(text))
		return err
	}
	line, err := encode(value, "")
	if err != nil {
		return err
	}
	_, err = p.Out.Write(line)
	return err
}

func (p *Printer) ids(ids []string) error {
	var text strings.Builder
	for _, id := range ids {
		if id != "" {
			text.WriteString(Safe(id) + "\n")
		}
	}
	_, err := io.WriteString(p.Out, text.String())
	return err
}

func (p *Printer) json(value any) error {
	indent := ""
	if p.Wide {
		indent = "  "
	}
	text, err := encode(value, indent)
	if err != nil {
		return err
	}
	_, err = p.Out.Write(text)
	return err
}

// Encode is the JSON text of value on one line, as every stream and error has it.
func Encode(value any) ([]byte, error) { return encode(value, "") }

func encode(value any, indent string) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encoding output: %w", err)
	}
	return visible(text.Bytes()), nil
}

// visible escapes what encoding/json leaves as it is and a terminal would obey:
// bidirectional and zero-width characters, C1 controls, DEL.
func visible(text []byte) []byte {
	clean := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == '\n' || plain(r):
			clean = append(clean, text[:size]...)
		case r > 0xffff:
			high, low := surrogates(r)
			clean = fmt.Appendf(clean, `\u%04x\u%04x`, high, low)
		default:
			clean = fmt.Appendf(clean, `\u%04x`, r)
		}
		text = text[size:]
	}
	return clean
}

func (p *Printer) fields(fields []Field) error {
	width := 0
	for _, field := range fields {
		if field.Value != "" {
			width = max(width, utf8.RuneCountInString(field.Name))
		}
	}
	var text strings.Builder
	for _, field := range fields {
		if field.Value != "" {
			fmt.Fprintf(&text, "%-*s  %s\n", width+1, field.Name+":", Safe(field.Value))
		}
	}
	_, err := io.WriteString(p.Out, text.String())
	return err
}

// missing stands for an empty cell that is not the last, so that awk counts the
// same columns in each row.
const missing = "-"

// table aligns rows below head. No rows, no head: an empty list prints nothing,
// so that a pipe sees nothing.
func (p *Printer) table(head []string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(head))
	lines := make([][]string, 0, len(rows)+1)
	for _, row := range append([][]string{head}, rows...) {
		line := make([]string, len(head))
		for i := range line {
			if i < len(row) {
				line[i] = Safe(row[i])
			}
			if line[i] == "" && i < len(line)-1 {
				line[i] = missing
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(line[i]))
		}
		lines = append(lines, line)
	}
	if text, folded := fold(lines, widths, p.Columns); folded {
		_, err := io.WriteString(p.Out, text)
		return err
	}
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(strings.TrimRight(aligned(line, widths), " ") + "\n")
	}
	_, err := io.WriteString(p.Out, text.String())
	return err
}
