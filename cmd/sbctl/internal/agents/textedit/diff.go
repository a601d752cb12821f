package textedit

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
)

// contextLines is how many unchanged lines a hunk shows on each side.
const contextLines = 3

// longestForeign is how many bytes of a line's unchanged part are shown; the
// configuration of an agent may be one line of a megabyte.
const longestForeign = 80

// Nowhere is the name of a file that does not exist.
const Nowhere = "/dev/null"

// Diff shows the edits to src as a unified diff between the files called from
// and to, either of which may be Nowhere. What an edit inserts, and what it deletes, is shown as it is; everything else goes
// through mask, which gets one line or a part of one.
func Diff(from, to string, src []byte, mask func(string) string, edits ...Edit) string {
	var changes []Edit
	for _, e := range inOrder(edits) {
		if !e.IsZero() {
			changes = append(changes, e)
		}
	}
	if len(changes) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", from, to)
	shift := 0 // lines that earlier hunks added
	for len(changes) > 0 {
		hunk := newHunk(src, changes)
		changes = changes[len(hunk.edits):]
		hunk.write(&b, src, shift, mask)
		shift += hunk.added - hunk.removed
	}
	return b.String()
}

// hunk is a run of edits whose lines, with context, touch.
type hunk struct {
	edits          []Edit
	start, end     int // byte range of whole lines that the edits touch
	added, removed int // lines
}

func newHunk(src []byte, changes []Edit) *hunk {
	h := &hunk{start: lineStart(src, changes[0].At)}
	for _, e := range changes {
		if len(h.edits) > 0 && bytes.Count(src[h.end:max(h.end, lineStart(src, e.At))], []byte("\n")) > 2*contextLines {
			break
		}
		h.edits = append(h.edits, e)
		h.end = lineEnd(src, e)
	}
	return h
}

func lineStart(src []byte, at int) int { return bytes.LastIndexByte(src[:at], '\n') + 1 }

// lineEnd is the end of the last line that an edit touches. One that takes
// whole lines, or puts whole lines between two, touches no line after.
func lineEnd(src []byte, e Edit) int {
	at := e.At + e.Delete
	whole := lineStart(src, at) == at && (e.Insert == "" || strings.HasSuffix(e.Insert, "\n"))
	if whole && (e.Delete > 0 || e.At == at && lineStart(src, e.At) == e.At) {
		return at
	}
	if i := bytes.IndexByte(src[at:], '\n'); i >= 0 {
		return at + i + 1
	}
	return len(src)
}

// line is one line as it is shown.
type line struct {
	text string
	bare bool // without a line break at its end
}

// lines collects text, masked where it is not the edits' own.
type lines struct {
	done []line
	open strings.Builder
	mask func(string) string
}

func (l *lines) own(text string) {
	l.put(text, func(s string) string { return strings.Map(printable, s) })
}

func (l *lines) foreign(text string) { l.put(text, l.mask) }

func (l *lines) put(text string, show func(string) string) {
	for text != "" {
		part, rest, ended := strings.Cut(text, "\n")
		l.open.WriteString(show(strings.TrimSuffix(part, "\r")))
		if ended {
			l.done = append(l.done, line{text: l.open.String()})
			l.open.Reset()
		}
		text = rest
	}
}

// all ends the last line, which may lack its line break.
func (l *lines) all() []line {
	if l.open.Len() > 0 {
		l.done = append(l.done, line{text: l.open.String(), bare: true})
		l.open.Reset()
	}
	return l.done
}

func (h *hunk) write(b *strings.Builder, src []byte, shift int, mask func(string) string) {
	shorten := func(s string) string {
		s = strings.Map(printable, mask(s))
		if len(s) > longestForeign {
			s = strings.ToValidUTF8(s[:longestForeign/2], "") + "…" + strings.ToValidUTF8(s[len(s)-longestForeign/2:], "")
		}
		return s
	}
	before, after := lines{mask: shorten}, lines{mask: shorten}
	at := h.start
	for _, e := range h.edits {
		before.foreign(string(src[at:e.At]))
		after.foreign(string(src[at:e.At]))
		before.own(string(src[e.At : e.At+e.Delete]))
		after.own(e.Insert)
		at = e.At + e.Delete
	}
	before.foreign(string(src[at:h.end]))
	after.foreign(string(src[at:h.end]))
	old, now := before.all(), after.all()
	h.removed, h.added = len(old), len(now)

	head, tail := lines{mask: shorten}, lines{mask: shorten}
	head.foreign(string(src[contextStart(src, h.start):h.start]))
	tail.foreign(string(src[h.end:contextEnd(src, h.end)]))
	above, below := head.all(), tail.all()

	first := bytes.Count(src[:h.start], []byte("\n")) + 1 - len(above)
	oldLen, newLen := len(above)+h.removed+len(below), len(above)+h.added+len(below)
	fmt.Fprintf(b, "@@ -%s +%s @@\n", span(first, oldLen), span(first+shift, newLen))
	put(b, " ", above)
	// Lines that the edits left alike on both ends are context.
	same := 0
	for same < len(old) && same < len(now) && old[same] == now[same] {
		same++
	}
	back := 0
	for back < len(old)-same && back < len(now)-same && old[len(old)-1-back] == now[len(now)-1-back] {
		back++
	}
	put(b, " ", old[:same])
	put(b, "-", old[same:len(old)-back])
	put(b, "+", now[same:len(now)-back])
	put(b, " ", old[len(old)-back:])
	put(b, " ", below)
}

// printable keeps what a file holds from steering the terminal.
func printable(r rune) rune {
	if r != '\t' && !unicode.IsPrint(r) {
		return unicode.ReplacementChar
	}
	return r
}

func span(first, length int) string {
	if length == 0 {
		return fmt.Sprintf("%d,0", first-1)
	}
	return fmt.Sprintf("%d,%d", first, length)
}

func put(b *strings.Builder, sign string, lines []line) {
	for _, l := range lines {
		b.WriteString(sign + l.text + "\n")
		if l.bare {
			b.WriteString("\\ No newline at end of file\n")
		}
	}
}

func contextStart(src []byte, at int) int {
	for range contextLines {
		if at == 0 {
			break
		}
		at = lineStart(src, at-1)
	}
	return at
}

func contextEnd(src []byte, at int) int {
	for range contextLines {
		if i := bytes.IndexByte(src[at:], '\n'); i >= 0 {
			at += i + 1
		} else {
			return len(src)
		}
	}
	return at
}
