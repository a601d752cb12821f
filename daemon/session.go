package daemon

import (
	"sync"
	"time"

	"subjectbroker/daemon/peer"
)

// sessionIdle is how long a session lasts without a call on its connection.
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

// begin authenticates a connection anew.
func (ss *sessions) begin(p *peer.Peer, id string, at reading) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.open[p] = &session{id: id, last: at}
}

// of is the id of a connection's session; empty when it has none. It counts as a
// use.
func (ss *sessions) of(p *peer.Peer, clock *clock) string {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s, ok := ss.open[p]
	if !ok {
		return ""
	}
	at := clock.read()
	if s.idle(at) {
		delete(ss.open, p)
		return ""
	}
	s.last = at
	return s.id
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
