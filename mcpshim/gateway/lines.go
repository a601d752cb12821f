package gateway

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/strict"
)

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
		if e, params := s.addressed(m.Params, "_meta", mcp.MetaKeySubscriptionID); e != nil {
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
	s.free(e) // before the answer can be read
	s.unsent += int64(len(line))
	s.g.held.Add(int64(len(line)))
	e.answer <- line
	for s.unsent > s.g.limits.Unsent && !s.over {
		s.room.Wait() // who does not take his answers gets no more; he has so long to take one
	}
}

// addressed is the request whose number stands in params, in a member of a member where
// path has two, and params with what that request's client knows it by.
func (s *session) addressed(params []byte, path ...string) (*exchange, []byte) {
	members, err := strict.ParseObject(params)
	at := slices.IndexFunc(members, func(one strict.Member) bool { return one.Key == path[0] })
	if err != nil || at < 0 {
		return nil, nil
	}
	var e *exchange
	if inside := path[1:]; len(inside) > 0 {
		e, members[at].Raw = s.addressed(members[at].Raw, inside...)
	} else if e = s.find(members[at].Raw); e != nil && path[0] == progressToken {
		members[at].Raw = e.token
	} else if e != nil {
		members[at].Raw = e.theirs
	}
	if e == nil {
		return nil, nil
	}
	return e, object(members)
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
