package host

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"subjectbroker/mcpshim/stateless"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// Limits on a remote server.
const (
	dialPatience    = 15 * time.Second
	deletePatience  = 2 * time.Second
	maxPosts        = 128      // requests on their way at once
	maxHeaderBytes  = 64 << 10 // of an answer's headers
	maxSessionID    = 1 << 10  // bytes
	firstListenWait = time.Second
	maxListenWait   = 30 * time.Second
	maxResumes      = 20 // of one call's stream
)

// remote is a link to a server that speaks Streamable HTTP.
type remote struct {
	client  *http.Client
	url     string
	headers http.Header // may hold secrets; for this url's host alone
	limit   int

	to    listener
	ctx   context.Context //nolint:containedctx // lives as long as the link
	stop  context.CancelFunc
	posts chan struct{} // one token for each request on its way
	large chan struct{} // whoever holds it may read something large
	work  sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	session   string
	revision  string
	strange   bool // it has answered with an HTTP status alone
	listening bool
	latest    chan struct{} // closed when the latest message without an answer was sent
	waiting   map[uint64]context.CancelFunc
	over      chan struct{}
	ending    ending
}

// newRemote makes a link to the URL in start. The error is for a person.
func newRemote(start *hostv1.Start, limit int, roots *x509.CertPool) (*remote, error) {
	target, err := url.Parse(start.GetUrl())
	switch {
	case err != nil:
		return nil, errors.New("the URL cannot be read")
	case target.User != nil:
		return nil, errors.New("the URL holds a name or a password")
	case target.Host == "" || target.Scheme != "https" && target.Scheme != "http":
		return nil, errors.New("the URL is neither https nor http")
	case target.Scheme == "http" && !loopbackName(target.Hostname()):
		return nil, errors.New("http is for this machine alone: https for others")
	}
	target.Fragment = ""
	r := &remote{
		url: target.String(), headers: http.Header{}, limit: limit, posts: make(chan struct{}, maxPosts), large: make(chan struct{}, 1),
		waiting: map[uint64]context.CancelFunc{}, over: make(chan struct{}),
	}
	for _, h := range start.GetHeaders() {
		r.headers.Add(h.GetName(), string(h.GetValue()))
		clear(h.GetValue())
	}
	dialer := &net.Dialer{Timeout: dialPatience}
	if target.Scheme == "http" {
		dialer.Control = onlyLoopback
	}
	r.client = &http.Client{
		Transport: &http.Transport{ // no Proxy: none is taken from an environment
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialPatience, ForceAttemptHTTP2: true, DisableCompression: true,
			MaxResponseHeaderBytes: maxHeaderBytes, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		},
		// A redirect would take the headers, or the arguments, to where nobody said.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r, nil
}

// loopbackName says whether a host's name can be this machine's own; what it
// leads to is looked at again by onlyLoopback.
func loopbackName(name string) bool {
	if name == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(name)
	return err == nil && address.IsLoopback()
}

func onlyLoopback(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || !to.Addr().IsLoopback() {
		return errors.New("not this machine")
	}
	return nil
}

func (r *remote) begin(to listener) { r.to = to }

func (r *remote) gone() <-chan struct{} { return r.over }

// close says that nothing more will come, and why.
func (r *remote) close(e ending) {
	r.mu.Lock()
	first := !r.closed
	if first {
		r.closed, r.ending = true, e
	}
	r.mu.Unlock()
	if first {
		r.stop()
		close(r.over)
	}
}

func (r *remote) end(polite bool) ending {
	r.mu.Lock()
	session := r.session
	closed := r.closed
	r.session = ""
	r.mu.Unlock()
	if polite && !closed && session != "" {
		ctx, cancel := context.WithTimeout(context.Background(), deletePatience)
		if response, err := r.do(ctx, http.MethodDelete, nil, session, ""); err == nil {
			response.Body.Close()
		}
		cancel()
	}
	r.close(ending{why: whyStopped, detail: "the connection was closed", code: -1})
	r.work.Wait()
	r.client.CloseIdleConnections()
	return r.ending
}

func (r *remote) agreed(revision string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revision = revision
}

// refuses implements link.
func (r *remote) refuses() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.strange
}

// modernLocked reports whether the server is one of the era without sessions. The caller
// holds mu.
func (r *remote) modernLocked() bool { return r.revision == stateless.Revision }

func (r *remote) settle(ctx context.Context) {
	r.mu.Lock()
	latest := r.latest
	r.mu.Unlock()
	if latest == nil {
		return
	}
	select {
	case <-latest:
	case <-ctx.Done():
	}
}

func (r *remote) forget(id uint64) {
	r.mu.Lock()
	cancel := r.waiting[id]
	r.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

func (r *remote) post(m outgoing) {
	id := m.id
	r.mu.Lock()
	modern := r.modernLocked()
	r.mu.Unlock()
	if modern && id == 0 {
		return // there a request is cancelled by letting go of it, and nobody asks us
	}
	select {
	case r.posts <- struct{}{}:
	default:
		if id != 0 {
			r.to.lost(id, "too many requests are on their way")
		}
		return
	}
	ctx, cancel := context.WithCancel(r.ctx)
	r.mu.Lock()
	closed := r.closed
	sent := make(chan struct{})
	if !closed {
		r.work.Add(1) // with the lock: end waits only after it has closed
		if id != 0 {
			r.waiting[id] = cancel
		} else {
			r.latest = sent
		}
	}
	r.mu.Unlock()
	if closed {
		cancel()
		<-r.posts
		if id != 0 {
			r.to.lost(id, "the connection was closed")
		}
		return
	}
	go func() {
		defer r.work.Done()
		defer func() { <-r.posts }()
		defer cancel()
		defer close(sent)
		why := r.exchange(ctx, m)
		if id == 0 {
			return
		}
		r.mu.Lock()
		delete(r.waiting, id)
		r.mu.Unlock()
		r.to.lost(id, why) // does nothing when it was answered
	}()
}

// do sends one request, with more headers.
func (r *remote) do(ctx context.Context, method string, body []byte, session, lastEvent string, more ...[2]string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = r.headers.Clone()
	request.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodGet {
		request.Header.Set("Accept", "text/event-stream")
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if request.Header.Get("User-Agent") == "" {
		request.Header.Set("User-Agent", "subject-broker")
	}
	r.mu.Lock()
	revision := r.revision
	r.mu.Unlock()
	for name, value := range map[string]string{"Mcp-Session-Id": session, "Mcp-Protocol-Version": revision, "Last-Event-Id": lastEvent} {
		request.Header.Del(name)
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	for _, header := range more {
		request.Header.Set(header[0], header[1])
	}
	return r.client.Do(request)
}

func (r *remote) sessionID() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// exchange posts a message and takes what is answered. It returns why there is no
// answer, if there is none.
func (r *remote) exchange(ctx context.Context, m outgoing) string {
	session := r.sessionID()
	response, err := r.do(ctx, http.MethodPost, m.body, session, "", m.headers...)
	if err != nil {
		return dialWords(err)
	}
	defer response.Body.Close()
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if why := r.refused(response, session); why != "" {
		status := response.StatusCode
		switch {
		case status < 400 || status >= 500 || status == http.StatusUnauthorized || status == http.StatusForbidden:
		case m.id != 0 && err == nil && kind == "application/json": // an error in words of MCP, perhaps: another revision may do
			_ = r.takeBody(ctx, response.Body)
			fallthrough
		default:
			r.mu.Lock()
			r.strange = true
			r.mu.Unlock()
		}
		return why
	}
	if given := response.Header.Get("Mcp-Session-Id"); given != "" && session == "" && m.headers == nil {
		if !visible(given) || len(given) > maxSessionID {
			return "it gave its session a name that cannot be sent back"
		}
		r.mu.Lock()
		r.session = given
		r.mu.Unlock()
	}
	if m.id == 0 {
		r.listen()
		return "" // a notification, or an answer of ours: nothing is said to it
	}
	switch {
	case err != nil:
		return "its answer has no type"
	case kind == "application/json":
		return r.takeBody(ctx, response.Body)
	case kind == "text/event-stream":
		return r.follow(ctx, m.id, response.Body)
	}
	return "its answer is neither JSON nor a stream of events"
}

// refused says why an answer is none.
func (r *remote) refused(response *http.Response, session string) string {
	status := response.StatusCode
	switch {
	case status >= 200 && status < 300:
		return ""
	case status >= 300 && status < 400:
		return "it redirects to another place, which is not followed"
	case status == http.StatusNotFound && session != "":
		r.close(ending{why: whyExited, detail: "the server has ended the session", code: -1})
		return "the server has ended the session"
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fmt.Sprintf("it does not let us in (HTTP %d)", status)
	}
	return fmt.Sprintf("it answered with HTTP %d", status)
}

func visible(value string) bool {
	return !strings.ContainsFunc(value, func(c rune) bool { return c < 0x21 || c > 0x7e })
}

// dialWords says what went wrong without the URL or anything that a stranger
// wrote.
func dialWords(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "its certificate is not accepted"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return "it cannot be reached: " + errno.Error()
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return "it cannot be reached: there is no host of that name"
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return "it cannot be reached in time"
	}
	if errors.Is(err, context.Canceled) {
		return "the connection was closed"
	}
	return "it cannot be reached"
}

// takeBody takes one message as a whole body.
func (r *remote) takeBody(ctx context.Context, body io.Reader) string {
	room := r.room(ctx)
	defer room.leave()
	in := &lines{limit: r.limit} // for its buffer
	defer in.drop()
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if len(in.buf)+n > r.limit {
			return "its answer is longer than the limit"
		}
		if len(in.buf)+n > keptBuffer {
			room.enter()
		}
		in.room(n)
		in.buf = append(in.buf, buf[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "its answer broke off"
		}
	}
	r.to.take(in.buf)
	return "what it answered is no answer"
}

// room is the right to hold one large message.
type room struct {
	r   *remote
	ctx context.Context //nolint:containedctx // lives for one message
	in  bool
}

func (r *remote) room(ctx context.Context) *room { return &room{r: r, ctx: ctx} }

// enter waits until nobody else holds something large, or nobody cares any more.
func (m *room) enter() {
	if m.in {
		return
	}
	select {
	case m.r.large <- struct{}{}:
		m.in = true
	case <-m.ctx.Done():
	}
}

func (m *room) leave() {
	if m.in {
		<-m.r.large
		m.in = false
	}
}

// follow takes the events of the stream that answers id, and goes on reading
// where it was when the server lets go of the connection.
func (r *remote) follow(ctx context.Context, id uint64, body io.Reader) string {
	at := &position{wait: firstListenWait}
	r.events(ctx, body, at)
	for range maxResumes {
		if !r.to.awaited(id) {
			return ""
		}
		r.mu.Lock()
		modern := r.modernLocked()
		r.mu.Unlock()
		if at.last == "" || modern || !at.pause(ctx) {
			break
		}
		response, err := r.do(ctx, http.MethodGet, nil, r.sessionID(), at.last)
		if err != nil {
			break
		}
		if response.StatusCode == http.StatusOK && isEvents(response) {
			r.events(ctx, response.Body, at)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			break
		}
	}
	return "its stream ended without an answer"
}

func isEvents(response *http.Response) bool {
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// position is where a stream of events was left.
type position struct {
	last string        // the id of the last event
	wait time.Duration // before the next attempt
}

func (p *position) pause(ctx context.Context) bool {
	timer := time.NewTimer(p.wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// events takes the messages of a stream until it ends.
func (r *remote) events(ctx context.Context, body io.Reader, at *position) {
	room := r.room(ctx)
	defer room.leave()
	in := newLines(body, r.limit)
	in.grown = room.enter
	var data []byte // of an event of several lines
	var kind string
	have, tooLong := false, false
	flush := func() {
		if have && !tooLong && (kind == "" || kind == "message") {
			r.to.take(data)
		}
		if cap(data) > keptBuffer {
			data = nil
		}
		data, kind, have, tooLong = data[:0], "", false, false
		room.leave()
	}
	for {
		line, long, err := in.next()
		if long != nil {
			long.head = bytes.TrimPrefix(long.head, []byte("data:"))
			r.to.cut(long)
			tooLong = true
		}
		switch {
		case err != nil:
			return // an event without its end is none
		case long != nil:
			continue
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		if len(line) == 0 {
			flush()
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if have && len(data)+len(value) > keptBuffer {
				room.enter()
			}
			if !have && len(value) > keptBuffer { // most events have one line: it is not copied
				data, have, in.buf = value, true, nil
				continue
			}
			if have {
				data = append(data, '\n')
			}
			if len(data)+len(value) > r.limit {
				tooLong, data = true, nil
				continue
			}
			data, have = append(data, value...), true
		case "event":
			kind = string(value[:min(len(value), 64)])
		case "id":
			if len(value) <= maxSessionID && visible(string(value)) {
				at.last = string(value)
			}
		case "retry":
			if ms, ok := number(value); ok {
				at.wait = min(time.Duration(min(ms, 1<<20))*time.Millisecond, maxListenWait)
			}
		}
	}
}

// listen opens, once, the stream on which a server says what nobody asked for.
func (r *remote) listen() {
	r.mu.Lock()
	begin := !r.listening && !r.closed && r.revision != "" && !r.modernLocked()
	if begin {
		r.listening = true
		r.work.Add(1)
	}
	r.mu.Unlock()
	if !begin {
		return
	}
	go func() {
		defer r.work.Done()
		at := &position{wait: firstListenWait}
		for r.ctx.Err() == nil {
			session := r.sessionID()
			response, err := r.do(r.ctx, http.MethodGet, nil, session, at.last)
			if err == nil {
				offered := response.StatusCode == http.StatusOK && isEvents(response)
				if offered {
					at.wait = firstListenWait
					r.events(r.ctx, response.Body, at)
				} else if session != "" && response.StatusCode == http.StatusNotFound {
					r.refused(response, session)
				}
				response.Body.Close()
				if !offered {
					return // it has no such stream
				}
			}
			if !at.pause(r.ctx) {
				return
			}
			at.wait = min(2*at.wait, maxListenWait)
		}
	}()
}
