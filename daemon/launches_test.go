package daemon

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// What the log owes comes into force late: a launch that has ended by then, or
// that was said not to open, is an ended one.
func TestLaunchThatEndedFirst(t *testing.T) {
	ls := newLaunches()
	l := newLaunch(someLaunch, peer.Held{})
	if !ls.end(l, time.Unix(1, 0), causeNotOpened) {
		t.Fatal("it had ended before")
	}
	if len(ls.list(true)) != 0 {
		t.Error("a launch that never was is shown")
	}
	ls.add(l)
	if _, open := ls.get(l.id); open {
		t.Error("it is open")
	}
	if got, past := ls.past(l.id); !past || got.state() != "ended" || got.hasBegun() {
		t.Errorf("it is no ended launch that never began: %v", past)
	}
	other := someLaunch
	other.id = "other"
	ls.add(newLaunch(other, peer.Held{}))
	if _, open := ls.get("other"); !open {
		t.Error("one that has not ended is not open")
	}
}

// What a launch needs is judged before anything is disclosed for it, and in the
// words of the operator.
func TestMayLaunch(t *testing.T) {
	d := &Daemon{launches: newLaunches()}
	for _, c := range []struct {
		name   string
		change func(*state, *grants.Subject)
		want   string // in the refusal; empty: it may
	}{
		{"as it should be", func(*state, *grants.Subject) {}, ""},
		{"another subject", func(_ *state, s *grants.Subject) { s.Name = "other" }, "no subject is named worker"},
		{"a disabled one", func(_ *state, s *grants.Subject) { s.Disabled = true }, "worker is disabled"},
		{"one that needs more", func(_ *state, s *grants.Subject) { s.MinTier = grants.Sandboxed }, "worker needs the tier sandboxed, and this would be bound"},
		{"as many as there may be", func(st *state, _ *grants.Subject) {
			for i := range maxLaunches {
				st.launches[fmt.Sprint(i)] = launchRow{}
			}
		}, "256 launches are open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, subject := newState(), grants.Subject{Name: "worker", Created: someLaunch.born}
			c.change(st, &subject)
			if err := st.set.PutSubject(subject); err != nil {
				t.Fatal(err)
			}
			row := someLaunch
			row.profile, row.tier = "", grants.Bound
			born, err := d.mayLaunch(st, row)
			if err == nil && c.want != "" || err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("it says %v, want %q", err, c.want)
			}
			if err == nil && !born.Equal(someLaunch.born) {
				t.Errorf("its subject is of %v", born)
			}
		})
	}
}

// A refusal is booked on who the peer is, never on whom it claims to be.
func TestAttestNamesWhoIsRefused(t *testing.T) {
	d := &Daemon{launches: newLaunches(), doors: newDoors(nil)}
	d.current.Store(newState())
	ended, forgotten := someLaunch, "forgotten"
	l := newLaunch(ended, peer.Held{})
	d.launches.add(l)
	d.launches.end(l, time.Unix(1, 0), causeTreeEnded)
	claim := &brokerv1.SubjectClaim{Subject: "other", Profile: "others"}
	for _, c := range []struct {
		name  string
		peer  *peer.Peer
		want  attested
		cause string
	}{
		{"a launch that has ended", &peer.Peer{Class: peer.Launch, Launch: ended.id},
			attested{subject: ended.subject, born: ended.born, profile: ended.profile, tier: ended.tier, launch: l}, causeLaunchEnded},
		{"a launch that nobody remembers", &peer.Peer{Class: peer.Launch, Launch: forgotten}, attested{}, causeLaunchEnded},
		{"a uid that is no subject", &peer.Peer{Class: peer.Mapped, UID: 4711}, attested{tier: grants.Separate}, string(grants.CauseUnknownSubject)},
		{"anybody", &peer.Peer{Class: peer.Plain}, attested{subject: "other", profile: "others", tier: grants.Cooperative}, ""},
	} {
		if got, cause := d.attest(c.peer, claim); got != c.want || cause != c.cause {
			t.Errorf("%s: it is %+v, %q, want %+v, %q", c.name, got, cause, c.want, c.cause)
		}
	}
}
