package gateway

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/strict"
)

// pulse is how often a stream on which nothing happens says that it is there, so
// that one whose client is gone is noticed.
const pulse = 15 * time.Second

// answering writes the answer to one request: as JSON when nothing comes before it,
// else as a stream of events.
type answering struct {
	w         http.ResponseWriter
	r         *http.Request
	e         *exchange
	stateless bool
	streaming bool
}

// timed is a writer whose client has so long to take each piece that is written,
// also those that the library writes when a handler has returned: whoever asks on and
// on and reads nothing does not keep his connection.
type timed struct {
	http.ResponseWriter
	slow time.Duration
}

// WriteHeader implements http.ResponseWriter.
func (t *timed) WriteHeader(status int) {
	t.deadline()
	t.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (t *timed) Write(p []byte) (int, error) {
	t.deadline()
	return t.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (t *timed) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *timed) deadline() {
	_ = http.NewResponseController(t.ResponseWriter).SetWriteDeadline(time.Now().Add(t.slow)) // a writer that cannot is a test's
}

// run writes until the answer is written. It returns the answer's code, if it is an
// error, and whether the exchange came to its end.
func (a *answering) run() (code int, whole bool) {
	json, stream := accepts(a.r.Header.Values("Accept"))
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	notes := a.e.notes
	if !stream {
		notes = nil // they are let go when it leaves
	}
	if a.e.listen && stream && !a.begin() {
		return 0, false
	}
	for {
		select { // what was told before the answer is written before it
		case line := <-notes:
			if !a.event(line) {
				return 0, false
			}
			continue
		default:
		}
		select {
		case line := <-notes:
			if !a.event(line) {
				return 0, false
			}
		case line := <-a.e.answer:
			for more := true; more && a.streaming; { // both may have come at once
				select {
				case earlier := <-notes:
					more = a.event(earlier)
				default:
					more = false
				}
			}
			code = codeOf(line)
			ok := a.last(line, code, json)
			a.e.s.mu.Lock()
			a.e.s.took(line)
			a.e.s.mu.Unlock()
			return code, ok
		case <-tick.C:
			if stream && !a.comment() {
				return 0, false
			}
		case <-a.e.gone:
			select {
			case line := <-a.e.answer: // it came first
				a.e.answer <- line
				continue
			default:
			}
			switch {
			case a.streaming, a.e.listen:
			case a.e.withdrawn.Load(): // any error would say that the session is bad
				a.w.WriteHeader(http.StatusAccepted)
			default:
				writeError(a.w, http.StatusNotFound, "session_not_found", "")
			}
			return 0, true
		case <-a.r.Context().Done():
			if !a.streaming {
				gone(a.w)
			}
			return 0, false
		}
	}
}

// gone answers a client that does not listen any more, as far as anybody can know: to
// one that does an empty answer would be one.
func gone(w http.ResponseWriter) { writeError(w, http.StatusRequestTimeout, "request_timeout", "") }

// last writes the answer itself.
func (a *answering) last(line []byte, code int, json bool) bool {
	if a.streaming || !json {
		return a.event(line)
	}
	status := http.StatusOK
	if a.stateless { // the revision says so
		switch code {
		case methodNotFound:
			status = http.StatusNotFound
		case strict.CodeInvalidParams, unsupported, mcp.CodeHeaderMismatch, mcp.CodeMissingRequiredClientCapabilities:
			status = http.StatusBadRequest
		}
	}
	writeJSON(a.w, status, line)
	return http.NewResponseController(a.w).Flush() == nil
}

// begin starts the stream of events.
func (a *answering) begin() bool {
	a.streaming = true
	header := a.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store, no-transform")
	header.Set("X-Accel-Buffering", "no")
	a.w.WriteHeader(http.StatusOK)
	return http.NewResponseController(a.w).Flush() == nil
}

// event writes one message. Messages have no line breaks.
func (a *answering) event(line []byte) bool {
	return a.write("event: message\ndata: ", line, "\n\n")
}

// comment writes what means nothing.
func (a *answering) comment() bool { return a.write(": ", nil, "\n\n") }

func (a *answering) write(before string, line []byte, after string) bool {
	if !a.streaming && !a.begin() {
		return false
	}
	for _, piece := range [][]byte{[]byte(before), line, []byte(after)} {
		if _, err := a.w.Write(piece); err != nil {
			return false
		}
	}
	return http.NewResponseController(a.w).Flush() == nil
}

// listen streams what is no request's, until the client or the session goes.
func (g *Gateway) listen(w http.ResponseWriter, r *http.Request, s *session) {
	if _, stream := accepts(r.Header.Values("Accept")); !stream {
		writeError(w, http.StatusNotAcceptable, "not_acceptable", "")
		return
	}
	e, err := s.listenTo()
	switch {
	case errors.Is(err, errCrowd):
		later(w, time.Second, tooManyRequests)
		return
	case err != nil:
		writeError(w, http.StatusNotFound, "session_not_found", "")
		return
	}
	defer e.leave()
	a := &answering{w: w, r: r, e: e}
	if a.begin() {
		a.run()
	}
}

// writeJSON writes one message as the whole body. Its length is said, so that it is
// whole with its last byte and no chunk has to follow.
func writeJSON(w http.ResponseWriter, status int, line []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(line)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(line) // who has gone has gone
}

// accepts says what a client takes. One that does not say takes JSON.
func accepts(values []string) (json, stream bool) {
	if len(values) == 0 {
		return true, false
	}
	for _, value := range values {
		for one := range strings.SplitSeq(value, ",") {
			kind, _, _ := strings.Cut(one, ";")
			switch strings.ToLower(strings.TrimSpace(kind)) {
			case "application/json", "application/*":
				json = true
			case "text/event-stream", "text/*":
				stream = true
			case "*/*":
				json, stream = true, true
			}
		}
	}
	return json, stream
}

// supported tells a client which revisions there are.
func supported(requested string) []byte {
	out := []byte(`{"supported":[`)
	for i, one := range revisions {
		if i > 0 {
			out = append(out, ',')
		}
		out = canon.Quote(out, one)
	}
	out = canon.Quote(append(out, `],"requested":`...), requested)
	return append(out, '}')
}
