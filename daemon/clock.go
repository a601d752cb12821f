package daemon

import (
	"sync"
	"time"

	"subjectbroker/grants"
)

// clockSlack is how far the wall clock may step back before it counts as rolled
// back; small corrections by a time service stay below it.
const clockSlack = 2 * time.Second

// clock is the wall clock with its high-water mark, and the boot clock.
type clock struct {
	now    func() time.Time
	boot   func() (id string, since time.Duration)
	mu     sync.Mutex
	high   time.Time
	behind bool
}

// reading is one look at the clocks.
type reading struct {
	now    time.Time // never before what it was
	wall   time.Time // as it is
	bootID string
	since  time.Duration
	behind bool // CLOCK_ROLLBACK: timed grants count as expired
}

func newClock(now func() time.Time, boot func() (string, time.Duration)) *clock {
	if now == nil {
		now = time.Now
	}
	if boot == nil {
		boot = bootClock
	}
	return &clock{now: now, boot: boot}
}

// raise lifts the high-water mark to what was recorded before this start.
func (c *clock) raise(mark time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mark.After(c.high) {
		c.high = mark.Round(0)
	}
}

// read looks at the clocks and moves the mark. A wall clock behind the mark
// stays behind until it has passed it again or the operator confirms it.
func (c *clock) read() reading {
	id, since := c.boot()
	// Without its reading of the monotonic clock, by which a wall clock that was set
	// back would be compared as if it had not been.
	now := c.now().Round(0)
	wall := now
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !now.Before(c.high):
		c.high, c.behind = now, false
	case now.Before(c.high.Add(-clockSlack)):
		c.behind = true
	}
	if now.Before(c.high) { // a grant that ended by the wall clock stays ended
		now = c.high
	}
	return reading{now: now, wall: wall, bootID: id, since: since, behind: c.behind}
}

// reached is the wall clock, and never before what it was: what ended by it stays
// ended when it is set back.
func (c *clock) reached() time.Time {
	now := c.now().Round(0)
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.high) {
		return c.high
	}
	return now
}

// mark is the high-water mark.
func (c *clock) mark() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.high
}

// confirm takes the wall clock at its word from here on.
func (c *clock) confirm() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.high, c.behind = c.now().Round(0), false
	return c.high
}

// judge fills in the times that a request is judged at.
func (r reading) judge(q *grants.Request) {
	q.Now, q.BootID, q.SinceBoot, q.ClockBehind = r.now, r.bootID, r.since, r.behind
}
