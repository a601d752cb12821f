package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/stateless"
	"subjectbroker/mcpshim/strict"
)

// Headers of MCP over HTTP.
const (
	headerSession  = "Mcp-Session-Id"
	headerRevision = stateless.HeaderRevision
	headerMethod   = stateless.HeaderMethod
	headerName     = stateless.HeaderName
)

// revisions are those that are spoken, newest first.
var revisions = append([]string{stateless.Revision}, stateless.Earlier...)

// Methods that mean something here.
const (
	methodInitialize = "initialize"
	methodCancelled  = "notifications/cancelled"
	methodNotFound   = -32601
	unsupported      = mcp.CodeUnsupportedProtocolVersion
)

// handler is everything that can be asked over HTTP.
func (g *Gateway) handler(known hosts) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w = &timed{w, g.limits.Slow}
		defer connOf(r.Context()).ask()()
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			// A proxy that went by a length beside it would take what follows for
			// somebody else's request.
			w.Header().Set("Connection", "close")
		}
		defer func() {
			if recovered := recover(); recovered != nil {
				g.config.Log("a request failed: " + fmt.Sprintf("%T", recovered)) // what it says may be a client's
				panic(http.ErrAbortHandler)
			}
		}()
		if r.ContentLength != 0 { // also a body that nobody reads is read to its end, by the library
			g.unread(w)
		}
		g.answer(w, r, known)
		if r.ProtoMajor > 1 {
			// Whoever takes no answer has his request open until he is given up: here the
			// library would write what is left when it counts no longer.
			_ = http.NewResponseController(w).Flush() // who has gone has gone
		}
	})
}

// answer answers one request.
func (g *Gateway) answer(w http.ResponseWriter, r *http.Request, known hosts) {
	path := r.URL.Path
	if r.URL.RawPath != "" {
		path = "" // written in another way, which whoever guards a path before us may not know
	}
	switch path {
	case "/healthz":
		g.health(w, r)
	case "/mcp":
		if against := known.admits(r); against != "" {
			if against == foreignHost {
				g.hosts.Do(func() {
					g.config.Note("a request named a host that is not ours, and was refused; the name under which agents reach this is given with --host")
				})
			}
			writeError(w, http.StatusForbidden, "forbidden", against)
			return
		}
		g.serveMCP(w, r)
	default:
		writeError(w, http.StatusNotFound, "not_found", "")
	}
}

// unread bounds what is left of a body that nobody wants: the library reads of it
// before it writes the answer, for which there has to be time then.
func (g *Gateway) unread(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(g.limits.Slow / 2)) // a writer that cannot is a test's
}

// health says whether requests would be answered, and nothing else.
func (g *Gateway) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if g.isDraining() || !g.config.Up(ctx) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "down\n")
		return
	}
	_, _ = io.WriteString(w, "up\n")
}

func (g *Gateway) isDraining() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.draining
}

func (g *Gateway) serveMCP(w http.ResponseWriter, r *http.Request) {
	route := Stateful
	revision := r.Header.Get(headerRevision)
	if revision >= stateless.Revision {
		route = Stateless
	}
	key, p := g.present(w, r, route)
	if key == nil {
		return
	}
	defer clear(key)
	// Whoever shares his address with a flood of bad keys is not kept out by it.
	hash := hashOf(key)
	var wait time.Duration
	if g.rates.known(hash) {
		wait = g.rates.take(&g.rates.keys, string(hash[:]), time.Now())
	} else {
		wait = g.rates.wait(r.Context(), connOf(r.Context()).address, time.Now())
	}
	if wait > 0 {
		later(w, wait, tooManyRequests)
		return
	}
	switch {
	case ambiguous(r.Header):
		if g.good(w, r, key, p) {
			writeError(w, http.StatusBadRequest, "bad_request", "")
		}
	case r.Method == http.MethodPost:
		g.post(w, r, key, p)
	case route == Stateful && (r.Method == http.MethodGet || r.Method == http.MethodDelete):
		s := g.resume(w, r, key, p)
		switch {
		case s == nil:
		case r.Method == http.MethodDelete:
			g.end(s)
			w.WriteHeader(http.StatusNoContent)
		default:
			g.listen(w, r, s)
		}
	default:
		if g.good(w, r, key, p) {
			w.Header().Set("Allow", "GET, POST, DELETE")
			writeError(w, http.StatusMethodNotAllowed, "method_not_allowed", "")
		}
	}
}

// good judges the key of a request that comes to nothing. False: it is answered.
func (g *Gateway) good(w http.ResponseWriter, r *http.Request, key []byte, p Presented) bool {
	err := g.check(r.Context(), key, p)
	if err != nil {
		g.failed(w, r, err)
	}
	return err == nil
}

// ambiguous says whether a header that means something here is there more than once:
// of two values each reader would take another one.
func ambiguous(header http.Header) bool {
	for _, name := range []string{headerSession, headerRevision, headerMethod, headerName, "Content-Type", "Content-Encoding"} {
		if len(header.Values(name)) > 1 {
			return true
		}
	}
	return false
}

// resume is the session that a request names, once its key is judged. Nil: it is
// answered. A session of another key is no session.
func (g *Gateway) resume(w http.ResponseWriter, r *http.Request, key []byte, p Presented) *session {
	id := r.Header.Get(headerSession)
	g.mu.Lock()
	s := g.sessions[id]
	g.mu.Unlock()
	err := g.authenticate(r.Context(), s, key, p)
	switch {
	case err == nil && id == "":
		writeError(w, http.StatusBadRequest, "session_required", "")
		return nil
	case errors.Is(err, ErrOtherKey), errors.Is(err, errOver), err == nil && s == nil:
		writeError(w, http.StatusNotFound, "session_not_found", "")
		return nil
	case err != nil:
		g.failed(w, r, err)
		return nil
	}
	return s
}

// maxOpening is the largest message that opens a session, in bytes.
const maxOpening = 64 << 10

// post takes in one message. The key is judged first: of whom nobody knows nothing is
// read.
func (g *Gateway) post(w http.ResponseWriter, r *http.Request, key []byte, p Presented) {
	if p.Route == Stateful && r.Header.Get(headerSession) == "" {
		g.open(w, r, key, p)
		return
	}
	var s *session
	if p.Route == Stateful {
		if s = g.resume(w, r, key, p); s == nil {
			return
		}
	} else {
		var err error
		if s, err = g.share(r.Context(), key, p); err != nil {
			g.failed(w, r, err)
			return
		}
	}
	m, about, release, refusal := g.message(w, r, g.limits.Body)
	defer release()
	if refusal != nil {
		refusal()
		return
	}
	switch {
	case m.Answer: // we ask nothing of clients
		w.WriteHeader(http.StatusAccepted)
	case m.ID == nil:
		if p.Route == Stateful { // without a session they would be about somebody else's requests, too
			g.notice(r.Context(), s, m)
		}
		w.WriteHeader(http.StatusAccepted)
	case p.Route == Stateless && m.Method == methodInitialize:
		writeJSON(w, http.StatusNotFound, errorAnswer(m.ID, methodNotFound, "method not found", nil))
	default:
		g.call(w, r, s, m, about, p.Route)
	}
}

// open opens a session. Its key is judged with the run that is opened for it, once
// the message is there; one of which nothing good is known is judged before that.
func (g *Gateway) open(w http.ResponseWriter, r *http.Request, key []byte, p Presented) {
	hash := hashOf(key)
	var run Run
	var err error
	if !g.rates.known(hash) {
		if run, err = g.opened(r.Context(), key, p); err != nil {
			g.failed(w, r, err)
			return
		}
	}
	m, about, release, refusal := g.message(w, r, maxOpening)
	defer release()
	if refusal == nil && (m.ID == nil || m.Method != methodInitialize) {
		refusal = func() { writeError(w, http.StatusBadRequest, "session_required", "") }
	}
	switch {
	case refusal == nil && run == nil:
		run, err = g.opened(r.Context(), key, p)
	case refusal != nil && run == nil:
		err = g.check(r.Context(), key, p)
	case refusal != nil:
		g.abandon(hash, run)
	}
	if err != nil {
		g.failed(w, r, err)
		return
	}
	if refusal != nil {
		refusal()
		return
	}
	id := newID()
	s, err := g.begin(id, hash, run)
	if err != nil {
		g.failed(w, r, err)
		return
	}
	w.Header().Set(headerSession, id)
	if !g.call(w, r, s, m, about, p.Route) {
		g.end(s)
	}
}

// message reads the message of a request of at most limit bytes. When it is no good
// there is a refusal that answers it.
func (g *Gateway) message(w http.ResponseWriter, r *http.Request, limit int64) (m *strict.Message, about meta, release, refusal func()) {
	body, release, status := g.read(w, r, limit)
	if status != 0 {
		return nil, about, release, func() {
			writeError(w, status, strings.ReplaceAll(strings.ToLower(http.StatusText(status)), " ", "_"), "")
		}
	}
	bad := func(id []byte, code int, text string, data []byte) func() {
		return func() { writeJSON(w, http.StatusBadRequest, errorAnswer(id, code, text, data)) }
	}
	m, rejected := strict.ParseMessage(body)
	if rejected != nil {
		return nil, about, release, bad(rejected.ID, rejected.Code, rejected.Text, nil)
	}
	about, ok := metaOf(m.Params)
	if !ok {
		return nil, about, release, bad(m.ID, strict.CodeInvalidParams, "invalid params: _meta is not an object", nil)
	}
	if token := about.get(progressToken); token != nil && !strict.ValidID(token) && string(token) != "null" { // it is said again with each piece of progress
		return nil, about, release, bad(m.ID, strict.CodeInvalidParams, "invalid params: the progress token is neither a string nor a number", nil)
	}
	if code, text, data := agrees(r.Header, m, about); code != 0 {
		return nil, about, release, bad(m.ID, code, text, data)
	}
	return m, about, release, nil
}

// call carries out one request and answers it. It returns false when it was
// answered with an error.
func (g *Gateway) call(w http.ResponseWriter, r *http.Request, s *session, m *strict.Message, about meta, route string) bool {
	token := about.get(progressToken)
	e, err := s.begin(m, token)
	switch {
	case errors.Is(err, errTaken):
		writeJSON(w, http.StatusBadRequest, errorAnswer(m.ID, strict.CodeInvalidRequest, "invalid request: the id is in use", nil))
		return false
	case errors.Is(err, errCrowd):
		later(w, time.Second, tooManyRequests)
		return false
	case err != nil:
		writeError(w, http.StatusNotFound, "session_not_found", "")
		return false
	}
	defer e.leave()
	if route == Stateless {
		e.repeated = repeatedIn(r.Header)
	}
	number := strconv.AppendUint(nil, e.number, 10)
	params := m.Params
	if token != nil {
		params = about.with(number)
	}
	switch err := s.say(r.Context(), written(m.Method, number, params)); {
	case errors.Is(err, errOver):
		writeError(w, http.StatusNotFound, "session_not_found", "")
		return false
	case err != nil:
		gone(w)
		return false
	}
	withdraw := func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.say(ctx, written(methodCancelled, nil, []byte(`{"requestId":`+string(number)+`}`))) // a session that is over needs no notice
	}
	if e.withdrawn.Load() {
		withdraw() // what said so may have been quicker than the request
	}
	out := &answering{w: w, r: r, e: e, stateless: route == Stateless}
	code, whole := out.run()
	if !whole && route == Stateless {
		// Who goes away does not want the answer: without a session there is no other
		// way to say so.
		withdraw()
	}
	return code == 0
}

// repeatedIn are the headers that repeat arguments of a call.
func repeatedIn(header http.Header) http.Header {
	found := http.Header{}
	for name, values := range header {
		if strings.HasPrefix(name, stateless.HeaderParameters) {
			found[name] = values
		}
	}
	return found
}

// notice passes a notification on. One that names a request names it by the
// client's id.
func (g *Gateway) notice(ctx context.Context, s *session, m *strict.Message) {
	params := m.Params
	if m.Method == methodCancelled {
		members, err := strict.ParseObject(params)
		if err != nil {
			return
		}
		for i, one := range members {
			if one.Key != "requestId" {
				continue
			}
			e := s.called(one.Raw)
			if e == nil {
				return
			}
			defer e.dismiss() // it need not be answered any more
			e.withdrawn.Store(true)
			members[i].Raw = strconv.AppendUint(nil, e.number, 10)
		}
		params = object(members)
	}
	_ = s.say(ctx, written(m.Method, nil, params)) // a session that is over needs no notice
}

// agrees says in what way headers and message contradict each other, or the
// message what is spoken. Who looks at the headers only must not be told another
// thing than who looks at the message.
func agrees(header http.Header, m *strict.Message, about meta) (code int, text string, data []byte) {
	revision := header.Get(headerRevision)
	inside := about.text(mcp.MetaKeyProtocolVersion)
	switch {
	case m.ID != nil && inside != "" && inside != revision: // whatever they are
		return mcp.CodeHeaderMismatch, "the header " + headerRevision + " is not the protocol version in _meta", nil
	case revision != "" && !slices.Contains(revisions, revision), inside != "" && !slices.Contains(revisions, inside):
		return unsupported, "the protocol version is not supported", supported(revision)
	case inside == "" && revision < stateless.Revision:
		return 0, "", nil
	case m.ID == nil && revision < stateless.Revision:
		return 0, "", nil
	case m.ID != nil && inside == "":
		return strict.CodeInvalidParams, "invalid params: no " + mcp.MetaKeyProtocolVersion + " in _meta", nil
	case m.Answer:
		return 0, "", nil
	case header.Get(headerMethod) != m.Method:
		return mcp.CodeHeaderMismatch, "the header " + headerMethod + " is not the method", nil
	}
	member := "name"
	switch m.Method {
	case "resources/read":
		member = "uri"
	case "tools/call", "prompts/get":
	default:
		return 0, "", nil
	}
	name, ok := about.param(member)
	said, readable := stateless.Text(header.Get(headerName))
	if !ok || !readable || said != name {
		return mcp.CodeHeaderMismatch, "the header " + headerName + " is not the " + member + " in the message", nil
	}
	return 0, "", nil
}

// slowest is how fast a body has to come, in bytes a second, once Limits.Slow is over.
const slowest = 32 << 10

// firstPiece is the room that a body gets before anything of it is there, in bytes.
const firstPiece = 4 << 10

// hold counts bytes of a body as held, if there is room for them.
func (g *Gateway) hold(n int64) bool {
	for {
		held := g.held.Load()
		if held+n > g.limits.Held {
			return false
		}
		if g.held.CompareAndSwap(held, held+n) {
			return true
		}
	}
}

// read reads a body within the limits; a status other than 0 says why it did not.
func (g *Gateway) read(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, release func(), status int) {
	var held int64
	release = func() { g.held.Add(-held) }
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, release, http.StatusUnsupportedMediaType
	}
	if r.Header.Get("Content-Encoding") != "" {
		return nil, release, http.StatusUnsupportedMediaType
	}
	if json, stream := accepts(r.Header.Values("Accept")); !json && !stream {
		return nil, release, http.StatusNotAcceptable
	}
	if r.ContentLength > limit {
		return nil, release, http.StatusRequestEntityTooLarge
	}
	control := http.NewResponseController(w)
	most := limit + 1 // one more than there may be, to see that it ends
	if r.ContentLength >= 0 {
		most = r.ContentLength + 1
	}
	for begun := time.Now(); ; {
		if len(body) == cap(body) { // what is counted is the room, also for what never comes
			room := min(max(2*int64(cap(body)), firstPiece), most)
			if !g.hold(room - held) {
				g.unread(w)
				return nil, release, http.StatusServiceUnavailable
			}
			held = room
			body = append(make([]byte, 0, room), body...)
		}
		// So long altogether, and what a slow line needs for what is here already.
		_ = control.SetReadDeadline(begun.Add(g.limits.Slow + time.Duration(len(body))*time.Second/slowest)) // a writer that cannot is a test's
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if int64(len(body)) > limit {
			g.unread(w)
			return nil, release, http.StatusRequestEntityTooLarge
		}
		if errors.Is(err, io.EOF) {
			_ = control.SetReadDeadline(time.Time{})
			return body, release, 0
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, release, http.StatusRequestTimeout
		}
		if err != nil {
			return nil, release, http.StatusBadRequest
		}
	}
}
