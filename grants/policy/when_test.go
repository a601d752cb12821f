package policy

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseUntil(t *testing.T) {
	berlin := time.FixedZone("", 2*3600)
	now := time.Date(2030, 12, 31, 18, 0, 0, 1, berlin)
	for text, want := range map[string]string{
		"18:01":                         "2030-12-31T18:01:00+02:00",
		"18:00":                         "2031-01-01T18:00:00+02:00", // past by a nanosecond
		"00:00":                         "2031-01-01T00:00:00+02:00",
		"23:59":                         "2030-12-31T23:59:00+02:00",
		"tomorrow 09:00":                "2031-01-01T09:00:00+02:00",
		"tomorrow 23:59":                "2031-01-01T23:59:00+02:00",
		"2031-06-01T12:00:00Z":          "2031-06-01T14:00:00+02:00",
		"2030-12-31T19:00:00+02:00":     "2030-12-31T19:00:00+02:00",
		"2030-12-31T16:00:00.00000001Z": "2030-12-31T18:00:00.00000001+02:00",
	} {
		got, err := ParseUntil(text, now)
		if err != nil {
			t.Errorf("ParseUntil(%q): %v", text, err)
		} else if s := got.In(berlin).Format(time.RFC3339Nano); s != want {
			t.Errorf("ParseUntil(%q) = %s, want %s", text, s, want)
		}
	}
	exactly := now.Add(-1)
	if got, err := ParseUntil("18:00", exactly); err != nil || !got.Equal(exactly.AddDate(0, 0, 1)) {
		t.Errorf("ParseUntil at the minute itself = %v, %v, want tomorrow", got, err)
	}
	for _, bad := range []string{
		"", "now", "18", "18:0", "9:00", "24:00", "18:60", "18:00:00", " 18:00", "18:00 ", "-1:00", "+8:00", "1800", "6pm",
		"tomorrow", "tomorrow ", "tomorrow 9:00", "Tomorrow 09:00", "tomorrow  09:00", "tomorrow tomorrow 09:00", "today 18:00",
		"2030-12-31T15:59:59Z", "2030-12-31T16:00:00Z", "2031-06-01", "2031-06-01 12:00:00Z", "2031-06-01T12:00:00",
		"2031-06-01T12:00Z", "2031-6-1T12:00:00Z", "2031-06-01t12:00:00z", "2031-06-01T12:00:00,5Z", "2031-06-01T12:00:00.Z", "2031-06-01T12:00:00.0123456789Z", "2031-06-01T12:00:00+02:00-02:00",
		"2031-06-01T12:00:00+0200", "2031-06-01T12:00:00+2:00", "2031-02-30T12:00:00Z",
		"0001-01-01T00:00:00Z", "none", "never",
	} {
		if got, err := ParseUntil(bad, now); err == nil {
			t.Errorf("ParseUntil(%q) = %s, want it refused", bad, got)
		}
	}
}

func TestParseUntilOverAChangeOfClocks(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("suite left out: change of clocks: no time zone database here")
	}
	now := time.Date(2030, 3, 30, 20, 0, 0, 0, berlin) // the night has 23 hours
	got, err := ParseUntil("tomorrow 20:00", now)
	if err != nil || got.Sub(now) != 23*time.Hour {
		t.Errorf("ParseUntil = %v, %v, want 23 hours later", got, err)
	}
}

func TestParseTTL(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"90m": 90 * time.Minute, "2h": 2 * time.Hour, "1h30m": 90 * time.Minute, "500ms": 500 * time.Millisecond,
		"7d": 7 * day, "2w": 14 * day, "1w2d12h": 9*day + 12*time.Hour, "1d1ms": day + time.Millisecond, "1.5h": 90 * time.Minute,
		"36500d": 36500 * day, "0d1h": time.Hour,
	} {
		if got, err := ParseTTL(text); err != nil || got != want {
			t.Errorf("ParseTTL(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{
		"", "0", "0s", "0d", "5", "d", "w", "-1h", "+1h", "1d-1h", "-1d", "1.5d", "1d2w", "2h1d", "1D", "1 d", " 1d", "1d ", "1dd",
		"1y", "1M", "none", "forever", "999us", "1ns", "36501d", "5300w", "99999999999999999999d", "99999999999999999999h", "9223372036854775807w",
	} {
		if got, err := ParseTTL(bad); err == nil {
			t.Errorf("ParseTTL(%q) = %v, want it refused", bad, got)
		}
	}
}

func TestTimesOfGoAreTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(int64(time.Millisecond), int64(maxTTL)).Draw(t, "ttl"))
		if got, err := ParseTTL(d.String()); err != nil || got != d {
			t.Errorf("ParseTTL(%q) = %v, %v", d, got, err)
		}
		until := noon.Add(d)
		if got, err := ParseUntil(until.Format(time.RFC3339Nano), noon); err != nil || !got.Equal(until) {
			t.Errorf("ParseUntil(%s) = %v, %v", until, got, err)
		}
	})
}

func FuzzParseTTL(f *testing.F) {
	f.Add("1w2d12h")
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseTTL(s); err == nil && (d < time.Millisecond || d > maxTTL) {
			t.Errorf("ParseTTL(%q) = %v", s, d)
		}
	})
}

func FuzzParseUntil(f *testing.F) {
	f.Add("tomorrow 09:00")
	f.Add("2031-06-01T12:00:00Z")
	f.Fuzz(func(t *testing.T, s string) {
		if until, err := ParseUntil(s, noon); err == nil && !until.After(noon) {
			t.Errorf("ParseUntil(%q) = %v, which is past", s, until)
		}
	})
}
