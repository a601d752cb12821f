package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
)

// Limits inside of one session.
const (
	maxNotes  = 256 // notifications that one request has not taken yet
	maxMissed = 64  // those that came while nobody listened
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
	errOver  = errors.New("the session is over")
	errTaken = errors.New("the id is in use")
	errCrowd = errors.New("too many open requests")
)

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
	for _, e := range s.requests {
		if e.listen {
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
	for _, e := range s.requests {
		e.dismiss()
	}
	if s.listener != nil {
		s.listener.dismiss()
	}
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
	delete(s.requests, e.number)
	if s.byID[string(e.theirs)] == e {
		delete(s.byID, string(e.theirs))
	}
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

// took counts an answer as taken. The caller holds mu.
func (s *session) took(line []byte) {
	s.unsent -= int64(len(line))
	s.g.held.Add(-int64(len(line)))
	s.room.Broadcast()
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

// Write implements io.Writer for the shim, which writes whole lines, some of them
// piece by piece.
func (s *session) Write(p []byte) (int, error) {
	n := len(p)
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			s.line = append(s.line, p...)
			return n, nil
		}
		line := append(s.line, p[:end]...)
		s.line, p = nil, p[end+1:]
		s.route(line)
	}
}

// What the shim's lines begin with.
const (
	answerHead = `{"jsonrpc":"2.0","id":`
	noteHead   = `{"jsonrpc":"2.0","method":`
)

// Members of notifications that say whose they are.
const (
	methodProgress = "notifications/progress"
	methodListen   = "subscriptions/listen"
	progressToken  = "progressToken"
)

// route hands a line to the request that it is for.
func (s *session) route(line []byte) {
	if rest, ok := bytes.CutPrefix(line, []byte(answerHead)); ok {
		digits := bytes.IndexByte(rest, ',')
		number, err := strconv.ParseUint(string(rest[:max(digits, 0)]), 10, 64)
		if err != nil {
			return // an answer to nobody: every line that we write can be read
		}
		s.answer(number, rest[digits:])
		return
	}
	m, bad := strict.ParseMessage(line)
	if bad != nil || m.ID != nil || m.Answer {
		return // shims ask nothing of clients
	}
	if m.Method == methodProgress {
		if e, params := s.addressed(m.Params, progressToken); e != nil && e.token != nil {
			e.tell(note(m.Method, params), false)
		}
		return
	}
	if bytes.Contains(m.Params, []byte(mcp.MetaKeySubscriptionID)) {
		if e, params := s.subscribed(m.Params); e != nil {
			e.tell(note(m.Method, params), true)
		}
		return
	}
	s.publish(line)
}

// answer gives a request its answer.
func (s *session) answer(number uint64, rest []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.requests[number]
	if e == nil {
		return // it has left
	}
	line := make([]byte, 0, len(answerHead)+len(e.theirs)+len(rest))
	line = append(append(append(line, answerHead...), e.theirs...), rest...)
	if e.listen {
		line = restore(line, e)
	}
	delete(s.requests, number)
	if s.byID[string(e.theirs)] == e {
		delete(s.byID, string(e.theirs)) // free before the answer can be read
	}
	s.unsent += int64(len(line))
	s.g.held.Add(int64(len(line)))
	e.answer <- line
	for s.unsent > s.g.limits.Unsent && !s.over {
		s.room.Wait() // who does not take his answers gets no more; he has so long to take one
	}
}

// addressed is the request whose number stands in member of params, and params as
// that request's client knows it.
func (s *session) addressed(params []byte, member string) (*exchange, []byte) {
	members, err := strict.ParseObject(params)
	if err != nil {
		return nil, nil
	}
	for i, one := range members {
		if one.Key != member {
			continue
		}
		e := s.find(one.Raw)
		if e == nil {
			return nil, nil
		}
		theirs := e.token
		if member == mcp.MetaKeySubscriptionID {
			theirs = e.theirs
		}
		members[i].Raw = theirs
		return e, object(members)
	}
	return nil, nil
}

// subscribed is addressed for what stands in the member _meta.
func (s *session) subscribed(params []byte) (*exchange, []byte) {
	members, err := strict.ParseObject(params)
	if err != nil {
		return nil, nil
	}
	for i, one := range members {
		if one.Key == "_meta" {
			e, meta := s.addressed(one.Raw, mcp.MetaKeySubscriptionID)
			members[i].Raw = meta
			return e, object(members)
		}
	}
	return nil, nil
}

func (s *session) find(raw []byte) *exchange {
	number, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[number]
}

// restore puts the client's id where the shim has written ours.
func restore(line []byte, e *exchange) []byte {
	const key = `"` + mcp.MetaKeySubscriptionID + `":`
	ours := strconv.AppendUint([]byte(key), e.number, 10)
	return bytes.Replace(line, ours, append([]byte(key), e.theirs...), 1)
}

// publish hands on what is no request's.
func (s *session) publish(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.id == "": // nobody could listen
	case s.listener != nil:
		s.listener.tell(line, true)
	case len(s.missed) < maxMissed && !slices.ContainsFunc(s.missed, func(one []byte) bool { return bytes.Equal(one, line) }): // that something is different need be said once
		s.missed = append(s.missed, line)
	}
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
