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

func (p period) contains(at string) bool {
	return at >= p.since && (p.until == "" || at <= p.until)
}

// meets reports whether the time between a and b, whichever is earlier, and p
// have a moment in common. The clock may have been set back in between.
func (p period) meets(a, b string) bool {
	return p.contains(a) || p.contains(b) || p.since != "" && min(a, b) < p.since && p.since <= max(a, b)
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
	began, over string   // times of the first and of the last line
	entries     uint64   // lines that were read and lie within the period
	pruned      []uint32 // segments that an audit.pruned in it names
}

// extend takes note of a good line; w.offset is behind it.
func (w *walk) extend(l *line) {
	e := w.extents
	if e == nil || e.last > 0 && l.seq > e.last {
		return
	}
	at := l.text(fTimestamp)
	if n := len(e.list); n == 0 || e.list[n-1].number != w.number {
		e.list = append(e.list, extent{segmentFile: w.segmentFile, first: bytes.Clone(l.raw), began: at})
	}
	x := &e.list[len(e.list)-1]
	x.seq, x.over = l.seq, at
	if l.signed() {
		x.last, x.end = append(x.last[:0], l.raw...), w.offset
	}
	if e.period.contains(at) {
		x.entries++
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
	return !e.period.meets(x.began, x.over)
}

// concerns reports whether x is of the period: an entry in it is, or one could
// be that is not here to be looked at.
func (e *extents) concerns(x extent) bool {
	return x.entries > 0 || e.period.meets(x.began, x.over)
}

// choose says which segments must be whole for the period: all from the first to
// the last one that it concerns, and those that tell why others of these were
// pruned. ErrNothing when no entry lies within the period, nor did one.
//
// Who reads a bundle comes to the same choice as who wrote it, because both
// know the ends of every segment, and all of those that are whole.
func (e *extents) choose() (map[uint32]bool, error) {
	low, high, empty := -1, -1, true
	for i, x := range e.list {
		if !e.concerns(x) {
			continue
		}
		if low < 0 {
			low = i
		}
		high = i
		empty = empty && x.entries == 0 && x.form != pruned
	}
	if empty {
		return nil, ErrNothing
	}
	chosen := map[uint32]bool{}
	for _, x := range e.list[low : high+1] {
		if x.form != pruned {
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
