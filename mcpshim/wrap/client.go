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

// readClient takes in the client's lines until there are no more.
func (s *session) readClient(ctx context.Context, lines *strict.LineReader) {
	for {
		line, err := lines.Next()
		switch {
		case errors.Is(err, strict.ErrLineTooLong):
			s.reject(&strict.Rejection{Code: strict.CodeParse, Text: "parse error: " + err.Error()})
		case err != nil:
			return
		default:
			s.take(ctx, line)
			s.carried(len(line))
		}
	}
}

// take handles one line of the client.
func (s *session) take(ctx context.Context, line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	m, bad := strict.ParseMessage(line)
	if bad != nil && answersNobody(line, bad) {
		_ = s.server.write(strict.Compact(nil, line))
		return
	}
	if bad == nil {
		bad = oddKeys(m)
	}
	switch {
	case bad != nil && isAnswer(line): // its id is the server's, not one that the client waits for
		s.reject(&strict.Rejection{Code: bad.Code, Text: bad.Text})
	case bad != nil:
		s.reject(bad)
	case m.Answer:
		// An answer to the server's own question. Space goes, as everywhere: to some
		// readers a carriage return ends a line.
		_ = s.server.write(strict.Compact(make([]byte, 0, len(line)+1), line))
	case m.ID == nil:
		s.takeNotification(ctx, m, len(line))
	default:
		s.takeRequest(ctx, m, len(line))
	}
}

// answersNobody says whether a line that was rejected is an error that answers
// what the client could not read, without an id. It is the server's to see.
func answersNobody(line []byte, bad *strict.Rejection) bool {
	if bad.Code != strict.CodeInvalidRequest || bad.ID != nil {
		return false
	}
	members, err := strict.ParseObject(line)
	if err != nil || len(members) != 3 {
		return false
	}
	fields := map[string]string{}
	for _, m := range members {
		fields[m.Key] = string(m.Raw)
	}
	return fields["jsonrpc"] == `"2.0"` && fields["id"] == "null" && strings.HasPrefix(fields["error"], "{")
}

// isAnswer says whether a line that was rejected meant to answer something.
func isAnswer(line []byte) bool {
	answers := false
	members, _ := strict.ParseObject(line)
	for _, m := range members {
		if m.Key == "method" {
			return false
		}
		answers = answers || m.Key == "result" || m.Key == "error"
	}
	return answers
}

// messageKeys are the keys of a message, and callKeys those of a call's
// parameters. A reader that does not mind case would take others for them.
var (
	messageKeys = []string{"jsonrpc", "id", "method", "params", "result", "error"}
	callKeys    = []string{"name", "arguments", "_meta"}
)

// oddKeys rejects a message with a key that only some readers understand.
func oddKeys(m *strict.Message) *strict.Rejection {
	if hasOdd(m.Members, messageKeys) {
		return strict.Invalid(m.ID, "a key is written in another case")
	}
	return nil
}

func hasOdd(members []strict.Member, known []string) bool {
	for _, m := range members {
		for _, key := range known {
			if m.Key != key && strings.EqualFold(m.Key, key) {
				return true
			}
		}
	}
	return false
}

func (s *session) takeNotification(ctx context.Context, m *strict.Message, size int) {
	kind, spelled := classify(m.Method, true)
	switch {
	case kind == called:
		s.reject(strict.Invalid(nil, "a call of a tool needs an id"))
	case spelled == notifyCancelled:
		s.cancel(ctx, m)
	case kind == passed:
		if spelled == notifyInitialized {
			s.greeted.Store(true)
		}
		_ = s.server.write(written(m, spelled, m.Params))
	default:
		s.enqueue(ctx, &ask{
			call: worker.RelayCall{Method: strings.ToLower(spelled)}, line: func() []byte { return written(m, spelled, m.Params) }, size: size,
		})
	}
}

func (s *session) takeRequest(ctx context.Context, m *strict.Message, size int) {
	kind, spelled := classify(m.Method, false)
	r := &request{id: m.ID, key: idKey(m.ID), kind: kind, method: spelled}
	a := &ask{request: r, call: worker.RelayCall{Method: strings.ToLower(spelled)}, size: size}
	params := m.Params
	switch {
	case kind == called:
		parsed, bad := parseCall(m)
		if bad != nil {
			s.reject(bad)
			return
		}
		a.call.Tool, a.call.Arguments = parsed.tool, parsed.arguments
		a.token, r.modern = parsed.token, parsed.modern
		a.call.Progress = parsed.token != nil
		params = parsed.params
	case spelled == methodToolsList:
		r.cursor = memberOf(m.Params, "cursor")
	}
	if bad := s.admit(r); bad != nil {
		s.reject(bad)
		return
	}
	if kind != passed {
		a.line = func() []byte { return written(m, spelled, params) }
		s.enqueue(ctx, a)
		return
	}
	s.mu.Lock()
	over := s.over
	r.sent = true
	s.mu.Unlock()
	if over == nil && s.server.write(written(m, spelled, params)) != nil {
		over = serverGone
	}
	if over != nil && s.finish(r) {
		s.answer(errorLine(r.id, over))
	}
}

// written is a message as the server gets it: its method as it was understood,
// its parameters as they were judged, everything else as it was written.
func written(m *strict.Message, method string, params []byte) []byte {
	size := len(params) + 2
	for _, one := range m.Members {
		if one.Key != "params" {
			size += len(one.Key) + len(one.Raw) + 4
		}
	}
	line := append(make([]byte, 0, size), '{')
	for i, one := range m.Members {
		if i > 0 {
			line = append(line, ',')
		}
		line = append(canon.Quote(line, one.Key), ':')
		switch one.Key {
		case "method":
			line = canon.Quote(line, method)
		case "params":
			line = strict.Compact(line, params)
		default:
			line = strict.Compact(line, one.Raw)
		}
	}
	return append(line, '}')
}

// callParams is what a call of a tool says.
type callParams struct {
	tool      string
	arguments []byte // never empty
	params    []byte // with the arguments as they are judged
	token     []byte // of progress, as it was written; nil when it is not asked for
	modern    bool
}

// protocolKey stands in the _meta of requests of the era without sessions.
const protocolKey = "io.modelcontextprotocol/protocolVersion"

// parseCall reads the parameters of a call.
func parseCall(m *strict.Message) (callParams, *strict.Rejection) {
	malformed := func(text string) (callParams, *strict.Rejection) {
		return callParams{}, &strict.Rejection{ID: m.ID, Code: strict.CodeInvalidParams, Text: "invalid params: " + text}
	}
	parsed := callParams{arguments: []byte("{}")}
	members, err := strict.ParseObject(m.Params)
	if err != nil || m.Params == nil {
		return malformed("a call names a tool")
	}
	if hasOdd(members, callKeys) {
		return malformed("a key is written in another case")
	}
	named := false
	params := append(make([]byte, 0, len(m.Params)), '{')
	for i, one := range members {
		if i > 0 {
			params = append(params, ',')
		}
		params = append(canon.Quote(params, one.Key), ':')
		value := canon.Compact(one.Raw)
		switch one.Key {
		case "name":
			if one.Raw[0] != '"' {
				return malformed("the tool's name is not a string")
			}
			named, parsed.tool = true, strict.Unquote(one.Raw)
			value = canon.Quote(nil, parsed.tool)
		case "arguments":
			if one.Raw[0] != '{' {
				return malformed("the arguments are not an object")
			}
			parsed.arguments = value
		case "_meta":
			parsed.token = memberOf(one.Raw, "progressToken")
			parsed.modern = memberOf(one.Raw, protocolKey) != nil
		}
		params = append(params, value...)
	}
	if !named {
		return malformed("a call names a tool")
	}
	parsed.params = append(params, '}')
	return parsed, nil
}

// memberOf is the value of a key in an object, as it was written; nil when there
// is none.
func memberOf(object []byte, key string) []byte {
	members, _ := strict.ParseObject(object)
	for _, m := range members {
		if m.Key == key {
			return m.Raw
		}
	}
	return nil
}

// cancel passes on that the client does not wait for a request any more. What the
// server has not got it never gets.
func (s *session) cancel(ctx context.Context, m *strict.Message) {
	members, err := strict.ParseObject(m.Params)
	if err != nil || hasOdd(members, []string{"requestId"}) {
		return // notifications are not answered
	}
	var r *request
	for _, one := range members {
		if one.Key == "requestId" && strict.ValidID(one.Raw) {
			s.mu.Lock()
			r = s.open[idKey(one.Raw)]
			s.mu.Unlock()
		}
	}
	if r == nil {
		_ = s.server.write(written(m, notifyCancelled, m.Params)) // a task, or one that was just answered
		return
	}
	s.mu.Lock()
	if r.withdrawn || s.open[r.key] != r {
		s.mu.Unlock()
		return
	}
	r.withdrawn = true
	sent, stop := r.sent, r.stop
	var forgotten *request
	if sent {
		forgotten = s.rememberWithdrawn(r)
	} else {
		delete(s.open, r.key)
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	if !sent {
		return
	}
	_ = s.server.write(written(m, notifyCancelled, withID(members, r.id)))
	if !r.verdict.Approved { // the answer to an approved one is wanted, if it still comes
		s.report(ctx, r, worker.EndCancelled, nil, false)
	}
	if forgotten != nil {
		s.report(ctx, forgotten, worker.EndCancelled, nil, false)
	}
}

// rememberWithdrawn keeps r for an answer that may still come, and returns the
// request that had to go for it. The lock is held.
func (s *session) rememberWithdrawn(r *request) *request {
	s.withdrawn = append(s.withdrawn, r)
	if len(s.withdrawn) <= maxWithdrawn {
		return nil
	}
	oldest := s.withdrawn[0]
	s.withdrawn = s.withdrawn[1:]
	if s.open[oldest.key] == oldest {
		delete(s.open, oldest.key)
	}
	return oldest
}

// withID is the parameters of a cancellation with the id that the server knows.
func withID(members []strict.Member, id []byte) []byte {
	params := []byte{'{'}
	for i, one := range members {
		if i > 0 {
			params = append(params, ',')
		}
		params = append(canon.Quote(params, one.Key), ':')
		if one.Key == "requestId" {
			params = append(params, id...)
		} else {
			params = append(params, one.Raw...)
		}
	}
	return append(params, '}')
}
