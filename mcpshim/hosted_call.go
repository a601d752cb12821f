package mcpshim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/stateless"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// Codes of JSON-RPC errors for calls that were judged; see the contract of Relay.
const codeBlocked = -32000

// nextStep is what an agent is told to do about a call that was not made.
const nextStep = "Ask the person who runs this agent."

// cutOff is what an agent is told of a call that a stop did not wait for.
const cutOff = "This connection is being ended, and the server of this tool has not answered yet. Whether it did or does what was asked is not known. " + nextStep

// waitTick is how often a client that asked for progress hears that a person is
// asked.
const waitTick = 5 * time.Second

// maxProgress is how many notifications of one call wait for the client to read.
// What comes beyond is left out: progress is for looking at.
const maxProgress = 32

// hostedCall is one call of a hosted tool.
type hostedCall struct {
	server string
	call   worker.RelayCall
	token  []byte // of progress, as the client wrote it; nil: it did not ask for any
	id     []byte // of the request
	modern bool   // the era without sessions: a result says of what type it is
	bad    *strict.Rejection
	asked  bool // the daemon may have been asked
}

// parse reads a call of a tool; nil when the tool is none of a hosted server's.
func (h *hosted) parse(m *strict.Message) *hostedCall {
	if m.Method != "tools/call" {
		return nil
	}
	members, err := strict.ParseObject(m.Params)
	if err != nil {
		return nil
	}
	c := &hostedCall{id: m.ID, call: worker.RelayCall{Method: m.Method, Arguments: []byte("{}")}}
	named := false
	for _, one := range members {
		switch one.Key {
		case "name":
			if one.Raw[0] == '"' {
				c.server, c.call.Tool, named = h.split(strict.Unquote(one.Raw))
			}
		case "arguments":
			switch {
			case one.Raw[0] == '{':
				c.call.Arguments = canon.Compact(one.Raw)
			case string(one.Raw) != "null":
				c.bad = &strict.Rejection{ID: m.ID, Code: strict.CodeInvalidParams, Text: "invalid params: the arguments are not an object"}
			}
		case "_meta":
			c.readMeta(one.Raw)
		}
	}
	if !named {
		return nil
	}
	c.call.Progress = c.token != nil
	return c
}

// protocolPrefix is that of keys in _meta that are between the client and us.
const protocolPrefix = "io.modelcontextprotocol/"

// readMeta reads what goes to the server and what is for us.
func (c *hostedCall) readMeta(raw []byte) {
	members, err := canon.Members(raw)
	if err != nil {
		return
	}
	var meta []byte
	for _, m := range members {
		switch {
		case m.Key == "progressToken":
			if strict.ValidID(m.Raw) { // it is said again with each piece of progress
				c.token = m.Raw
			}
		case strings.HasPrefix(m.Key, protocolPrefix):
			c.modern = c.modern || m.Key == mcp.MetaKeyProtocolVersion
		default:
			meta = append(canon.Quote(append(meta, ','), m.Key), ':')
			meta = append(meta, canon.Compact(m.Raw)...)
		}
	}
	if meta != nil {
		meta[0] = '{'
		c.call.Meta = append(meta, '}')
	}
}

// divert takes a call of a hosted tool. Nil: it is no such call.
func (h *hosted) divert(m *strict.Message) handler {
	c := h.parse(m)
	if c == nil {
		return nil
	}
	h.s.greeted.Store(true)
	h.called()
	if c.bad != nil {
		bad := refusal{Code: int64(c.bad.Code), Message: c.bad.Text}
		return func(context.Context, func([]byte)) func() (func(*bufio.Writer), func()) {
			return func() (func(*bufio.Writer), func()) { return failure(bad), nil }
		}
	}
	return func(ctx context.Context, tell func(line []byte)) func() (func(*bufio.Writer), func()) {
		turn := h.line(c.server)
		return func() (answer func(*bufio.Writer), release func()) {
			defer turn.pass()
			defer func() {
				if recovered := recover(); recovered != nil {
					h.s.once(wire.InternalError, panicText(recovered))
					answer, release = failure(refusal{Code: jsonrpc.CodeInternalError, Message: "internal error"}), nil
				}
			}()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(h.s.hurry, cancel)()
			return h.make(ctx, c, turn, tell)
		}
	}
}

// turn is the place of a call among those of one server: they are sent in the order
// in which the client made them.
type turn struct {
	before <-chan struct{} // closed when it is this call's turn; nil: it is
	over   chan struct{}
	pass   func()
}

// line is the turn after all those that were taken before.
func (h *hosted) line(server string) *turn {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lines == nil {
		h.lines = map[string]*turn{}
	}
	t := &turn{over: make(chan struct{})}
	if last := h.lines[server]; last != nil {
		t.before = last.over
	}
	h.lines[server] = t
	t.pass = sync.OnceFunc(func() {
		if t.before == nil {
			h.leave(server, t)
			return
		}
		select {
		case <-t.before:
			h.leave(server, t)
		default: // those behind go on waiting for those before
			go func() {
				<-t.before
				h.leave(server, t)
			}()
		}
	})
	return t
}

func (h *hosted) leave(server string, t *turn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(t.over)
	if h.lines[server] == t {
		delete(h.lines, server)
	}
}

// wait waits for the turn.
func (t *turn) wait(ctx context.Context) error {
	if t.before == nil {
		return nil
	}
	select {
	case <-t.before:
		return nil
	case <-ctx.Done():
		return wire.FromError(ctx.Err())
	}
}

// make makes a call.
func (h *hosted) make(ctx context.Context, c *hostedCall, turn *turn, tell func(line []byte)) (answer func(*bufio.Writer), release func()) {
	progress := newProgress(c, tell)
	got, err := h.call(ctx, c, turn)
	progress.end()
	switch {
	case err != nil && c.asked && h.s.hurry.Err() != nil && wire.FromError(err).Reason == wire.BrokerUnavailable:
		return c.isError(cutOff), nil // the daemon may well be there
	case err != nil:
		return c.unavailable(err), nil
	}
	return c.answer(got), func() {
		got.Release()
		if len(got.Object) >= largeContent {
			h.s.trimmer.Reset(trimAfter)
		}
	}
}

// call sends a call when it is its turn, and waits for its answer.
func (h *hosted) call(ctx context.Context, c *hostedCall, turn *turn) (worker.RelayAnswer, error) {
	if err := turn.wait(ctx); err != nil {
		return worker.RelayAnswer{}, err
	}
	relay, done, err := h.relayTo(ctx, c.server)
	defer done()
	if err != nil {
		return worker.RelayAnswer{}, err
	}
	if err := h.agrees(ctx, c, relay); err != nil {
		return worker.RelayAnswer{}, err
	}
	c.asked = true
	pending, err := relay.Begin(ctx, c.call)
	turn.pass()
	if err != nil {
		return worker.RelayAnswer{}, err
	}
	return pending.Answer(ctx)
}

// headerMismatch says which header is not the argument that it repeats.
type headerMismatch struct{ header string }

func (m *headerMismatch) Error() string {
	return "the header " + m.header + " is not the argument that it repeats"
}

// agrees compares arguments with the headers that the tool wants to see them in: who
// stands between and reads headers only must not be told another thing than the
// server.
func (h *hosted) agrees(ctx context.Context, c *hostedCall, relay *worker.Relay) error {
	if _, compare := h.s.repeated(c.id, stateless.HeaderParameters); !compare {
		return nil
	}
	offered, err := relay.Offered(ctx)
	if err != nil {
		return err
	}
	for _, one := range offered.Tools {
		if one.Name != c.call.Tool {
			continue
		}
		for _, binding := range stateless.Bindings(one.Object) {
			if values, _ := h.s.repeated(c.id, binding.Header()); !binding.Agrees(c.call.Arguments, values) {
				return &headerMismatch{binding.Header()}
			}
		}
	}
	return nil
}

// answer is what the client gets of a call that was judged.
func (c *hostedCall) answer(got worker.RelayAnswer) func(*bufio.Writer) {
	switch v := got.Verdict; {
	case !v.Forward && v.Replay != nil && v.ReplayError:
		return c.raw("error", v.Replay)
	case !v.Forward && v.Replay != nil:
		return c.raw("result", v.Replay)
	case !v.Forward && v.Code == 0:
		return c.isError(v.Message)
	case !v.Forward:
		return failure(refusal{Code: int64(v.Code), Message: v.Message, Data: &refusalData{
			Policy: v.Policy, Action: v.Action, Reason: v.Reason, Next: v.Next, ApprovalID: v.ApprovalID,
		}})
	}
	switch got.End {
	case worker.EndOK, worker.EndToolError:
		return c.raw("result", got.Object)
	case worker.EndError:
		return c.raw("error", got.Object)
	case worker.EndTransport, worker.EndCancelled:
	}
	return c.isError("The server of this tool did not answer. Whether it did what was asked is not known. " + nextStep)
}

// unavailable is the answer to a call that nobody judged, or whose end nobody
// knows.
func (c *hostedCall) unavailable(err error) func(*bufio.Writer) {
	if mismatch, ok := errors.AsType[*headerMismatch](err); ok {
		return failure(refusal{Code: mcp.CodeHeaderMismatch, Message: mismatch.Error()})
	}
	reason, sentence := Refusal(err)
	code := int64(codeBlocked)
	switch reason {
	case wire.AccessDenied: // as the daemon says it of a tool that is not there
		return c.isError(sentence + " " + nextStep)
	case wire.InvalidArgument, wire.ResourceTooLarge:
		code = strict.CodeInvalidParams
	}
	return failure(refusal{Code: code, Message: sentence + " " + nextStep, Data: &refusalData{Reason: reason, Next: nextStep}})
}

// resultType says, in the era without sessions, that a result is one.
const resultType = `"resultType":"complete"`

// isError is a tool's result that says that it failed, in words.
func (c *hostedCall) isError(text string) func(*bufio.Writer) {
	quoted, err := json.Marshal(text)
	if err != nil {
		quoted = []byte(`""`) // a string always encodes
	}
	return func(out *bufio.Writer) {
		out.WriteString(`"result":{"content":[{"type":"text","text":`)
		out.Write(quoted)
		out.WriteString(`}],"isError":true`)
		if c.modern {
			out.WriteString("," + resultType)
		}
		out.WriteString("}")
	}
}

// raw is an answer as a server gave it. It comes from a sandbox: what could be
// more than one value, or another one to another reader, is none.
func (c *hostedCall) raw(kind string, object []byte) func(*bufio.Writer) {
	if err := checkObject(object); err != nil {
		return c.isError("The server of this tool gave an answer that cannot be passed on. " + nextStep)
	}
	return func(out *bufio.Writer) {
		out.WriteString(`"` + kind + `":`)
		if kind == "result" && c.modern && !has(object, "resultType") {
			out.WriteString("{" + resultType)
			if rest := object[1:]; rest[0] == '}' {
				out.Write(rest)
			} else {
				out.WriteString(",")
				out.Write(rest)
			}
			return
		}
		out.Write(object)
	}
}

func checkObject(object []byte) error {
	if err := canon.Check(object); err != nil {
		return err
	}
	if object[0] != '{' {
		return errors.New("not an object")
	}
	for _, c := range object {
		if c == '\n' || c == '\r' {
			return errors.New("more than one line")
		}
	}
	return nil
}

func has(object []byte, key string) bool {
	members, _ := canon.Members(object)
	for _, m := range members {
		if m.Key == key {
			return true
		}
	}
	return false
}

// refusal is a JSON-RPC error.
type refusal struct {
	Code    int64        `json:"code"`
	Message string       `json:"message"`
	Data    *refusalData `json:"data,omitempty"`
}

// refusalData is what a program that speaks for the agent can go by.
type refusalData struct {
	Policy     string      `json:"policy,omitempty"` // that decided; empty: none did
	Action     string      `json:"action,omitempty"`
	Reason     wire.Reason `json:"reasonCode"`
	Next       string      `json:"next"`
	ApprovalID string      `json:"approvalId,omitempty"`
}

func failure(r refusal) func(*bufio.Writer) {
	encoded, err := json.Marshal(r)
	if err != nil {
		encoded = []byte(`{"code":-32603,"message":"internal error"}`) // it always encodes
	}
	return func(out *bufio.Writer) {
		out.WriteString(`"error":`)
		out.Write(encoded)
	}
}

// progress tells a client of one call's progress, if it asked for it: the server's
// word, and while a person is asked that this is so. A client that does not read
// holds up nobody but itself.
type progress struct {
	lines chan []byte
	stop  chan struct{}
	done  chan struct{}
}

func newProgress(c *hostedCall, tell func(line []byte)) *progress {
	if c.token == nil {
		return nil
	}
	p := &progress{lines: make(chan []byte, maxProgress), stop: make(chan struct{}), done: make(chan struct{})}
	asked := make(chan struct{}, 1)
	c.call.Waiting = func(string) { asked <- struct{}{} }
	c.call.Progressed = func(params []byte) {
		if checkObject(params) != nil {
			return
		}
		line := progressLine(c.token)
		if rest := params[1:]; rest[0] != '}' {
			line = append(append(line, ','), rest[:len(rest)-1]...)
		}
		select {
		case p.lines <- append(line, "}}"...):
		default:
		}
	}
	go p.run(c.token, asked, tell)
	return p
}

func progressLine(token []byte) []byte {
	return append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), token...)
}

func (p *progress) run(token []byte, asked <-chan struct{}, tell func(line []byte)) {
	defer close(p.done)
	var ticks <-chan time.Time
	for n := 1; ; {
		select {
		case <-asked:
			ticker := time.NewTicker(waitTick)
			defer ticker.Stop()
			ticks = ticker.C
		case <-ticks:
			// Small numbers: the server's own come after them, and have to be larger.
			line := append(progressLine(token), `,"progress":`...)
			line = strconv.AppendFloat(line, float64(n)/1e6, 'f', -1, 64)
			n++
			tell(append(line, `,"message":"A person is asked whether this may be done."}}`...))
		case line := <-p.lines:
			ticks = nil // nobody is asked any more
			tell(line)
		case <-p.stop:
			for {
				select {
				case line := <-p.lines:
					tell(line)
				default:
					return
				}
			}
		}
	}
}

// end returns when nothing more will be told: an answer may follow.
func (p *progress) end() {
	if p == nil {
		return
	}
	close(p.stop)
	<-p.done
}
