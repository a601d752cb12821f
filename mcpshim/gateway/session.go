package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"sync"
	"time"

	"subjectbroker/proto/wire"
)

// session is one shim and the requests that wait for it. It belongs to one key.
//
// Requests of several clients may share it, so that neither their ids nor their
// progress tokens are told to it: it sees numbers of ours.
type session struct {
	g     *Gateway
	id    string // what the client names it by; empty: requests without a session share it
	keyID string
	hash  keyHash

	lines chan []byte // to the shim
	end   context.CancelFunc
	ended chan struct{} // closed when the shim is gone

	line []byte // of the shim's, not whole yet; the shim's writer alone has it

	mu       sync.Mutex
	room     *sync.Cond // on unsent and over
	run      Run
	taken    bool // the shim has it
	next     uint64
	requests map[uint64]*exchange
	byID     map[string]*exchange // by the client's id, of a session that is one client's
	listener *exchange            // who takes what is no request's
	missed   [][]byte
	unsent   int64 // bytes of answers that nobody has taken yet
	streams  int
	used     time.Time
	over     bool
}

// errOver says that a session takes nothing in any more.
var errOver = errors.New("the session is over")

// newSession starts a shim under run. The caller holds g.mu and has a place for it.
func (g *Gateway) newSession(id string, hash keyHash, run Run) *session {
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{
		g: g, id: id, keyID: run.KeyID(), hash: hash, run: run,
		lines: make(chan []byte), end: cancel, ended: make(chan struct{}),
		requests: map[uint64]*exchange{}, byID: map[string]*exchange{}, used: time.Now(),
	}
	s.room = sync.NewCond(&s.mu)
	g.work.Add(1)
	go s.serve(ctx)
	go s.follow(run)
	return s
}

// newID names a session so that nobody guesses it.
func newID() string { return rand.Text() }

// is reports whether the session was opened with that key.
func (s *session) is(hash keyHash) bool {
	return subtle.ConstantTimeCompare(s.hash[:], hash[:]) == 1
}

func hashOf(key []byte) keyHash { return sha256.Sum256(key) }

// serve is the shim.
func (s *session) serve(ctx context.Context) {
	in, feed := io.Pipe()
	go func() {
		for {
			select {
			case line := <-s.lines:
				if _, err := feed.Write(line); err != nil {
					return
				}
			case <-ctx.Done():
				_ = feed.Close() // that of a pipe always works
				return
			}
		}
	}()
	err := s.g.config.Session(ctx, s.open, s.repeated, in, s)
	if err != nil && ctx.Err() == nil {
		s.g.config.Log("a session ended: " + err.Error())
	}
	s.end()
	_ = in.Close()
	s.close()
	s.g.left(s)
	close(s.ended)
	s.g.work.Done()
}

// say writes one line to the shim.
func (s *session) say(ctx context.Context, line []byte) error {
	select {
	case s.lines <- line:
		return nil
	case <-s.ended:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stop ends the session: the shim answers what is in flight first.
func (s *session) stop() { s.end() }

// open gives the shim the run that the latest request has brought.
func (s *session) open(context.Context) (Run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || s.taken || isOver(s.run) {
		return nil, wire.Deny(wire.BrokerUnavailable)
	}
	s.taken = true
	return s.run, nil
}

// bring hands in another run, of the same key, in place of one that is over. It
// returns false, and the run is not the session's, when there is one already.
func (s *session) bring(run Run) bool {
	s.mu.Lock()
	if s.over || s.run != nil && !isOver(s.run) {
		s.mu.Unlock()
		return false
	}
	s.run, s.taken = run, false
	s.mu.Unlock()
	go s.follow(run)
	return true
}

// current is the run that is open; nil when there is none.
func (s *session) current() Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.run == nil || isOver(s.run) {
		return nil
	}
	return s.run
}

func isOver(run Run) bool {
	select {
	case <-run.Over():
		return true
	default:
		return false
	}
}

// follow ends the streams of a run with it: who was told of changes under it is not
// told of another's. A run that was ended for good takes its session along.
func (s *session) follow(run Run) {
	select {
	case <-run.Over():
	case <-s.ended:
		run.Close()
		return
	}
	if run.Dismissed() {
		s.g.forget(s)
		defer s.stop()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dismiss(func(e *exchange) bool { return e.listen })
}

// dismiss ends the exchanges of which that is so, and who listens. The caller holds mu.
func (s *session) dismiss(so func(*exchange) bool) {
	for _, e := range s.requests {
		if so(e) {
			e.dismiss()
		}
	}
	if s.listener != nil {
		s.listener.dismiss()
	}
}

// close ends every exchange.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	s.dismiss(func(*exchange) bool { return true })
	s.room.Broadcast()
}

// idle says whether nobody has used the session for long.
func (s *session) idle(now time.Time) bool {
	limit := s.g.limits.Idle
	if s.id == "" {
		limit = s.g.limits.SharedIdle
	}
	return s.unused(now) > limit
}

// unused is for how long nobody has used the session; 0 while a request is open.
func (s *session) unused(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams > 0 {
		return 0
	}
	return now.Sub(s.used)
}
