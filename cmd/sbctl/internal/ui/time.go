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

// Relative is the distance from now to at in its largest unit: "3m ago", "in 2h".
func Relative(at, now time.Time) string {
	distance := at.Sub(now)
	if distance >= 0 {
		return "in " + Span(distance)
	}
	return Span(-distance) + " ago"
}

// Span is a duration in its largest unit that is not zero, rounded down.
func Span(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < day:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/day)
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
