package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// figure is one thing that was measured, beside what bounds it.
type figure struct {
	name  string
	got   string  // the value, with its unit
	limit string  // what bounds it, measured in the same run; empty for a fixed bound
	ratio float64 // value / limit
	bound float64 // largest ratio that is good; smallest when atLeast; 0: for information
	// atLeast says that more is better.
	atLeast bool
	absent  bool // it was not measured; got says why
}

func (f figure) holds() bool {
	if f.atLeast {
		return f.ratio >= f.bound
	}
	return f.bound == 0 || f.ratio <= f.bound
}

// write prints a figure in two lines: what was measured, and against what.
func (f figure) write(w io.Writer) {
	if f.absent {
		fmt.Fprintf(w, "      %-46s %s\n", f.name, f.got)
		return
	}
	mark := "ok  "
	if !f.holds() {
		mark = "MISS"
	}
	aim := ""
	switch {
	case f.bound == 0:
		mark = "    "
	case f.atLeast:
		aim = fmt.Sprintf(", at least %.4g", f.bound)
	default:
		aim = fmt.Sprintf(", at most %.4g", f.bound)
	}
	fmt.Fprintf(w, "%s  %-46s %s\n", mark, f.name, f.got)
	fmt.Fprintf(w, "      beside %s: ratio %.2f%s\n", f.limit, f.ratio, aim)
}

// samples are durations of one operation.
type samples []time.Duration

// at returns the p-th quantile, 0 < p ≤ 1. It sorts the samples.
func (s samples) at(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	slices.Sort(s)
	return s[min(len(s)-1, int(p*float64(len(s))))]
}

func (s samples) p50() time.Duration { return s.at(0.50) }
func (s samples) p99() time.Duration { return s.at(0.99) }

// ms writes a duration as milliseconds, the unit of nearly everything here.
func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", d.Seconds()*1e3) }

// perSecond is how many of n there were a second.
func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
