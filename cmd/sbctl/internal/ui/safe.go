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

// plain says whether a terminal shows r, so that a person sees it, and does nothing
// else about it.
func plain(r rune) bool { return unicode.IsPrint(r) && !unicode.In(r, unseen...) }

// unseen are letters, marks and symbols that print as nothing: fillers, variation
// selectors and an empty pattern of Braille. Text can be hidden in them.
var unseen = []*unicode.RangeTable{
	unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector,
	{R16: []unicode.Range16{{Lo: 0x2800, Hi: 0x2800, Stride: 1}}},
}

// Hidden is how many characters of text do not show, line ends and tabs aside.
func Hidden(text string) int {
	n := 0
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				n++
			}
			continue
		}
		if r != '\n' && r != '\t' && !plain(r) {
			n++
		}
	}
	return n
}

func surrogates(r rune) (high, low rune) { return utf16.EncodeRune(r) }
