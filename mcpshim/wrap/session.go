package wrap

import (
	"context"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// Limits on what one client can have us hold.
const (
	maxOpen      = 4096     // requests without an answer
	maxQueued    = 64       // messages that wait to be judged
	maxHeld      = 32 << 20 // bytes of those
	maxWithdrawn = 256      // requests without an answer that the client does not wait for
)

// How long the daemon is waited for where there is an answer without it.
const listPatience = 3 * time.Second

// session is one client and one server.
type session struct {
	keeper  *worker.Keeper
	relayTo worker.RelayConfig
	server  *lineWriter
	client  *lineWriter
	trouble func(string)
	tick    time.Duration // between two words of progress

	queue   chan *ask     // in the order in which they came
	queued  atomic.Int32  // of those that the daemon was not asked about yet
	decided chan *ask     // in the order in which they were judged
	passing atomic.Int32  // of those with which nothing was done yet
	lost    chan struct{} // closed when the client does not read any more
	lose    func()
	killed  chan struct{} // closed when policy has ended the session
	recheck chan struct{} // capacity 1: what may be called may be different now

	greeted atomic.Bool // the client can be told of changes
	trimmer *time.Timer

	mu        sync.Mutex
	changed   *sync.Cond          // on open, held and over
	open      map[string]*request // by the key of their id
	withdrawn []*request          // of those, oldest first
	held      int
	over      *refusal // set when nothing is answered by the server any more
	weight    int      // of the lines since the last trim, in bytes
	again     bool     // trim once more
	dropped   int      // lines of the server that were none, or no answer to anything

	listing listing
	told    map[wire.Reason]bool
}

// request is a request of the client that is not answered yet.
type request struct {
	id     []byte // as it was written
	key    string
	kind   kind
	method string
	modern bool   // of the era without sessions
	cursor []byte // of tools/list, as it was written; nil: from the start

	// Guarded by the session's lock.
	sent      bool // the server has it
	withdrawn bool // the client does not wait for it
	stop      context.CancelFunc
	relay     *worker.Relay // that allowed it; nil for what passed unjudged
	verdict   worker.RelayVerdict
	reported  bool // the daemon knows how it ended
}

func newSession(config Config) *session {
	s := &session{
		client: newLineWriter(config.Out), trouble: config.Trouble, tick: 5 * time.Second,
		queue: make(chan *ask, maxQueued), decided: make(chan *ask, maxQueued), lost: make(chan struct{}), killed: make(chan struct{}), recheck: make(chan struct{}, 1),
		open: map[string]*request{}, told: map[wire.Reason]bool{},
	}
	if s.trouble == nil {
		s.trouble = func(string) {}
	}
	s.changed = sync.NewCond(&s.mu)
	s.mu.Lock()                                                  // for trim
	s.trimmer, s.again = time.AfterFunc(trimAfter, s.trim), true // the start leaves something behind too
	s.mu.Unlock()
	s.lose = sync.OnceFunc(func() { close(s.lost) })
	s.relayTo = worker.RelayConfig{
		Server: config.Server, Mode: worker.Wrapped,
		Tools:  func(worker.RelayTools) { s.look() },
		Killed: func(k worker.RelayKill) { go s.kill(k.Message, k.Policy) },
	}
	return s
}

// Lines leave memory behind that nobody needs while the agent thinks. Once they are
// carriedMuch bytes together, it is given back trimAfter of quiet, and once more after
// trimAgain, what was still held then.
const (
	carriedMuch = 64 << 10
	trimAfter   = time.Second
	trimAgain   = 3 * time.Second
)

// carried notes that a line of n bytes has passed.
func (s *session) carried(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weight += n; s.weight >= carriedMuch {
		s.again = true
		s.trimmer.Reset(trimAfter)
	}
}

// trim gives back the memory that is not in use, the libraries' pools included:
// those survive one collection.
func (s *session) trim() {
	runtime.GC()
	debug.FreeOSMemory()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.weight = 0
	if s.again {
		s.again = false
		s.trimmer.Reset(trimAgain)
	}
}

// look has somebody look whether the client's list of tools is out of date.
func (s *session) look() {
	select {
	case s.recheck <- struct{}{}:
	default: // somebody will
	}
}

// hear is told what happens to the run.
func (s *session) hear(event worker.Event) {
	switch {
	case event.Err != nil:
		s.mu.Lock()
		told := s.told[event.Err.Reason]
		s.told[event.Err.Reason] = true
		s.mu.Unlock()
		if !told {
			s.trouble(string(event.Err.Reason) + ": " + event.Err.Message)
		}
	case event.Kind == worker.Watching, event.Kind == worker.ListChanged, event.Kind == worker.ServersChanged:
		s.look()
	}
}

// admit registers a request, once there is room for it.
func (s *session) admit(r *request) *strict.Rejection {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) >= maxOpen && s.over == nil {
		s.changed.Wait()
	}
	if s.open[r.key] != nil && !s.open[r.key].withdrawn {
		return strict.Invalid(r.id, "the id is in use")
	}
	s.open[r.key] = r
	return nil
}

// finish takes a request off the list of those that are open. It reports whether
// it was there: whoever took it off answers it.
func (s *session) finish(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[r.key] != r {
		return false
	}
	delete(s.open, r.key)
	s.changed.Broadcast()
	return true
}

// waitAnswered waits until every request is answered that the client waits for,
// the streams of changes aside, or until nothing answers any more.
func (s *session) waitAnswered(giveUp <-chan struct{}) {
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-giveUp:
		case <-s.lost:
		case <-stop:
			return
		}
		s.mu.Lock()
		s.changed.Broadcast()
		s.mu.Unlock()
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.over == nil && s.anyWaits() && !isClosed(giveUp) && !isClosed(s.lost) {
		s.changed.Wait()
	}
}

func (s *session) anyWaits() bool {
	for _, r := range s.open {
		if !r.withdrawn && r.method != methodListen {
			return true
		}
	}
	return s.held > 0
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// end answers everything that is open, and everything that still comes, with why.
func (s *session) end(ctx context.Context, why *refusal) {
	s.mu.Lock()
	if s.over != nil {
		s.mu.Unlock()
		return
	}
	s.over = why
	left := make([]*request, 0, len(s.open))
	for _, r := range s.open {
		left = append(left, r)
	}
	clear(s.open)
	s.withdrawn = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	for _, r := range left {
		if r.stop != nil {
			r.stop()
		}
		if !r.withdrawn {
			s.answer(errorLine(r.id, why))
		}
		s.report(ctx, r, worker.EndTransport, nil, false)
	}
}

// kill ends the session because policy says so.
func (s *session) kill(message, policy string) {
	if message == "" {
		message = "A policy ended this session. " + askAPerson
	}
	s.end(context.Background(), &refusal{
		code: codeBlocked, text: message,
		data: refusalData{Policy: policy, Action: "kill", Reason: wire.PolicyBlocked, Next: askAPerson},
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(s.killed) {
		close(s.killed)
	}
}

// answer writes a line to the client.
func (s *session) answer(line []byte) {
	if s.client.write(line) != nil {
		s.lose()
	}
}

// reject answers a line that was not handled.
func (s *session) reject(bad *strict.Rejection) {
	s.answer(errorLine(bad.ID, &refusal{code: bad.Code, text: bad.Text}))
}

// report tells the daemon how a call ended that it had allowed, once.
func (s *session) report(ctx context.Context, r *request, end worker.RelayEnd, answer []byte, delivered bool) {
	s.mu.Lock()
	relay, told := r.relay, r.reported
	r.reported = relay != nil
	s.mu.Unlock()
	if relay == nil || told {
		return
	}
	outcome := worker.RelayOutcome{ID: r.verdict.ID, End: end, Delivered: delivered}
	if r.verdict.Approved {
		outcome.Answer = answer
	}
	_ = relay.Outcome(ctx, outcome) // without its stream the daemon knows by itself
}

// noteDropped counts a line of the server that nobody gets.
func (s *session) noteDropped() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped++
}

// refusal is what a client gets instead of an answer.
type refusal struct {
	code int
	text string
	data refusalData
}

// refusalData is what a program that speaks for the agent can go by.
type refusalData struct {
	Policy     string      `json:"policy,omitempty"` // that decided; empty: none did
	Action     string      `json:"action,omitempty"`
	Reason     wire.Reason `json:"reasonCode"`
	Next       string      `json:"next"`
	ApprovalID string      `json:"approvalId,omitempty"`
}

// JSON-RPC codes of ours.
const (
	codeBlocked = -32000
)

// askAPerson is the one next step: an agent runs what it reads.
const askAPerson = "Ask the person who runs this agent."

// quoted is text as a JSON string.
func quoted(text string) []byte {
	encoded, err := json.Marshal(text)
	if err != nil {
		return []byte(`""`) // a string always encodes
	}
	return encoded
}

// errorLine is the JSON-RPC error for a request; id is nil where it is unknown.
func errorLine(id []byte, why *refusal) []byte {
	line := appendHead(nil, id)
	line = append(line, `,"error":`...)
	object := struct {
		Code    int          `json:"code"`
		Message string       `json:"message"`
		Data    *refusalData `json:"data,omitempty"`
	}{Code: why.code, Message: why.text}
	if why.data.Reason != "" {
		object.Data = &why.data
	}
	encoded, err := json.Marshal(object)
	if err != nil {
		encoded = []byte(`{"code":-32603,"message":"internal error"}`)
	}
	return append(append(line, encoded...), '}')
}

// resultLine is an answer with a result.
func resultLine(id, result []byte) []byte {
	line := append(appendHead(nil, id), `,"result":`...)
	return append(append(line, result...), '}')
}

// denialLine is the answer to a call of a tool for which there is no permission.
func denialLine(r *request, text string) []byte {
	result := append([]byte(`{"content":[{"type":"text","text":`), quoted(text)...)
	result = append(result, `}],"isError":true`...)
	if r.modern {
		result = append(result, `,"resultType":"complete"`...)
	}
	return resultLine(r.id, append(result, '}'))
}

func appendHead(line, id []byte) []byte {
	line = append(line, `{"jsonrpc":"2.0","id":`...)
	if id == nil {
		return append(line, "null"...)
	}
	return append(line, id...)
}
