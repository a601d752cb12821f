package daemon

import (
	"sync"
	"time"

	"subjectbroker/daemon/peer"
)

// sessionIdle is how long a session lasts without a call of a person on its
// connection.
const sessionIdle = 15 * time.Minute

// sessions are the authenticated connections of the operator. A session belongs
// to its connection and to nothing else: it cannot be named, copied or taken
// over, and ends with it at the latest.
type sessions struct {
	mu   sync.Mutex
	open map[*peer.Peer]*session
}

type session struct {
	id   string
	last reading // when it was used last
}

func newSessions() *sessions { return &sessions{open: map[*peer.Peer]*session{}} }

// idle reports whether a session has ended by itself. Either clock will do.
func (s *session) idle(at reading) bool {
	if at.bootID != "" && at.bootID == s.last.bootID && at.since-s.last.since >= sessionIdle {
		return true
	}
	return at.now.Sub(s.last.now) >= sessionIdle
}

// begin authenticates a connection anew; false: it has ended meanwhile.
func (ss *sessions) begin(p *peer.Peer, id string, at reading) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if p.Left() {
		return false
	}
	ss.open[p] = &session{id: id, last: at}
	return true
}

// of is the id of a connection's session; empty when it has none.
func (ss *sessions) of(p *peer.Peer, clock *clock) string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s, _ := ss.get(p, clock); s != nil {
		return s.id
	}
	return ""
}

// use begins the time anew after which a connection's session ends by itself.
func (ss *sessions) use(p *peer.Peer, clock *clock) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if s, at := ss.get(p, clock); s != nil {
		s.last = at
	}
}

// get is the session of a connection, if it has one that has not ended, and when
// that was found. The caller holds mu.
func (ss *sessions) get(p *peer.Peer, clock *clock) (*session, reading) {
	s, ok := ss.open[p]
	if !ok {
		return nil, reading{}
	}
	at := clock.read()
	if s.idle(at) {
		delete(ss.open, p)
		return nil, at
	}
	return s, at
}

// end ends the session of a connection, if it has one.
func (ss *sessions) end(p *peer.Peer) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	delete(ss.open, p)
}

// endAll ends every session.
func (ss *sessions) endAll() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	clear(ss.open)
}

// count is the number of sessions that have not ended.
func (ss *sessions) count(at reading) int {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for p, s := range ss.open {
		if s.idle(at) {
			delete(ss.open, p)
		}
	}
	return len(ss.open)
}
