package verify

import (
	"bytes"
	"slices"
	"time"
)

// timestampLayout is the form of times in the log. As texts they are in order.
const timestampLayout = "2006-01-02T15:04:05.000Z"

// period is a range of time, both ends included, in the form of the log; an
// empty end is open.
type period struct{ since, until string }

func newPeriod(since, until time.Time) period {
	var p period
	if !since.IsZero() {
		floor := since.Truncate(time.Millisecond)
		if floor.Before(since) {
			floor = floor.Add(time.Millisecond)
		}
		p.since = floor.UTC().Format(timestampLayout)
	}
	if !until.IsZero() {
		p.until = until.UTC().Truncate(time.Millisecond).Format(timestampLayout)
	}
	return p
}

// meets reports whether from..to and p have a moment in common.
func (p period) meets(from, to string) bool {
	return p.since <= to && (p.until == "" || from <= p.until)
}

// extents is what a bundle needs to know of the log beyond what verifying it
// tells.
type extents struct {
	period period
	last   uint64 // seq of the entry at which the bundle ends; 0: the log's newest
	list   []extent
	tally  tally
}

// extent is one segment.
type extent struct {
	segmentFile

	first, last []byte   // lines, both signed when the segment is whole
	seq         uint64   // of last
	end         int64    // where last ends in the file
	from, to    string   // earliest and latest time of the lines that were read
	hasEntries  bool     // a line that was read lies within the period
	pruned      []uint32 // segments that an audit.pruned in it names
}

// extend takes note of a good line; w.offset is behind it.
func (w *walk) extend(l *line) {
	e := w.extents
	if e == nil || e.last > 0 && l.seq > e.last {
		return
	}
	if n := len(e.list); n == 0 || e.list[n-1].number != w.number {
		e.list = append(e.list, extent{segmentFile: w.segmentFile, first: bytes.Clone(l.raw), from: l.text(fTimestamp), to: l.text(fTimestamp)})
	}
	x := &e.list[len(e.list)-1]
	x.seq = l.seq
	if l.signed() {
		x.last, x.end = append(x.last[:0], l.raw...), w.offset
	}
	at := l.field[fTimestamp]
	switch {
	case string(at) < x.from:
		x.from = string(at)
	case string(at) > x.to:
		x.to = string(at)
	}
	if string(at) >= e.period.since && (e.period.until == "" || string(at) <= e.period.until) {
		x.hasEntries = true
		e.tally.add(l)
	}
	if l.is("audit.pruned") {
		x.pruned = append(x.pruned, l.void.segment)
	}
}

// excuses reports whether it does not matter that nothing accounts for p,
// because the bundle is not about that time.
func (e *extents) excuses(p Pruned) bool {
	if e == nil || int(p.Segment) > len(e.list) {
		return false
	}
	x := e.list[p.Segment-1]
	return !e.period.meets(x.from, x.to)
}

// choose says which segments must be whole for the period: all from the first to
// the last one that has entries of it, and those that tell why others of these
// were pruned. ErrNothing when nothing lies within the period.
func (e *extents) choose() (map[uint32]bool, error) {
	chosen := map[uint32]bool{}
	low := slices.IndexFunc(e.list, e.concerns)
	if low < 0 {
		return nil, ErrNothing
	}
	high := low
	for i := low; i < len(e.list); i++ {
		if e.concerns(e.list[i]) {
			high = i
		}
	}
	for _, x := range e.list[low : high+1] {
		if x.form == whole {
			chosen[x.number] = true
			continue
		}
		tells := slices.IndexFunc(e.list, func(teller extent) bool {
			return teller.form == whole && slices.ContainsFunc(teller.pruned, func(n uint32) bool { return n >= x.number })
		})
		if tells < 0 { // behind the end
			return nil, ErrPruning
		}
		chosen[e.list[tells].number] = true
	}
	return chosen, nil
}

func (e *extents) concerns(x extent) bool {
	return x.hasEntries || x.form != whole && e.period.meets(x.from, x.to)
}
