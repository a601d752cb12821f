package daemon

import (
	"subjectbroker/grants/rules"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// endPieces is how a call ended, as far as it was said.
type endPieces struct {
	id        uint64
	end       rules.End
	delivered bool
	answer    []byte
	lost      bool // there is no room for the answer
	held      int64
}

// offerPieces is what a server offers, as far as it was said.
type offerPieces struct {
	wire.JoinedTools
	held int64
}

// relayEnds are the ends of calls, as hosts and relays say them.
var relayEnds = map[hostv1.End]brokerv1.RelayEnd{
	hostv1.End_END_OK: brokerv1.RelayEnd_RELAY_END_OK, hostv1.End_END_TOOL_ERROR: brokerv1.RelayEnd_RELAY_END_TOOL_ERROR,
	hostv1.End_END_ERROR: brokerv1.RelayEnd_RELAY_END_ERROR, hostv1.End_END_TRANSPORT: brokerv1.RelayEnd_RELAY_END_TRANSPORT,
}

// endsOf are the same, as policies count them.
var endsOf = map[brokerv1.RelayEnd]rules.End{
	brokerv1.RelayEnd_RELAY_END_OK: rules.EndOK, brokerv1.RelayEnd_RELAY_END_TOOL_ERROR: rules.EndToolError,
	brokerv1.RelayEnd_RELAY_END_ERROR: rules.EndError, brokerv1.RelayEnd_RELAY_END_TRANSPORT: rules.EndTransport,
	brokerv1.RelayEnd_RELAY_END_CANCELLED: rules.EndCancelled,
}

// outcome takes in how a wrapped call ended, or a piece of it. One that nobody waits
// for is late.
func (s *relay) outcome(m *brokerv1.RelayOutcome) error {
	key := s.run.peer.Key()
	o := s.ending
	end, known := endsOf[m.GetEnd()]
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	switch {
	case s.hosted, m.GetMore() && len(m.GetAnswer()) == 0,
		o == nil && (!known || m.GetId() > last),
		o != nil && (m.GetId() != o.id || m.GetEnd() != 0 || m.GetDelivered()):
		return s.malformed()
	case o == nil:
		o = &endPieces{id: m.GetId(), end: end, delivered: m.GetDelivered()}
	}
	switch n := int64(len(m.GetAnswer())); {
	case len(o.answer)+len(m.GetAnswer()) > maxKeptAnswer:
		return s.malformed()
	case n == 0 || o.lost:
	case !s.d.relays.hold(key, n):
		o.lost = true
	default:
		o.held += n
		o.answer = append(o.answer, m.GetAnswer()...)
	}
	if m.GetMore() {
		s.ending = o
		return nil
	}
	s.ending = nil
	if o.held > 0 {
		defer s.d.relays.release(key, o.held)
	}
	if o.lost {
		o.answer = nil
	}
	s.mu.Lock()
	c := s.calls[o.id]
	if c == nil || c.going == nil {
		s.mu.Unlock()
		return nil
	}
	going := c.going
	delete(s.calls, c.id)
	s.letGo(c)
	c.cancel()
	s.mu.Unlock()
	going.end(o.end, o.answer, o.delivered)
	return nil
}

// listed takes in what a wrapped server says that it offers, or a piece of it.
func (s *relay) listed(m *brokerv1.RelayListed) error {
	key := s.run.peer.Key()
	if s.hosted {
		return s.malformed()
	}
	l := s.coming
	if l == nil {
		l = &offerPieces{}
		s.coming = l
	}
	before := l.Size()
	if err := l.Add(wire.ToolPiece{Tools: m.GetTools(), Instructions: m.GetInstructions(), More: m.GetMore()}, maxOfferedBytes+maxOffered*64); err != nil {
		return s.malformed()
	}
	if n := int64(l.Size() - before); !s.d.relays.hold(key, n) {
		s.d.budgets.suppress(key, s.d.clock.now())
		return wire.Deny(wire.RateLimited)
	} else {
		l.held += n
	}
	if m.GetMore() {
		return nil
	}
	o, err := newOffer(&l.JoinedTools)
	if err != nil {
		return s.malformed()
	}
	s.coming = nil
	s.mu.Lock()
	old := s.holds
	if s.offer, s.holds = o, l.held; s.over {
		old, s.holds = old+s.holds, 0
	}
	s.mu.Unlock()
	if old > 0 {
		s.d.relays.release(key, old)
	}
	s.d.offered(s.run.subject, s.server, o, nil)
	select {
	case s.heard <- struct{}{}:
	default:
	}
	return nil
}

// dropPieces forgets what was not said to the end.
func (s *relay) dropPieces() {
	held := int64(0)
	if s.ending != nil {
		held += s.ending.held
	}
	if s.coming != nil {
		held += s.coming.held
	}
	s.ending, s.coming = nil, nil
	if held > 0 {
		s.d.relays.release(s.run.peer.Key(), held)
	}
}
