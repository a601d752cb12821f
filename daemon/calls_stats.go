package daemon

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"time"

	"subjectbroker/grants/rules"
)

// maxCallKeys is how many tools the calls of a subject are counted of; the rest is
// counted under no name of a server: a subject that makes up names takes nothing of
// others.
const maxCallKeys = 2048

// callKey is what calls are counted under: a tool, as one subject calls it. The tool
// is empty for names that were not known to exist.
type callKey struct{ subject, server, tool string }

func (k callKey) compare(other callKey) int {
	return cmp.Or(strings.Compare(k.subject, other.subject), strings.Compare(k.server, other.server), strings.Compare(k.tool, other.tool))
}

// callWhat is what is counted of calls: what came of each that was judged, which is
// one of the first three, and how it ended.
type callWhat int

const (
	callAllowed callWhat = iota // forwarded, or given the answer that one before it had
	callDenied
	callWaited // the agent was told that a person has not answered yet
	callFailed // one of those allowed, which was forwarded and ended with an error
	callWhats
)

// callCounts are the calls of one tool by one subject.
type callCounts struct {
	counts [callWhats]uint64
	took   latencies
	last   time.Time
}

// add sums up.
func (c *callCounts) add(other *callCounts) {
	for what, n := range other.counts {
		c.counts[what] += n
	}
	for bucket, n := range other.took.buckets {
		c.took.buckets[bucket] += n
	}
	c.took.n += other.took.n
	c.took.sum += other.took.sum
}

// callStats count calls since the daemon started. They hold names, and no
// arguments.
type callStats struct {
	now   func() time.Time
	since time.Time

	mu   sync.Mutex
	by   map[callKey]*callCounts
	keys map[string]int // of by, for each subject
}

func newCallStats(now func() time.Time) *callStats {
	return &callStats{now: now, since: now(), by: map[callKey]*callCounts{}, keys: map[string]int{}}
}

// of is what is counted under a key. The caller holds mu.
func (s *callStats) of(k callKey) *callCounts {
	one := s.by[k]
	if one == nil && s.keys[k.subject] >= maxCallKeys {
		k = callKey{subject: k.subject}
		one = s.by[k]
	}
	if one == nil {
		one = &callCounts{}
		s.by[k] = one
		s.keys[k.subject]++
	}
	one.last = s.now()
	return one
}

func (s *callStats) count(k callKey, what callWhat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(k).counts[what]++
}

// done counts how a forwarded call ended, and how long that took.
func (s *callStats) done(k callKey, end rules.End, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.of(k)
	if end != rules.EndOK && end != rules.EndCancelled {
		one.counts[callFailed]++
	}
	one.took.add(took)
}

// callsCounted is a copy of what was counted of one tool.
type callsCounted struct {
	callKey
	callCounts
}

// all returns what was counted, in order.
func (s *callStats) all() []callsCounted {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]callsCounted, 0, len(s.by))
	for k, one := range s.by {
		list = append(list, callsCounted{k, *one})
	}
	slices.SortFunc(list, func(a, b callsCounted) int { return a.compare(b.callKey) })
	return list
}

// latencies count times in buckets, two to a power of two: the 1st up to 1 µs, the
// last from there on. A bucket's bound is at most half more than what is in it.
type latencies struct {
	buckets [64]uint32
	sum     time.Duration
	n       uint64
}

// bucketOf is the bucket of a time.
func bucketOf(took time.Duration) int {
	us := uint64(max(took.Microseconds(), 0))
	if us < 2 {
		return int(us)
	}
	top := bits.Len64(us) - 1
	return min(2*top+int(us>>(top-1)&1), 63)
}

// boundOf is what is less than everything in the next bucket, in microseconds.
func boundOf(bucket int) uint64 {
	if bucket < 2 {
		return uint64(bucket)
	}
	top := bucket / 2
	return uint64(2+bucket%2+1)<<(top-1) - 1
}

func (l *latencies) add(took time.Duration) {
	l.buckets[bucketOf(took)]++
	l.sum += max(took, 0)
	l.n++
}

// quantile is what a part of the times, from 0 to 1, was not longer than, in
// microseconds; 0 when there are none.
func (l *latencies) quantile(part float64) uint64 {
	want, seen := uint64(part*float64(l.n)), uint64(0)
	for bucket, n := range l.buckets {
		if seen += uint64(n); n > 0 && seen > want || seen == l.n && n > 0 {
			return boundOf(bucket)
		}
	}
	return 0
}
