package memory

import "errors"

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
type Query struct{}

// ParseQuery reads words, "several words" for a phrase, and word* for what
// begins so. It returns an error for a query that is too long, has no word or too
// many, is not UTF-8, holds control characters, opens a phrase without closing
// it, or has a * elsewhere than at the end of a word.
func ParseQuery(query string) (Query, error) { return Query{}, ErrQuery }

// String returns the query as it is understood: [ParseQuery] reads it into an
// equal one.
func (q Query) String() string { return "" }
