package main

import (
	"fmt"
	"io"
	"time"

	"subjectbroker/proto/terminal"
)

// progressEvery is how often the line changes.
const progressEvery = 200 * time.Millisecond

// progress is one line on a terminal about long work; elsewhere it is silent.
type progress struct {
	to    io.Writer // nil: nobody looks
	next  time.Time
	shown bool
}

func newProgress(stderr io.Writer) *progress {
	p := &progress{next: time.Now().Add(progressEvery)}
	if terminal.Is(stderr) {
		p.to = stderr
	}
	return p
}

func (p *progress) show(what string, done, total int64) {
	if p.to == nil || total <= 0 || time.Now().Before(p.next) {
		return
	}
	p.next, p.shown = time.Now().Add(progressEvery), true
	fmt.Fprintf(p.to, "\r\x1b[K%s: %d %%", what, 100*done/total)
}

// clear takes the line away, before something else is said.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.to, "\r\x1b[K")
		p.shown = false
	}
}
