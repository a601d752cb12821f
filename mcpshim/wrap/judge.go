package wrap

import (
	"bytes"
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/mcpshim"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// ask is a message that the daemon has to judge.
type ask struct {
	request *request // nil for a notification
	call    worker.RelayCall
	line    func() []byte // what the server gets
	token   []byte        // of progress; nil: nobody asked for it
	size    int           // bytes that it holds

	ctx    context.Context // of this message, until it is judged
	cancel context.CancelFunc

	telling sync.Mutex // held while the client is told of progress
	settled sync.Once
	told    atomic.Bool // somebody tells the client that a person is asked

	// Of a message that is judged.
	relay   *worker.Relay
	pending *worker.RelayPending
	atOnce  bool   // nothing may be waited for: the stream is read meanwhile
	left    []byte // what the server still has to get; nil: nothing was done yet
}

// enqueue has a message judged. It waits while too many others wait.
func (s *session) enqueue(ctx context.Context, a *ask) {
	a.ctx, a.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	for s.held > 0 && s.held+a.size > maxHeld && s.over == nil {
		s.changed.Wait()
	}
	s.held += a.size
	over := s.over
	if a.request != nil {
		a.request.stop = a.cancel
	}
	s.mu.Unlock()
	if over != nil {
		s.refuse(a, over)
		s.letGo(a)
		return
	}
	if s.queued.Load() == 0 && s.beginAtOnce(a) { // whoever reads the client's lines does the queuing, too
		return
	}
	s.queued.Add(1)
	select {
	case s.queue <- a:
	case <-ctx.Done():
		s.letGo(a)
	}
}

// letGo gives back what a holds.
func (s *session) letGo(a *ask) {
	a.cancel()
	s.mu.Lock()
	s.held -= a.size
	s.changed.Broadcast()
	s.mu.Unlock()
}

// judgeAll has messages judged in the order in which they came, without waiting for
// what comes of them: the daemon judges them in that order too.
func (s *session) judgeAll(ctx context.Context) {
	for {
		select {
		case a := <-s.queue:
			s.begin(a)
			s.queued.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) begin(a *ask) {
	relay, err := s.relay(a.ctx)
	if err == nil {
		s.listen(a, relay)
		_, err = relay.Begin(a.ctx, a.call)
	}
	if err != nil {
		s.settle(a, err)
	}
}

// beginAtOnce is begin where nothing has to be waited for; else it reports false.
func (s *session) beginAtOnce(a *ask) bool {
	relay := s.keeper.OpenRelay(s.relayTo)
	if relay == nil || !s.listing.knows(relay) {
		return false
	}
	s.listen(a, relay)
	_, ok, err := relay.TryBegin(a.ctx, a.call)
	if err != nil {
		s.settle(a, err)
	}
	return ok
}

// listen sees to what the daemon says of a message.
func (s *session) listen(a *ask, relay *worker.Relay) {
	a.call.Waiting = func(string) {
		if a.told.CompareAndSwap(false, true) {
			go s.tell(a)
		}
	}
	a.call.Decided = func(pending *worker.RelayPending) {
		a.relay, a.pending = relay, pending
		if s.passing.Load() == 0 && pending.Forwards() {
			a.atOnce = true
			s.settle(a, nil)
			return
		}
		s.later(a)
	}
}

// later has what has to be done with a message done by passOn.
func (s *session) later(a *ask) {
	s.passing.Add(1)
	select {
	case s.decided <- a:
	default: // there is room for more than one relay lets wait
		go func() {
			defer s.passing.Add(-1)
			s.pass(a)
		}()
	}
}

// passOn does with messages what the daemon says, in the order in which it says so:
// what it allows comes to the server as it came from the client.
func (s *session) passOn(ctx context.Context) {
	for {
		select {
		case a := <-s.decided:
			s.pass(a)
			s.passing.Add(-1)
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) pass(a *ask) {
	if a.left == nil {
		s.settle(a, nil)
		return
	}
	s.send(a, a.left)
}

// relay is the open relay, which knows what the server offers.
func (s *session) relay(ctx context.Context) (*worker.Relay, error) {
	relay, err := s.keeper.Relay(ctx, s.relayTo)
	if err != nil {
		return nil, err
	}
	s.listing.sayAgain(ctx, relay)
	return relay, nil
}

// settle does what the judgement says, once; err is why there is none.
func (s *session) settle(a *ask, err error) {
	a.settled.Do(func() { s.follow(a, err) })
}

func (s *session) follow(a *ask, err error) {
	defer s.letGo(a)
	var verdict worker.RelayVerdict
	if err == nil {
		verdict, err = a.pending.Verdict(a.ctx)
	}
	a.cancel()
	a.telling.Lock()   // no progress comes after the answer
	a.telling.Unlock() //nolint:staticcheck // an empty section waits for whoever is inside
	switch {
	case err != nil:
		s.refuse(a, unavailable(err))
	case verdict.Forward:
		s.forward(a, a.relay, verdict)
	case verdict.Replay != nil && a.request != nil:
		s.replay(a.request, verdict)
	default:
		s.refuse(a, blocked(a, verdict))
		if verdict.Action == "kill" {
			s.kill(verdict.Message, verdict.Policy)
		}
	}
}

// forward passes a message on that the daemon has allowed, unless its client gave
// up meanwhile.
func (s *session) forward(a *ask, relay *worker.Relay, verdict worker.RelayVerdict) {
	r := a.request
	if r == nil {
		if s.isOver() == nil {
			s.handOver(a)
		}
		return
	}
	s.mu.Lock()
	if a.call.Tool != "" || r.kind == called {
		r.relay, r.verdict = relay, verdict
	}
	r.sent = s.open[r.key] == r && s.over == nil
	sent := r.sent
	s.mu.Unlock()
	if !sent {
		report := func() { s.report(context.Background(), r, worker.EndCancelled, nil, false) }
		if a.atOnce { // it may have to wait
			go report()
			return
		}
		report()
		return
	}
	s.handOver(a)
}

// handOver brings a message to the server: at once where that takes it, else in its
// turn, so that the stream goes on.
func (s *session) handOver(a *ask) {
	line := a.line()
	switch {
	case !a.atOnce:
		s.send(a, line)
	case !s.server.tryWrite(line):
		a.left = line
		s.later(a)
	}
}

// send writes a message to the server.
func (s *session) send(a *ask, line []byte) {
	r := a.request
	if s.server.write(line) != nil && r != nil && s.finish(r) {
		s.answer(errorLine(r.id, serverGone))
		s.report(context.Background(), r, worker.EndTransport, nil, false)
	}
}

func (s *session) isOver() *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// replay gives the client the answer to the same call, which ran before.
func (s *session) replay(r *request, verdict worker.RelayVerdict) {
	if !s.finish(r) {
		return
	}
	object := bytes.TrimRight(verdict.Replay, "\n")
	if verdict.ReplayError {
		line := append(appendHead(nil, r.id), `,"error":`...)
		s.answer(append(append(line, object...), '}'))
		return
	}
	s.answer(resultLine(r.id, object))
}

// refuse answers a message that is not passed on. Nobody hears of a notification.
func (s *session) refuse(a *ask, why *refusal) {
	r := a.request
	if r == nil || !s.finish(r) {
		return
	}
	if why.code == 0 {
		s.answer(denialLine(r, why.text))
		return
	}
	s.answer(errorLine(r.id, why))
}

// blocked is what the client gets of a verdict.
func blocked(a *ask, v worker.RelayVerdict) *refusal {
	code := v.Code
	if code == 0 && (a.request == nil || a.request.kind != called) {
		code = codeBlocked // there is no result of a tool to say it in
	}
	return &refusal{code: code, text: v.Message, data: refusalData{
		Policy: v.Policy, Action: v.Action, Reason: v.Reason, Next: v.Next, ApprovalID: v.ApprovalID,
	}}
}

// unavailable is what the client gets when nobody judged its message.
func unavailable(err error) *refusal {
	reason, sentence := mcpshim.Refusal(err)
	why := &refusal{
		code: codeBlocked, text: sentence + " " + askAPerson, data: refusalData{Reason: reason, Next: askAPerson},
	}
	switch reason {
	case wire.AccessDenied: // a missing permission is never an error of the protocol
		why.code = 0
	case wire.InvalidArgument, wire.ResourceTooLarge:
		why.code = strict.CodeInvalidParams
	}
	return why
}

// serverGone is what the client gets of a server that does not answer any more.
var serverGone = &refusal{
	code: codeBlocked, text: "The server has ended; its answer will not come. " + askAPerson,
	data: refusalData{Reason: wire.InternalError, Next: askAPerson},
}

// tell lets a client that asked for progress know that a person is asked, until
// that is over. The numbers are small: the server's own come after them, and have
// to be larger.
func (s *session) tell(a *ask) {
	if a.token == nil {
		return
	}
	ticker := time.NewTicker(s.tick)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-a.ctx.Done():
			return
		case <-ticker.C:
		}
		s.tellOnce(a, n)
	}
}

func (s *session) tellOnce(a *ask, n int) {
	a.telling.Lock()
	defer a.telling.Unlock()
	if a.ctx.Err() != nil {
		return
	}
	line := append([]byte(`{"jsonrpc":"2.0","method":"`+notifyProgress+`","params":{"progressToken":`), a.token...)
	line = append(line, `,"progress":`...)
	line = strconv.AppendFloat(line, float64(n)/1e6, 'f', -1, 64)
	s.answer(append(line, `,"message":"A person is asked whether this may be done."}}`...))
}
