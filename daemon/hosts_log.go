package daemon

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Limits on what is kept of what the processes of one server say.
const (
	maxHostLine = 4 << 10   // bytes of a line, escaped
	maxLogLines = 2000      // lines of one server
	maxLogBytes = 512 << 10 // bytes of them
	maxLogs     = 256       // servers
)

// hostLogs keep the newest lines that the processes of servers wrote, by server, in
// memory only: nobody knows what stands in them.
type hostLogs struct {
	mu     sync.Mutex
	of     map[string]*hostLog
	number uint64 // of the newest line
	more   chan struct{}
}

// hostLog is one server's.
type hostLog struct {
	lines []logLine // oldest first
	size  int
}

// logLine is one line, escaped.
type logLine struct {
	number  uint64 // rising, over all servers
	subject string
	at      time.Time
	text    string
}

func newHostLogs() *hostLogs {
	return &hostLogs{of: map[string]*hostLog{}, more: make(chan struct{})}
}

// add keeps one line of the process of k.
func (ls *hostLogs) add(k hostKey, at time.Time, line []byte) {
	text := escaped(line)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l, ok := ls.of[k.server]
	if !ok {
		if len(ls.of) >= maxLogs {
			return
		}
		l = &hostLog{}
		ls.of[k.server] = l
	}
	ls.number++
	l.lines = append(l.lines, logLine{ls.number, k.subject, at, text})
	l.size += len(text)
	if len(l.lines) > maxLogLines || l.size > maxLogBytes {
		l.drop()
	}
	close(ls.more)
	ls.more = make(chan struct{})
}

// drop leaves the newest three quarters: who fills it pays for that once in a while.
func (l *hostLog) drop() {
	n := 0
	for len(l.lines)-n > maxLogLines*3/4 || l.size > maxLogBytes*3/4 {
		l.size -= len(l.lines[n].text)
		n++
	}
	l.lines = append([]logLine(nil), l.lines[n:]...) // else the memory of those before would stay
}

// after returns the lines of a server after number, of one subject unless all,
// the number of the newest line, and what is closed when there are more.
func (ls *hostLogs) after(number uint64, server, subject string, all bool) ([]logLine, uint64, <-chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var found []logLine
	if l, ok := ls.of[server]; ok {
		for _, line := range l.lines {
			if line.number > number && (all || line.subject == subject) {
				found = append(found, line)
			}
		}
	}
	return found, ls.number, ls.more
}

func (ls *hostLogs) forget(server string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.of, server)
}

// escaped is a line for a terminal: what could act on one is written as \u and four
// digits or more, and what follows maxHostLine bytes is left out.
func escaped(line []byte) string {
	var b strings.Builder
	for len(line) > 0 && b.Len() < maxHostLine {
		r, size := utf8.DecodeRune(line)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, line[0])
		case r == '\t' || strconv.IsPrint(r):
			b.WriteRune(r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		line = line[size:]
	}
	if len(line) > 0 {
		b.WriteString("…")
	}
	return b.String()
}

// minSaid is how long a line of a secret is at least, in bytes, to be looked for by
// itself where a server may have written it.
const minSaid = 8

// unsaid are lines without the secrets that their server has now, and without what
// looks like a credential: to read the logs needs less than to read those.
func (d *Daemon) unsaid(name string, lines []logLine) []string {
	if len(lines) == 0 {
		return nil
	}
	server, _ := d.state().server(name)
	secrets := d.secretsOf(server.Secrets())
	var forms [][]byte
	for _, secret := range secrets {
		forms = append(forms, []byte(escaped(bytes.TrimSpace(secret))))
		for part := range bytes.Lines(secret) {
			if part = bytes.TrimSpace(part); len(part) >= minSaid {
				forms = append(forms, []byte(escaped(part)))
			}
		}
		clear(secret)
	}
	texts := make([]string, len(lines))
	for i, line := range lines {
		texts[i] = unsaid(line.text, forms)
	}
	for _, form := range forms {
		clear(form)
	}
	return texts
}

// unsaid is a text with what must not be shown of it replaced by its length.
func unsaid(text string, secrets [][]byte) string {
	var b strings.Builder
	from := 0
	for _, m := range masked(text, secrets) {
		b.WriteString(text[from:m.Begin])
		fmt.Fprintf(&b, "[masked %d bytes]", m.End-m.Begin)
		from = m.End
	}
	b.WriteString(text[from:])
	return b.String()
}
