package agents

import (
	"regexp"
	"strings"
)

// structure matches a line that shows no value outside quotes: blank, brackets,
// a comment, a table's header, a key and what follows.
var structure = regexp.MustCompile(`^\s*($|[\[\]{}"'#/,:]|[A-Za-z0-9_.-]+\s*=)`)

// mask hides the strings of one line, or part of a line, of somebody's
// configuration, but not its keys: next to our entry there may be another
// server's token, and what a diff shows stays in terminals and transcripts.
func mask(line string) string {
	if !structure.MatchString(line) {
		return "…" // the inside of a text that spans lines
	}
	var b strings.Builder
	for at := 0; at < len(line); {
		c := line[at]
		if c != '"' && c != '\'' {
			b.WriteByte(c)
			at++
			continue
		}
		end := closing(line, at)
		rest := strings.TrimLeft(line[end:], " \t")
		switch {
		case rest != "" && (rest[0] == ':' || rest[0] == '=' || rest[0] == '.'), end-at <= 2:
			b.WriteString(line[at:end])
		default:
			b.WriteString(string(c) + "…" + string(c))
		}
		at = end
	}
	return b.String()
}

// closing is the offset after the quote that ends the string at at, the end of
// the line if none does.
func closing(line string, at int) int {
	for i := at + 1; i < len(line); i++ {
		switch {
		case line[i] == '\\' && line[at] == '"':
			i++
		case line[i] == line[at]:
			return i + 1
		}
	}
	return len(line)
}
