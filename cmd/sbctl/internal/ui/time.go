package ui

import (
	"fmt"
	"time"
)

// never stands for a time that is absent.
const never = "-"

// Stamp is a time as JSON has it, RFC 3339 in UTC with milliseconds; empty when ms is 0.
func Stamp(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// When is a time as a person reads it, absolute and relative; "-" when ms is 0.
func (p *Printer) When(ms int64) string {
	if ms == 0 {
		return never
	}
	at := time.UnixMilli(ms)
	return fmt.Sprintf("%s (%s)", p.clock(at), Relative(at, p.now()))
}

// Clock is a time as a person reads it, absolute alone; "-" when ms is 0.
func (p *Printer) Clock(ms int64) string {
	if ms == 0 {
		return never
	}
	return p.clock(time.UnixMilli(ms))
}

func (p *Printer) clock(at time.Time) string {
	zone := p.Zone
	if zone == nil {
		zone = time.Local
	}
	return at.In(zone).Format("2006-01-02 15:04:05")
}

func (p *Printer) now() time.Time {
	if p.Now == nil {
		return time.Now()
	}
	return p.Now()
}

// Relative is the distance from now to at: "3m ago", "in 2h".
func Relative(at, now time.Time) string {
	distance := at.Sub(now)
	if distance >= 0 {
		return "in " + Span(distance)
	}
	return Span(-distance) + " ago"
}

// Span is a duration in its two largest units, rounded: "45s", "1h30m", "7d".
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute-time.Second/2:
		return units(d.Round(time.Second), "s", time.Second, "", 0)
	case d < time.Hour-time.Minute/2:
		return units(d.Round(time.Minute), "m", time.Minute, "", 0)
	case d < day-time.Minute/2:
		return units(d.Round(time.Minute), "h", time.Hour, "m", time.Minute)
	}
	return units(d.Round(time.Hour), "d", day, "h", time.Hour)
}

// units writes d in one unit and, if anything is left, in a smaller one.
func units(d time.Duration, large string, largeUnit time.Duration, small string, smallUnit time.Duration) string {
	text := fmt.Sprintf("%d%s", d/largeUnit, large)
	if left := d % largeUnit; smallUnit > 0 && left >= smallUnit {
		text += fmt.Sprintf("%d%s", left/smallUnit, small)
	}
	return text
}

// Size is a number of bytes as a person reads it.
func Size(bytes uint64) string {
	const kib = 1 << 10
	const mib = 1 << 20
	switch {
	case bytes < kib:
		return fmt.Sprintf("%d B", bytes)
	case bytes < mib:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/kib)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/mib)
}
