package ui

import (
	"fmt"
	"io"
	"time"

	"subjectbroker/proto/terminal"
)

// progressEvery bounds how often progress is drawn.
const progressEvery = 100 * time.Millisecond

// Progress shows on a terminal how far long work has come. On anything else it
// is silent, and so is work that is done before anybody would ask.
type Progress struct {
	out   io.Writer // nil: silent
	what  string
	last  time.Time
	shown bool
}

// NewProgress makes a progress that is shown on out when out is a terminal.
func NewProgress(out io.Writer, what string) *Progress {
	p := &Progress{what: what, last: time.Now()}
	if terminal.Is(out) {
		p.out = out
	}
	return p
}

// Show says that done of total is done.
func (p *Progress) Show(done, total int64) {
	if p.out == nil || total <= 0 || time.Since(p.last) < progressEvery {
		return
	}
	p.last, p.shown = time.Now(), true
	_, _ = fmt.Fprintf(p.out, "\r%s %d%%", p.what, done*100/total)
}

// Done removes what was shown.
func (p *Progress) Done() {
	if p.shown {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
