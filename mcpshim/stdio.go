package mcpshim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/mcpshim/canon"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/quick"
	"subjectbroker/worker"
)

// DefaultMaxLine is the longest line that is read from a client, in bytes.
const DefaultMaxLine = 10<<20 + 64<<10

// Limits on what one client can have us hold.
const (
	maxInFlight = 64 // calls; further lines wait to be read
	maxListens  = 16 // open streams of changes

	maxHeld = 32 << 20 // bytes of calls that do not go to the SDK, beside one
)

// methodListen opens a stream of changes and is answered when that ends, so
// that nothing may wait for its answer.
const methodListen = "subscriptions/listen"

// methodCancelled names a call in its parameters.
const methodCancelled = "notifications/cancelled"

// methodInitialized is the other notification that means something to us.
const methodInitialized = "notifications/initialized"

// stdio is one MCP session over a pair of streams, one JSON-RPC message a line.
// The SDK's own transport ends the session on the first bad line, alters ids,
// answers nothing that is in flight when its input ends. This one answers every
// line, keeps each id byte for byte, and tells the SDK of the end only when
// everything has been answered.
//
// The SDK sees ids of our making; the client's own are put back on the way out.
type stdio struct {
	lines   *strict.LineReader
	tickets *tickets
	// divert takes a call that is not for the SDK, and returns what makes it. Nil, or
	// a divert that returns nil: the SDK gets it.
	divert func(*strict.Message) handler

	incoming chan *jsonrpc.Request
	drained  chan struct{} // closed when nothing more will come
	closed   chan struct{} // closed by Close
	close    func()
	stop     func() // starts draining
	draining chan struct{}

	writing sync.Mutex
	out     *bufio.Writer

	mu      sync.Mutex
	changed *sync.Cond // on calls, listens and ending
	nextID  uint64
	calls   map[string]*call // by our id
	byID    map[string]*call // by the client's id, as it was written
	active  int              // calls whose answer is not yet written, listens aside
	held    int              // bytes of those that do not go to the SDK
	listens int
	ending  bool  // nothing more is taken in
	failed  error // the first error of writing
}

// handler takes a call that does not go to the SDK, in the order in which calls
// came and without waiting, and returns what makes it. It may tell the client lines
// meanwhile, and returns what writes the member result or error of the answer, and
// what is done afterwards, also when nobody wants the answer; nil for nothing.
type handler func(ctx context.Context, tell func(line []byte)) func() (answer func(*bufio.Writer), release func())

// call is one request that is not answered yet.
type call struct {
	ours   string
	theirs []byte
	listen bool
	held   int                     // see stdio
	cancel context.CancelCauseFunc // of a call that does not go to the SDK
}

func newStdio(in io.Reader, out io.Writer, maxLine int, t *tickets) *stdio {
	if maxLine <= 0 {
		maxLine = DefaultMaxLine
	}
	s := &stdio{
		lines: strict.NewLineReader(in, maxLine), tickets: t, out: bufio.NewWriterSize(quick.Writer(out), 32<<10),
		incoming: make(chan *jsonrpc.Request), drained: make(chan struct{}), closed: make(chan struct{}), draining: make(chan struct{}),
		calls: map[string]*call{}, byID: map[string]*call{},
	}
	s.changed = sync.NewCond(&s.mu)
	s.close = sync.OnceFunc(func() {
		s.mu.Lock()
		s.ending = true
		s.changed.Broadcast()
		s.mu.Unlock()
		close(s.closed)
	})
	s.stop = sync.OnceFunc(func() {
		close(s.draining)
		go s.drain()
	})
	return s
}

// Connect implements mcp.Transport.
func (s *stdio) Connect(context.Context) (mcp.Connection, error) {
	go s.readAll()
	return s, nil
}

// SessionID implements mcp.Connection: a pair of streams has one session.
func (s *stdio) SessionID() string { return "" }

// Close implements mcp.Connection. It does not close the streams, which are the
// caller's; a read that hangs in one of them ends with the process.
func (s *stdio) Close() error {
	s.close()
	return nil
}

// Read implements mcp.Connection.
func (s *stdio) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case request := <-s.incoming:
		return request, nil
	case <-s.drained:
	case <-s.closed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return nil, io.EOF
}

// readAll takes in every line until the input ends.
func (s *stdio) readAll() {
	defer s.stop()
	for {
		line, err := s.lines.Next()
		switch {
		case errors.Is(err, strict.ErrLineTooLong):
			err = s.reject(strict.Invalid(nil, err.Error()))
		case err == nil:
			err = s.take(line)
		}
		if err != nil {
			return
		}
	}
}

// take handles one line. An error means that the session is over.
func (s *stdio) take(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	m, bad := strict.ParseMessage(line)
	switch {
	case bad != nil:
		return s.reject(bad)
	case m.Answer:
		return nil
	case m.ID == nil:
		return s.notify(m)
	}
	var handle handler
	if s.divert != nil {
		handle = s.divert(m)
	}
	held := 0
	if handle != nil {
		held = len(line)
	}
	c, bad := s.admit(m, held)
	switch {
	case bad != nil:
		return s.reject(bad)
	case c == nil:
		return io.EOF
	case handle != nil:
		s.run(c, handle)
		return nil
	}
	return s.deliver(c.ours, m.Method, m.Params)
}

// run makes a call that does not go to the SDK. The client does not hear of one
// that it has cancelled.
func (s *stdio) run(c *call, handle handler) {
	ctx, cancel := context.WithCancelCause(context.Background())
	s.mu.Lock()
	c.cancel = cancel
	s.mu.Unlock()
	carryOut := handle(ctx, func(line []byte) {
		_ = s.writeLine(func(out *bufio.Writer) error { // the first error is kept
			out.Write(line)
			return out.WriteByte('\n')
		})
	})
	go func() {
		answer, release := carryOut()
		cancelled := ctx.Err() != nil
		cancel(nil)
		s.mu.Lock()
		delete(s.calls, c.ours)
		delete(s.byID, string(c.theirs))
		s.mu.Unlock()
		defer s.answered(c)
		if release != nil {
			defer release()
		}
		if cancelled {
			return
		}
		_ = s.writeLine(func(out *bufio.Writer) error {
			out.WriteString(`{"jsonrpc":"2.0","id":`)
			out.Write(c.theirs)
			out.WriteByte(',')
			answer(out)
			_, err := out.WriteString("}\n")
			return err
		})
	}()
}

// admit waits until there is room for one more call that holds so many bytes, and
// registers it. It returns nothing at all when the session is ending.
func (s *stdio) admit(m *strict.Message, held int) (*call, *strict.Rejection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listen := m.Method == methodListen
	for !s.ending && !listen && (s.active >= maxInFlight || s.held > 0 && s.held+held > maxHeld) {
		s.changed.Wait()
	}
	switch {
	case s.ending:
		return nil, nil
	case s.byID[string(m.ID)] != nil:
		return nil, strict.Invalid(m.ID, "the id is in use")
	case listen && s.listens >= maxListens:
		return nil, strict.Invalid(m.ID, "too many subscriptions")
	}
	s.nextID++
	c := &call{ours: strconv.FormatUint(s.nextID, 10), theirs: m.ID, listen: listen, held: held}
	s.calls[c.ours], s.byID[string(m.ID)] = c, c
	s.held += held
	if listen {
		s.listens++
	} else {
		s.active++
	}
	return c, nil
}

// notify passes on the two notifications that the SDK understands. One that
// names a call names it by the client's id.
func (s *stdio) notify(m *strict.Message) error {
	switch m.Method {
	case methodInitialized:
		return s.deliver("", m.Method, nil)
	case methodCancelled:
		members, err := strict.ParseObject(m.Params)
		if err != nil {
			return nil // notifications are not answered
		}
		for _, one := range members {
			if one.Key != "requestId" {
				continue
			}
			s.mu.Lock()
			c := s.byID[string(one.Raw)]
			s.mu.Unlock()
			if c != nil {
				return s.cancel(c, saidBeside(m.Params))
			}
		}
	}
	return nil
}

// saidBeside is what a client says when it cancels a request, such as why: an object
// without the number, and without what is between the client and us. It is empty
// where there is nothing, or more than anybody would say.
func saidBeside(params []byte) []byte {
	members, err := canon.Members(params)
	if err != nil {
		return nil
	}
	var said []byte
	for _, m := range members {
		if m.Key == "requestId" || m.Key == "_meta" {
			continue
		}
		said = append(canon.Quote(append(said, ','), m.Key), ':')
		said = append(said, canon.Compact(m.Raw)...)
	}
	if said == nil || len(said)+1 > worker.MaxCancelSaid {
		return nil
	}
	said[0] = '{'
	return append(said, '}')
}

func (s *stdio) cancel(c *call, said []byte) error {
	s.mu.Lock()
	cancel := c.cancel
	s.mu.Unlock()
	if cancel != nil {
		cancel(worker.Cancelled{Said: said})
		return nil
	}
	return s.deliver("", methodCancelled, []byte(`{"requestId":"`+c.ours+`"}`))
}

// deliver hands one request to the SDK.
func (s *stdio) deliver(id, method string, params []byte) error {
	request := &jsonrpc.Request{Method: method, Params: params}
	if id != "" {
		var err error
		if request.ID, err = jsonrpc.MakeID(id); err != nil {
			return err
		}
	}
	select {
	case s.incoming <- request:
		return nil
	case <-s.closed:
		return io.EOF
	}
}

// drain ends the session once everything is answered: first the calls, then
// the streams of changes, which only end when they are told to.
func (s *stdio) drain() {
	defer close(s.drained)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.changed.Broadcast()
	for s.active > 0 && !s.isClosed() {
		s.changed.Wait()
	}
	var listening []*call
	for _, c := range s.calls {
		listening = append(listening, c)
	}
	s.mu.Unlock()
	for _, c := range listening {
		_ = s.cancel(c, nil)
	}
	s.mu.Lock()
	for s.listens > 0 && !s.isClosed() {
		s.changed.Wait()
	}
}

func (s *stdio) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// Write implements mcp.Connection.
func (s *stdio) Write(ctx context.Context, m jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch m := m.(type) {
	case *jsonrpc.Response:
		return s.respond(m)
	case *jsonrpc.Request:
		return s.tell(m)
	}
	return fmt.Errorf("unknown message %T", m)
}

// respond writes the answer to a call. The id is free for the client's next
// call before the answer can be read, and the call counts as in flight until it
// has been written.
func (s *stdio) respond(r *jsonrpc.Response) error {
	ours, _ := r.ID.Raw().(string)
	s.mu.Lock()
	c := s.calls[ours]
	if c != nil {
		delete(s.calls, ours)
		delete(s.byID, string(c.theirs))
	}
	s.mu.Unlock()
	if c == nil {
		return nil // an answer to nobody
	}
	defer s.answered(c)
	return s.writeLine(func(out *bufio.Writer) error {
		out.WriteString(`{"jsonrpc":"2.0","id":`) // the first error of a bufio.Writer is kept
		out.Write(c.theirs)
		if r.Error != nil {
			out.WriteString(`,"error":`)
			encoded, err := json.Marshal(publicError(r.Error))
			if err != nil {
				return err
			}
			out.Write(encoded)
		} else {
			out.WriteString(`,"result":`)
			result := r.Result
			if c.listen {
				result = s.restoreID(result, c)
			}
			if err := s.tickets.redeem(out, result); err != nil {
				return err
			}
		}
		_, err := out.WriteString("}\n")
		return err
	})
}

func (s *stdio) answered(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= c.held
	if c.listen {
		s.listens--
	} else {
		s.active--
	}
	s.changed.Broadcast()
}

// tell writes a notification.
func (s *stdio) tell(r *jsonrpc.Request) error {
	method, err := json.Marshal(r.Method)
	if err != nil {
		return err
	}
	params := []byte(r.Params)
	if bytes.Contains(params, []byte(mcp.MetaKeySubscriptionID)) {
		s.mu.Lock()
		for _, c := range s.calls {
			if !c.listen {
				continue
			}
			// At most one call is meant; a client's id may look like one of ours.
			if restored := s.restoreID(params, c); !bytes.Equal(restored, params) {
				params = restored
				break
			}
		}
		s.mu.Unlock()
	}
	return s.writeLine(func(out *bufio.Writer) error {
		out.WriteString(`{"jsonrpc":"2.0","method":`)
		out.Write(method)
		if len(params) > 0 {
			out.WriteString(`,"params":`)
			out.Write(params)
		}
		_, err := out.WriteString("}\n")
		return err
	})
}

// restoreID puts the client's id of a listen call where the SDK wrote ours. The
// quotes make it unambiguous: inside a string they would be escaped.
func (s *stdio) restoreID(encoded []byte, c *call) []byte {
	const key = `"` + mcp.MetaKeySubscriptionID + `":`
	return bytes.ReplaceAll(encoded, []byte(key+`"`+c.ours+`"`), append([]byte(key), c.theirs...))
}

// reject answers a line that was not handled.
func (s *stdio) reject(bad *strict.Rejection) error {
	id := bad.ID
	if id == nil {
		id = []byte("null")
	}
	encoded, err := json.Marshal(&jsonrpc.Error{Code: int64(bad.Code), Message: bad.Text})
	if err != nil {
		return err
	}
	return s.writeLine(func(out *bufio.Writer) error {
		out.WriteString(`{"jsonrpc":"2.0","id":`)
		out.Write(id)
		out.WriteString(`,"error":`)
		out.Write(encoded)
		_, err := out.WriteString("}\n")
		return err
	})
}

// writeLine lets write fill one line and sends it.
func (s *stdio) writeLine(write func(*bufio.Writer) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := write(s.out)
	if err == nil {
		err = s.out.Flush()
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.failed == nil {
			s.failed = err
		}
	}
	return err
}

// writeError is the first error of writing to the client. It does not wait for
// a write that hangs.
func (s *stdio) writeError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}
