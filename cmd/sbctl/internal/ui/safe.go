package ui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Safe is text with every character that does not print, and every byte that
// is not UTF-8, made visible as an escape. What it returns is one line.
func Safe(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || !plain(r) }) < 0 {
		return text
	}
	var clean strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&clean, `\x%02x`, text[0])
		case r == '\n':
			clean.WriteString(`\n`)
		case r == '\t':
			clean.WriteString(`\t`)
		case plain(r):
			clean.WriteRune(r)
		case r <= 0xff:
			fmt.Fprintf(&clean, `\x%02x`, r)
		default:
			fmt.Fprintf(&clean, `\u{%x}`, r)
		}
		text = text[size:]
	}
	return clean.String()
}

// SafeText is Safe for content of several lines: line ends and tabs stay.
func SafeText(text string) string {
	var clean strings.Builder
	for line := range strings.Lines(text) {
		body, ended := strings.CutSuffix(line, "\n")
		for i, part := range strings.Split(body, "\t") {
			if i > 0 {
				clean.WriteByte('\t')
			}
			clean.WriteString(Safe(part))
		}
		if ended {
			clean.WriteByte('\n')
		}
	}
	return clean.String()
}

// plain says whether a terminal shows r and does nothing else about it.
func plain(r rune) bool { return unicode.IsPrint(r) }

func surrogates(r rune) (high, low rune) { return utf16.EncodeRune(r) }
