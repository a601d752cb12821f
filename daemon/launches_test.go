package daemon

import (
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
