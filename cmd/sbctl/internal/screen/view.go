package screen

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/ui"
)

// keys is the last line when there is nothing else to tell.
const keys = "↑↓ select  tab other list  g grant 1h  d deny  x disable subject  e end run  u passphrase  q quit"

// fixed is the number of lines that are always there: title, two headings with
// a blank line before each, a blank line and heading of what is recent, last line.
const fixed = 8

// View is the screen as lines, at most height of them, none longer than width.
func (m *Model) View(width, height int) []string {
	room := max(height-fixed, 3)
	recent := min(len(m.state.Recent), max(1, room/3))
	runs := min(len(m.state.Runs), max(1, (room-recent)/2))
	denials := min(len(m.state.Denials), max(1, room-recent-runs))

	lines := []string{m.state.Title, ""}
	lines = append(lines, m.heading(runsPane, "RUNS", "subject, tier, attested, opened, reads, denials"))
	lines = append(lines, m.window(runsPane, runs, func(i int) string {
		r := m.state.Runs[i]
		id := r.ID
		if r.Within {
			id = "└ " + id
		}
		return fmt.Sprintf("%-10s %-16s %-12s %-12s %-9s %4d read %4d denied  %s", id, r.Subject, r.Tier, r.Attested, r.Opened, r.Reads, r.Denials, r.Command)
	})...)
	lines = append(lines, "", m.heading(denialsPane, "DENIALS", "subject, capability, cause, how often, last"))
	lines = append(lines, m.window(denialsPane, denials, func(i int) string {
		d := m.state.Denials[i]
		return fmt.Sprintf("%-16s %-32s %-18s ×%-5d %s", d.Subject, d.Capability, d.Cause, d.Count, d.Last)
	})...)
	lines = append(lines, "", "RECENT")
	lines = append(lines, m.state.Recent[len(m.state.Recent)-recent:]...)
	if len(lines) > height-1 {
		lines = lines[:max(height-1, 0)]
	}
	lines = append(lines, m.last())
	for i, line := range lines {
		lines[i] = cut(ui.Safe(line), width)
	}
	return lines
}

func (m *Model) heading(p pane, title, columns string) string {
	mark := "  "
	if m.focus == p {
		mark = "» "
	}
	return fmt.Sprintf("%s%s (%d)  %s", mark, title, m.length(p), columns)
}

// window is n lines of a list around its cursor.
func (m *Model) window(p pane, n int, line func(i int) string) []string {
	first := max(0, min(m.cursors[p]-n/2, m.length(p)-n))
	var lines []string
	for i := first; i < first+n; i++ {
		mark := "  "
		if m.focus == p && m.cursors[p] == i {
			mark = "> "
		}
		lines = append(lines, mark+line(i))
	}
	return lines
}

func (m *Model) last() string {
	switch {
	case m.asked != nil:
		return m.asked.Question() + " y/n"
	case m.Message != "":
		return m.Message
	}
	return keys
}

// cut shortens a line to width characters.
func cut(line string, width int) string {
	if utf8.RuneCountInString(line) <= width {
		return line
	}
	runes := []rune(line)
	if width <= 1 {
		return string(runes[:max(width, 0)])
	}
	return strings.TrimRight(string(runes[:width-1]), " ") + "…"
}
