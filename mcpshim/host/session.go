package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/stateless"
	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// revisions of MCP that are spoken, the best first.
var revisions = stateless.Earlier

// Limits, in bytes where nothing else is said.
const (
	maxPiece        = 256 << 10 // of one piece of an answer
	maxListed       = 512 << 10 // of the tools in one piece of a list
	maxTool         = 768 << 10 // of one tool: it has to fit into a frame
	maxTools        = 4096      // tools
	maxToolBytes    = 32 << 20  // of all tools
	maxPages        = 1000      // pages of a list
	maxInstructions = 256 << 10
	maxArguments    = 10<<20 + 64<<10 // of one call
	maxProgress     = 64 << 10        // of one notification
	maxLog          = 4 << 10         // of one log line
	maxOdd          = 100             // lines that are no messages and are still shown
)

// session is MCP with one server, as its client.
type session struct {
	out     *frame.Writer
	link    link
	version string
	hangUp  context.CancelCauseFunc // the daemon does not listen any more
	relist  chan struct{}           // capacity 1: list again, as the server says
	look    chan struct{}           // capacity 1: list again, as the daemon says

	patience  time.Duration // see silencePatience
	newerOnly bool          // it is greeted in the era without sessions alone

	mu       sync.Mutex
	modern   bool                           // it is of the era without sessions
	bindings map[string][]stateless.Binding // by tool; of that era
	next     uint64
	open     map[uint64]*pending // by the id that the server sees
	calls    map[uint64]uint64   // the daemon's number of a call → the id that the server sees
	partial  map[uint64]assembly // by the daemon's number
	idle     *sync.Cond          // on open
	ended    bool                // the link is gone
	odd      int                 // lines that were no messages
	heard    bool                // a message has come
}

// pending is one request that the server has not answered.
type pending struct {
	call     uint64 // the daemon's number; unused with done
	progress bool
	done     chan reply // capacity 1; nil for a call
}

// reply is the answer to a request of our own.
type reply struct {
	result, failure []byte // one of them, or
	lost            string // why there is none
}

func newSession(out *frame.Writer, way link, version string, hangUp context.CancelCauseFunc) *session {
	s := &session{
		out: out, link: way, version: version, hangUp: hangUp, relist: make(chan struct{}, 1), look: make(chan struct{}, 1),
		open: map[uint64]*pending{}, calls: map[uint64]uint64{}, partial: map[uint64]assembly{}, patience: silencePatience,
	}
	s.idle = sync.NewCond(&s.mu)
	return s
}

// tell sends one message to the daemon. When that fails, all is over.
func (s *session) tell(m *hostv1.HostResponse) {
	if err := s.out.Write(m); err != nil {
		s.hangUp(err)
	}
}

// begin registers a request and returns its id. It returns 0 when the server is
// gone.
func (s *session) begin(p *pending) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0
	}
	s.next++
	s.open[s.next] = p
	if p.done == nil {
		s.calls[p.call] = s.next
	}
	return s.next
}

// claim takes the request with an id out: whoever has it answers it.
func (s *session) claim(id uint64) *pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.open[id]
	if p == nil {
		return nil
	}
	delete(s.open, id)
	if p.done == nil {
		delete(s.calls, p.call)
	}
	s.idle.Broadcast()
	return p
}

func (s *session) awaited(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[id] != nil
}

// end answers everything that is open: the server is gone.
func (s *session) end() {
	s.mu.Lock()
	s.ended = true
	var ids []uint64
	for id := range s.open {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.lost(id, "the server is gone")
	}
}

// drain waits until no call is open, or ctx ends.
func (s *session) drain(ctx context.Context) {
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.idle.Broadcast()
	})()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.calls) > 0 && ctx.Err() == nil {
		s.idle.Wait()
	}
}

// ask sends a request of our own and waits for its answer; params are the members
// of its parameters. The error is for a person; errFailed is in it when the server
// answered with an error.
func (s *session) ask(ctx context.Context, method string, params []byte) ([]byte, error) {
	return s.askIn(ctx, s.isModern(), method, params)
}

// askIn is ask in one of the two eras.
func (s *session) askIn(ctx context.Context, modern bool, method string, params []byte) ([]byte, error) {
	p := &pending{done: make(chan reply, 1)}
	id := s.begin(p)
	if id == 0 {
		return nil, errors.New("the server is gone")
	}
	m := outgoing{id: id, body: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s`, id, method, params)}
	if modern {
		if len(params) > 0 {
			m.body = append(m.body, ',')
		}
		m.body = append(append(m.body, `"_meta":`...), s.askMeta()...)
		m.headers = headersOf(method)
	}
	m.body = append(m.body, "}}"...)
	s.link.post(m)
	select {
	case r := <-p.done:
		switch {
		case r.lost != "":
			return nil, errors.New(r.lost)
		case r.failure != nil:
			return nil, &failure{code: codeOf(r.failure)}
		}
		return r.result, nil
	case <-ctx.Done():
		s.claim(id)
		s.link.forget(id)
		return nil, fmt.Errorf("it did not answer %s in time", method)
	}
}

func (s *session) isModern() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.modern
}

// errFailed: the server answered with an error.
var errFailed = errors.New("it answered with an error")

// failure is the error that a server answered with: its code, which is all of it
// that is told on; 0: it has none.
type failure struct{ code int64 }

func (f *failure) Error() string {
	if f.code == 0 {
		return errFailed.Error()
	}
	return errFailed.Error() + " (" + strconv.FormatInt(f.code, 10) + ")"
}

func (f *failure) Unwrap() error { return errFailed }

// codeOf is the code of a JSON-RPC error.
func codeOf(object []byte) int64 {
	var e struct{ Code int64 }
	if json.Unmarshal(object, &e) != nil {
		return 0
	}
	return e.Code
}

// greeting is what a server said when it was greeted.
type greeting struct {
	revision, instructions string
	tools                  bool
	tells                  bool // when its tools are other ones
}

// silencePatience is how long a server may say nothing to initialize before it is
// asked in the era without sessions as well: it may not know the word, and many
// take long to start. It is less than greetPatience.
const silencePatience = 25 * time.Second

// greet opens the session: with initialize, in the newest revision that both speak,
// or, where the server does not know that, in the era without sessions. Most
// servers know initialize, and some of those end at a word that they do not know.
func (s *session) greet(ctx context.Context) (greeting, error) {
	type outcome struct {
		greeting
		error
	}
	trying, stop := context.WithCancel(ctx)
	defer stop() // of two that answer the first counts
	try := func(greet func(context.Context) (greeting, error)) <-chan outcome {
		answer := make(chan outcome, 1)
		go func() {
			g, err := greet(trying)
			answer <- outcome{g, err}
		}()
		return answer
	}
	var older, newer <-chan outcome
	if s.newerOnly {
		newer = try(s.discover)
	} else {
		older = try(s.initialize)
	}
	var first, second error
	silence := time.NewTimer(s.patience)
	defer silence.Stop()
	for {
		select {
		case o := <-older:
			if o.error == nil {
				s.opened(ctx, o.greeting)
				return o.greeting, nil
			}
			older, first = nil, o.error
			if newer == nil && second == nil && s.mayBeNewer(first) {
				newer = try(s.discover)
			}
		case o := <-newer:
			if o.error == nil {
				s.opened(ctx, o.greeting)
				return o.greeting, nil
			}
			newer, second = nil, o.error
		case <-silence.C:
			if newer == nil && second == nil {
				newer = try(s.discover)
			}
		}
		switch {
		case older != nil || newer != nil:
		case second != nil && !errors.Is(second, errFailed): // it knows the word, and says more
			return greeting{}, second
		case first == nil:
			return greeting{}, second
		default:
			return greeting{}, first
		}
	}
}

// mayBeNewer reports whether a server that could not be greeted with initialize is
// there and may be one of the era without sessions.
func (s *session) mayBeNewer(err error) bool {
	select {
	case <-s.link.gone():
		return false
	default:
	}
	return errors.Is(err, errFailed) || errors.Is(err, errRevision) || s.link.refuses()
}

// opened begins the session as it was agreed on.
func (s *session) opened(ctx context.Context, g greeting) {
	s.mu.Lock()
	s.modern = g.revision == stateless.Revision
	s.mu.Unlock()
	s.link.agreed(g.revision)
	if g.revision == stateless.Revision {
		return
	}
	s.link.post(outgoing{body: []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)})
	s.link.settle(ctx)
}

// initialize greets a server of the era with sessions.
func (s *session) initialize(ctx context.Context) (greeting, error) {
	var latest error
	for _, revision := range revisions {
		result, err := s.askIn(ctx, false, "initialize",
			fmt.Appendf(nil, `"protocolVersion":%q,"capabilities":{},"clientInfo":%s`, revision, s.clientInfo()))
		if failed, ok := errors.AsType[*failure](err); ok {
			latest = err // perhaps it knows an older one
			if failed.code == codeNoMethod || failed.code == codeNoRevision {
				break
			}
			continue
		}
		if err != nil {
			return greeting{}, err
		}
		return s.greeted(result)
	}
	return greeting{}, latest
}

// errRevision: there is no revision that both speak.
var errRevision = errors.New("it speaks no revision of MCP that is known here")

func (s *session) greeted(result []byte) (greeting, error) {
	members, err := canon.Members(result)
	if err != nil {
		return greeting{}, errors.New("its greeting is no object")
	}
	var g greeting
	for _, m := range members {
		if m.Key == "protocolVersion" {
			g.revision, _ = text(m.Raw)
		}
	}
	if !slices.Contains(revisions, g.revision) {
		return greeting{}, errRevision
	}
	return s.offers(g, members)
}

// offers reads what both greetings say alike.
func (s *session) offers(g greeting, members []canon.Member) (greeting, error) {
	for _, m := range members {
		switch m.Key {
		case "instructions":
			g.instructions, _ = text(m.Raw)
		case "capabilities":
			capabilities, err := canon.Members(m.Raw)
			if err != nil {
				return greeting{}, errors.New("its capabilities are no object")
			}
			for _, c := range capabilities {
				if c.Key == "tools" && c.Raw[0] == '{' {
					g.tools, g.tells = true, hasTrue(c.Raw, "listChanged")
				}
			}
		}
	}
	if len(g.instructions) > maxInstructions {
		s.say(fmt.Sprintf("[its instructions have %d bytes, more than %d, and are left out]", len(g.instructions), maxInstructions))
		g.instructions = ""
	}
	return g, nil
}

// hasTrue reports whether a member of an object is true.
func hasTrue(object []byte, key string) bool {
	members, err := canon.Members(object)
	return err == nil && slices.ContainsFunc(members, func(m canon.Member) bool { return m.Key == key && string(m.Raw) == "true" })
}

// text decodes a JSON string that was checked.
func text(raw []byte) (said string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &said) != nil {
		return "", false
	}
	return said, true
}

// list asks for all tools of all pages.
func (s *session) list(ctx context.Context) ([]*hostv1.Tool, error) {
	var all []*hostv1.Tool
	size := 0
	cursor := ""
	for range maxPages {
		var params []byte
		if cursor != "" {
			params = []byte(`"cursor":` + cursor)
		}
		result, err := s.ask(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		tools, next, err := pageOf(result)
		if err != nil {
			return nil, err
		}
		for _, raw := range tools {
			tool := s.toolOf(raw)
			if tool == nil {
				continue
			}
			if size += len(tool.GetObject()); len(all) == maxTools || size > maxToolBytes {
				return nil, fmt.Errorf("it offers more than %d tools, or more than %d bytes of them", maxTools, maxToolBytes)
			}
			all = append(all, tool)
		}
		if next == "" {
			all = s.once(all)
			if s.isModern() {
				s.bind(all)
			}
			return all, nil
		}
		if next == cursor {
			return nil, errors.New("its list of tools leads back to the same page")
		}
		cursor = next
	}
	return nil, fmt.Errorf("its list of tools has more than %d pages", maxPages)
}

// pageOf reads one page: the tools as they were written, and the next cursor,
// quoted; empty: the last page.
func pageOf(result []byte) (tools []json.RawMessage, cursor string, err error) {
	members, err := canon.Members(result)
	if err != nil {
		return nil, "", errors.New("its list of tools is no object")
	}
	for _, m := range members {
		switch m.Key {
		case "tools":
			if err := json.Unmarshal(m.Raw, &tools); err != nil {
				return nil, "", errors.New("its list of tools is no list")
			}
		case "nextCursor":
			if said, ok := text(m.Raw); ok && said != "" {
				cursor = string(m.Raw)
			}
		}
	}
	return tools, cursor, nil
}

// toolOf reads one tool; nil where it cannot be offered.
func (s *session) toolOf(raw []byte) *hostv1.Tool {
	members, err := canon.Members(raw)
	name := ""
	for _, m := range members {
		if m.Key == "name" {
			name, _ = text(m.Raw)
		}
	}
	switch {
	case err != nil || name == "":
		s.say("[a tool without a name is left out]")
		return nil
	case strings.ContainsRune(name, '\ufffd'):
		s.say("[a tool whose name is no text is left out]")
		return nil
	}
	object := canon.Sorted(raw)
	if len(object) > maxTool {
		s.say(fmt.Sprintf("[a tool of more than %d bytes is left out: %.100q]", maxTool, name))
		return nil
	}
	return &hostv1.Tool{Name: name, Object: object}
}

// once leaves out what is there twice: which of the two would be called?
func (s *session) once(all []*hostv1.Tool) []*hostv1.Tool {
	count := map[string]int{}
	for _, tool := range all {
		count[tool.GetName()]++
	}
	return slices.DeleteFunc(all, func(tool *hostv1.Tool) bool {
		if count[tool.GetName()] == 1 {
			return false
		}
		s.say(fmt.Sprintf("[a tool that is listed %d times is left out: %.100q]", count[tool.GetName()], tool.GetName()))
		return true
	})
}

// listed tells the daemon what there is, in pieces.
func (s *session) listed(tools []*hostv1.Tool, instructions string) {
	piece := &hostv1.Listed{Instructions: instructions}
	size := 0
	for _, tool := range tools {
		if size += len(tool.GetObject()) + len(tool.GetName()); size > maxListed && len(piece.GetTools()) > 0 {
			piece.More = true
			s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Listed{Listed: piece}})
			piece = &hostv1.Listed{}
			size = len(tool.GetObject()) + len(tool.GetName())
		}
		piece.Tools = append(piece.Tools, tool)
	}
	s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Listed{Listed: piece}})
}

// again is the server's own word that its list is another one.
func (s *session) again() { soon(s.relist) }

func soon(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is going to be read anyway
	}
}

// assembly is a call that comes in pieces.
type assembly struct {
	*hostv1.Call
	tooLong bool // answered already; what follows is thrown away
}

// call gets a call, or a piece of one.
func (s *session) call(c *hostv1.Call) {
	id := c.GetId()
	s.mu.Lock()
	whole, begun := s.partial[id]
	switch {
	case !begun:
		whole.Call = c
	case !whole.tooLong:
		whole.Arguments = append(whole.Arguments, c.GetArguments()...)
	}
	fails := !whole.tooLong && len(whole.GetArguments()) > maxArguments
	if fails {
		whole = assembly{Call: &hostv1.Call{Id: id}, tooLong: true}
	}
	if c.GetMore() {
		s.partial[id] = whole
	} else {
		delete(s.partial, id)
	}
	s.mu.Unlock()
	switch {
	case fails:
		s.answerEnd(id, hostv1.End_END_TRANSPORT)
	case !c.GetMore() && !whole.tooLong:
		s.send(whole.Call)
	}
}

// send forwards a whole call.
func (s *session) send(c *hostv1.Call) {
	p := &pending{call: c.GetId(), progress: c.GetProgress()}
	id := s.begin(p)
	if id == 0 {
		s.answerEnd(c.GetId(), hostv1.End_END_TRANSPORT)
		return
	}
	m := outgoing{id: id}
	var meta []byte
	if s.isModern() {
		meta, m.headers = s.askMeta(), s.headersOfCall(c)
	}
	var err error
	if m.body, err = request(id, c, meta); err != nil {
		s.lost(id, err.Error())
		return
	}
	s.link.post(m)
}

// request is a call as the server gets it, written again from what was read; own is
// the _meta of ours that each request has, nil for none.
func request(id uint64, c *hostv1.Call, own []byte) ([]byte, error) {
	message := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":`, id)
	message = canon.Quote(message, c.GetTool())
	if arguments := c.GetArguments(); len(arguments) > 0 {
		if err := checkObject(arguments); err != nil {
			return nil, fmt.Errorf("the arguments are refused: %w", err)
		}
		message = append(append(message, `,"arguments":`...), canon.Compact(arguments)...)
	}
	meta, err := metaOf(id, c, own)
	if err != nil {
		return nil, err
	}
	if meta != nil {
		message = append(append(message, `,"_meta":`...), meta...)
	}
	return append(message, "}}"...), nil
}

const progressToken = "progressToken"

func metaOf(id uint64, c *hostv1.Call, own []byte) ([]byte, error) {
	meta := []byte{'{'}
	if own != nil {
		meta = own[:len(own)-1] // and goes on
	}
	if given := c.GetMeta(); len(given) > 0 {
		if err := checkObject(given); err != nil {
			return nil, fmt.Errorf("the call's _meta is refused: %w", err)
		}
		meta = appendWithout(meta, given, func(key string) bool { return key == progressToken || strings.HasPrefix(key, protocolPrefix) })
	}
	if c.GetProgress() {
		if len(meta) > 1 {
			meta = append(meta, ',')
		}
		meta = fmt.Appendf(meta, `"%s":%d`, progressToken, id)
	}
	if len(meta) == 1 {
		return nil, nil
	}
	return append(meta, '}'), nil
}

func checkObject(data []byte) error {
	if err := canon.Check(data); err != nil {
		return err
	}
	if bytes.TrimLeft(data, " \t\r\n")[0] != '{' {
		return errors.New("not an object")
	}
	return nil
}

// appendWithout appends the members of an object that was checked, but those that
// without names.
func appendWithout(dst, object []byte, without func(key string) bool) []byte {
	members, err := canon.Members(object)
	if err != nil {
		return dst
	}
	for _, m := range members {
		if without(m.Key) {
			continue
		}
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(canon.Quote(dst, m.Key), ':')
		dst = append(dst, canon.Compact(m.Raw)...)
	}
	return dst
}

// cancel says that nobody waits for a call, and what the client said beside.
func (s *session) cancel(call uint64, said []byte) {
	s.mu.Lock()
	delete(s.partial, call)
	id, open := s.calls[call]
	s.mu.Unlock()
	if !open || s.claim(id) == nil {
		return
	}
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d`, id)
	s.link.post(outgoing{body: append(appendSaid(body, said), "}}"...)})
	s.link.forget(id)
}

// maxSaid is how much of what a client says when it cancels a call is passed on, in
// bytes.
const maxSaid = 4 << 10

// appendSaid appends the members of what a client said to an object that has one, but
// the number of the request. What is no object is left out.
func appendSaid(body, said []byte) []byte {
	if len(said) > maxSaid {
		return body
	}
	members, err := canon.Members(said)
	if err != nil {
		return body
	}
	for _, m := range members {
		if m.Key != "requestId" {
			body = append(canon.Quote(append(body, ','), m.Key), ':')
			body = append(body, canon.Compact(m.Raw)...)
		}
	}
	return body
}

// lost implements listener.
func (s *session) lost(id uint64, why string) {
	p := s.claim(id)
	switch {
	case p == nil:
	case p.done != nil:
		p.done <- reply{lost: why}
	default:
		s.answerEnd(p.call, hostv1.End_END_TRANSPORT)
	}
}

func (s *session) answerEnd(call uint64, end hostv1.End) {
	s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Answer{Answer: &hostv1.Answer{Id: call, End: end}}})
}

// cut implements listener. Where nobody can say whose answer it was, nobody waits
// for ever.
func (s *session) cut(long *longLine) {
	s.say("[a message that is longer than the limit was dropped]")
	if id, ok := long.idIn(); ok {
		s.lost(id, "its answer is longer than the limit")
		return
	}
	s.mu.Lock()
	var ids []uint64
	for id := range s.open {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.lost(id, "an answer is longer than the limit")
	}
}

// take implements listener.
func (s *session) take(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	m, err := parse(line)
	s.mu.Lock()
	s.heard = s.heard || m.id != nil || m.method != nil
	s.mu.Unlock()
	switch {
	case m.id == nil && m.method == nil || errors.Is(err, canon.ErrSyntax):
		s.oddLine(line)
	case m.method != nil && err != nil:
		s.oddLine(line)
	case m.method != nil && m.id != nil:
		s.serve(m)
	case m.method != nil:
		s.notice(m)
	default:
		s.answer(m, err)
	}
}

// message is what a server wrote.
type message struct{ id, method, params, result, failure []byte }

func parse(line []byte) (message, error) {
	members, err := canon.Members(line)
	var m message
	for _, one := range members {
		switch one.Key {
		case "id":
			m.id = one.Raw
		case "method":
			m.method = one.Raw
		case "params":
			m.params = one.Raw
		case "result":
			m.result = one.Raw
		case "error":
			m.failure = one.Raw
		}
	}
	return m, err
}

// oddLine counts what is no message, and shows the first ones.
func (s *session) oddLine(line []byte) {
	s.mu.Lock()
	s.odd++
	odd := s.odd
	s.mu.Unlock()
	switch {
	case odd <= maxOdd:
		s.say("[not a message:] " + string(line[:min(len(line), maxLog)]))
	case odd == maxOdd+1:
		s.say("[more lines that are no messages are counted and not shown]")
	}
}

// heardNothing reports whether no message has come.
func (s *session) heardNothing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.heard
}

func (s *session) oddLines() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.odd
}

// say implements listener.
func (s *session) say(line string) {
	s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Log{Log: &hostv1.LogLine{Line: []byte(line[:min(len(line), maxLog)])}}})
}

// serve answers what a server asks of its client: it is told that we live, and
// that we offer nothing.
func (s *session) serve(m message) {
	answer := `"error":{"code":-32601,"message":"method not found"}`
	if method, _ := text(m.method); method == "ping" {
		answer = `"result":{}`
	}
	if len(m.id) > 1024 || m.id[0] == '{' || m.id[0] == '[' {
		return
	}
	s.link.post(outgoing{body: []byte(`{"jsonrpc":"2.0","id":` + string(m.id) + `,` + answer + `}`)})
}

// notice gets a notification.
func (s *session) notice(m message) {
	switch method, _ := text(m.method); method {
	case "notifications/tools/list_changed":
		s.again()
	case "notifications/progress":
		s.progress(m.params)
	}
}

func (s *session) progress(params []byte) {
	members, err := canon.Members(params)
	if err != nil || len(params) > maxProgress {
		return
	}
	for _, m := range members {
		if m.Key != progressToken {
			continue
		}
		id, _ := number(m.Raw)
		s.mu.Lock()
		p := s.open[id]
		s.mu.Unlock()
		if p == nil || !p.progress {
			return
		}
		rest := append(appendWithout([]byte{'{'}, params, func(key string) bool { return key == progressToken }), '}')
		s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Progress{Progress: &hostv1.Progress{Id: p.call, Params: rest}}})
	}
}

// answer gets an answer; fault is what was wrong with its form.
func (s *session) answer(m message, fault error) {
	id, ok := number(m.id)
	if !ok {
		return
	}
	p := s.claim(id)
	if p == nil {
		return // nobody waits for it any more
	}
	object, end := m.result, hostv1.End_END_OK
	if m.failure != nil {
		object, end = m.failure, hostv1.End_END_ERROR
	}
	if fault != nil || (m.result == nil) == (m.failure == nil) || object[0] != '{' {
		end = hostv1.End_END_TRANSPORT
	}
	words := faultWords(fault)
	if more := incomplete(object); end == hostv1.End_END_OK && more != "" {
		end, words = hostv1.End_END_TRANSPORT, more
	}
	if end == hostv1.End_END_OK && hasTrue(object, "isError") { // a tool's result that is an error to the agent
		end = hostv1.End_END_TOOL_ERROR
	}
	switch {
	case p.done == nil && end == hostv1.End_END_TRANSPORT:
		s.say("[an answer was refused: " + words + "]")
		s.answerEnd(p.call, end)
	case p.done == nil:
		s.forward(p.call, object, end)
	case end == hostv1.End_END_TRANSPORT:
		p.done <- reply{lost: "an answer of its was refused: " + words}
	case m.failure != nil:
		p.done <- reply{failure: bytes.Clone(object)}
	default:
		p.done <- reply{result: bytes.Clone(object)}
	}
}

func faultWords(fault error) string {
	if fault == nil {
		return "neither a result nor an error"
	}
	return fault.Error()
}

// forward writes an answer again, in pieces.
func (s *session) forward(call uint64, object []byte, end hostv1.End) {
	p := &pieces{s: s, call: call, end: end, buf: make([]byte, 0, min(len(object), maxPiece))}
	_ = canon.Write(p, object) // pieces takes everything
	p.send(false)
}

// pieces cuts what is written to it.
type pieces struct {
	s    *session
	call uint64
	end  hostv1.End
	buf  []byte
}

func (p *pieces) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		if len(p.buf) == maxPiece {
			p.send(true)
		}
		part := b[:min(len(b), maxPiece-len(p.buf))]
		p.buf = append(p.buf, part...)
		b = b[len(part):]
	}
	return n, nil
}

func (p *pieces) send(more bool) {
	p.s.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Answer{Answer: &hostv1.Answer{Id: p.call, Piece: p.buf, More: more, End: p.end}}})
	p.buf = p.buf[:0]
}
