package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/mcpshim/strict"
)

// Limits inside of one session.
const (
	maxNotes  = 256 // notifications that one request has not taken yet
	maxMissed = 64  // those that came while nobody listened
)

// exchange is one request of a client and what it gets.
type exchange struct {
	s      *session
	number uint64
	theirs []byte // the client's id, as it was written; nil for a listener
	token  []byte // the client's progress token; nil when it wants no progress
	// repeated are headers that repeat arguments; nil in a session.
	repeated http.Header
	listen   bool // it is answered when it ends, and gets notifications until then

	notes  chan []byte
	answer chan []byte
	gone   chan struct{} // closed by dismiss
	// withdrawn says that the client wants no answer any more.
	withdrawn atomic.Bool
	// dismiss says that nothing more comes. leave says that nobody waits any more.
	dismiss, leave func()
}

// Faults of taking in a request.
var (
	errTaken = errors.New("the id is in use")
	errCrowd = errors.New("too many open requests")
)

// begin takes in a request. Every exchange is ended by its leave.
func (s *session) begin(m *strict.Message, token []byte) (*exchange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.full(); err != nil {
		return nil, err
	}
	if s.id != "" && s.byID[string(m.ID)] != nil {
		return nil, errTaken
	}
	s.next++
	e := s.exchange()
	e.number, e.theirs, e.token, e.listen = s.next, m.ID, token, m.Method == methodListen
	s.requests[e.number] = e
	if s.id != "" {
		s.byID[string(m.ID)] = e
	}
	return e, nil
}

// listenTo takes in who wants what is no request's. Who did before is sent away:
// his connection may be dead without anybody knowing.
func (s *session) listenTo() (*exchange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.full(); err != nil {
		return nil, err
	}
	if s.listener != nil {
		s.listener.dismiss()
	}
	e := s.exchange()
	s.listener = e
	for _, line := range s.missed {
		e.notes <- line // there is more room than maxMissed
	}
	s.missed = nil
	return e, nil
}

// full is why no more is taken in; nil while there is room. The caller holds mu.
func (s *session) full() error {
	switch {
	case s.over:
		return errOver
	case s.streams >= s.g.limits.Streams:
		return errCrowd
	}
	return nil
}

// exchange makes one that counts as open. The caller holds mu.
func (s *session) exchange() *exchange {
	e := &exchange{s: s, notes: make(chan []byte, maxNotes), answer: make(chan []byte, 1), gone: make(chan struct{})}
	s.streams++
	e.dismiss = sync.OnceFunc(func() { close(e.gone) })
	e.leave = sync.OnceFunc(func() { s.leave(e) })
	return e
}

// leave ends an exchange: nobody waits for it any more.
func (s *session) leave(e *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams--
	s.used = time.Now()
	s.free(e)
	if s.listener == e {
		s.listener = nil
	}
	for {
		select {
		case line := <-e.answer:
			s.took(line)
		default:
			return
		}
	}
}

// free lets the ids of a request be those of others. The caller holds mu.
func (s *session) free(e *exchange) {
	delete(s.requests, e.number)
	if s.byID[string(e.theirs)] == e {
		delete(s.byID, string(e.theirs))
	}
}

// took counts an answer as taken. The caller holds mu.
func (s *session) took(line []byte) {
	s.unsent -= int64(len(line))
	s.g.held.Add(-int64(len(line)))
	s.room.Broadcast()
}

// repeated implements Repeated for the shim, which knows requests by their numbers.
func (s *session) repeated(id []byte, header string) (values []string, ok bool) {
	e := s.find(id)
	if e == nil || e.repeated == nil {
		return nil, false
	}
	return e.repeated.Values(header), true
}

// called is the open request with an id of the client's; nil when there is none.
func (s *session) called(theirs []byte) *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[string(theirs)]
}

// find is the open request with a number of ours; nil when there is none.
func (s *session) find(raw []byte) *exchange {
	number, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[number]
}

// tell hands a notification to a request. One that does not take them loses
// progress; of what matters nothing is left out, so that it is ended.
func (e *exchange) tell(line []byte, matters bool) {
	select {
	case e.notes <- line:
	default:
		if matters {
			e.dismiss()
		}
	}
}
