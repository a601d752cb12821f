// Package tomledit adds, changes and removes one table of a TOML document and
// leaves every other byte alone. It protects an agent's configuration, which
// belongs to its user, from the rewriting that decoding and encoding again
// would do.
//
// It reads TOML 1.0, and what 1.1 adds inside inline tables and strings. It
// does not interpret numbers and dates, and it does not touch files.
package tomledit

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Document is a parsed file: the root table, then one Table for each header, in
// source order.
type Document struct {
	Tables []Table
}

// Table is what one header opens. The root has an empty path and no header.
type Table struct {
	Path  []string
	Array bool // [[header]]
	Start int  // offset of the header's line
	End   int  // end of its last line, without the line break; comments that follow on lines of their own are not counted
	Pairs []Pair
}

// Pair is one key, perhaps dotted, and its value.
type Pair struct {
	Path  []string // relative to its table
	Start int
	Value Value
}

// Kind is the kind of a value.
type Kind int

// Kinds of values.
const (
	String Kind = iota
	Array
	Inline // inline table
	Other  // number, date, true, false
)

// Value is one value: where it stands, and what it holds.
type Value struct {
	Kind       Kind
	Start, End int

	Text     string  // of a String, decoded; of an Other, as written
	Elements []Value // of an Array
	Pairs    []Pair  // of an Inline
}

// Strings are the texts of an array of strings; false for anything else.
func (v *Value) Strings() ([]string, bool) {
	if v.Kind != Array {
		return nil, false
	}
	texts := make([]string, 0, len(v.Elements))
	for i := range v.Elements {
		if v.Elements[i].Kind != String {
			return nil, false
		}
		texts = append(texts, v.Elements[i].Text)
	}
	return texts, true
}

// SyntaxError is a document that its agent could not read either.
type SyntaxError struct {
	Line int // counted from 1
	Msg  string
}

// Error is "line N: what is wrong".
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

const maxDepth = 100

// Parse reads the whole of src. The error is a *SyntaxError.
func Parse(src []byte) (*Document, error) {
	s := &scanner{src: src}
	for at := 0; at < len(src); {
		r, size := utf8.DecodeRune(src[at:])
		if r == utf8.RuneError && size == 1 {
			return nil, s.fault(at, "not valid UTF-8")
		}
		at += size
	}
	if bytes.HasPrefix(src, []byte("\xef\xbb\xbf")) {
		s.at = 3
	}
	doc := &Document{Tables: []Table{{Start: s.at, End: s.at}}}
	names := &node{kind: header}
	current := names
	for {
		if err := s.blank(); err != nil {
			return nil, err
		}
		if s.at == len(src) {
			return doc, nil
		}
		start := s.at
		if src[s.at] == '[' {
			path, array, err := s.header()
			if err != nil {
				return nil, err
			}
			if current, err = names.open(path, array); err != nil {
				return nil, s.fault(start, "%s", err)
			}
			doc.Tables = append(doc.Tables, Table{Path: path, Array: array, Start: start})
		} else {
			pair, err := s.pair(0)
			if err != nil {
				return nil, err
			}
			if err := current.set(pair); err != nil {
				return nil, s.fault(start, "%s", err)
			}
			table := &doc.Tables[len(doc.Tables)-1]
			table.Pairs = append(table.Pairs, pair)
		}
		if err := s.lineEnd(); err != nil {
			return nil, err
		}
		doc.Tables[len(doc.Tables)-1].End = s.at
	}
}

// Line is the number, from 1, of the line that holds offset at.
func Line(src []byte, at int) int {
	return 1 + bytes.Count(src[:min(at, len(src))], []byte("\n"))
}

type scanner struct {
	src []byte
	at  int
}

func (s *scanner) fault(at int, format string, args ...any) error {
	return &SyntaxError{Line: Line(s.src, at), Msg: fmt.Sprintf(format, args...)}
}

func (s *scanner) peek() byte {
	if s.at < len(s.src) {
		return s.src[s.at]
	}
	return 0
}

// here names the next byte for an error message, without quoting more of a
// file that may hold secrets.
func (s *scanner) here() string {
	if s.at >= len(s.src) {
		return "the end of the file"
	}
	r, _ := utf8.DecodeRune(s.src[s.at:])
	if r == '\n' || r == '\r' {
		return "the end of the line"
	}
	return fmt.Sprintf("%q", r)
}

func (s *scanner) has(prefix string) bool { return bytes.HasPrefix(s.src[s.at:], []byte(prefix)) }

// spaces skips blanks within a line.
func (s *scanner) spaces() {
	for s.peek() == ' ' || s.peek() == '\t' {
		s.at++
	}
}

// comment skips a comment, if one starts here, up to its line break.
func (s *scanner) comment() error {
	if s.peek() != '#' {
		return nil
	}
	for s.at < len(s.src) && s.src[s.at] != '\n' && !s.has("\r\n") {
		if c := s.src[s.at]; c < 0x20 && c != '\t' || c == 0x7f {
			return s.fault(s.at, "a control character inside a comment")
		}
		s.at++
	}
	return nil
}

// newline skips one line break, if one is here.
func (s *scanner) newline() bool {
	switch {
	case s.has("\n"):
		s.at++
	case s.has("\r\n"):
		s.at += 2
	default:
		return false
	}
	return true
}

// blank skips spaces, comments and line breaks.
func (s *scanner) blank() error {
	for {
		s.spaces()
		if err := s.comment(); err != nil {
			return err
		}
		if !s.newline() {
			return nil
		}
	}
}

// lineEnd demands that nothing but a comment is left on the line, and stops
// before the line break.
func (s *scanner) lineEnd() error {
	s.spaces()
	if err := s.comment(); err != nil {
		return err
	}
	if s.at < len(s.src) && s.src[s.at] != '\n' && !s.has("\r\n") {
		return s.fault(s.at, "expected the end of the line, found %s", s.here())
	}
	return nil
}

func (s *scanner) header() (path []string, array bool, err error) {
	s.at++
	if s.peek() == '[' {
		array = true
		s.at++
	}
	s.spaces()
	if path, err = s.key(); err != nil {
		return nil, false, err
	}
	closing := "]"
	if array {
		closing = "]]"
	}
	if !s.has(closing) {
		return nil, false, s.fault(s.at, "expected %q after a table's name, found %s", closing, s.here())
	}
	s.at += len(closing)
	return path, array, nil
}

// key reads a dotted key and the blanks after it.
func (s *scanner) key() ([]string, error) {
	var path []string
	for {
		part, err := s.keyPart()
		if err != nil {
			return nil, err
		}
		path = append(path, part)
		s.spaces()
		if s.peek() != '.' {
			return path, nil
		}
		s.at++
		s.spaces()
	}
}

func (s *scanner) keyPart() (string, error) {
	switch c := s.peek(); {
	case s.has(`"""`), s.has("'''"):
		return "", s.fault(s.at, "a key cannot span lines")
	case c == '"' || c == '\'':
		v, err := s.text()
		return v.Text, err
	}
	start := s.at
	for s.at < len(s.src) && isBare(s.src[s.at]) {
		s.at++
	}
	if s.at == start {
		return "", s.fault(s.at, "expected a key, found %s", s.here())
	}
	return string(s.src[start:s.at]), nil
}

func isBare(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (s *scanner) pair(depth int) (Pair, error) {
	p := Pair{Start: s.at}
	var err error
	if p.Path, err = s.key(); err != nil {
		return p, err
	}
	if s.peek() != '=' {
		return p, s.fault(s.at, "expected '=' after a key, found %s", s.here())
	}
	s.at++
	s.spaces()
	p.Value, err = s.value(depth)
	return p, err
}

func (s *scanner) value(depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, s.fault(s.at, "nested more than %d deep", maxDepth)
	}
	switch s.peek() {
	case '"', '\'':
		return s.text()
	case '[':
		return s.array(depth)
	case '{':
		return s.inline(depth)
	default:
		return s.literal()
	}
}

func (s *scanner) array(depth int) (Value, error) {
	v := Value{Kind: Array, Start: s.at}
	s.at++
	for {
		if err := s.blank(); err != nil {
			return v, err
		}
		if s.peek() == ']' {
			break
		}
		element, err := s.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.Elements = append(v.Elements, element)
		if err := s.blank(); err != nil {
			return v, err
		}
		if s.peek() == ',' {
			s.at++
		} else if s.peek() != ']' {
			return v, s.fault(s.at, "expected ',' or ']', found %s", s.here())
		}
	}
	s.at++
	v.End = s.at
	return v, nil
}

func (s *scanner) inline(depth int) (Value, error) {
	v := Value{Kind: Inline, Start: s.at}
	names := &node{kind: header}
	s.at++
	for {
		if err := s.blank(); err != nil {
			return v, err
		}
		if s.peek() == '}' {
			break
		}
		pair, err := s.pair(depth + 1)
		if err != nil {
			return v, err
		}
		if err := names.set(pair); err != nil {
			return v, s.fault(pair.Start, "%s", err)
		}
		v.Pairs = append(v.Pairs, pair)
		if err := s.blank(); err != nil {
			return v, err
		}
		if s.peek() == ',' {
			s.at++
		} else if s.peek() != '}' {
			return v, s.fault(s.at, "expected ',' or '}', found %s", s.here())
		}
	}
	s.at++
	v.End = s.at
	return v, nil
}

// literals are the numbers, dates and truth values of TOML; their range is not
// checked.
var literals = regexp.MustCompile(`^(?:true|false|[+-]?(?:inf|nan)` +
	`|[+-]?(?:0|[1-9](?:_?[0-9])*)(?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9](?:_?[0-9])*)?` +
	`|0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*` +
	`|\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:[Zz]|[+-]\d\d:\d\d)?)?` +
	`|\d\d:\d\d(?::\d\d(?:\.\d+)?)?)$`)

func (s *scanner) literal() (Value, error) {
	v := Value{Kind: Other, Start: s.at}
	end := s.at
	for end < len(s.src) && (isBare(s.src[end]) || strings.IndexByte("+.:", s.src[end]) >= 0) {
		end++
	}
	// A date and its time may be joined by one space.
	if rest := s.src[end:]; end-s.at == 10 && len(rest) > 2 && rest[0] == ' ' && isDigit(rest[1]) && isDigit(rest[2]) {
		end++
		for end < len(s.src) && (isBare(s.src[end]) || strings.IndexByte("+.:", s.src[end]) >= 0) {
			end++
		}
	}
	v.Text = string(s.src[s.at:end])
	if end == s.at {
		return v, s.fault(s.at, "expected a value, found %s", s.here())
	}
	if !literals.MatchString(v.Text) {
		return v, s.fault(s.at, "expected a value, found a bare word or a malformed number")
	}
	s.at = end
	v.End = end
	return v, nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// text reads a string of any of the four kinds.
func (s *scanner) text() (Value, error) {
	v := Value{Kind: String, Start: s.at}
	quote := s.src[s.at : s.at+1]
	long := bytes.Repeat(quote, 3)
	multi := bytes.HasPrefix(s.src[s.at:], long)
	s.at++
	if multi {
		s.at += 2
		s.newline()
	}
	var b strings.Builder
	for {
		if s.at >= len(s.src) {
			return v, s.fault(v.Start, "a string does not end")
		}
		switch c := s.src[s.at]; {
		case !multi && c == quote[0]:
			s.at++
			v.End, v.Text = s.at, b.String()
			return v, nil
		case multi && bytes.HasPrefix(s.src[s.at:], long):
			// Up to two quotes may stand before the closing three.
			for bytes.HasPrefix(s.src[s.at+1:], long) && strings.Count(b.String()[max(0, b.Len()-2):], string(quote)) < 2 {
				b.WriteByte(quote[0])
				s.at++
			}
			s.at += 3
			v.End, v.Text = s.at, b.String()
			return v, nil
		case c == '\\' && quote[0] == '"':
			if err := s.escape(&b, multi); err != nil {
				return v, err
			}
		case c == '\n' && !multi, c == '\r' && !(multi && s.has("\r\n")):
			return v, s.fault(v.Start, "a string does not end on its line")
		case c < 0x20 && c != '\t' && c != '\n' && c != '\r', c == 0x7f:
			return v, s.fault(s.at, "a control character inside a string")
		default:
			b.WriteByte(c)
			s.at++
		}
	}
}

var escapes = map[byte]byte{'b': '\b', 't': '\t', 'n': '\n', 'f': '\f', 'r': '\r', 'e': 0x1b, '"': '"', '\\': '\\'}

func (s *scanner) escape(b *strings.Builder, multi bool) error {
	start := s.at
	s.at++
	c := s.peek()
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
	switch plain, ok := escapes[c]; {
	case ok:
		b.WriteByte(plain)
		s.at++
		return nil
	case digits > 0 && s.at+digits < len(s.src):
		n, err := strconv.ParseUint(string(s.src[s.at+1:s.at+1+digits]), 16, 32)
		if err == nil && n <= utf8.MaxRune && utf8.ValidRune(rune(n)) {
			b.WriteRune(rune(n))
			s.at += 1 + digits
			return nil
		}
	case multi:
		// A backslash at the end of a line swallows the break and what is blank after it.
		s.spaces()
		if s.newline() {
			for {
				s.spaces()
				if !s.newline() {
					return nil
				}
			}
		}
	}
	return s.fault(start, "a string with an invalid escape")
}

// node is one name in the tree of what has been defined, kept to refuse what an
// agent's own parser refuses: the same name twice.
type node struct {
	kind     nodeKind
	children map[string]*node
}

type nodeKind int

const (
	implied nodeKind = iota // named only on the way to a deeper header
	header                  // opened by a header of its own
	dotted                  // made by a dotted key
	leaf                    // a value, inline tables included
	list                    // [[header]]; children are those of its last element
)

func (n *node) child(name string, kind nodeKind) *node {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	made := &node{kind: kind}
	n.children[name] = made
	return made
}

func (n *node) open(path []string, array bool) (*node, error) {
	for _, name := range path[:len(path)-1] {
		next := n.children[name]
		if next == nil {
			next = n.child(name, implied)
		}
		if next.kind == leaf {
			return nil, fmt.Errorf("%q already has a value", name)
		}
		n = next
	}
	name := path[len(path)-1]
	old := n.children[name]
	switch {
	case old == nil && array, old != nil && old.kind == list && array:
		return n.child(name, list), nil
	case old == nil:
		return n.child(name, header), nil
	case old.kind == implied && !array:
		old.kind = header
		return old, nil
	}
	return nil, fmt.Errorf("%q is defined twice", strings.Join(path, "."))
}

func (n *node) set(p Pair) error {
	for _, name := range p.Path[:len(p.Path)-1] {
		next := n.children[name]
		if next == nil {
			next = n.child(name, dotted)
		}
		if next.kind != dotted {
			return fmt.Errorf("%q is defined twice", strings.Join(p.Path, "."))
		}
		n = next
	}
	name := p.Path[len(p.Path)-1]
	if n.children[name] != nil {
		return fmt.Errorf("%q is defined twice", strings.Join(p.Path, "."))
	}
	n.child(name, leaf)
	return nil
}

// hasPrefix reports whether path starts with prefix.
func hasPrefix(path, prefix []string) bool {
	return len(path) >= len(prefix) && slices.Equal(path[:len(prefix)], prefix)
}
