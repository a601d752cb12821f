package ui

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	leastFolded = 24 // the narrowest column that is still read as text
	goodFolded  = 40 // one that is read well
)

// fold writes a table that is wider than a terminal so that it fits: its widest column
// is broken between words. What stands alone behind that and leaves it little room, a
// command to paste, gets a line of its own below, whole. It does not fold what fits,
// nor where too little room is left either way. lines has the head first.
func fold(lines [][]string, widths []int, columns int) (text string, folded bool) {
	total := 2 * (len(widths) - 1)
	for _, width := range widths {
		total += width
	}
	if columns <= 0 || total <= columns {
		return "", false
	}
	broad := slices.Index(widths, slices.Max(widths))
	before := 0
	for _, width := range widths[:broad] {
		before += width + 2
	}
	behind := total - before - widths[broad]
	room, below := columns-before-behind, false
	if room < goodFolded && broad == len(widths)-2 && widths[broad+1] >= leastFolded {
		room, below = columns-before, true
	}
	if room < leastFolded {
		return "", false
	}
	var all strings.Builder
	write := func(row string) { all.WriteString(strings.TrimRight(row, " ") + "\n") }
	for n, line := range lines {
		parts := broken(line[broad], room)
		row := aligned(line[:broad], widths)
		switch {
		case below && n == 0: // the heads stay beside each other
			row += parts[0] + "  " + line[broad+1]
		case below:
			row += parts[0]
		default:
			row += parts[0] + strings.Repeat(" ", room-utf8.RuneCountInString(parts[0])+2) + aligned(line[broad+1:], widths[broad+1:])
		}
		write(row)
		indent := strings.Repeat(" ", before)
		for _, part := range parts[1:] {
			write(indent + part)
		}
		if below && n > 0 && line[broad+1] != "" {
			write(indent + "  " + line[broad+1])
		}
	}
	return all.String(), true
}

// aligned are cells in their columns.
func aligned(cells []string, widths []int) string {
	var row strings.Builder
	for i, cell := range cells {
		row.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
	}
	return row.String()
}

// broken is text in lines of at most room characters, broken between words where
// there are any.
func broken(text string, room int) []string {
	var lines []string
	for rest := []rune(text); ; {
		if len(rest) <= room {
			return append(lines, string(rest))
		}
		end, next := room, room
		for i := room; i > 0; i-- {
			if rest[i] == ' ' {
				end, next = i, i+1
				break
			}
		}
		lines = append(lines, string(rest[:end]))
		rest = rest[next:]
	}
}
