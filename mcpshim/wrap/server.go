package wrap

import (
	"bytes"
	"context"
	"errors"
	"strings"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/worker"
)

// readServer takes in the server's lines until there are no more.
func (s *session) readServer(ctx context.Context, lines *strict.LineReader) {
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, strict.ErrLineTooLong):
			s.noteDropped()
		case err != nil:
			return
		default:
			s.hearServer(ctx, line)
			s.carried(len(line))
		}
	}
}

// said is one line of the server.
type said struct {
	line    []byte
	members []canon.Member
	id      []byte // nil: it has none
	method  bool
	result  []byte // nil: it has none
	failure []byte // nil: it has none
	fault   error  // what makes it be refused
}

// errOdd: a message with a key that only some readers understand, or of no kind.
var errOdd = errors.New("not a message")

// parseSaid reads a line of the server. Nil is a line that is no JSON object.
func parseSaid(line []byte) *said {
	members, err := canon.Members(line)
	if members == nil || errors.Is(err, canon.ErrSyntax) {
		return nil
	}
	m := &said{line: line, members: members, fault: err}
	for _, one := range members {
		switch one.Key {
		case "id":
			m.id = one.Raw
		case "method":
			m.method = true
		case "result":
			m.result = one.Raw
		case "error":
			m.failure = one.Raw
		}
		for _, key := range messageKeys {
			if one.Key != key && strings.EqualFold(one.Key, key) {
				m.fault = errOdd
			}
		}
	}
	answers := m.result != nil || m.failure != nil
	if m.method == answers || m.result != nil && m.failure != nil || answers && m.id == nil {
		m.fault = errOdd
	}
	// To some readers a carriage return ends a line.
	if at := bytes.IndexByte(line, '\r'); at >= 0 && at < len(line)-1 {
		m.line = strict.Compact(make([]byte, 0, len(line)+1), line)
	}
	return m
}

// hearServer passes one line on, as it is but for the list of tools.
func (s *session) hearServer(ctx context.Context, line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	m := parseSaid(line)
	switch {
	case m == nil || m.method && m.fault != nil:
		s.noteDropped()
		return
	case m.method:
		if s.isOver() == nil {
			s.answer(m.line)
		}
		return
	case m.fault == nil && string(m.id) == "null" && m.failure != nil: // about what it could not read
		s.answer(m.line)
		return
	}
	r := s.asked(m.id)
	if r == nil {
		s.noteDropped()
		return
	}
	if m.fault != nil {
		s.broken(ctx, r)
		return
	}
	if !bytes.Equal(m.id, r.id) {
		m.line = m.withID(r.id)
	}
	switch {
	case r.method == methodToolsList && m.result != nil:
		go s.answerList(ctx, r, m)
	case (r.method == methodInitialize || r.method == methodDiscover) && s.listing.instruct(m.result):
		go s.answerGreeting(ctx, r, m)
	default:
		s.deliver(ctx, r, m)
	}
}

// asked is the request with an id that the server has.
func (s *session) asked(id []byte) *request {
	if id == nil || !strict.ValidID(id) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.open[idKey(id)]
	if r == nil || !r.sent {
		return nil
	}
	return r
}

// deliver passes an answer on and tells the daemon of it. Where the answer itself
// is kept it is told whether the client has it; otherwise it hears first, so that
// it knows before the client's next call.
func (s *session) deliver(ctx context.Context, r *request, m *said) {
	if !s.finish(r) {
		return
	}
	end, object := m.end(r)
	if !r.verdict.Approved {
		s.report(ctx, r, end, nil, true)
		s.answer(m.line)
		return
	}
	delivered := s.client.write(m.line) == nil
	if !delivered {
		s.lose()
	}
	if r.withdrawn {
		end, delivered = worker.EndCancelled, false
	}
	s.report(ctx, r, end, canon.Compact(object), delivered)
}

// broken answers a request whose answer cannot be understood by everybody alike.
func (s *session) broken(ctx context.Context, r *request) {
	if !s.finish(r) {
		return
	}
	s.report(ctx, r, worker.EndTransport, nil, false)
	if !r.withdrawn {
		s.answer(errorLine(r.id, &refusal{code: -32603, text: "internal error: the server's answer is malformed"}))
	}
}

// end says how a request ended, and with what.
func (m *said) end(r *request) (worker.RelayEnd, []byte) {
	if m.failure != nil {
		return worker.EndError, m.failure
	}
	if r.kind == called && bytes.Contains(m.result, []byte(`"isError"`)) {
		members, _ := canon.Members(m.result)
		for _, one := range members {
			if one.Key == "isError" && string(one.Raw) == "true" {
				return worker.EndToolError, m.result
			}
		}
	}
	return worker.EndOK, m.result
}

// withID is the line with another id.
func (m *said) withID(id []byte) []byte {
	return m.with("id", id)
}

// with is the line with another value for a key.
func (m *said) with(key string, value []byte) []byte {
	line := append(make([]byte, 0, len(m.line)+len(value)), '{')
	for i, one := range m.members {
		if i > 0 {
			line = append(line, ',')
		}
		line = append(canon.Quote(line, one.Key), ':')
		if one.Key == key {
			line = append(line, value...)
		} else {
			line = strict.Compact(line, one.Raw)
		}
	}
	return append(line, '}')
}
