package policy

import (
	"errors"
	"strconv"
	"strings"
	"time"
)

var (
	errRFC3339 = errors.New("a time is written as in RFC 3339, such as 2030-12-31T18:00:00Z")
	errUntil   = errors.New("an end is 18:00, 'tomorrow 09:00' or a time of RFC 3339")
	errPast    = errors.New("this time is past")
	errTTL     = errors.New("a time to live is 90m, 2h, 7d, 2w or the like, from 1ms to 100 years")
)

// maxTTL keeps an end within the years that RFC 3339 can write.
const maxTTL = 36500 * 24 * time.Hour

// ParseUntil reads an end: a clock time in the time zone of now, today or, once
// it has come, tomorrow ("18:00"); "tomorrow 09:00"; or a time of RFC 3339. It
// is always after now.
func ParseUntil(s string, now time.Time) (time.Time, error) {
	if rest, ok := strings.CutPrefix(s, "tomorrow "); ok {
		return clockTime(rest, now, 1)
	}
	if len(s) == len("18:00") {
		t, err := clockTime(s, now, 0)
		if err == nil && !t.After(now) {
			return clockTime(s, now, 1)
		}
		return t, err
	}
	t, err := parseRFC3339(s)
	switch {
	case err != nil:
		return time.Time{}, errUntil
	case !t.After(now):
		return time.Time{}, errPast
	}
	return t, nil
}

// clockTime returns HH:MM on the day that is days after now's, in now's zone. Of
// an hour that a change of the clocks leaves out or repeats, [time.Date] decides.
func clockTime(s string, now time.Time, days int) (time.Time, error) {
	t, err := time.Parse("15:04", s)
	if err != nil || len(s) != len("15:04") {
		return time.Time{}, errUntil
	}
	year, month, day := now.Date()
	return time.Date(year, month, day+days, t.Hour(), t.Minute(), 0, 0, now.Location()), nil
}

// parseRFC3339 returns the time in UTC. The zero time is refused: it would mean
// no end at all.
func parseRFC3339(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil || t.IsZero() || !looksRFC3339(s) {
		return time.Time{}, errRFC3339
	}
	return t.UTC(), nil
}

// looksRFC3339 refuses what [time.Parse] and [time.Time.UnmarshalText] take
// beyond RFC 3339: a comma, hours of one digit, fractions that no Time can hold.
func looksRFC3339(s string) bool {
	shape := strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return '0'
		}
		return r
	}, s)
	local, utc := strings.CutSuffix(shape, "Z")
	if !utc {
		local = strings.TrimSuffix(strings.TrimSuffix(shape, "+00:00"), "-00:00")
	}
	seconds, fraction, pointed := strings.Cut(local, ".")
	return local != shape && seconds == "0000-00-00T00:00:00" &&
		(!pointed || fraction != "" && len(fraction) <= 9 && strings.Trim(fraction, "0") == "")
}

// ParseTTL reads a time to live: a duration as Go writes it, with days ("7d")
// and weeks ("2w") as well, largest unit first: "1w2d12h". A day is 24 hours.
func ParseTTL(s string) (time.Duration, error) {
	weeks, rest := cutUnit(s, "w")
	days, rest := cutUnit(rest, "d")
	const most = int(maxTTL / (24 * time.Hour))
	if weeks < 0 || days < 0 || weeks > most || days > most {
		return 0, errTTL
	}
	ttl := time.Duration(weeks*7+days) * 24 * time.Hour
	if rest != "" {
		if rest[0] == '-' || rest[0] == '+' {
			return 0, errTTL
		}
		d, err := time.ParseDuration(rest)
		if err != nil || d > maxTTL {
			return 0, errTTL
		}
		ttl += d
	}
	if ttl < time.Millisecond || ttl > maxTTL {
		return 0, errTTL
	}
	return ttl, nil
}

// cutUnit cuts a leading whole number with that unit off s. It returns 0 and s
// when there is none, and -1 when the number is too large to be one.
func cutUnit(s, unit string) (int, string) {
	number, rest, found := strings.Cut(s, unit)
	if !found || number == "" || strings.Trim(number, "0123456789") != "" {
		return 0, s
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return -1, s
	}
	return n, rest
}
