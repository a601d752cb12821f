package policy

import "fmt"

// Problem is one thing that is wrong with, or odd in, a document.
type Problem struct {
	Line int // from 1; 0: the document as a whole
	Text string
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
