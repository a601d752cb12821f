package main

import (
	"fmt"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
)

// noLimit is the --ttl that says that no default limit may apply.
const noLimit = "none"

// parsePast reads a time that lies behind us: a duration before now ("90m"),
// RFC 3339, or a date and time of this machine's zone.
func parsePast(text string, now time.Time) (time.Time, error) {
	if span, err := policy.ParseTTL(text); err == nil {
		return now.Add(-span), nil
	}
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, strings.TrimSpace(text), now.Location()); err == nil {
			return at, nil
		}
	}
	if clock, err := time.ParseInLocation("15:04", text, now.Location()); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), 0, 0, now.Location())
		if at.After(now) {
			at = at.AddDate(0, 0, -1)
		}
		return at, nil
	}
	return time.Time{}, fmt.Errorf("%q is no time: use 90m, 2h, 7d, 18:00, 2026-01-31 or RFC 3339", text)
}

// pastMillis is parsePast of an option in Unix milliseconds; 0 when it is empty.
func pastMillis(doing, option, text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	at, err := parsePast(text, now)
	if err != nil {
		return 0, refuse(doing, "%s: %v", option, err)
	}
	return at.UnixMilli(), nil
}

// echoEnd tells the person when something ends, in absolute terms.
func (a *app) echoEnd(what string, until int64) {
	if until != 0 {
		at := time.UnixMilli(until)
		a.say("%s ends %s (%s)", what, at.Local().Format(time.RFC3339), ui.Relative(at, a.now()))
	}
}
