package rules

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxPattern = 512  // characters in a pattern
	maxProgram = 4096 // instructions that it may become: each may be tried at each character

	maxPrograms = 1 << 19 // instructions of all patterns of one policy, which stay in memory
)

// checkPattern returns how many instructions a pattern of RE2 becomes. Patterns that
// repeat what repeats are refused, as they are where such files come from, and so are
// those that nothing matches.
func checkPattern(pattern string) (size int, err error) {
	switch {
	case utf8.RuneCountInString(pattern) > maxPattern:
		return 0, fmt.Errorf("a pattern is at most %d characters", maxPattern)
	case !utf8.ValidString(pattern):
		return 0, errors.New("a pattern is UTF-8 text")
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		var e *syntax.Error
		if errors.As(err, &e) {
			return 0, fmt.Errorf("not a pattern of RE2: %s", e.Code)
		}
		return 0, errors.New("not a pattern of RE2")
	}
	if repeatsRepeat(pattern) {
		return 0, errors.New("a pattern must not repeat what repeats itself, as in (a+)+")
	}
	program, err := syntax.Compile(parsed.Simplify())
	switch {
	case err != nil || len(program.Inst) > maxProgram:
		return 0, errors.New("the pattern is too large")
	case !canMatch(program):
		return 0, errors.New("nothing can ever match the pattern")
	}
	return len(program.Inst), nil
}

// repeatsRepeat reports whether a group that holds a repetition is itself repeated.
// It reads the text: the parser of RE2 makes one repetition of two where it can.
func repeatsRepeat(pattern string) bool {
	var groups []bool // open ones: whether they hold a repetition
	holds := false    // the innermost
	last := false     // what a repetition would repeat holds one
	for i := 0; i < len(pattern); {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case strings.HasPrefix(rest, `\Q`):
			end := strings.Index(rest, `\E`)
			if end < 0 {
				return false
			}
			i, last = i+end+2, false
			continue
		case c == '\\':
			i, last = i+2, false
			continue
		case c == '[':
			i, last = i+classLength(rest), false
			continue
		case c == '(':
			groups, holds, last = append(groups, holds), false, false
			i++
			if strings.HasPrefix(rest, "(?") { // not a repetition
				i++
			}
			continue
		case c == ')' && len(groups) > 0:
			last = holds
			holds = holds || groups[len(groups)-1]
			groups = groups[:len(groups)-1]
		default:
			n, repeats := repetition(rest)
			if repeats && last {
				return true
			}
			holds = holds || repeats
			if i += n; n > 0 {
				continue
			}
			last = false
		}
		i++
	}
	return false
}

// repetition returns the length of the quantifier that text starts with, 0 for none,
// and whether it can repeat.
func repetition(text string) (n int, repeats bool) {
	switch text[0] {
	case '*', '+':
		return 1, true
	case '?':
		return 1, false
	case '{':
		inside, _, closed := strings.Cut(text[1:], "}")
		low, high, ranged := strings.Cut(inside, ",")
		if !closed || low == "" || strings.Trim(low+high, "0123456789") != "" {
			return 0, false
		}
		if !ranged {
			high = low
		}
		most, err := strconv.Atoi(high)
		return len(inside) + 2, high == "" || err != nil || most > 1
	}
	return 0, false
}

// classLength returns the length of the class in brackets that text starts with.
func classLength(text string) int {
	i := 1
	if strings.HasPrefix(text[i:], "^") {
		i++
	}
	if strings.HasPrefix(text[i:], "]") {
		i++
	}
	for i < len(text) && text[i] != ']' {
		switch {
		case text[i] == '\\':
			i += 2
		case strings.HasPrefix(text[i:], "[:") && strings.Contains(text[i+2:], ":]"):
			i += 2 + strings.Index(text[i+2:], ":]") + 2
		default:
			i++
		}
	}
	return i + 1
}

// canMatch reports whether some text may match, as far as can be told without trying:
// there is a way through the program that neither begins after a character nor goes
// on after the end.
func canMatch(program *syntax.Prog) bool {
	type place struct {
		pc    uint32
		begun bool // characters were passed
		ended bool // the end was passed
	}
	// The search may begin anywhere, so characters before it count as passed or not.
	queue := []place{{uint32(program.Start), false, false}, {uint32(program.Start), true, false}}
	seen := map[place]bool{}
	for len(queue) > 0 {
		at := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		instruction := &program.Inst[at.pc]
		next := place{instruction.Out, at.begun, at.ended}
		switch instruction.Op {
		case syntax.InstMatch:
			return true
		case syntax.InstCapture, syntax.InstNop:
		case syntax.InstFail:
			continue
		case syntax.InstAlt, syntax.InstAltMatch:
			queue = append(queue, place{instruction.Arg, at.begun, at.ended})
		case syntax.InstEmptyWidth:
			need := syntax.EmptyOp(instruction.Arg)
			if need&syntax.EmptyBeginText != 0 && at.begun {
				continue
			}
			next.ended = at.ended || need&syntax.EmptyEndText != 0
		case syntax.InstRune, syntax.InstRune1, syntax.InstRuneAny, syntax.InstRuneAnyNotNL:
			if at.ended || instruction.Op == syntax.InstRune && len(instruction.Rune) == 0 {
				continue
			}
			next.begun = true
		}
		queue = append(queue, next)
	}
	return false
}
