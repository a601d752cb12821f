// Package strict reads lines and JSON such that every other reader of the same
// bytes sees the same in them: duplicate keys, invalid UTF-8 and what goes beyond
// the limits are refused, and a value stays as it was written.
//
// It judges form alone; what a message means is its callers' business.
package strict

import (
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits on one JSON value from a client. No real message comes near them;
// without them a small line could cost a lot of memory.
const (
	MaxDepth   = 128  // containers inside each other
	MaxMembers = 4096 // of one object
)

// What makes a value be refused before anybody looks at its meaning.
var (
	ErrSyntax    = errors.New("not JSON")
	ErrDepth     = errors.New("nested too deeply")
	ErrDuplicate = errors.New("a key stands twice in one object")
	ErrCrowded   = errors.New("too many keys in one object")
)

// Member is one key of an object, decoded, with its value as it was written,
// without the space around it.
type Member struct {
	Key string
	Raw []byte
}

// scanner walks one JSON value (RFC 8259) in UTF-8 that was checked before. The
// decoders below us would take the last of two equal keys, replace what is not
// UTF-8, or match keys without case; what has passed here means the same to
// every reader.
type scanner struct {
	data []byte
	pos  int
	// fault is the first of ErrDuplicate and ErrCrowded. It does not end the
	// walk: the rest is still needed to find the message's id.
	fault error
}

// ParseObject returns the members of the object that data is, in order; data has
// to be valid UTF-8. Errors are those of this file; on ErrDuplicate and ErrCrowded
// the members are returned too, of a crowd the first MaxMembers.
func ParseObject(data []byte) ([]Member, error) {
	s := &scanner{data: data}
	s.space()
	if s.peek() != '{' {
		return nil, ErrSyntax
	}
	members := []Member{}
	if err := s.object(1, &members); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	return members, s.fault
}

// CheckValue says whether data is one JSON value of any kind; data has to be valid
// UTF-8. Errors are those of this file.
func CheckValue(data []byte) error {
	s := &scanner{data: data}
	if err := s.value(0); err != nil {
		return err
	}
	if err := s.end(); err != nil {
		return err
	}
	return s.fault
}

// Elements returns the elements of the array that data is, in order, as they were
// written; data has to be valid UTF-8. Errors are those of this file; on
// ErrDuplicate and ErrCrowded, which are about something inside an element, the
// elements are returned too.
func Elements(data []byte) ([][]byte, error) {
	s := &scanner{data: data}
	s.space()
	if s.peek() != '[' {
		return nil, ErrSyntax
	}
	elements := [][]byte{}
	if err := s.array(1, &elements); err != nil {
		return nil, err
	}
	if err := s.end(); err != nil {
		return nil, err
	}
	return elements, s.fault
}

// Compact appends data, which is one valid value, to dst without the space between
// its parts; what stands between quotes stays as it was written.
func Compact(dst, data []byte) []byte {
	inside := false
	for i := 0; i < len(data); i++ {
		c := data[i]
		switch {
		case inside && c == '\\':
			dst = append(dst, c)
			if i++; i == len(data) {
				return dst
			}
			c = data[i]
		case c == '"':
			inside = !inside
		case !inside && (c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			continue
		}
		dst = append(dst, c)
	}
	return dst
}

func (s *scanner) peek() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// end makes sure that nothing but space follows.
func (s *scanner) end() error {
	s.space()
	if s.pos != len(s.data) {
		return ErrSyntax
	}
	return nil
}

// value walks one value inside depth open containers, with space around it.
func (s *scanner) value(depth int) error {
	s.space()
	var err error
	switch c := s.peek(); {
	case c == '{':
		err = s.object(depth+1, nil)
	case c == '[':
		err = s.array(depth+1, nil)
	case c == '"':
		_, err = s.text()
	case c == '-' || isDigit(c):
		err = s.number()
	case c == 't':
		err = s.literal("true")
	case c == 'f':
		err = s.literal("false")
	case c == 'n':
		err = s.literal("null")
	default:
		err = ErrSyntax
	}
	if err != nil {
		return err
	}
	s.space()
	return nil
}

// object walks an object and, when members is not nil, collects its members.
func (s *scanner) object(depth int, members *[]Member) error {
	if depth > MaxDepth {
		return ErrDepth
	}
	s.pos++ // {
	s.space()
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	var seen keySet
	for {
		s.space()
		if s.peek() != '"' {
			return ErrSyntax
		}
		quoted, err := s.text()
		if err != nil {
			return err
		}
		key := Unquote(quoted)
		s.note(seen.add(key))
		s.space()
		if s.peek() != ':' {
			return ErrSyntax
		}
		s.pos++
		s.space()
		start := s.pos
		if err := s.value(depth); err != nil {
			return err
		}
		if members != nil && len(*members) < MaxMembers {
			*members = append(*members, Member{Key: key, Raw: trimSpace(s.data[start:s.pos])})
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return nil
		default:
			return ErrSyntax
		}
	}
}

func (s *scanner) note(fault error) {
	if s.fault == nil {
		s.fault = fault
	}
}

// array walks an array and, when elements is not nil, collects its elements.
func (s *scanner) array(depth int, elements *[][]byte) error {
	if depth > MaxDepth {
		return ErrDepth
	}
	s.pos++ // [
	s.space()
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for {
		s.space()
		start := s.pos
		if err := s.value(depth); err != nil {
			return err
		}
		if elements != nil {
			*elements = append(*elements, trimSpace(s.data[start:s.pos]))
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return nil
		default:
			return ErrSyntax
		}
	}
}

// text walks a string and returns it with its quotes.
func (s *scanner) text() ([]byte, error) {
	start := s.pos
	for s.pos++; s.pos < len(s.data); s.pos++ {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[start:s.pos], nil
		case c < 0x20:
			return nil, ErrSyntax
		case c == '\\':
			s.pos++
			switch s.peek() {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if s.pos+4 >= len(s.data) {
					return nil, ErrSyntax
				}
				for range 4 {
					s.pos++
					if _, ok := hexDigit(s.data[s.pos]); !ok {
						return nil, ErrSyntax
					}
				}
			default:
				return nil, ErrSyntax
			}
		}
	}
	return nil, ErrSyntax
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.pos++
	}
	switch {
	case s.peek() == '0':
		s.pos++
	case !s.digits():
		return ErrSyntax
	}
	if s.peek() == '.' {
		s.pos++
		if !s.digits() {
			return ErrSyntax
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.peek(); c == '+' || c == '-' {
			s.pos++
		}
		if !s.digits() {
			return ErrSyntax
		}
	}
	return nil
}

// digits walks at least one digit.
func (s *scanner) digits() bool {
	start := s.pos
	for isDigit(s.peek()) {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) literal(word string) error {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return ErrSyntax
	}
	s.pos += len(word)
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func hexDigit(c byte) (rune, bool) {
	switch {
	case isDigit(c):
		return rune(c - '0'), true
	case c >= 'a' && c <= 'f':
		return rune(c-'a') + 10, true
	case c >= 'A' && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

func trimSpace(raw []byte) []byte {
	for len(raw) > 0 {
		switch raw[len(raw)-1] {
		case ' ', '\t', '\r', '\n':
			raw = raw[:len(raw)-1]
			continue
		}
		break
	}
	return raw
}

// Unquote decodes a string as it stood in a value that was accepted, quotes
// included. Half of a surrogate pair becomes U+FFFD.
func Unquote(quoted []byte) string {
	inner := quoted[1 : len(quoted)-1]
	plain := true
	for _, c := range inner {
		if c == '\\' {
			plain = false
			break
		}
	}
	if plain {
		return string(inner)
	}
	decoded := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); i++ {
		if inner[i] != '\\' {
			decoded = append(decoded, inner[i])
			continue
		}
		i++
		switch inner[i] {
		case 'b':
			decoded = append(decoded, '\b')
		case 'f':
			decoded = append(decoded, '\f')
		case 'n':
			decoded = append(decoded, '\n')
		case 'r':
			decoded = append(decoded, '\r')
		case 't':
			decoded = append(decoded, '\t')
		case 'u':
			r := fourHex(inner[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(utf8.RuneError)
				if i+6 < len(inner) && inner[i+1] == '\\' && inner[i+2] == 'u' {
					low = fourHex(inner[i+3:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			decoded = utf8.AppendRune(decoded, r)
		default:
			decoded = append(decoded, inner[i])
		}
	}
	return string(decoded)
}

func fourHex(digits []byte) (r rune) {
	for _, c := range digits[:4] {
		d, _ := hexDigit(c)
		r = r<<4 | d
	}
	return r
}

// keySet remembers the keys of one object. Most objects have a handful.
type keySet struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

// add returns ErrDuplicate for a key that is there, and ErrCrowded instead of
// growing without limit.
func (k *keySet) add(key string) error {
	if k.n >= MaxMembers {
		return ErrCrowded
	}
	if k.many == nil {
		for _, have := range k.few[:min(k.n, len(k.few))] {
			if have == key {
				return ErrDuplicate
			}
		}
		if k.n < len(k.few) {
			k.few[k.n] = key
			k.n++
			return nil
		}
		k.many = make(map[string]struct{}, 4*len(k.few))
		for _, have := range k.few {
			k.many[have] = struct{}{}
		}
	}
	if _, have := k.many[key]; have {
		return ErrDuplicate
	}
	k.many[key] = struct{}{}
	k.n++
	return nil
}
