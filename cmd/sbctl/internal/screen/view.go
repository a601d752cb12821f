package screen

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/ui"
)

// narrow is the width, in characters, below which a line names only what matters.
const narrow = 72

// keys is the last line when there is nothing else to tell, by pane: the longest
// that fits.
var keys = [panes][]string{
	runsPane: {
		"↑↓ select  tab other list  g grant 1h  d deny  x disable subject  e end run  u passphrase  q quit",
		"↑↓  tab list  x disable subject  e end run  u passphrase  q quit",
		"↑↓ tab  x disable  e end  u pass  q quit",
	},
	denialsPane: {
		"↑↓ select  tab other list  g grant 1h  d deny  x disable subject  e end run  u passphrase  q quit",
		"↑↓  tab list  g grant 1h  d deny  x disable subject  q quit",
		"↑↓ tab  g grant  d deny  x disable",
	},
	itemsPane: {
		"↑↓ select  tab other list  a approve once  g for 1h  d refuse  x disable subject  u passphrase  q quit",
		"↑↓  tab list  a approve  g for 1h  d refuse  x disable subject  q quit",
		"a approve g 1h d refuse x disable q quit",
	},
}

// fixed is the number of lines that are always there: title, two headings with
// a blank line before each, a blank line and heading of what is recent, last line.
const fixed = 8

// maxStanding is how many answers that stand are shown.
const maxStanding = 3

// View is the screen as lines, at most height of them, none longer than width.
func (m *Model) View(width, height int) []string {
	var lines []string
	if m.asked != nil && m.asked.card != nil {
		lines = m.cardView(width, height)
	} else {
		lines = m.panesView(width, height)
	}
	for i, line := range lines {
		lines[i] = cut(ui.Safe(line), width)
	}
	return lines
}

func (m *Model) panesView(width, height int) []string {
	small := width < narrow
	room := height - fixed
	items := 0
	if len(m.state.Items) > 0 {
		room -= 2 // its heading and a blank line
		items = min(len(m.state.Items), max(1, room/2))
	}
	standing := min(len(m.state.Standing), maxStanding)
	if standing > 0 {
		room -= standing + 2
	}
	room = max(room, 3)
	recent := min(len(m.state.Recent), max(1, (room-items)/3))
	runs := min(len(m.state.Runs), max(1, (room-items-recent)/2))
	denials := min(len(m.state.Denials), max(1, room-items-recent-runs))

	lines := []string{m.state.Title, ""}
	if items > 0 {
		lines = append(lines, m.heading(itemsPane, "WAITING FOR YOU", "subject, what, time left, arguments"))
		lines = append(lines, m.window(itemsPane, items, func(i int) string { return m.state.Items[i].line(small) })...)
		lines = append(lines, "")
	}
	if standing > 0 {
		lines = append(lines, fmt.Sprintf("  ANSWERS THAT STAND (%d): subject, what, until, what is covered", len(m.state.Standing)))
		for _, answer := range m.state.Standing[:standing] {
			lines = append(lines, "  "+answer)
		}
		lines = append(lines, "")
	}
	lines = append(lines, m.heading(runsPane, "RUNS", "subject, tier, attested, opened, reads, denials"))
	lines = append(lines, m.window(runsPane, runs, func(i int) string { return m.state.Runs[i].line(small) })...)
	lines = append(lines, "", m.heading(denialsPane, "DENIALS", "subject, capability, cause, how often, last"))
	lines = append(lines, m.window(denialsPane, denials, func(i int) string { return m.state.Denials[i].line(small) })...)
	lines = append(lines, "", "RECENT")
	lines = append(lines, m.state.Recent[len(m.state.Recent)-recent:]...)
	if len(lines) > height-1 {
		lines = lines[:max(height-1, 0)]
	}
	return append(lines, m.last(width))
}

func (i Item) line(small bool) string {
	switch {
	case i.ID == "" && small:
		return strings.TrimSpace(i.Subject + " " + i.What + " " + i.Text)
	case i.ID == "":
		return strings.TrimRight(fmt.Sprintf("%-16s %-28s %-6s %s", i.Subject, i.What, "", i.Text), " ")
	case small:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", i.Subject, i.What, i.Left, i.Text))
	}
	return strings.TrimRight(fmt.Sprintf("%-16s %-28s %-6s %s", i.Subject, i.What, i.Left, i.Text), " ")
}

func (r Run) line(small bool) string {
	id := r.ID
	if r.Within {
		id = "└ " + id
	}
	if small {
		return fmt.Sprintf("%s %s %s %d/%d", id, r.Subject, r.Tier, r.Reads, r.Denials)
	}
	return fmt.Sprintf("%-10s %-16s %-12s %-12s %-9s %4d read %4d denied  %s", id, r.Subject, r.Tier, r.Attested, r.Opened, r.Reads, r.Denials, r.Command)
}

func (d Denial) line(small bool) string {
	if small {
		return fmt.Sprintf("%s %s %s ×%d", d.Subject, d.Capability, d.Cause, d.Count)
	}
	return fmt.Sprintf("%-16s %-32s %-18s ×%-5d %s", d.Subject, d.Capability, d.Cause, d.Count, d.Last)
}

// cardView is the card of what is asked, folded to the width, above the question.
func (m *Model) cardView(width, height int) []string {
	var rows []string
	for _, line := range m.asked.card {
		rows = append(rows, fold(ui.Safe(line), width)...)
	}
	question := fold(ui.Safe(m.asked.Question()+" y/n"), width)
	question = question[:min(len(question), max(height-2, 1))]
	page := max(height-len(question)-1, 0)
	if m.width != width { // other lines than before
		m.width, m.top, m.seen = width, 0, 0
	}
	m.page, m.rows = page, len(rows)
	m.top = max(0, min(m.top, len(rows)-page))
	shown := rows[m.top:min(m.top+page, len(rows))]
	if m.top <= m.seen { // without a gap
		m.seen = max(m.seen, m.top+len(shown))
	}
	more := ""
	if left := len(rows) - m.top - len(shown); left > 0 || m.top > 0 {
		more = fmt.Sprintf("── ↑↓ line %d to %d of %d", m.top+1, m.top+len(shown), len(rows))
	}
	if m.Message != "" {
		more = m.Message + " " + more
	}
	lines := append([]string{}, shown...)
	if height > len(question)+len(lines) {
		lines = append(lines, more)
	}
	return append(lines, question...)
}

// fold breaks a line into lines that take at most width columns. Nothing is left out.
func fold(line string, width int) []string {
	var lines []string
	var row strings.Builder
	taken := 0
	for _, r := range line {
		if n := columns(r); taken > 0 && taken+n > width {
			lines = append(lines, row.String())
			row.Reset()
			taken = 0
		}
		row.WriteRune(r)
		taken += columns(r)
	}
	return append(lines, row.String())
}

// columns is how many columns a character takes at most.
func columns(r rune) int {
	const firstWide = 0x1100
	if r < firstWide {
		return 1
	}
	return 2
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

func (m *Model) last(width int) string {
	switch {
	case m.asked != nil:
		return m.asked.Question() + " y/n"
	case m.Message != "":
		return m.Message
	}
	for _, line := range keys[m.focus] {
		if utf8.RuneCountInString(line) <= width {
			return line
		}
	}
	return keys[m.focus][len(keys[m.focus])-1]
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
