// Package jsonedit changes single members of a JSON document and leaves every
// other byte alone: order, indentation, comments, byte order mark and line
// ends. It protects an agent's configuration, which belongs to its user, from
// the rewriting that decoding and encoding again would do.
//
// It reads JSON, and on request the comments and trailing commas of JSONC. It
// does not judge what the members mean, and it does not touch files.
package jsonedit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Dialect says which liberties over plain JSON a document may take. The agent
// that reads the file decides: what it cannot read must not pass here.
type Dialect struct {
	Comments       bool // line and block comments
	TrailingCommas bool // one comma after the last member or element
}

// Kind is the kind of a value.
type Kind int

// Kinds of values.
const (
	Object Kind = iota
	Array
	String
	Other // number, true, false, null
)

// Value is one value of a document: where it stands, and what it holds.
type Value struct {
	Kind       Kind
	Start, End int // byte offsets in the source; source[Start:End] is the value

	Text     string   // of a String, decoded
	Members  []Member // of an Object, in source order
	Elements []Value  // of an Array

	raw string // of an Other, as written
}

// Member is one key and value of an object.
type Member struct {
	Key   string
	Start int // offset of the key's opening quote
	Value Value
	comma int // offset of the comma after the value; -1: none
}

// SyntaxError is a document that its agent could not read either.
type SyntaxError struct {
	Line int // counted from 1
	Msg  string
}

// Error is "line N: what is wrong".
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

// maxDepth bounds nesting, so that a hostile document cannot exhaust the stack.
const maxDepth = 500

// byteOrderMark is kept where a document starts with one.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Parse reads the whole of src, whose root must be an object. The error is a
// *SyntaxError. Duplicate keys are kept: Member and At refuse them when asked
// for such a key, so that trouble elsewhere in the file stays its owner's.
func Parse(src []byte, dialect Dialect) (Value, error) {
	s := &scanner{src: src, dialect: dialect}
	if !utf8.Valid(src) {
		for at := 0; at < len(src); {
			r, size := utf8.DecodeRune(src[at:])
			if r == utf8.RuneError && size == 1 {
				return Value{}, s.fault(at, "not valid UTF-8")
			}
			at += size
		}
	}
	if bytes.HasPrefix(src, byteOrderMark) {
		s.at = len(byteOrderMark)
	}
	if err := s.space(); err != nil {
		return Value{}, err
	}
	if s.at == len(src) {
		return Value{}, s.fault(s.at, "the file is empty, expected an object")
	}
	if src[s.at] != '{' {
		return Value{}, s.fault(s.at, "expected an object")
	}
	root, err := s.value(0)
	if err != nil {
		return Value{}, err
	}
	if err := s.space(); err != nil {
		return Value{}, err
	}
	if s.at != len(src) {
		return Value{}, s.fault(s.at, "text after the end of the document")
	}
	return root, nil
}

// Line is the number, from 1, of the line that holds offset at.
func Line(src []byte, at int) int {
	return 1 + bytes.Count(src[:min(at, len(src))], []byte("\n"))
}

// Member is the member of an object called key; nil if there is none, or if v
// is not an object. Of duplicates it is the last, as for the agents.
func (v *Value) Member(key string) *Member {
	if v.Kind != Object {
		return nil
	}
	for i := len(v.Members) - 1; i >= 0; i-- {
		if v.Members[i].Key == key {
			return &v.Members[i]
		}
	}
	return nil
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

// IsFalse reports whether v is the literal false.
func (v *Value) IsFalse() bool { return v.Kind == Other && v.raw == "false" }

// IsTrue reports whether v is the literal true.
func (v *Value) IsTrue() bool { return v.Kind == Other && v.raw == "true" }

type scanner struct {
	src     []byte
	at      int
	dialect Dialect
}

func (s *scanner) fault(at int, format string, args ...any) error {
	return &SyntaxError{Line: Line(s.src, at), Msg: fmt.Sprintf(format, args...)}
}

// here names the next byte for an error message, without quoting more of a
// file that may hold secrets.
func (s *scanner) here() string {
	if s.at >= len(s.src) {
		return "the end of the file"
	}
	r, _ := utf8.DecodeRune(s.src[s.at:])
	return fmt.Sprintf("%q", r)
}

// space skips white space and, where the dialect has them, comments.
func (s *scanner) space() error {
	for s.at < len(s.src) {
		switch c := s.src[s.at]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			s.at++
		case c == '/' && s.dialect.Comments:
			if err := s.comment(); err != nil {
				return err
			}
		case c == '/':
			return s.fault(s.at, "comments are not allowed in this file")
		default:
			return nil
		}
	}
	return nil
}

func (s *scanner) comment() error {
	rest := s.src[s.at:]
	switch {
	case bytes.HasPrefix(rest, []byte("//")):
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			end = len(rest)
		}
		s.at += end
	case bytes.HasPrefix(rest, []byte("/*")):
		end := bytes.Index(rest[2:], []byte("*/"))
		if end < 0 {
			return s.fault(s.at, "a comment does not end")
		}
		s.at += 2 + end + 2
	default:
		return s.fault(s.at, "unexpected '/'")
	}
	return nil
}

func (s *scanner) value(depth int) (Value, error) {
	if depth > maxDepth {
		return Value{}, s.fault(s.at, "nested more than %d deep", maxDepth)
	}
	if s.at >= len(s.src) {
		return Value{}, s.fault(s.at, "expected a value, found the end of the file")
	}
	switch s.src[s.at] {
	case '{':
		return s.object(depth)
	case '[':
		return s.array(depth)
	case '"':
		return s.text()
	default:
		return s.literal()
	}
}

func (s *scanner) object(depth int) (Value, error) {
	v := Value{Kind: Object, Start: s.at}
	s.at++
	for {
		if err := s.space(); err != nil {
			return v, err
		}
		if s.at < len(s.src) && s.src[s.at] == '}' {
			if len(v.Members) > 0 && !s.dialect.TrailingCommas {
				return v, s.fault(s.at, "a comma before '}'")
			}
			break
		}
		if s.at >= len(s.src) || s.src[s.at] != '"' {
			return v, s.fault(s.at, "expected a key in quotes, found %s", s.here())
		}
		member, err := s.member(depth)
		if err != nil {
			return v, err
		}
		v.Members = append(v.Members, member)
		if member.comma < 0 {
			if s.at < len(s.src) && s.src[s.at] == '}' {
				break
			}
			return v, s.fault(s.at, "expected ',' or '}', found %s", s.here())
		}
	}
	s.at++
	v.End = s.at
	return v, nil
}

// member reads key, colon, value and, if there is one, the comma.
func (s *scanner) member(depth int) (Member, error) {
	m := Member{Start: s.at, comma: -1}
	key, err := s.text()
	if err != nil {
		return m, err
	}
	m.Key = key.Text
	if err := s.space(); err != nil {
		return m, err
	}
	if s.at >= len(s.src) || s.src[s.at] != ':' {
		return m, s.fault(s.at, "expected ':' after a key, found %s", s.here())
	}
	s.at++
	if err := s.space(); err != nil {
		return m, err
	}
	if m.Value, err = s.value(depth + 1); err != nil {
		return m, err
	}
	if err := s.space(); err != nil {
		return m, err
	}
	if s.at < len(s.src) && s.src[s.at] == ',' {
		m.comma = s.at
		s.at++
	}
	return m, nil
}

func (s *scanner) array(depth int) (Value, error) {
	v := Value{Kind: Array, Start: s.at}
	s.at++
	for {
		if err := s.space(); err != nil {
			return v, err
		}
		if s.at < len(s.src) && s.src[s.at] == ']' {
			if len(v.Elements) > 0 && !s.dialect.TrailingCommas {
				return v, s.fault(s.at, "a comma before ']'")
			}
			break
		}
		element, err := s.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.Elements = append(v.Elements, element)
		if err := s.space(); err != nil {
			return v, err
		}
		if s.at < len(s.src) && s.src[s.at] == ',' {
			s.at++
			continue
		}
		if s.at < len(s.src) && s.src[s.at] == ']' {
			break
		}
		return v, s.fault(s.at, "expected ',' or ']', found %s", s.here())
	}
	s.at++
	v.End = s.at
	return v, nil
}

// text reads a string. Escapes are left to encoding/json.
func (s *scanner) text() (Value, error) {
	v := Value{Kind: String, Start: s.at}
	for at := s.at + 1; at < len(s.src); at++ {
		switch c := s.src[at]; {
		case c == '\\':
			at++
		case c < 0x20:
			return v, s.fault(at, "a control character inside a string")
		case c == '"':
			s.at = at + 1
			v.End = s.at
			if err := json.Unmarshal(s.src[v.Start:v.End], &v.Text); err != nil {
				return v, s.fault(v.Start, "a string with an invalid escape")
			}
			return v, nil
		}
	}
	return v, s.fault(v.Start, "a string does not end")
}

// literal reads a number, true, false or null.
func (s *scanner) literal() (Value, error) {
	v := Value{Kind: Other, Start: s.at}
	end := s.at
	for end < len(s.src) && isLiteral(s.src[end]) {
		end++
	}
	v.raw = string(s.src[s.at:end])
	if end == s.at {
		return v, s.fault(s.at, "expected a value, found %s", s.here())
	}
	if !json.Valid(s.src[s.at:end]) {
		return v, s.fault(s.at, "expected a value, found a bare word or a malformed number")
	}
	s.at = end
	v.End = end
	return v, nil
}

func isLiteral(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.'
}
