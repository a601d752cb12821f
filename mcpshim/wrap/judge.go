package wrap

import (
	"bytes"
	"context"
	"strconv"
	"sync"
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

	// Of a message that is judged.
	relay   *worker.Relay
	pending *worker.RelayPending
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
		case <-ctx.Done():
			return
		}
	}
}

func (s *session) begin(a *ask) {
	told := sync.OnceFunc(func() { go s.tell(a) })
	a.call.Waiting = func(string) { told() }
	relay, err := s.relay(a.ctx)
	if err == nil {
		a.call.Decided = func(pending *worker.RelayPending) {
			a.relay, a.pending = relay, pending
			select {
			case s.decided <- a:
			default: // there is room for more than one relay lets wait
				go s.settle(a, nil)
			}
		}
		_, err = relay.Begin(a.ctx, a.call)
	}
	if err != nil {
		s.settle(a, err)
	}
}

// passOn does with messages what the daemon says, in the order in which it says so:
// what it allows comes to the server as it came from the client.
func (s *session) passOn(ctx context.Context) {
	for {
		select {
		case a := <-s.decided:
			s.settle(a, nil)
		case <-ctx.Done():
			return
		}
	}
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
			_ = s.server.write(a.line())
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
		s.report(context.Background(), r, worker.EndCancelled, nil, false)
		return
	}
	if s.server.write(a.line()) != nil && s.finish(r) {
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
		code: codeBlocked, text: string(reason) + ": " + sentence + " " + askAPerson,
		data: refusalData{Action: "block", Reason: reason, Next: askAPerson},
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
	data: refusalData{Action: "block", Reason: wire.InternalError, Next: askAPerson},
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
