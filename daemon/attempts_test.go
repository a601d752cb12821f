package daemon

import (
	"testing"
	"time"

	"subjectbroker/daemon/peer"
)

// at is a reading of both clocks.
func at(boot string, since, wall time.Duration) reading {
	return reading{now: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).Add(wall), bootID: boot, since: since}
}

// One second, then twice as long each time, up to a minute.
func TestPauses(t *testing.T) {
	var a attempts
	for i, want := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60, 60} {
		if got := a.pause(); got != want*time.Second {
			t.Errorf("after %d wrong ones the pause is %v, want %v", i, got, want*time.Second)
		}
		a = a.another(at("boot", time.Hour, 0))
	}
	a.Wrong = 1 << 40
	if got := a.pause(); got != time.Minute {
		t.Errorf("after very many it is %v", got)
	}
}

// No clock that anybody can set makes a wait shorter, and none makes it longer
// than the pause.
func TestWaits(t *testing.T) {
	a := attempts{Wrong: 3}.another(at("boot", time.Hour, 0)) // 8 s
	bootless := attempts{Wrong: 3}.another(at("", 0, 0))
	for name, tc := range map[string]struct {
		a    attempts
		at   reading
		want time.Duration
	}{
		"at once":                         {a, at("boot", time.Hour, 0), 8 * time.Second},
		"later":                           {a, at("boot", time.Hour+3*time.Second, 3*time.Second), 5 * time.Second},
		"at its end":                      {a, at("boot", time.Hour+8*time.Second, 8*time.Second), 0},
		"after it":                        {a, at("boot", 2*time.Hour, time.Hour), 0},
		"wall clock set forward":          {a, at("boot", time.Hour+time.Second, 24*time.Hour), 7 * time.Second},
		"wall clock set back":             {a, at("boot", time.Hour+9*time.Second, -24*time.Hour), 0},
		"another boot":                    {a, at("other", time.Second, 5*time.Second), 3 * time.Second},
		"another boot, clock set back":    {a, at("other", time.Second, -24*time.Hour), 8 * time.Second},
		"without a boot clock":            {bootless, at("", 0, 2*time.Second), 6 * time.Second},
		"without a boot clock, set back":  {bootless, at("", 0, -time.Hour), 8 * time.Second},
		"nothing was wrong":               {attempts{}, at("boot", time.Hour, 0), 0},
		"a boot clock that was not there": {bootless, at("boot", time.Hour, 7*time.Second), time.Second},
	} {
		if got := tc.a.wait(tc.at); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// A session ends by itself after a quarter of an hour on either clock, and every
// use begins it anew.
func TestSessionsEndByThemselves(t *testing.T) {
	p, other := &peer.Peer{}, &peer.Peer{}
	wall, boot := time.Duration(0), time.Hour
	clock := newClock(func() time.Time { return at("", 0, wall).now }, func() (string, time.Duration) { return "boot", boot })
	ss := newSessions()
	step := func(w, b time.Duration) { wall, boot = wall+w, boot+b }
	has := func(what string, want bool) {
		t.Helper()
		if got := ss.of(p, clock) != ""; got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	has("before", false)
	ss.begin(p, "id", clock.read())
	has("at once", true)
	step(14*time.Minute, 14*time.Minute)
	has("after 14 minutes", true)
	ss.use(p, clock)
	step(14*time.Minute, 14*time.Minute)
	has("after 14 more: it was used", true)
	step(2*time.Minute, 2*time.Minute)
	has("after 2 more: it was only looked at", false)
	ss.use(p, clock)
	has("it cannot be used again", false)
	ss.begin(p, "id", clock.read())
	if ss.of(other, clock) != "" {
		t.Error("another connection has it, too")
	}
	step(sessionIdle, 0)
	has("a quarter of an hour on the wall clock alone", false)
	ss.begin(p, "id", clock.read())
	step(0, sessionIdle)
	has("a quarter of an hour on the boot clock alone", false)
	ss.begin(p, "id", clock.read())
	ss.begin(other, "id", clock.read())
	if got := ss.count(clock.read()); got != 2 {
		t.Errorf("%d sessions, want 2", got)
	}
	step(sessionIdle, sessionIdle)
	if got := ss.count(clock.read()); got != 0 {
		t.Errorf("%d sessions that have ended are counted", got)
	}
	p.Leave()
	if ss.begin(p, "id", clock.read()) || ss.count(clock.read()) != 0 {
		t.Error("a connection that has ended has a session")
	}
}
