package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// maxBreakers is how many tools a meter remembers failures of. Where more fail, it
// forgets the closed one that was used longest ago; when none is closed, it takes no
// more.
const maxBreakers = 256

// Meter is what was counted of one session under one policy. The zero Meter has
// counted nothing. It belongs to its caller, who holds a lock around each use.
type Meter struct {
	Calls uint64 // that were forwarded
	// Spent is what calls cost, in millionths of the budget's unit. A budget is over
	// all sessions: a caller with several sets it before Judge and reads it after Take.
	Spent    uint64
	Began    time.Time // of the session, in whole milliseconds; zero: it has not begun
	KilledBy string    // policy that killed the session; empty: none did

	times    []int64 // of the newest forwarded calls, Unix milliseconds, as many as a rate limit needs
	breakers map[string]*breaker
}

// maxBreakerName is how long a name is, in bytes, by which a meter remembers a tool.
// Many of longer ones would make meters large, and with them every checkpoint.
const maxBreakerName = 64

// breakerOf is the name by which a meter remembers a tool that failed.
func breakerOf(tool string) string {
	if len(tool) <= maxBreakerName {
		return tool
	}
	sum := sha256.Sum256([]byte(tool))
	return strings.ToValidUTF8(tool[:maxBreakerName/4], "") + "~" + hex.EncodeToString(sum[:16])
}

// breaker is the circuit breaker of one tool that failed. There is none for others.
type breaker struct {
	failures uint64 // in a row, while closed
	opened   int64  // Unix milliseconds; 0: closed
	probe    int64  // since when a probe is out; 0: none is
	used     int64  // last time
}

// Begin begins the session, if it has not.
func (m *Meter) Begin(now time.Time) {
	if m.Began.IsZero() {
		m.Began = time.UnixMilli(now.UnixMilli()).UTC()
	}
}

// OpenBreakers returns the tools whose circuit breaker is not closed, sorted. Of a long
// name there are the beginning and a hash.
func (m *Meter) OpenBreakers() []string {
	var open []string
	for tool, b := range m.breakers {
		if b.opened != 0 {
			open = append(open, tool)
		}
	}
	slices.Sort(open)
	return open
}

// Cost is what [Compiled.Take] took, so that it can be given back.
type Cost struct {
	Micros uint64 // millionths of the budget's unit; 0 without a budget

	tool  string
	at    int64
	gone  []int64 // what was pushed out of a full window of the rate
	began bool    // it began the session
	probe bool    // it is the probe of the tool's circuit breaker
}

// Cost returns what a call of tool costs, in millionths of the budget's unit; 0
// without a budget.
func (c *Compiled) Cost(tool string) uint64 {
	b := c.policy.Rules.Limits.Budget
	if b == nil {
		return 0
	}
	if c.named[tool] {
		if cost, ok := b.ToolCosts[tool]; ok {
			return cost
		}
		return b.PerCall
	}
	cost := b.PerCall
	for _, name := range c.like(tool) { // it may be one of them
		cost = max(cost, b.ToolCosts[name])
	}
	return cost
}

// Take counts a call that is being forwarded, also one that a person approved.
func (c *Compiled) Take(m *Meter, call Call) Cost {
	return c.Retake(m, call.Tool, call.Now, c.Cost(call.Tool))
}

// Retake is Take of a call that the log tells of: it was forwarded then, and cost
// that much.
func (c *Compiled) Retake(m *Meter, tool string, at time.Time, micros uint64) Cost {
	limits := &c.policy.Rules.Limits
	cost := Cost{Micros: micros, tool: breakerOf(tool), at: at.UnixMilli(), began: m.Began.IsZero()}
	m.Begin(at)
	m.Calls, m.Spent = add(m.Calls, 1), add(m.Spent, micros)
	if limits.Rate != nil {
		m.times = append(m.times, cost.at)
		if extra := len(m.times) - int(limits.Rate.Calls); extra > 0 {
			cost.gone = slices.Clone(m.times[:extra])
			m.times = slices.Delete(m.times, 0, extra)
		}
	}
	if b := m.breakers[cost.tool]; b != nil && limits.Breaker != nil {
		b.used = cost.at
		if b.opened != 0 && since(b.opened, at) >= limits.Breaker.Reset {
			b.probe, cost.probe = cost.at, true
		}
	}
	return cost
}

// Undo gives back what Take took for a call that was not forwarded after all.
func (c *Compiled) Undo(m *Meter, cost Cost) {
	m.Calls -= min(m.Calls, 1)
	m.Spent -= min(m.Spent, cost.Micros)
	if i := slices.Index(m.times, cost.at); i >= 0 {
		m.times = slices.Delete(m.times, i, i+1)
		// Calls are given back together with all that came after them, if at all: what
		// they pushed out stood before what is there.
		at := 0
		for at < len(m.times) && len(cost.gone) > 0 && m.times[at] < cost.gone[0] {
			at++
		}
		m.times = slices.Insert(m.times, at, cost.gone...)
	}
	if b := m.breakers[cost.tool]; b != nil && cost.probe && b.probe == cost.at {
		b.probe = 0
	}
	if cost.began && m.Calls == 0 {
		m.Began = time.Time{}
	}
}

// Settle notes how a forwarded call ended. While a tool's circuit breaker is
// half-open, every end counts as that of the probe; while it is open, none counts.
func (c *Compiled) Settle(m *Meter, tool string, end End, now time.Time) {
	limit := c.policy.Rules.Limits.Breaker
	if limit == nil {
		return
	}
	tool = breakerOf(tool)
	b := m.breakers[tool]
	failed := end == EndTransport || limit.Counts == CountErrors && (end == EndError || end == EndToolError)
	switch {
	case end < EndOK || end > EndTransport: // nobody knows how it would have ended
		if b != nil {
			b.probe = 0
		}
	case !failed && (b == nil || b.opened != 0 && b.probe == 0):
	case !failed:
		delete(m.breakers, tool)
	case b == nil:
		if b = m.addBreaker(tool); b != nil {
			b.fail(limit, now)
		}
	case b.opened == 0 || b.probe != 0:
		b.fail(limit, now)
	}
}

// fail counts one failure. A probe that failed opens the breaker anew.
func (b *breaker) fail(limit *Breaker, now time.Time) {
	b.failures, b.used = add(b.failures, 1), now.UnixMilli()
	if b.failures >= limit.Failures || b.opened != 0 {
		b.failures, b.probe, b.opened = 0, 0, max(now.UnixMilli(), 1)
	}
}

// addBreaker makes room for one more tool; nil when there is none.
func (m *Meter) addBreaker(tool string) *breaker {
	if len(m.breakers) >= maxBreakers {
		oldest, found := "", false
		for name, b := range m.breakers {
			if o := m.breakers[oldest]; b.opened == 0 && (!found || b.used < o.used || b.used == o.used && name < oldest) {
				oldest, found = name, true
			}
		}
		if !found {
			return nil
		}
		delete(m.breakers, oldest)
	}
	if m.breakers == nil {
		m.breakers = map[string]*breaker{}
	}
	b := &breaker{}
	m.breakers[tool] = b
	return b
}

var errMeter = errors.New("not what was written of a meter")

// meterVersion is the first byte of a stored meter:
//
//	1 calls spent began killedBy len(times) times… len(breakers) (tool failures opened probe used)…
//
// Numbers are uvarints, moments varints of Unix milliseconds (began 0: not), each of
// times the difference to the one before, texts their length and bytes, breakers
// sorted by tool.
const meterVersion = 1

// Append appends what [ParseMeter] reads. The same meter gives the same bytes.
func (m *Meter) Append(b []byte) []byte {
	b = append(b, meterVersion)
	b = binary.AppendUvarint(b, m.Calls)
	b = binary.AppendUvarint(b, m.Spent)
	began := int64(0)
	if !m.Began.IsZero() {
		began = m.Began.UnixMilli()
	}
	b = binary.AppendVarint(b, began)
	b = appendText(b, m.KilledBy)
	b = binary.AppendUvarint(b, uint64(len(m.times)))
	last := int64(0)
	for _, at := range m.times {
		b = binary.AppendVarint(b, at-last)
		last = at
	}
	b = binary.AppendUvarint(b, uint64(len(m.breakers)))
	for _, tool := range slices.Sorted(maps.Keys(m.breakers)) {
		one := m.breakers[tool]
		b = appendText(b, tool)
		b = binary.AppendUvarint(b, one.failures)
		b = binary.AppendVarint(b, one.opened)
		b = binary.AppendVarint(b, one.probe)
		b = binary.AppendVarint(b, one.used)
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

// ParseMeter reads what [Meter.Append] wrote, and nothing else.
func ParseMeter(b []byte) (*Meter, error) {
	r := meterReader{rest: b}
	if len(b) == 0 || b[0] != meterVersion {
		return nil, errMeter
	}
	r.rest = b[1:]
	m := &Meter{Calls: r.uvarint(math.MaxUint64), Spent: r.uvarint(math.MaxUint64)}
	if began := r.varint(); began != 0 {
		m.Began = time.UnixMilli(began).UTC()
	}
	m.KilledBy = r.text()
	last := int64(0)
	for range r.uvarint(MaxPerCall) {
		last += r.varint()
		m.times = append(m.times, last)
	}
	if n := r.uvarint(maxBreakers); n > 0 && !r.bad {
		m.breakers = make(map[string]*breaker, n)
		for range n {
			tool := r.text()
			m.breakers[tool] = &breaker{r.uvarint(math.MaxUint64), r.varint(), r.varint(), r.varint()}
		}
	}
	// What was not written in this form would come back as another meter.
	if r.bad || len(r.rest) > 0 || !bytes.Equal(m.Append(nil), b) {
		return nil, errMeter
	}
	return m, nil
}

// meterReader reads numbers and texts. Once bad, what it returns means nothing.
type meterReader struct {
	rest []byte
	bad  bool
}

func (r *meterReader) uvarint(most uint64) uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 || n > most {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *meterReader) varint() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *meterReader) text() string {
	n := r.uvarint(uint64(len(r.rest)))
	if r.bad || n > uint64(len(r.rest)) {
		r.bad, r.rest = true, nil
		return ""
	}
	text := string(r.rest[:n])
	r.rest = r.rest[n:]
	return text
}
