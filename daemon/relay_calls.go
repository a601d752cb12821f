package daemon

import (
	"context"
	"sync"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants/rules"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// relayCall is one call of a stream.
type relayCall struct {
	id       uint64
	method   string
	tool     string
	args     []byte
	meta     []byte
	progress bool
	came     uint64      // how many starts of servers had failed then
	refused  wire.Reason // it is refused whatever it is; empty: not yet
	held     int64       // bytes that it holds of relays

	ctx    context.Context //nolint:containedctx // ends when the client does not wait any more
	cancel context.CancelFunc
	going  *forwarded // guarded by relay.mu; nil: it is not on its way
	left   []byte     // guarded by relay.mu: what the client said when it cancelled it
}

// call takes in a call, or a piece of one.
func (s *relay) call(m *brokerv1.RelayCall) error {
	s.mu.Lock()
	c := s.parts
	rest := c != nil
	switch {
	case rest && (m.GetId() != c.id || m.GetMethod() != "" || m.GetTool() != "" || m.GetProgress()),
		!rest && m.GetId() <= s.last,
		rest && len(c.meta)+len(m.GetMeta()) > maxCallMeta, len(m.GetMeta()) > maxCallMeta, len(m.GetMethod()) > maxMethod,
		m.GetMore() && len(m.GetArguments())+len(m.GetMeta()) == 0:
		s.mu.Unlock()
		return s.malformed()
	case !rest:
		s.last = m.GetId()
		c = &relayCall{id: m.GetId(), method: m.GetMethod(), tool: m.GetTool(), progress: m.GetProgress(), came: s.d.hosts.misses.Load()}
		if len(c.tool) > maxToolName {
			c.refused = wire.InvalidArgument
		}
		if !s.room(c, callWeight) || len(s.calls) >= maxGoing {
			c.refuse(s, wire.RateLimited)
		}
	}
	switch {
	case c.refused != "":
	case len(c.args)+len(m.GetArguments()) > rules.MaxArgs:
		c.refuse(s, wire.InvalidArgument)
	case !s.room(c, len(m.GetArguments())+len(m.GetMeta())):
		c.refuse(s, wire.RateLimited)
	case !rest && !m.GetMore(): // the message is not used any more
		c.args, c.meta = m.GetArguments(), m.GetMeta()
	default:
		c.args, c.meta = append(c.args, m.GetArguments()...), append(c.meta, m.GetMeta()...)
	}
	s.parts = nil
	if m.GetMore() && !s.over {
		s.parts = c
		s.mu.Unlock()
		return nil
	}
	if s.over {
		s.letGo(c)
		s.mu.Unlock()
		return s.ctx.Err()
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(s.ctx)) // see close
	s.calls[c.id] = c
	s.mu.Unlock()
	if !s.hosted {
		s.judge(c)
		return nil
	}
	select {
	case s.queue <- c:
		return nil
	case <-s.ctx.Done():
		s.forget(c)
		return s.ctx.Err()
	}
}

// room reserves room for n bytes of a call.
func (s *relay) room(c *relayCall, n int) bool {
	if n == 0 {
		return true
	}
	if !s.d.relays.hold(s.run.peer.Key(), int64(n)) {
		return false
	}
	c.held += int64(n)
	return true
}

// refuse drops what was read of a call.
func (c *relayCall) refuse(s *relay, reason wire.Reason) {
	c.refused, c.args, c.meta = reason, nil, nil
	s.letGo(c)
}

// letGo gives back the room of a call.
func (s *relay) letGo(c *relayCall) {
	if c.held > 0 {
		s.d.relays.release(s.run.peer.Key(), c.held)
		c.held = 0
	}
}

// letGoArgs gives back the room of what a call said: it is only on its way.
func (s *relay) letGoArgs(c *relayCall) {
	if more := c.held - callWeight; more > 0 {
		s.d.relays.release(s.run.peer.Key(), more)
		c.held = callWeight
	}
}

// forget ends a call of the stream.
func (s *relay) forget(c *relayCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.cancel()
	delete(s.calls, c.id)
	s.letGo(c)
}

// judge brings a call to its place in the log, or to a person. Whoever was asked
// already may have answered for this call too: then it is its turn.
func (s *relay) judge(c *relayCall) {
	passed := make(chan struct{})
	waited := false // set before passed is closed
	g := s.start(c, func() {
		waited = true
		close(passed)
	})
	if g.asks() {
		s.d.relays.tasks.Go(func() {
			g.person(s.ctx)
			g.place()
			if waited {
				s.settle(c, g.finish(s.ctx))
				return
			}
			close(passed)
		})
		if <-passed; waited {
			return
		}
	} else {
		g.place()
	}
	if !g.waits() {
		s.settle(c, g.finish(s.ctx))
		return
	}
	s.placed <- placedCall{c, g, time.Now()} // s.finish takes it, also when the stream is over
}

// placedCall is a call that has its place in the log.
type placedCall struct {
	call    *relayCall
	judging *judging
	since   time.Time
}

// finish tells what came of calls once they are durable, in the order of their
// places: what comes later is not durable earlier.
func (s *relay) finish() {
	for one := range s.placed {
		s.settle(one.call, s.await(one))
	}
}

// await waits for the log. Where that does not answer, those behind the first do not
// wait as long again.
func (s *relay) await(one placedCall) judged {
	ctx := s.ctx
	if age := time.Since(one.since); age > s.d.auditWait/4 {
		limited, cancel := context.WithTimeout(ctx, max(s.d.auditWait-age, 0))
		defer cancel()
		ctx = limited
	}
	return one.judging.finish(ctx)
}

// settle tells what came of a call that was judged; a hosted one it forwards.
func (s *relay) settle(c *relayCall, j judged) {
	message := &brokerv1.RelayVerdict{
		Id: c.id, Forward: j.forward, Code: j.code, Message: j.message, Policy: j.policy, Action: j.action,
		ReasonCode: string(j.reason), ApprovalId: j.approvalID, Next: j.next,
	}
	if j.replay != nil {
		message.Replay, message.ReplayError = j.replay.answer, j.replay.isError
	}
	verdict := &brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: message}}
	switch {
	case j.going == nil: // nothing is on its way of which anybody tells how it ends
		s.forget(c)
		s.send(verdict)
		if j.killed {
			s.d.kill(s.run, s.server, s.hosted, j.policy)
		}
	case !s.hosted:
		message.Approved = j.going.approved()
		s.mu.Lock()
		s.letGoArgs(c)
		c.args, c.meta, c.going = nil, nil, j.going
		s.mu.Unlock()
		if !s.send(verdict) {
			s.forget(c)
			j.going.end(rules.EndCancelled, nil, false)
		}
	default:
		message.Approved = j.going.approved()
		s.mu.Lock()
		c.going = j.going
		s.mu.Unlock()
		if !s.send(verdict) {
			s.forget(c)
			j.going.end(rules.EndCancelled, nil, false)
			return
		}
		sent := make(chan struct{})
		s.d.relays.tasks.Go(func() {
			defer s.forget(c)
			s.forward(c, j.going, sync.OnceFunc(func() { close(sent) }))
		})
		<-sent // the next one goes out after it
	}
}

// start decides about a call as far as that needs nobody. waits is called when a
// person is waited for.
func (s *relay) start(c *relayCall, waits func()) *judging {
	d, r := s.d, s.run
	isCall := c.method == "tools/call" || c.method == "call_tool"
	switch {
	case c.refused != "":
		ask := &callAsk{d: d, run: r, call: toolCall{server: s.server}, noCall: !isCall}
		if c.refused == wire.RateLimited {
			d.budgets.suppress(r.peer.Key(), d.clock.now())
			return ask.refuse(noted{none: true}, wire.RateLimited)
		}
		e := r.entry(audit.Call)
		e.Server, e.Tool = s.server, d.maskedTool(s.server, c.tool)
		if err := d.admit(s.ctx, r.peer, r.subject); err != nil {
			return ask.refuse(noted{err: err}, "")
		}
		return ask.refuse(d.noteMalformed(r.peer, e), wire.InvalidArgument)
	case !isCall:
		return d.beginMethod(s.ctx, r, s.server, c.method)
	}
	return d.beginCall(r, toolCall{
		ctx: c.ctx, server: s.server, hosted: s.hosted, tool: c.tool, args: c.args, came: c.came, offer: s.offered(),
		waiting: func(approvalID string) {
			waits()
			s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.id, ApprovalId: approvalID}}})
		},
	})
}

// forward lets the host of a server make a call, and passes the answer on. sent is
// called when the host has the call, or never will.
func (s *relay) forward(c *relayCall, going *forwarded, sent func()) {
	defer sent()
	end, delivered := brokerv1.RelayEnd_RELAY_END_TRANSPORT, false
	var kept []byte
	call := hostCall{
		run: s.run, tool: c.tool, pin: going.ask.pin, args: c.args, meta: c.meta, progress: c.progress, sent: sent,
		left: func() []byte {
			s.mu.Lock()
			defer s.mu.Unlock()
			return c.left
		},
		answer: func(piece []byte, more bool, how hostv1.End) error {
			end = relayEnds[how]
			if going.approved() && len(kept)+len(piece) <= maxKeptAnswer {
				kept = append(kept, piece...)
			}
			if !s.sendAnswer(c.id, piece, more, end) {
				if going.approved() {
					return nil
				}
				return s.ctx.Err()
			}
			delivered = !more
			return nil
		},
	}
	if c.progress {
		call.onProgress = func(params []byte) {
			if n := int64(len(params)); s.d.relays.offerAnswer(s, n, false) { // it is for looking at
				s.sendHeld(outgoing{&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Progress{Progress: &brokerv1.RelayProgress{Id: c.id, Params: params}}}, n})
			}
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, maxCall)
	defer cancel()
	defer context.AfterFunc(s.d.life, cancel)()
	err := s.d.hosts.call(ctx, hostKey{s.run.subject, s.server}, call)
	switch {
	case ctx.Err() != nil && !delivered:
		going.end(rules.EndCancelled, nil, false)
		return
	case err != nil && !delivered:
		end = brokerv1.RelayEnd_RELAY_END_TRANSPORT
		s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{Id: c.id, End: end}}})
	}
	going.end(endsOf[end], kept, delivered)
}

// sendAnswer sends a piece of an answer in pieces that are small enough. It waits
// until the process has taken enough of what came before.
func (s *relay) sendAnswer(id uint64, piece []byte, more bool, end brokerv1.RelayEnd) bool {
	for {
		n := min(len(piece), wire.PieceSize)
		if n > 0 && !s.d.relays.offerAnswer(s, int64(n), true) {
			return false
		}
		rest := more || n < len(piece)
		if !s.sendHeld(outgoing{&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{
			Id: id, Piece: piece[:n], More: rest, End: end,
		}}}, int64(n)}) {
			return false
		}
		if piece = piece[n:]; len(piece) == 0 {
			return true
		}
	}
}
