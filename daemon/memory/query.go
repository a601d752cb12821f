package memory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a query.
const (
	// MaxQuery is the largest size of a query in bytes.
	MaxQuery = 1 << 10
	// MaxTerms is the largest number of different terms in it.
	MaxTerms = 32
)

// ErrQuery is what every error of [ParseQuery] is; its text says what is wrong
// in words that a caller may be shown, and repeats nothing of the query.
var ErrQuery = errors.New("the query cannot be read")

// Query is what to look for: terms, each of which may fit an entry. The zero
// value fits none.
type Query struct{ terms []term }

// term is one or more words that stand one after the other; of the last, only the
// beginning when prefix is set.
type term struct {
	words  []string
	prefix bool
}

// ParseQuery reads words, "several words" for a phrase, and word* for what
// begins so; a * may also end a phrase. Signs that are no words are passed over.
//
// What is written as one and is several words in the index is a phrase: a name
// like daemon.state. In scripts without spaces between words each two neighbours
// are one: of three characters, two terms.
//
// It returns an error for a query that is too long, has no word or too many, is
// not UTF-8, holds control characters, opens a phrase without closing it, or has
// a * elsewhere than at the end of a word.
func ParseQuery(query string) (Query, error) {
	switch {
	case len(query) > MaxQuery:
		return Query{}, fmt.Errorf("%w: it is longer than %d bytes", ErrQuery, MaxQuery)
	case !utf8.ValidString(query):
		return Query{}, fmt.Errorf("%w: it is not UTF-8", ErrQuery)
	case strings.Count(query, `"`)%2 != 0:
		return Query{}, fmt.Errorf("%w: a phrase is opened and not closed", ErrQuery)
	case strings.ContainsFunc(query, func(r rune) bool { return unicode.IsControl(r) && !unicode.IsSpace(r) }):
		return Query{}, fmt.Errorf("%w: it holds a control character", ErrQuery)
	}
	var q Query
	for i, part := range strings.Split(query, `"`) {
		if i%2 == 0 {
			for _, written := range strings.FieldsFunc(part, unicode.IsSpace) {
				if err := q.take(written, false); err != nil {
					return Query{}, err
				}
			}
		} else if err := q.take(part, true); err != nil {
			return Query{}, err
		}
	}
	switch {
	case len(q.terms) == 0:
		return Query{}, fmt.Errorf("%w: there is no word in it", ErrQuery)
	case len(q.terms) > MaxTerms:
		return Query{}, fmt.Errorf("%w: it has %d terms, of at most %d", ErrQuery, len(q.terms), MaxTerms)
	}
	return q, nil
}

// take takes in what stands between spaces, or between quotes.
func (q *Query) take(written string, phrase bool) error {
	type found struct {
		word                 string
		start, stop, segment int
		unspaced             bool
	}
	var words []found
	for s := newScanner(written); s.next(); {
		words = append(words, found{string(s.word), s.start, s.stop, s.segment, unspaced(s.word)})
	}
	star := strings.IndexByte(written, '*')
	if star >= 0 && (star != len(written)-1 || len(words) == 0 || words[len(words)-1].stop != star) {
		return fmt.Errorf("%w: a * stands at the end of a word and nowhere else", ErrQuery)
	}
	if phrase && len(words) == 0 {
		return fmt.Errorf("%w: there is no word in a phrase", ErrQuery)
	}
	// ends is true where a term ends after word i, and pairs where it is a pair.
	pairs := func(i int) bool {
		return i+1 < len(words) && words[i].unspaced && words[i+1].unspaced && words[i].stop == words[i+1].start
	}
	for from := 0; from < len(words); {
		to := from + 1
		next := to
		switch {
		case phrase:
			to = len(words)
			next = to
		case pairs(from):
			to = from + 2
			if !pairs(from + 1) { // else its second is the first of the next pair
				next = to
			}
		default:
			for to < len(words) && words[to].segment == words[from].segment {
				to++
			}
			next = to
		}
		var t term
		for _, w := range words[from:to] {
			t.words = append(t.words, w.word)
		}
		t.prefix = star >= 0 && to == len(words)
		if !slices.ContainsFunc(q.terms, t.equal) {
			q.terms = append(q.terms, t)
		}
		from = next
	}
	return nil
}

func (t term) equal(other term) bool {
	return t.prefix == other.prefix && slices.Equal(t.words, other.words)
}

// String returns the query as it is understood: [ParseQuery] reads it into an
// equal one.
func (q Query) String() string {
	var b strings.Builder
	for i, t := range q.terms {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteByte('"')
		b.WriteString(strings.Join(t.words, " "))
		if t.prefix {
			b.WriteByte('*')
		}
		b.WriteByte('"')
	}
	return b.String()
}
