package daemon

import (
	"context"
	"testing"

	"google.golang.org/grpc/credentials"
	grpcpeer "google.golang.org/grpc/peer"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
)

// What an operator is handed leaves only while the need of the call is met: a tier
// that was raised after the call came counts, and so does a session that ended.
func TestContentLeavesOnlyWhileTheNeedIsMet(t *testing.T) {
	d := newDaemon(Config{Home: t.TempDir()}, fileConfig{})
	st := newState()
	st.open = true
	st.mustPutSubject(grants.Subject{Name: "worker", MinTier: grants.Cooperative})
	d.current.Store(st)
	p := &peer.Peer{UID: d.doors.own}
	var facts credentials.AuthInfo = p
	caller := grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: facts})
	call := func(n need) func() bool {
		decide := d.onItsWord(context.WithValue(caller, askedKey{}, asked{row: fixed(n)}))
		return func() bool { return decide(grants.Capability{}).Outcome == grants.Allowed }
	}
	get, free, stray := call(whenRaised), call(nothing), d.onItsWord(caller)
	look := func(when string, handed bool) {
		t.Helper()
		if got := get(); got != handed {
			t.Errorf("%s: it is handed: %v, want %v", when, got, handed)
		}
		if !free() {
			t.Errorf("%s: what needs nothing is not handed", when)
		}
	}
	look("before a tier is raised", true)
	st.mustPutSubject(grants.Subject{Name: "worker", MinTier: grants.Bound})
	look("after that", false)
	if stray(grants.Capability{}).Outcome == grants.Allowed {
		t.Error("a call whose need nobody knows is handed content")
	}
	d.sessions.begin(p, "id", d.clock.read())
	look("with a session", true)
	d.sessions.endAll()
	look("after it ended", false)
	st.mustPutSubject(grants.Subject{Name: "worker", MinTier: grants.Cooperative})
	look("after the tier was lowered", true)
	d.current.Store(newState())
	look("after a lock", false)
}
