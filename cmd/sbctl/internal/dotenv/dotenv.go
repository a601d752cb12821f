// Package dotenv reads files of lines NAME=VALUE, as programs load them into
// their environment. There are many readers of such files and they disagree;
// this one takes what they agree on, and refuses, with the line, what one of
// them would understand in another way: what is sealed must be what the program
// was given.
//
// The grammar, where "blank" is spaces and tabs:
//
//	file    = { line }                  UTF-8 without NUL; a byte order mark is skipped
//	line    = [blank] [ "#" text | [ "export" blank ] NAME [blank] "=" [blank] [ value [ blank "#" text ] ] [blank] ]
//	NAME    = a letter or "_", then letters, digits, "_"; each once in a file
//	value   = bare | single | double
//	bare    = text up to the end of the line, or to a blank before "#"; blanks at its
//	          end do not belong to it. It does not begin with a quote, "`" or "#",
//	          and has neither "${" nor "$(", which some readers would replace
//	single  = "'" text "'"              as it stands, over several lines too
//	double  = '"' text '"'              over several lines too; escapes \n \r \t \" \\ \$ and \`,
//	          any other backslash is refused, and so are "${" and "$("
//
// Nothing is replaced: a "$" stands for itself. Line ends are LF or CRLF; within
// quotes they stay as they are. Errors name lines and variables and never quote
// a file that holds secrets.
package dotenv

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/content"
)

// MaxSize is the largest file that is read, in bytes.
const MaxSize = 8 << 20

// Var is one variable of a file.
type Var struct {
	Name  string
	Value content.Bytes // its own copy; empty where nothing stands after the "="
	Line  int           // of the name, counted from 1

	// Start and End are where the value stands in the source, quotes included;
	// equal where there is none.
	Start, End int

	// Ambiguous says, in words, why another reader might read another value; ""
	// where none would.
	Ambiguous string
}

// SyntaxError is a file that is refused.
type SyntaxError struct {
	Line int // counted from 1
	Msg  string
}

// Error is "line N: what is wrong".
func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

var byteOrderMark = []byte("\xef\xbb\xbf")

// Parse reads the whole of src, in source order. The error is a *SyntaxError.
// The caller wipes the values, and src.
func Parse(src []byte) ([]Var, error) {
	s := &scanner{src: src, line: 1}
	if err := s.check(); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(src, byteOrderMark) {
		s.at = len(byteOrderMark)
	}
	var vars []Var
	lines := map[string]int{}
	for s.at < len(src) {
		v, found, err := s.statement()
		if err == nil && found && lines[v.Name] > 0 {
			err = &SyntaxError{v.Line, fmt.Sprintf("%s is given twice, first in line %d", v.Name, lines[v.Name])}
		}
		if found {
			vars = append(vars, v)
			lines[v.Name] = v.Line
		}
		if err != nil {
			Wipe(vars)
			return nil, err
		}
	}
	return vars, nil
}

// Wipe overwrites the values.
func Wipe(vars []Var) {
	for _, v := range vars {
		v.Value.Wipe()
	}
}

type scanner struct {
	src  []byte
	at   int
	line int
}

func (s *scanner) fault(format string, args ...any) error {
	return &SyntaxError{Line: s.line, Msg: fmt.Sprintf(format, args...)}
}

// check refuses what no reader of text could agree on.
func (s *scanner) check() error {
	if len(s.src) > MaxSize {
		return s.fault("the file is larger than %d bytes", MaxSize)
	}
	if at := bytes.IndexByte(s.src, 0); at >= 0 {
		return &SyntaxError{lineAt(s.src, at), "a NUL byte"}
	}
	for at := 0; at < len(s.src); {
		r, size := utf8.DecodeRune(s.src[at:])
		if r == utf8.RuneError && size == 1 {
			return &SyntaxError{lineAt(s.src, at), "not valid UTF-8"}
		}
		at += size
	}
	return nil
}

func lineAt(src []byte, at int) int { return 1 + bytes.Count(src[:at], []byte("\n")) }

// peek is the next byte, 0 at the end of the file.
func (s *scanner) peek() byte {
	if s.at < len(s.src) {
		return s.src[s.at]
	}
	return 0
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// blanks skips spaces and tabs, and says whether there were any.
func (s *scanner) blanks() bool {
	start := s.at
	for isBlank(s.peek()) {
		s.at++
	}
	return s.at > start
}

// restOfLine is what stands before the next line end.
func (s *scanner) restOfLine() []byte {
	line, _, _ := bytes.Cut(s.src[s.at:], []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}

// end takes the end of a line, before which nothing but a comment may stand.
// set says whether a blank came before.
func (s *scanner) end(set bool) error {
	rest := s.restOfLine()
	if len(rest) > 0 && (rest[0] != '#' || !set) {
		return s.fault("something stands after the closing quote of a value")
	}
	if bytes.IndexByte(rest, '\r') >= 0 {
		return s.fault("a carriage return inside a line")
	}
	s.at += len(rest)
	switch {
	case bytes.HasPrefix(s.src[s.at:], []byte("\r\n")):
		s.at += 2
	case s.at < len(s.src):
		s.at++
	}
	s.line++
	return nil
}

// statement reads one line, or as many as its value has. found is false for a
// line without a variable. With an error, what was found is still to be wiped.
func (s *scanner) statement() (v Var, found bool, err error) {
	s.blanks()
	if rest := s.restOfLine(); len(rest) == 0 || rest[0] == '#' {
		return v, false, s.end(true)
	}
	v.Line = s.line
	name, ok := s.name()
	if ok && name == "export" && isBlank(s.peek()) && !s.assigns() {
		s.blanks()
		name, ok = s.name()
	}
	if !ok {
		return v, false, s.fault("expected NAME=VALUE, with a name of letters, digits and underscores")
	}
	v.Name = name
	s.blanks()
	if s.peek() != '=' {
		return v, false, s.fault("expected NAME=VALUE: there is no \"=\" after a name")
	}
	s.at++
	set := s.blanks()
	switch c := s.peek(); {
	case c == '\'' || c == '"':
		err = s.quoted(&v, c)
		set = s.blanks()
	case c == '#' && set:
		v.Start, v.End = s.at, s.at
		return v, true, s.fault("the value of %s begins with \"#\": put it in quotes, or the comment on a line of its own", v.Name)
	default:
		err = s.bare(&v)
		set = s.blanks()
	}
	if err != nil {
		return v, true, err
	}
	return v, true, s.end(set)
}

// name reads a variable's name.
func (s *scanner) name() (string, bool) {
	start := s.at
	for s.at < len(s.src) && (isLetter(s.src[s.at]) || s.at > start && s.src[s.at] >= '0' && s.src[s.at] <= '9') {
		s.at++
	}
	return string(s.src[start:s.at]), s.at > start
}

func isLetter(c byte) bool { return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// assigns says whether the word just read is itself given a value: a variable
// may be called export.
func (s *scanner) assigns() bool {
	return bytes.HasPrefix(bytes.TrimLeft(s.restOfLine(), " \t"), []byte("="))
}

// bare reads a value without quotes.
func (s *scanner) bare(v *Var) error {
	text := s.restOfLine()
	for i := 1; i < len(text); i++ {
		if text[i] == '#' && isBlank(text[i-1]) {
			text = text[:i]
			break
		}
	}
	text = bytes.TrimRight(text, " \t")
	v.Start, v.End = s.at, s.at+len(text)
	v.Value = bytes.Clone(text)
	s.at = v.End
	if len(text) == 0 {
		return nil
	}
	switch {
	case text[0] == '`', text[0] == '#':
		return s.fault("the value of %s begins with %q: put it in quotes", v.Name, text[0])
	case bytes.IndexByte(text, '\r') >= 0:
		return s.fault("a carriage return inside a line")
	case replaced(text):
		return s.fault("the value of %s has \"${\" or \"$(\", which some programs replace: put it in single quotes if it is meant as it stands", v.Name)
	case bytes.IndexByte(text, '#') >= 0:
		v.Ambiguous = `has a "#" without quotes, where some programs end the value`
	case named(text):
		v.Ambiguous = `has a "$" before a name, which some programs replace`
	case bytes.IndexByte(text, '\\') >= 0:
		v.Ambiguous = "has a backslash without quotes, which some programs take away"
	}
	return nil
}

// replaced says whether text asks for something else to be put in.
func replaced(text []byte) bool {
	return bytes.Contains(text, []byte("${")) || bytes.Contains(text, []byte("$("))
}

// named says whether a "$" stands before a name.
func named(text []byte) bool {
	for i := 1; i < len(text); i++ {
		if text[i-1] == '$' && isLetter(text[i]) {
			return true
		}
	}
	return false
}

var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '$': '$', '`': '`'}

// quoted reads a value in quotes, from the opening to the closing one.
func (s *scanner) quoted(v *Var, quote byte) error {
	v.Start = s.at
	opened := s.line
	s.at++
	for {
		if s.at >= len(s.src) {
			return &SyntaxError{opened, fmt.Sprintf("the value of %s does not end: a closing quote is missing", v.Name)}
		}
		c := s.src[s.at]
		switch {
		case c == quote:
			s.at++
			v.End = s.at
			return nil
		case c == '\\' && quote == '"':
			s.at++
			escaped, ok := escapes[s.peek()]
			if !ok {
				return s.fault(`the value of %s has an unknown escape: write \\ for a backslash, or use single quotes`, v.Name)
			}
			c = escaped
		case c == '$' && quote == '"' && s.at+1 < len(s.src) && (s.src[s.at+1] == '{' || s.src[s.at+1] == '('):
			return s.fault(`the value of %s has "${" or "$(", which some programs replace: write \$, or use single quotes`, v.Name)
		case c == '$' && quote == '"' && s.at+1 < len(s.src) && isLetter(s.src[s.at+1]):
			v.Ambiguous = `has a "$" before a name, which some programs replace`
		case c == '\n':
			s.line++
		}
		v.Value = append(v.Value, c)
		s.at++
	}
}
