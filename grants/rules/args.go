package rules

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits of arguments.
const (
	MaxArgs  = 10 << 20 // bytes
	maxDepth = 128      // objects and lists within each other
	maxParts = 1 << 18  // values in all: each takes more memory than it has bytes
)

// Args is the arguments of a call: one JSON object. The zero Args is the empty one.
// Judging remembers in it what was found, so that it must not be judged by two
// goroutines at once.
type Args struct {
	root  *value
	found *finding // what the rules about arguments have found in it
}

// value is one JSON value.
type value struct {
	kind  byte     // one of { [ " 0 t, for an object, a list, a string, a number, and a word
	text  string   // of a string its content, of a number or word its literal
	names []string // of an object's members, in their order
	items []value  // members or items
}

var errArgs = errors.New("arguments are one JSON object in UTF-8, at most 10 MiB, 262144 values and 128 levels, without a name that comes twice")

// ParseArgs parses arguments strictly: one object, valid UTF-8 (in escapes too), no
// name twice in an object, at most 128 levels and 262144 values. Nothing at all is
// the empty object.
// The error does not repeat what it refuses.
func ParseArgs(data []byte) (Args, error) {
	if len(data) == 0 {
		return Args{&value{kind: '{'}, &finding{}}, nil
	}
	if len(data) > MaxArgs || !utf8.Valid(data) {
		return Args{}, errArgs
	}
	s := scanner{text: string(data)}
	s.space()
	if s.peek() != '{' {
		return Args{}, errArgs
	}
	root := &value{}
	if s.value(root, 1); s.bad {
		return Args{}, errArgs
	}
	if s.space(); s.at != len(s.text) {
		return Args{}, errArgs
	}
	return Args{root, &finding{}}, nil
}

// scanner reads JSON (RFC 8259). Once bad, what it returns means nothing.
type scanner struct {
	text  string
	at    int
	parts int
	bad   bool
}

// peek returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// take reports whether the next byte is c, and passes it.
func (s *scanner) take(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) need(c byte) {
	if !s.take(c) {
		s.bad = true
	}
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) value(v *value, depth int) {
	if s.parts++; depth > maxDepth || s.parts > maxParts {
		s.bad = true
		return
	}
	switch c := s.peek(); c {
	case '{':
		s.object(v, depth)
	case '[':
		s.list(v, depth)
	case '"':
		v.kind, v.text = '"', s.string()
	case 't', 'f', 'n':
		s.word(v)
	default:
		s.number(v)
	}
}

func (s *scanner) object(v *value, depth int) {
	v.kind = '{'
	s.at++
	if s.space(); s.take('}') {
		return
	}
	seen := map[string]bool{}
	for !s.bad {
		s.space()
		if s.peek() != '"' {
			s.bad = true
			return
		}
		name := s.string()
		if seen[name] {
			s.bad = true
		}
		seen[name] = true
		s.space()
		s.need(':')
		s.space()
		v.names, v.items = append(v.names, name), append(v.items, value{})
		s.value(&v.items[len(v.items)-1], depth+1)
		s.space()
		if s.take('}') {
			return
		}
		s.need(',')
	}
}

func (s *scanner) list(v *value, depth int) {
	v.kind = '['
	s.at++
	if s.space(); s.take(']') {
		return
	}
	for !s.bad {
		s.space()
		v.items = append(v.items, value{})
		s.value(&v.items[len(v.items)-1], depth+1)
		s.space()
		if s.take(']') {
			return
		}
		s.need(',')
	}
}

func (s *scanner) word(v *value) {
	v.kind = 't'
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(s.text[s.at:], word) {
			v.text, s.at = word, s.at+len(word)
			return
		}
	}
	s.bad = true
}

func (s *scanner) number(v *value) {
	start := s.at
	s.take('-')
	if !s.take('0') {
		s.digits()
	}
	if s.take('.') {
		s.digits()
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		s.digits()
	}
	v.kind, v.text = '0', s.text[start:s.at]
}

// digits passes one or more digits.
func (s *scanner) digits() {
	start := s.at
	for c := s.peek(); '0' <= c && c <= '9'; c = s.peek() {
		s.at++
	}
	if s.at == start {
		s.bad = true
	}
}

// string reads a string, whose opening quote is next.
func (s *scanner) string() string {
	s.at++
	start := s.at
	for s.at < len(s.text) { // most strings have no escapes
		switch c := s.text[s.at]; {
		case c == '"':
			s.at++
			return s.text[start : s.at-1]
		case c < ' ':
			s.bad = true
			return ""
		case c == '\\':
			return s.escaped(start)
		}
		s.at++
	}
	s.bad = true
	return ""
}

// escaped goes on reading a string whose first escape is next.
func (s *scanner) escaped(start int) string {
	b := []byte(s.text[start:s.at])
	for s.at < len(s.text) {
		c := s.text[s.at]
		s.at++
		switch {
		case c == '"':
			return string(b)
		case c < ' ':
			s.bad = true
			return ""
		case c != '\\':
			b = append(b, c)
			continue
		}
		if s.at == len(s.text) {
			break
		}
		c = s.text[s.at]
		s.at++
		if c == 'u' {
			b = utf8.AppendRune(b, s.rune())
			continue
		}
		i := strings.IndexByte(`"\/bfnrt`, c)
		if i < 0 {
			s.bad = true
			return ""
		}
		b = append(b, "\"\\/\b\f\n\r\t"[i])
	}
	s.bad = true
	return ""
}

// rune reads what follows \u. A half of a pair of surrogates without the other is no
// character: readers disagree on what to make of it.
func (s *scanner) rune() rune {
	r := s.hex()
	if !utf16.IsSurrogate(r) {
		return r
	}
	if !s.take('\\') || !s.take('u') {
		s.bad = true
		return utf8.RuneError
	}
	if r = utf16.DecodeRune(r, s.hex()); r == utf8.RuneError {
		s.bad = true
	}
	return r
}

func (s *scanner) hex() rune {
	if s.at+4 > len(s.text) {
		s.bad = true
		return 0
	}
	digits := s.text[s.at : s.at+4]
	s.at += 4
	n, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		s.bad = true
	}
	return rune(n)
}

// Append appends the arguments as compact JSON, in the order in which they came and
// numbers as they were written.
func (a Args) Append(b []byte) []byte {
	if a.root == nil {
		return append(b, "{}"...)
	}
	return a.root.append(b)
}

func (v *value) append(b []byte) []byte {
	switch v.kind {
	case '{':
		b = append(b, '{')
		for i := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, v.names[i]), ':')
			b = v.items[i].append(b)
		}
		return append(b, '}')
	case '[':
		b = append(b, '[')
		for i := range v.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = v.items[i].append(b)
		}
		return append(b, ']')
	case '"':
		return appendString(b, v.text)
	}
	return append(b, v.text...)
}

// appendString escapes only what has to be.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c < ' ':
			b = append(b, `\u00`...)
			b = append(b, hex[c>>4], hex[c&15])
		default:
			b = append(b, c)
		}
	}
	return append(b, '"')
}

// matched is the text that rules match: of a string its content, of anything else
// its JSON text.
func (v *value) matched() string {
	if v.kind == '"' || v.kind == '0' || v.kind == 't' {
		return v.text
	}
	return string(v.append(nil))
}

// at finds the value that a key of a rule names: the name of an argument, or, when it
// starts with "/", a JSON pointer (RFC 6901). Nil: there is none.
func (a Args) at(key []string) *value {
	v := a.root
	for _, token := range key {
		if v == nil {
			return nil
		}
		v = v.child(token)
	}
	return v
}

// like finds what stands where a key names something, but for names that are written
// in another case: some readers take it for what is named.
func (a Args) like(key []string) []*value {
	if a.root == nil {
		return nil
	}
	exact, found := a.root, []*value{a.root}
	for _, token := range key {
		var next []*value
		for _, v := range found {
			if v.kind != '{' {
				if c := v.child(token); c != nil {
					next = append(next, c)
				}
				continue
			}
			for i, name := range v.names {
				if strings.EqualFold(name, token) {
					next = append(next, &v.items[i])
				}
			}
		}
		if found = next; exact != nil {
			exact = exact.child(token)
		}
	}
	return slices.DeleteFunc(found, func(v *value) bool { return v == exact })
}

func (v *value) child(token string) *value {
	switch v.kind {
	case '{':
		for i, name := range v.names {
			if name == token {
				return &v.items[i]
			}
		}
	case '[':
		i, err := strconv.Atoi(token)
		if err == nil && strconv.Itoa(i) == token && 0 <= i && i < len(v.items) {
			return &v.items[i]
		}
	}
	return nil
}

// splitKey splits a key of a rule into the steps of its way. Not ok: it is no pointer
// although it starts as one.
func splitKey(key string) (steps []string, ok bool) {
	if !strings.HasPrefix(key, "/") {
		return []string{key}, key != ""
	}
	for step := range strings.SplitSeq(key[1:], "/") {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(step), "~") {
			return nil, false
		}
		steps = append(steps, strings.NewReplacer("~1", "/", "~0", "~").Replace(step))
	}
	return steps, true
}
