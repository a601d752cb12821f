// Package canon writes a JSON value again from what was understood of it, so that
// nobody who reads it later can understand something else: without space, with
// each string in its shortest form, and numbers as they were written, however
// long. What cannot mean the same to every reader is refused: invalid UTF-8, and a
// key that stands twice in one object.
//
// It is for values that a server wrote, up to 64 MiB: it holds no second copy of
// the value. It judges form alone.
package canon

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// Limits on one value.
const (
	MaxDepth = 128     // containers inside each other
	MaxKeys  = 1 << 18 // keys of the objects that a place in the value lies in, together
)

// What makes a value be refused.
var (
	ErrEncoding  = errors.New("not UTF-8")
	ErrSyntax    = errors.New("not JSON")
	ErrDepth     = errors.New("nested too deeply")
	ErrDuplicate = errors.New("a key stands twice in one object")
	ErrCrowded   = errors.New("too many keys")
)

// Member is one key of an object with its value.
type Member struct {
	Key string // decoded; half of a surrogate pair stays as \ud800 and the like
	Raw []byte // the value as it was written, without the space around it
}

// Check says whether data is one JSON value that can be written again. Errors are
// those of this package.
func Check(data []byte) error {
	if !utf8.Valid(data) {
		return ErrEncoding
	}
	w := walker{data: data}
	return w.all(nil)
}

// Members returns the members of the object that data is, in order. With
// ErrEncoding, ErrDuplicate, ErrDepth and ErrCrowded it returns those that it came
// by, so that the caller can see what was refused.
func Members(data []byte) ([]Member, error) {
	w := walker{data: data, lenient: true}
	w.space()
	if w.peek() != '{' {
		return nil, ErrSyntax
	}
	members := []Member{}
	err := w.all(&members)
	if err == nil && !utf8.Valid(data) {
		err = ErrEncoding
	}
	return members, err
}

// Write writes data, which Check has accepted, in its order.
func Write(out io.Writer, data []byte) error {
	w := walker{data: data, out: out, checked: true}
	if err := w.all(nil); err != nil {
		return err
	}
	return w.failed
}

// Compact is Write into memory.
func Compact(data []byte) []byte {
	made := sink{bytes: make([]byte, 0, len(data))}
	_ = Write(&made, data) // memory takes everything
	return made.bytes
}

// Sorted returns data, which Check has accepted, with the members of every object
// in the order of their names' bytes. Two values that mean the same are the same
// bytes then, but for how numbers were written.
func Sorted(data []byte) []byte { return appendSorted(make([]byte, 0, len(data)), data) }

func appendSorted(dst, data []byte) []byte {
	w := walker{data: data, checked: true}
	w.space()
	switch w.peek() {
	case '{':
		var members []Member
		_ = w.all(&members)
		slices.SortStableFunc(members, func(a, b Member) int { return cmp.Compare(a.Key, b.Key) })
		dst = append(dst, '{')
		for i, m := range members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(Quote(dst, m.Key), ':')
			dst = appendSorted(dst, m.Raw)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		w.pos++
		for w.space(); w.peek() != ']'; w.space() {
			if w.peek() == ',' {
				w.pos++
				dst = append(dst, ',')
				w.space()
			}
			start := w.pos
			_ = w.value(0)
			dst = appendSorted(dst, w.data[start:w.pos])
		}
		return append(dst, ']')
	}
	made := sink{bytes: dst}
	w.out = &made
	_ = w.value(0)
	return made.bytes
}

// Quote appends key, as it stands in a Member, as a JSON string. Any other text
// that is UTF-8 is quoted too.
func Quote(dst []byte, key string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		switch {
		case r == utf8.RuneError && size == 1 && half(key[i:]) != 0: // kept by unquoted
			dst = appendUnit(dst, half(key[i:]))
			size = 3
		case r == utf8.RuneError && size == 1:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		default:
			dst = appendRune(dst, r)
		}
		i += size
	}
	return append(dst, '"')
}

// half is the half of a surrogate pair that text begins with, in the bytes that
// UTF-8 would have for it if it had one; 0 when there is none.
func half(text string) rune {
	if len(text) < 3 || text[0] != 0xed || text[1] < 0xa0 || text[1] > 0xbf || text[2]&0xc0 != 0x80 {
		return 0
	}
	return 0xd000 | rune(text[1]&0x3f)<<6 | rune(text[2]&0x3f)
}

// sink is memory.
type sink struct{ bytes []byte }

func (s *sink) Write(p []byte) (int, error) {
	s.bytes = append(s.bytes, p...)
	return len(p), nil
}

// walker walks one JSON value (RFC 8259).
type walker struct {
	data    []byte
	pos     int
	keys    int  // of the objects that are open
	checked bool // Check was here: no keys are remembered
	lenient bool // go on after a fault that leaves the form readable
	fault   error

	out     io.Writer // nil: nobody writes
	failed  error     // of out
	scratch []byte
}

// all walks one value and the end of data.
func (w *walker) all(members *[]Member) error {
	w.space()
	var err error
	if members != nil && w.peek() == '{' {
		err = w.object(1, members)
	} else {
		err = w.value(0)
	}
	if err != nil {
		return err
	}
	if w.space(); w.pos != len(w.data) {
		return ErrSyntax
	}
	return w.fault
}

func (w *walker) emit(p []byte) {
	if w.out != nil && w.failed == nil {
		_, w.failed = w.out.Write(p)
	}
}

func (w *walker) emitByte(c byte) {
	if w.out != nil {
		w.scratch = append(w.scratch[:0], c)
		w.emit(w.scratch)
	}
}

func (w *walker) peek() byte {
	if w.pos < len(w.data) {
		return w.data[w.pos]
	}
	return 0
}

func (w *walker) space() {
	for w.pos < len(w.data) {
		switch w.data[w.pos] {
		case ' ', '\t', '\r', '\n':
			w.pos++
		default:
			return
		}
	}
}

// wrong notes a fault. It returns it where the walk must end.
func (w *walker) wrong(fault error) error {
	if w.fault == nil {
		w.fault = fault
	}
	if w.lenient {
		return nil
	}
	return fault
}

// value walks one value inside depth open containers, without space around it.
func (w *walker) value(depth int) error {
	start := w.pos
	var err error
	switch c := w.peek(); {
	case c == '{':
		return w.object(depth+1, nil)
	case c == '[':
		return w.array(depth + 1)
	case c == '"':
		_, err = w.text(false)
		return err
	case c == '-' || isDigit(c):
		err = w.number()
	case c == 't':
		err = w.literal("true")
	case c == 'f':
		err = w.literal("false")
	case c == 'n':
		err = w.literal("null")
	default:
		err = ErrSyntax
	}
	if err == nil {
		w.emit(w.data[start:w.pos])
	}
	return err
}

func (w *walker) object(depth int, members *[]Member) error {
	if depth > MaxDepth {
		return ErrDepth // not even for the lenient: the walk is as deep as the value
	}
	w.pos++
	w.emitByte('{')
	var seen keySet
	for first := true; ; first = false {
		w.space()
		if first && w.peek() == '}' {
			break
		}
		if w.peek() != '"' {
			return ErrSyntax
		}
		key, err := w.text(!w.checked || members != nil)
		if err != nil {
			return err
		}
		if !w.checked {
			if err := w.remember(&seen, key); err != nil {
				return err
			}
		}
		if w.space(); w.peek() != ':' {
			return ErrSyntax
		}
		w.pos++
		w.emitByte(':')
		w.space()
		start := w.pos
		if err := w.value(depth); err != nil {
			return err
		}
		if members != nil {
			if len(*members) >= MaxKeys {
				return ErrCrowded
			}
			*members = append(*members, Member{Key: key, Raw: w.data[start:w.pos]})
		}
		w.space()
		if w.peek() != ',' {
			break
		}
		w.pos++
		w.emitByte(',')
	}
	if w.peek() != '}' {
		return ErrSyntax
	}
	w.pos++
	w.emitByte('}')
	w.keys -= seen.n
	return nil
}

func (w *walker) remember(seen *keySet, key string) error {
	switch {
	case w.keys >= MaxKeys:
		return w.wrong(ErrCrowded)
	case !seen.add(key):
		return w.wrong(ErrDuplicate)
	}
	w.keys++
	return nil
}

func (w *walker) array(depth int) error {
	if depth > MaxDepth {
		return ErrDepth
	}
	w.pos++
	w.emitByte('[')
	for first := true; ; first = false {
		w.space()
		if first && w.peek() == ']' {
			break
		}
		if err := w.value(depth); err != nil {
			return err
		}
		w.space()
		if w.peek() != ',' {
			break
		}
		w.pos++
		w.emitByte(',')
	}
	if w.peek() != ']' {
		return ErrSyntax
	}
	w.pos++
	w.emitByte(']')
	return nil
}

// text walks a string, and returns what it says when wanted.
func (w *walker) text(wanted bool) (string, error) {
	w.pos++
	w.emitByte('"')
	var said []byte // nil as long as nothing was escaped
	from := w.pos
	start := from
	for w.pos < len(w.data) {
		switch c := w.data[w.pos]; {
		case c == '"':
			rest := w.data[from:w.pos]
			w.emit(rest)
			w.pos++
			w.emitByte('"')
			switch {
			case !wanted:
				return "", nil
			case said == nil:
				return string(w.data[start : w.pos-1]), nil
			}
			return string(append(said, rest...)), nil
		case c < 0x20:
			return "", ErrSyntax
		case c == '\\':
			plain := w.data[from:w.pos]
			w.emit(plain)
			r, err := w.escape()
			if err != nil {
				return "", err
			}
			if wanted {
				said = appendPlain(append(orEmpty(said), plain...), r)
			}
			if w.out != nil {
				w.scratch = appendRune(w.scratch[:0], r)
				w.emit(w.scratch)
			}
			from = w.pos
		default:
			w.pos++
		}
	}
	return "", ErrSyntax
}

func orEmpty(said []byte) []byte {
	if said == nil {
		return []byte{}
	}
	return said
}

// escape walks one escape, or the two of a surrogate pair, and returns what it
// stands for; half of a pair as itself.
func (w *walker) escape() (rune, error) {
	w.pos++ // backslash
	c := w.peek()
	w.pos++
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
	default:
		return 0, ErrSyntax
	}
	r, ok := w.unit(w.pos)
	if !ok {
		return 0, ErrSyntax
	}
	w.pos += 4
	if utf16.IsSurrogate(r) && w.pos+6 <= len(w.data) && w.data[w.pos] == '\\' && w.data[w.pos+1] == 'u' {
		low, ok := w.unit(w.pos + 2)
		if pair := utf16.DecodeRune(r, low); ok && pair != utf8.RuneError {
			w.pos += 6
			return pair, nil
		}
	}
	return r, nil
}

// unit reads four hexadecimal digits.
func (w *walker) unit(at int) (r rune, ok bool) {
	if at+4 > len(w.data) {
		return 0, false
	}
	for _, c := range w.data[at : at+4] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// appendPlain appends r; half of a pair in the bytes that UTF-8 would have for it.
func appendPlain(dst []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(dst, 0xed, 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(dst, r)
}

const hexDigits = "0123456789abcdef"

// appendRune appends r as the inside of a string, in its shortest form.
func appendRune(dst []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < 0x20 || utf16.IsSurrogate(r) {
		return appendUnit(dst, r)
	}
	return utf8.AppendRune(dst, r)
}

func appendUnit(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

func (w *walker) number() error {
	if w.peek() == '-' {
		w.pos++
	}
	switch {
	case w.peek() == '0':
		w.pos++
	case !w.digits():
		return ErrSyntax
	}
	if w.peek() == '.' {
		w.pos++
		if !w.digits() {
			return ErrSyntax
		}
	}
	if c := w.peek(); c == 'e' || c == 'E' {
		w.pos++
		if c := w.peek(); c == '+' || c == '-' {
			w.pos++
		}
		if !w.digits() {
			return ErrSyntax
		}
	}
	return nil
}

// digits walks at least one digit.
func (w *walker) digits() bool {
	start := w.pos
	for isDigit(w.peek()) {
		w.pos++
	}
	return w.pos > start
}

func (w *walker) literal(word string) error {
	if len(w.data)-w.pos < len(word) || string(w.data[w.pos:w.pos+len(word)]) != word {
		return ErrSyntax
	}
	w.pos += len(word)
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// keySet remembers the keys of one object. Most objects have a handful.
type keySet struct {
	few  [8]string
	n    int
	many map[string]struct{}
}

// add reports whether key is new.
func (k *keySet) add(key string) bool {
	if k.many == nil {
		for _, have := range k.few[:k.n] {
			if have == key {
				return false
			}
		}
		if k.n < len(k.few) {
			k.few[k.n] = key
			k.n++
			return true
		}
		k.many = make(map[string]struct{}, 4*len(k.few))
		for _, have := range k.few {
			k.many[have] = struct{}{}
		}
	}
	if _, have := k.many[key]; have {
		return false
	}
	k.many[key] = struct{}{}
	k.n++
	return true
}
