package policy

import (
	"fmt"
	"strings"
)

const (
	maxProblems = 100 // that are kept of one document
	maxText     = 300 // bytes of one problem: a key may be as long as the document
)

// Problem is one thing that is wrong with, or odd in, a document.
type Problem struct {
	Line int // from 1; 0: the document as a whole
	Text string
}

// problem makes one line of moderate length, whatever is quoted in it.
func problem(line int, format string, args ...any) Problem {
	text := strings.Map(func(r rune) rune {
		if isControl(r) {
			return '?'
		}
		return r
	}, fmt.Sprintf(format, args...))
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return Problem{line, text}
}

// String returns "line N: text".
func (p Problem) String() string {
	if p.Line == 0 {
		return p.Text
	}
	return fmt.Sprintf("line %d: %s", p.Line, p.Text)
}

// Error says why a document was refused.
type Error struct {
	Problems []Problem // at least one, by line
}

// Error is one line: the first problem, and how many more there are.
func (e *Error) Error() string {
	if more := len(e.Problems) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more)", e.Problems[0], more)
	}
	return e.Problems[0].String()
}
