// Package shellwords splits a line of the console into words.
//
// It protects from believing that something worked which did not: a line that a
// shell would act on, with a pipe or a variable, is refused and not taken
// literally.
package shellwords

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// errUnfinished is a line that ends within quotes.
var errUnfinished = errors.New("a quote is not closed")

// Split splits a line into words. Quotes and backslashes mean what they mean in a
// shell, # before a word begins a comment, and ~/ at the beginning of a word is
// home, unless that is empty.
func Split(line, home string) ([]string, error) {
	var words []string
	var word strings.Builder
	started := false
	letters := []rune(line)
	for i := 0; i < len(letters); i++ {
		r := letters[i]
		switch {
		case r == '\'':
			end := closing(letters, i+1, '\'')
			if end < 0 {
				return nil, errUnfinished
			}
			word.WriteString(string(letters[i+1 : end]))
			started, i = true, end
		case r == '"':
			end, err := doubleQuoted(letters, i+1, &word)
			if err != nil {
				return nil, err
			}
			started, i = true, end
		case r == '\\':
			if i++; i == len(letters) {
				return nil, errors.New("a backslash stands at the end of the line")
			}
			word.WriteRune(letters[i])
			started = true
		case unicode.IsSpace(r):
			if started {
				words = append(words, word.String())
				word.Reset()
			}
			started = false
		case r == '#' && !started:
			return words, nil
		case r == '~' && !started && i+1 < len(letters) && letters[i+1] == '/' && home != "":
			word.WriteString(home)
			started = true
		case strings.ContainsRune("|&;<>()$`", r):
			return nil, fmt.Errorf("the console is no shell: quote %q to mean it", r)
		default:
			word.WriteRune(r)
			started = true
		}
	}
	if started {
		words = append(words, word.String())
	}
	return words, nil
}

// closing is where the quote that opened before from is closed, and -1 where it
// is not.
func closing(letters []rune, from int, quote rune) int {
	for i := from; i < len(letters); i++ {
		if letters[i] == quote {
			return i
		}
	}
	return -1
}

// doubleQuoted writes what stands between double quotes to word and returns where
// they close.
func doubleQuoted(letters []rune, from int, word *strings.Builder) (int, error) {
	for i := from; i < len(letters); i++ {
		switch r := letters[i]; {
		case r == '"':
			return i, nil
		case r == '$' || r == '`':
			return 0, fmt.Errorf("the console is no shell: write %q in single quotes to mean it", r)
		case r == '\\' && i+1 < len(letters) && strings.ContainsRune("\"\\$`", letters[i+1]):
			i++
			word.WriteRune(letters[i])
		default:
			word.WriteRune(r)
		}
	}
	return 0, errUnfinished
}
