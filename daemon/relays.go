package daemon

import (
	"sync"

	"subjectbroker/daemon/peer"
)

// relays are the open streams, and what they have us hold for each process over all
// of its connections: what its clients have said and is not judged, what servers
// that it runs offer, and answers that it has not taken.
type relays struct {
	mu      sync.Mutex
	open    map[*relay]struct{}
	bytes   map[peer.ProcessKey]int64 // said
	untaken map[peer.ProcessKey]int64 // answers
	taken   chan struct{}             // closed, and made anew, when an answer was taken; nil: nobody waits
	tasks   sync.WaitGroup            // calls
}

func newRelays() *relays {
	return &relays{open: map[*relay]struct{}{}, bytes: map[peer.ProcessKey]int64{}, untaken: map[peer.ProcessKey]int64{}}
}

// hold reserves room for what was said, or reports that the process has too much.
func (rs *relays) hold(key peer.ProcessKey, n int64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.bytes[key]+n > maxUnjudged {
		return false
	}
	rs.bytes[key] += n
	return true
}

func (rs *relays) release(key peer.ProcessKey, n int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.bytes[key] -= n; rs.bytes[key] <= 0 {
		delete(rs.bytes, key)
	}
}

// offerAnswer reserves room for a piece of an answer. With wait it waits until there
// is some, or the stream is over.
func (rs *relays) offerAnswer(s *relay, n int64, wait bool) bool {
	key := s.run.peer.Key()
	for {
		rs.mu.Lock()
		if _, open := rs.open[s]; !open {
			rs.mu.Unlock()
			return false
		}
		if rs.untaken[key] == 0 || rs.untaken[key]+n <= maxUntaken {
			rs.untaken[key] += n
			s.untaken += n
			rs.mu.Unlock()
			return true
		}
		if rs.taken == nil {
			rs.taken = make(chan struct{})
		}
		taken := rs.taken
		rs.mu.Unlock()
		if !wait {
			return false
		}
		select {
		case <-taken:
		case <-s.ctx.Done():
			return false
		}
	}
}

// tookAnswer gives back the room of a piece, or of all of a stream that is over.
func (rs *relays) tookAnswer(s *relay, n int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.took(s, n)
}

func (rs *relays) took(s *relay, n int64) {
	n = min(n, s.untaken)
	if n == 0 {
		return
	}
	s.untaken -= n
	key := s.run.peer.Key()
	if rs.untaken[key] -= n; rs.untaken[key] <= 0 {
		delete(rs.untaken, key)
	}
	if rs.taken != nil {
		close(rs.taken)
		rs.taken = nil
	}
}

func (rs *relays) add(s *relay) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.open[s] = struct{}{}
}

func (rs *relays) remove(s *relay) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.open, s)
	rs.took(s, s.untaken)
}

// kill ends the streams of a session; of all of the subject's, where its server is
// stopped.
func (rs *relays) kill(subject, server, launch string, stopped bool, policy string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for s := range rs.open {
		if s.run.subject == subject && s.server == server && (stopped && s.hosted || s.run.launchID() == launch) {
			select {
			case s.killed <- policy:
			default: // it is on its way already
			}
		}
	}
}

// lasts tells the streams of a session that it has begun.
func (rs *relays) lasts(subject, server, launch string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for s := range rs.open {
		if s.run.subject == subject && s.server == server && s.run.launchID() == launch {
			select {
			case s.lasts <- struct{}{}:
			default: // it is told already
			}
		}
	}
}

// count is the number of open streams.
func (rs *relays) count() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.open)
}
