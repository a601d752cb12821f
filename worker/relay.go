package worker

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Limits of one relay. The daemon has limits of its own; these keep below them,
// so that what reaches it is always read at once, a cancellation included.
const (
	maxRelayCalls = 48        // calls that wait for the daemon
	maxArguments  = 10 << 20  // bytes of the arguments of one call
	maxUnjudged   = 16 << 20  // bytes of arguments that wait for the daemon, of all relays of one run
	maxMeta       = 64 << 10  // bytes of RelayCall.Meta
	maxAnswer     = 65 << 20  // bytes of one answer of a hosted server
	maxAnswers    = 130 << 20 // bytes of those that were not released, of all relays of one run
	maxOutcomes   = 16        // that wait to be said
	maxReplay     = 1 << 20   // bytes of an answer in a RelayOutcome
	maxListed     = 4 << 20   // bytes of all that one Listed says
	maxObject     = 1 << 20   // bytes of one tool of it
	maxTools      = 1024      // tools of one server
	maxInstructed = 64 << 10  // bytes of a server's instructions

	// Of calls that TryBegin sends: so few, and so small, that the daemon's window has
	// room for them whether it reads or not.
	maxAtOnce      = 8
	maxAtOnceBytes = 4 << 10
)

// Deadlines of a call. A daemon that judges answers within seconds; before it
// forwards a call itself it may have to start the server first. One that asks a
// person says so, and then waits as long as its policy tells it.
const (
	sendDeadline   = 30 * time.Second
	outcomeDelay   = 2 * time.Millisecond // of an outcome that can wait for company
	judgeDeadline  = 10 * time.Second
	startDeadline  = 2 * time.Minute
	personDeadline = 6 * time.Minute
)

// relayAPI is the first API number with relays.
const relayAPI = 2

// RelayMode says who runs the server that a relay is about.
type RelayMode int

// The modes of a relay.
const (
	// Wrapped: the worker plane runs it. The daemon judges, the caller forwards.
	Wrapped RelayMode = iota + 1
	// Hosted: the daemon has it run. It judges, forwards and returns answers.
	Hosted
)

// RelayConfig says which server a relay is about.
type RelayConfig struct {
	// Server is its name. Required.
	Server string
	// Mode says who runs it. Required.
	Mode RelayMode
	// Tools is told what may be called, first and whenever that changes. Nil means
	// that nobody wants to know. Like Killed it is called from the goroutine that
	// reads the stream: it must not block, nor wait for an answer of the relay.
	Tools func(RelayTools)
	// Killed is told, at most once, that policy or the operator ends the session.
	// The relay is over right after.
	Killed func(RelayKill)
}

// RelayTools is what may be called now.
type RelayTools struct {
	// Tools are sorted by name. Those of a wrapped server have no object.
	Tools []ServerTool
	// Instructions that are trusted: of a hosted server what it says now, of a wrapped
	// one what it has to say to be believed. Empty: none are.
	Instructions string
	// Trusted: what is not in Tools is withheld. It is false only for a wrapped
	// server that nobody trusted yet: it is judged by policy alone.
	Trusted bool
}

// ServerTool is one tool as its server describes it.
type ServerTool struct {
	// Name at the server, exact bytes.
	Name string
	// Object is the whole object from tools/list: compact, UTF-8, members sorted by
	// name at every level, numbers as they were written.
	Object []byte
}

// RelayKill says why a session ends.
type RelayKill struct {
	Message string // for the agent
	Policy  string // that decided; empty: the operator did
}

// RelayCall is one message of the client that has to be judged.
type RelayCall struct {
	// Method, trimmed and in lower case.
	Method string
	// Tool is its name at the server, exact bytes; empty for other methods.
	Tool string
	// Arguments are one JSON object, exactly as it is forwarded; at most 10 MiB.
	Arguments []byte
	// Progress: the client asked for progress.
	Progress bool
	// Meta, for a hosted server, are the members of _meta that go to it, one JSON
	// object of at most 64 KiB; empty when there are none.
	Meta []byte
	// Waiting is told that a person is asked. Nil means that nobody wants to know.
	// Like Progressed it must not block.
	Waiting func(approvalID string)
	// Decided is told, once, that Verdict will not wait, whatever it will say: in the
	// order of the verdicts, which is that of the calls except for those about which
	// a person is asked. Nil means that nobody wants to know. Like Waiting it must not
	// block; with it the ctx of Begin is that of Verdict too, which is to be called. It
	// may be told of a call that Begin returns an error for.
	Decided func(*RelayPending)
	// Progressed is told of a hosted server's progress: the parameters of its
	// notification without the token, one JSON object. Nil means that nobody wants
	// to know. It is not called any more once the call has returned.
	Progressed func(params []byte)
}

// RelayVerdict is the daemon's judgement of one call.
type RelayVerdict struct {
	// ID is the call's number on its relay; see Outcome.
	ID uint64
	// Forward: a wrapped call may be forwarded now, a hosted one was.
	Forward bool
	// Code of the JSON-RPC error to answer otherwise; 0 means that the answer is a
	// tool result with isError.
	Code int
	// Message for the agent with its next step; Next is that step alone.
	Message, Next string
	// Policy that decided, and its action: block, kill or request_approval. Both
	// can be empty.
	Policy, Action string
	// Reason is the public reason code.
	Reason wire.Reason
	// ApprovalID is the request for approval that this is about; empty for none.
	ApprovalID string
	// Approved: a person approved this call, and Outcome wants the answer.
	Approved bool
	// Replay is the answer to an identical call that was approved and ran before
	// anybody got its answer: a whole result, or a whole error object when
	// ReplayError is set. Nil: there is none.
	Replay      []byte
	ReplayError bool
}

// RelayEnd says how a forwarded call ended.
type RelayEnd int

// The ends of a call.
const (
	EndOK        = RelayEnd(brokerv1.RelayEnd_RELAY_END_OK)         // a result
	EndToolError = RelayEnd(brokerv1.RelayEnd_RELAY_END_TOOL_ERROR) // a result that says isError
	EndError     = RelayEnd(brokerv1.RelayEnd_RELAY_END_ERROR)      // a JSON-RPC error
	EndTransport = RelayEnd(brokerv1.RelayEnd_RELAY_END_TRANSPORT)  // no answer
	EndCancelled = RelayEnd(brokerv1.RelayEnd_RELAY_END_CANCELLED)  // the client did not wait for it
)

// RelayOutcome says how a call to a wrapped server ended.
type RelayOutcome struct {
	ID  uint64 // of the verdict
	End RelayEnd
	// Answer is the result or error object of a call that was approved. One over
	// 1 MiB is not kept.
	Answer []byte
	// Delivered: the client has the answer.
	Delivered bool
}

// RelayAnswer is what came of a call to a hosted server.
type RelayAnswer struct {
	// Verdict: without Forward there is nothing else.
	Verdict RelayVerdict
	// End says what Object is: a result, or an error object for EndError. With
	// EndTransport there is none: the server could not be reached.
	End    RelayEnd
	Object []byte
	// Release gives back what Object takes of the room for answers: 130 MiB for all
	// of a run. An answer for which there is none ends as if there was no answer.
	// Nil together with an error, and to be called once where it is not.
	Release func()
}

// Relay judges the messages of one client to one server. It ends with its run at
// the latest; another is opened under the next one. It is safe for concurrent
// use, a call that waits holds up no other, and every error of its methods is a
// *wire.Error.
type Relay struct {
	// Methods beyond the harmless ones that policy lets pass when the relay opened.
	Methods []string

	run    *Run
	config RelayConfig
	stream grpc.BidiStreamingClient[brokerv1.RelayRequest, brokerv1.RelayResponse]
	cancel context.CancelFunc
	over   chan struct{}
	calls  chan struct{} // one token for each call that waits for the daemon

	joins  bool             // what has ended can be said beside something else
	coming wire.JoinedTools // of the reader of the stream

	sending chan struct{} // held while the stream is written
	pieces  chan struct{} // held while a call is written, in however many pieces
	nextID  uint64        // guarded by sending

	mu      sync.Mutex
	waiting map[uint64]*RelayPending
	trusted bool
	heard   bool // tools were told at least once
	tools   RelayTools
	told    chan struct{} // closed when tools come

	outcomes []*brokerv1.RelayRequest // that wait to be said
	flusher  *time.Timer              // says them
	flushes  bool                     // it runs

	// One timer for all that has to come in time: it is set to the earliest, and looks
	// then. That is seldom, and nothing has to be set and stopped for each call.
	watchdog  *time.Timer
	watched   time.Time                  // when it looks; zero: never
	deciding  map[*RelayPending]struct{} // with Decided, and nobody was told yet
	sendBegan time.Time                  // of the send under way; zero: there is none

	err *wire.Error // set before over is closed
}

// RelayPending is a call that the daemon judges.
type RelayPending struct {
	relay  *Relay
	id     uint64
	call   RelayCall
	weight int // of its arguments

	asked   chan struct{} // closed when a person is asked
	decided chan struct{} // closed once verdict is set
	done    chan struct{} // closed once answer is complete; nil for a wrapped server

	// Written by the reader of the stream before decided or done is closed.
	verdict RelayVerdict
	isAsked bool
	judged  bool
	answer  []byte
	end     RelayEnd
	held    int // bytes of answer, taken from the room for answers

	holds atomic.Bool // it holds of the relay's limits

	// Of a call with Decided.
	told    sync.Once
	due     time.Time // guarded by relay.mu: when nobody waits for the verdict any more
	stopCtx func() bool
	given   error // guarded by relay.mu: why nobody waits for the verdict any more
}

// Relay opens a relay for one server; ctx is for opening it alone. Errors are
// PLATFORM_UNSUPPORTED when the daemon is too old to judge calls, and those of
// every other request.
func (r *Run) Relay(ctx context.Context, config RelayConfig) (*Relay, error) {
	switch {
	case config.Server == "" || config.Mode != Wrapped && config.Mode != Hosted:
		return nil, wire.Deny(wire.InvalidArgument)
	case r.API < relayAPI:
		return nil, &wire.Error{Reason: wire.PlatformUnsupported, Message: "the daemon is of an older version and judges no calls of tools: it must be restarted"}
	}
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	relay := &Relay{
		run: r, config: config, cancel: cancel, over: make(chan struct{}), calls: make(chan struct{}, maxRelayCalls),
		sending: make(chan struct{}, 1), pieces: make(chan struct{}, 1), waiting: map[uint64]*RelayPending{}, told: make(chan struct{}),
		deciding: map[*RelayPending]struct{}{},
	}
	opening, opened := context.WithTimeout(ctx, openDeadline)
	defer opened()
	stop := context.AfterFunc(opening, cancel)
	err := relay.open(streaming)
	if !stop() || err != nil {
		cancel()
		if ended := opening.Err(); ended != nil {
			err = ended
		}
		return nil, r.fail(err)
	}
	relay.mu.Lock()
	relay.watchdog = time.AfterFunc(sendDeadline, relay.look)
	relay.flusher = time.AfterFunc(outcomeDelay, func() { _ = relay.flush(context.Background()) })
	relay.watchdog.Stop()
	relay.flusher.Stop()
	relay.mu.Unlock()
	go relay.read()
	return relay, nil
}

// open sends the first message and waits for its answer.
func (r *Relay) open(ctx context.Context) (err error) {
	if r.stream, err = r.run.broker.Relay(ctx); err != nil {
		return err
	}
	mode := brokerv1.RelayMode_RELAY_MODE_WRAPPED
	if r.config.Mode == Hosted {
		mode = brokerv1.RelayMode_RELAY_MODE_HOSTED
	}
	// An error of Send is told by Recv in full.
	_ = r.stream.Send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{RunId: r.run.ID, Server: r.config.Server, Mode: mode}}})
	first, err := r.stream.Recv()
	if err != nil {
		return err
	}
	opened := first.GetOpened()
	if opened == nil {
		return wire.Deny(wire.InternalError)
	}
	r.Methods, r.trusted, r.joins = opened.GetMethods(), opened.GetTrusted(), opened.GetEnded()
	return nil
}

// Over is closed when the relay has ended, whoever ended it.
func (r *Relay) Over() <-chan struct{} { return r.over }

// Err says why the relay is over; nil while it is not.
func (r *Relay) Err() error {
	select {
	case <-r.over:
		return r.err
	default:
		return nil
	}
}

// Close ends the relay. Calls that wait get an error.
func (r *Relay) Close() { r.cancel() }

// Trusted says whether what Tools does not list is withheld.
func (r *Relay) Trusted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trusted
}

// Begin has a call judged and returns once the daemon was asked: calls are asked
// in the order in which Begin is called. It waits while too many others wait for
// the daemon.
func (r *Relay) Begin(ctx context.Context, call RelayCall) (*RelayPending, error) {
	if len(call.Arguments) > maxArguments || len(call.Meta) > maxMeta {
		return nil, wire.Deny(wire.ResourceTooLarge)
	}
	p := r.pending(call)
	if err := r.admit(ctx, p); err != nil {
		return nil, err
	}
	p.expect(ctx)
	return p.begun(r.ask(ctx, p))
}

// TryBegin is Begin where that waits for nothing and for nobody. Where it would have
// to, ok is false, and the daemon was not asked.
func (r *Relay) TryBegin(ctx context.Context, call RelayCall) (p *RelayPending, ok bool, err error) {
	if len(call.Method)+len(call.Tool)+len(call.Arguments)+len(call.Meta) > maxAtOnceBytes {
		return nil, false, nil
	}
	r.mu.Lock()
	few := len(r.waiting) < maxAtOnce
	r.mu.Unlock()
	if !few || !holdNow(r.calls) {
		return nil, false, nil
	}
	p = r.pending(call)
	if !r.run.unjudged.fit(p.weight, maxUnjudged) {
		<-r.calls
		return nil, false, nil
	}
	p.holds.Store(true)
	if !holdNow(r.pieces) {
		p.release()
		return nil, false, nil
	}
	defer func() { <-r.pieces }()
	if !holdNow(r.sending) {
		p.release()
		return nil, false, nil
	}
	defer func() { <-r.sending }()
	p.expect(ctx)
	p, err = p.begun(r.sendHeld(func() []*brokerv1.RelayRequest {
		return r.number(p, &brokerv1.RelayCall{
			Method: call.Method, Tool: call.Tool, Arguments: call.Arguments, Meta: call.Meta, Progress: call.Progress,
		})
	}))
	return p, true, err
}

// pending is a call that nobody was asked about yet.
func (r *Relay) pending(call RelayCall) *RelayPending {
	p := &RelayPending{
		relay: r, call: call, weight: len(call.Arguments),
		asked: make(chan struct{}), decided: make(chan struct{}),
	}
	if r.config.Mode == Hosted {
		p.done = make(chan struct{})
	}
	return p
}

// expect has the call's Decided told in time, whatever the daemon says.
func (p *RelayPending) expect(ctx context.Context) {
	if p.call.Decided == nil {
		return
	}
	r := p.relay
	r.mu.Lock() // giveUp waits for what quiet needs
	defer r.mu.Unlock()
	p.due = time.Now().Add(r.patience())
	r.deciding[p] = struct{}{}
	r.lookAt(p.due)
	p.stopCtx = context.AfterFunc(ctx, func() { p.giveUp(wire.FromError(ctx.Err())) })
}

// begun is the end of Begin; err is why the daemon was not asked.
func (p *RelayPending) begun(err error) (*RelayPending, error) {
	if err != nil {
		p.told.Do(p.quiet) // Begin tells
		p.relay.forget(p)
		return nil, err
	}
	select {
	case <-p.relay.over: // nobody may have found it
		p.tell()
	default:
	}
	return p, nil
}

// lookAt has somebody look then. The caller holds mu.
func (r *Relay) lookAt(when time.Time) {
	if r.watched.IsZero() || when.Before(r.watched) {
		r.watched = when
		r.watchdog.Reset(time.Until(when))
	}
}

// look ends what has waited for too long.
func (r *Relay) look() {
	r.mu.Lock()
	now := time.Now()
	r.watched = time.Time{}
	var late []*RelayPending
	for p := range r.deciding {
		if now.Before(p.due) {
			r.lookAt(p.due)
		} else {
			late = append(late, p)
		}
	}
	hangs := false
	if !r.sendBegan.IsZero() {
		end := r.sendBegan.Add(sendDeadline)
		if hangs = !now.Before(end); !hangs {
			r.lookAt(end)
		}
	}
	r.mu.Unlock()
	if hangs { // a daemon that does not read is none: the stream ends, and with it the wait
		r.cancel()
	}
	slices.SortFunc(late, func(a, b *RelayPending) int { return cmp.Compare(a.id, b.id) })
	for _, p := range late {
		p.giveUp(wire.Deny(wire.BrokerUnavailable))
	}
}

// patience is how long a judgement may take.
func (r *Relay) patience() time.Duration {
	if r.config.Mode == Hosted {
		return startDeadline
	}
	return judgeDeadline
}

// tell says, once, that the verdict is not waited for any more.
func (p *RelayPending) tell() {
	if p.call.Decided == nil {
		return
	}
	p.told.Do(func() {
		p.quiet()
		p.call.Decided(p)
	})
}

// quiet ends what would tell.
func (p *RelayPending) quiet() {
	if p.call.Decided == nil {
		return
	}
	p.relay.mu.Lock()
	delete(p.relay.deciding, p)
	p.relay.mu.Unlock()
	p.stopCtx()
}

// giveUp ends the wait for a verdict.
func (p *RelayPending) giveUp(why error) {
	p.relay.mu.Lock()
	if !p.judged && p.given == nil {
		p.given = why
	}
	p.relay.mu.Unlock()
	p.tell()
}

// admit waits until there is room for p.
func (r *Relay) admit(ctx context.Context, p *RelayPending) error {
	if err := hold(ctx, r, r.calls); err != nil {
		return err
	}
	if err := r.run.unjudged.take(ctx, r.over, p.weight); err != nil {
		<-r.calls
		return r.ended(err)
	}
	p.holds.Store(true)
	return nil
}

// release gives back what the call holds of the relay's limits, once.
func (p *RelayPending) release() {
	if p.holds.CompareAndSwap(true, false) {
		p.relay.run.unjudged.give(p.weight)
		<-p.relay.calls
	}
}

// ask sends p. No other call comes between the pieces of its arguments: the daemon
// could be left with many parts and no whole.
func (r *Relay) ask(ctx context.Context, p *RelayPending) error {
	if err := hold(ctx, r, r.pieces); err != nil {
		return err
	}
	defer func() { <-r.pieces }()
	args, meta := p.call.Arguments, p.call.Meta
	// piece is the next one, of both together.
	piece := func(room int) *brokerv1.RelayCall {
		n := min(len(args), room)
		m := min(len(meta), room-n)
		message := &brokerv1.RelayCall{Arguments: args[:n]}
		if m > 0 {
			message.Meta = meta[:m]
		}
		args, meta = args[n:], meta[m:]
		message.More = len(args)+len(meta) > 0
		return message
	}
	message := piece(max(wire.PieceSize-len(p.call.Tool)-len(p.call.Method), 1))
	message.Method, message.Tool, message.Progress = p.call.Method, p.call.Tool, p.call.Progress
	err := r.send(ctx, func() []*brokerv1.RelayRequest { return r.number(p, message) })
	for err == nil && len(args)+len(meta) > 0 {
		next := piece(wire.PieceSize)
		next.Id = p.id
		// Once begun the message is finished, whatever becomes of ctx: a part
		// would keep its place at the daemon.
		err = r.send(context.WithoutCancel(ctx), func() []*brokerv1.RelayRequest {
			return one(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: next}})
		})
	}
	return err
}

// number gives a call its number. The caller holds sending.
func (r *Relay) number(p *RelayPending, message *brokerv1.RelayCall) []*brokerv1.RelayRequest {
	r.nextID++
	p.id, message.Id = r.nextID, r.nextID
	r.mu.Lock()
	r.waiting[p.id] = p
	r.mu.Unlock()
	return one(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Call{Call: message}})
}

func one(message *brokerv1.RelayRequest) []*brokerv1.RelayRequest {
	return []*brokerv1.RelayRequest{message}
}

// send writes the outcomes that wait and then messages, which are made once it is
// their turn. Nothing comes between them.
func (r *Relay) send(ctx context.Context, last func() []*brokerv1.RelayRequest) error {
	if err := hold(ctx, r, r.sending); err != nil {
		return err
	}
	defer func() { <-r.sending }()
	return r.sendHeld(last)
}

// sendHeld is send for who holds sending.
func (r *Relay) sendHeld(last func() []*brokerv1.RelayRequest) error {
	r.mu.Lock()
	r.sendBegan = time.Now()
	r.lookAt(r.sendBegan.Add(sendDeadline))
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.sendBegan = time.Time{}
		r.mu.Unlock()
	}()
	for _, one := range r.joined(r.takeOutcomes(), last()) {
		if err := r.stream.Send(one); err != nil {
			<-r.over // the reader learns why
			return r.err
		}
	}
	return nil
}

// joined is what is said of calls that have ended, and then the rest, in as few messages
// as the daemon understands.
func (r *Relay) joined(ended, rest []*brokerv1.RelayRequest) []*brokerv1.RelayRequest {
	if !r.joins || len(ended) == 0 {
		return append(ended, rest...)
	}
	var short []*brokerv1.RelayOutcome
	var all []*brokerv1.RelayRequest // that come before the rest
	for _, one := range ended {
		if o := one.GetOutcome(); len(o.GetAnswer()) == 0 {
			short = append(short, o)
		} else {
			all = append(all, one)
		}
	}
	if len(rest) > 0 && len(short) <= wire.MaxEnded {
		rest[0].Ended = short
		return append(all, rest...)
	}
	for some := range slices.Chunk(short, wire.MaxEnded) {
		all = append(all, &brokerv1.RelayRequest{Ended: some})
	}
	return append(all, rest...)
}

// hold takes a place in gate, unless ctx or the relay ends first.
func hold(ctx context.Context, r *Relay, gate chan struct{}) error {
	if holdNow(gate) {
		return nil
	}
	select {
	case gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return wire.FromError(ctx.Err())
	case <-r.over:
		return r.err
	}
}

// holdNow takes a place in gate if there is one.
func holdNow(gate chan struct{}) bool {
	select {
	case gate <- struct{}{}:
		return true
	default:
		return false
	}
}

// ended is why the relay is over, or else err.
func (r *Relay) ended(err error) error {
	if over := r.Err(); over != nil {
		return over
	}
	return wire.FromError(err)
}

// forget gives up on p: what still comes for it means nothing.
func (r *Relay) forget(p *RelayPending) {
	r.mu.Lock()
	delete(r.waiting, p.id)
	held := p.held
	p.held = 0
	r.mu.Unlock()
	r.run.answers.give(held)
	p.release()
}

// MaxCancelSaid is how much of what a client says when it cancels a call goes to a
// hosted server, in bytes.
const MaxCancelSaid = 4 << 10

// Cancelled is the cause of a context that ends because the client has cancelled its
// call. Said is what it said beside the number of its request, one JSON object of at
// most MaxCancelSaid bytes; empty: nothing.
type Cancelled struct{ Said []byte }

func (Cancelled) Error() string { return "the client has cancelled the call" }

// saidOf is what a client said when it cancelled the call of a context.
func saidOf(ctx context.Context) []byte {
	cancelled, _ := errors.AsType[Cancelled](context.Cause(ctx))
	if len(cancelled.Said) > MaxCancelSaid {
		return nil
	}
	return cancelled.Said
}

// abandon tells the daemon that nobody waits for p any more, and what the client said.
func (r *Relay) abandon(p *RelayPending, said []byte) {
	r.forget(p)
	r.mu.Lock()
	forwarded := p.judged && p.verdict.Forward && r.config.Mode == Wrapped
	r.mu.Unlock()
	if forwarded { // as it was meant; it will not be
		r.neverForwarded(p.id)
		return
	}
	go func() { // the daemon may be slow to read, and nobody waits for this
		_ = r.send(context.Background(), func() []*brokerv1.RelayRequest {
			return one(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Cancel{Cancel: &brokerv1.RelayCancel{Id: p.id, Said: said}}})
		})
	}()
}

// neverForwarded tells the daemon that a call which it allowed came too late.
func (r *Relay) neverForwarded(id uint64) {
	go func() { _ = r.Outcome(context.Background(), RelayOutcome{ID: id, End: EndCancelled}) }()
}

// Asked is closed when the daemon asks a person about the call.
func (p *RelayPending) Asked() <-chan struct{} { return p.asked }

// Verdict waits for the judgement. When ctx ends first the call is cancelled:
// nothing may be forwarded, and if the daemon allowed it at that moment it is
// told that nothing was.
func (p *RelayPending) Verdict(ctx context.Context) (RelayVerdict, error) {
	if err := p.wait(ctx); err != nil {
		return RelayVerdict{}, err
	}
	if p.relay.config.Mode == Wrapped || !p.verdict.Forward {
		p.relay.forget(p)
	}
	return p.verdict, nil
}

// wait waits for the judgement, in time.
func (p *RelayPending) wait(ctx context.Context) error {
	if p.call.Decided != nil {
		p.relay.mu.Lock()
		given := p.given
		p.relay.mu.Unlock()
		if given != nil {
			p.relay.abandon(p, nil)
			return given
		}
	}
	select {
	case <-p.decided:
		return nil
	default:
	}
	late := time.NewTimer(p.relay.patience())
	defer late.Stop()
	asked := p.asked
	for {
		select {
		case <-p.decided:
			return nil
		case <-asked:
			asked = nil
			late.Reset(personDeadline)
			continue
		case <-p.relay.over:
			select {
			case <-p.decided: // it came before the end
				return nil
			default:
			}
			p.relay.forget(p)
			return p.relay.err
		case <-late.C:
			p.relay.abandon(p, nil)
			return wire.Deny(wire.BrokerUnavailable)
		case <-ctx.Done():
			p.relay.abandon(p, saidOf(ctx))
			return wire.FromError(ctx.Err())
		}
	}
}

// Forwards reports, once Decided was told, whether Verdict will say Forward, and
// nobody was asked.
func (p *RelayPending) Forwards() bool {
	p.relay.mu.Lock()
	defer p.relay.mu.Unlock()
	return p.judged && p.verdict.Forward && !p.isAsked && p.given == nil
}

// Judge is Begin and Verdict.
func (r *Relay) Judge(ctx context.Context, call RelayCall) (RelayVerdict, error) {
	p, err := r.Begin(ctx, call)
	if err != nil {
		return RelayVerdict{}, err
	}
	return p.Verdict(ctx)
}

// Call has a call to a hosted server judged and, when it is allowed, returns what
// the server answered. When ctx ends the call is cancelled, at the server too, with what
// a Cancelled says that is the cause.
func (r *Relay) Call(ctx context.Context, call RelayCall) (RelayAnswer, error) {
	p, err := r.Begin(ctx, call)
	if err != nil {
		return RelayAnswer{}, err
	}
	return p.Answer(ctx)
}

// Answer waits for the judgement of a call to a hosted server and, when it is
// allowed, for what the server answers. It is Call after Begin.
func (p *RelayPending) Answer(ctx context.Context) (RelayAnswer, error) {
	r := p.relay
	verdict, err := p.Verdict(ctx)
	if err != nil {
		return RelayAnswer{}, err
	}
	if !verdict.Forward {
		return RelayAnswer{Verdict: verdict, Release: func() {}}, nil
	}
	select {
	case <-p.done:
	case <-r.over:
		select {
		case <-p.done: // it came before the end
		default:
			r.forget(p)
			return RelayAnswer{}, r.err
		}
	case <-ctx.Done():
		r.abandon(p, saidOf(ctx))
		return RelayAnswer{}, wire.FromError(ctx.Err())
	}
	r.mu.Lock()
	held := p.held
	p.held = 0 // Release gives it back
	r.mu.Unlock()
	r.forget(p)
	return RelayAnswer{Verdict: verdict, End: p.end, Object: p.answer, Release: func() { r.run.answers.give(held) }}, nil
}

// Outcome tells the daemon how a call to a wrapped server ended, once for each
// that was forwarded. It does not wait for the daemon. Without an answer it may be
// said a moment later, but before anything else that is said on the relay: together
// they cost one message.
func (r *Relay) Outcome(ctx context.Context, o RelayOutcome) error {
	answer := o.Answer
	if len(answer) > maxReplay {
		answer = nil
	}
	first := &brokerv1.RelayOutcome{Id: o.ID, End: brokerv1.RelayEnd(o.End), Delivered: o.Delivered}
	outcome := []*brokerv1.RelayRequest{}
	for m, rest := first, answer; ; m = (&brokerv1.RelayOutcome{Id: o.ID}) {
		n := min(len(rest), wire.PieceSize)
		m.Answer, rest = rest[:n], rest[n:]
		m.More = len(rest) > 0
		outcome = append(outcome, &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Outcome{Outcome: m}})
		if !m.GetMore() {
			break
		}
	}
	r.mu.Lock()
	r.outcomes = append(r.outcomes, outcome...)
	many := len(r.outcomes) >= maxOutcomes || len(answer) > 0
	if !many && !r.flushes {
		r.flushes = true
		r.flusher.Reset(outcomeDelay)
	}
	r.mu.Unlock()
	if many {
		return r.flush(ctx)
	}
	return r.Err()
}

// flush says what waits to be said.
func (r *Relay) flush(ctx context.Context) error {
	return r.send(ctx, func() []*brokerv1.RelayRequest { return nil })
}

// takeOutcomes are the outcomes that wait to be said.
func (r *Relay) takeOutcomes() []*brokerv1.RelayRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.outcomes
	r.outcomes = nil
	if r.flushes {
		r.flushes = false
		r.flusher.Stop()
	}
	return taken
}

// Listed tells the daemon what a wrapped server offers, all pages of it. It does
// not wait for the daemon; answer does: it returns what may be called of it, the
// daemon's next word on that, or an error when none comes before its ctx ends. Left
// out, and so withheld of a server that is trusted, are tools without a name,
// all of a name that stands twice, those over 1 MiB, and what is beyond 1024 tools or
// 4 MiB in all; so are instructions over 64 KiB.
func (r *Relay) Listed(ctx context.Context, tools []ServerTool, instructions string) (answer func(context.Context) (RelayTools, error), err error) {
	if len(instructions) > maxInstructed {
		instructions = ""
	}
	named := map[string]int{}
	for _, tool := range tools {
		named[tool.Name]++
	}
	var offered []*brokerv1.ServerTool
	room := maxListed - len(instructions)
	for _, tool := range tools {
		size := len(tool.Name) + len(tool.Object) + 16 // for the framing
		if tool.Name == "" || named[tool.Name] > 1 || len(tool.Object) > maxObject || size > room || len(offered) == maxTools {
			continue
		}
		room -= size
		offered = append(offered, &brokerv1.ServerTool{Name: tool.Name, Object: tool.Object})
	}
	r.mu.Lock()
	told := r.told
	r.mu.Unlock()
	err = r.send(ctx, func() []*brokerv1.RelayRequest {
		var messages []*brokerv1.RelayRequest
		for _, piece := range wire.CutTools(offered, instructions) {
			messages = append(messages, &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
				Tools: piece.Tools, Instructions: piece.Instructions, More: piece.More,
			}}})
		}
		return messages
	})
	return func(ctx context.Context) (RelayTools, error) {
		if !r.Trusted() {
			return RelayTools{}, nil // there may be no word at all
		}
		return r.after(ctx, told)
	}, err
}

// Offered is what may be called now: the daemon's latest word on it. Of a server
// that is trusted it waits for the first.
func (r *Relay) Offered(ctx context.Context) (RelayTools, error) {
	r.mu.Lock()
	now, told, known := r.tools, r.told, r.heard || !r.trusted
	r.mu.Unlock()
	if known {
		return now, nil
	}
	return r.after(ctx, told)
}

// after is what may be called once told is closed.
func (r *Relay) after(ctx context.Context, told <-chan struct{}) (RelayTools, error) {
	select {
	case <-told:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.tools, nil
	case <-ctx.Done():
		return RelayTools{}, wire.FromError(ctx.Err())
	case <-r.over:
		return RelayTools{}, r.err
	}
}

// Finish ends the relay once the daemon has taken in everything that it was told,
// or ctx ends.
func (r *Relay) Finish(ctx context.Context) {
	defer r.cancel()
	if r.flush(ctx) != nil {
		return
	}
	if hold(ctx, r, r.sending) != nil {
		return
	}
	defer func() { <-r.sending }()
	if r.stream.CloseSend() != nil {
		return
	}
	select {
	case <-r.over:
	case <-ctx.Done():
	}
}

// read takes in what the daemon says until the stream ends.
func (r *Relay) read() {
	defer r.cancel()
	defer func() {
		r.mu.Lock()
		r.watchdog.Stop()
		r.flusher.Stop()
		r.mu.Unlock()
	}()
	for {
		message, err := r.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = wire.Deny(wire.BrokerUnavailable)
			}
			r.err = wire.FromError(r.run.fail(err))
			close(r.over)
			r.mu.Lock()
			left := make([]*RelayPending, 0, len(r.waiting))
			for _, p := range r.waiting {
				left = append(left, p)
			}
			r.mu.Unlock()
			slices.SortFunc(left, func(a, b *RelayPending) int { return cmp.Compare(a.id, b.id) })
			for _, p := range left {
				p.tell()
			}
			return
		}
		r.hear(message)
	}
}

// hear takes in one message.
func (r *Relay) hear(message *brokerv1.RelayResponse) {
	switch said := message.GetMessage().(type) {
	case *brokerv1.RelayResponse_Verdict:
		r.hearVerdict(said.Verdict)
	case *brokerv1.RelayResponse_Waiting:
		if p := r.find(said.Waiting.GetId()); p != nil && !p.isAsked && !p.judged {
			close(p.asked)
			r.mu.Lock()
			p.isAsked = true
			p.due = time.Now().Add(personDeadline)
			r.mu.Unlock()
			if p.call.Waiting != nil {
				p.call.Waiting(said.Waiting.GetApprovalId())
			}
		}
	case *brokerv1.RelayResponse_Answer:
		r.hearAnswer(said.Answer)
	case *brokerv1.RelayResponse_Progress:
		if p := r.find(said.Progress.GetId()); p != nil && p.call.Progressed != nil {
			p.call.Progressed(said.Progress.GetParams())
		}
	case *brokerv1.RelayResponse_Tools:
		r.hearTools(said.Tools)
	case *brokerv1.RelayResponse_Kill:
		if r.config.Killed != nil {
			r.config.Killed(RelayKill{Message: said.Kill.GetMessage(), Policy: said.Kill.GetPolicy()})
		}
	}
}

// find is the call with a number; nil when nobody waits for it.
func (r *Relay) find(id uint64) *RelayPending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[id]
}

// hearVerdict takes in a judgement, under the lock: whoever gives up on the call
// either finds it or is found to have given up.
func (r *Relay) hearVerdict(v *brokerv1.RelayVerdict) {
	r.mu.Lock()
	p := r.waiting[v.GetId()]
	switch {
	case p == nil && v.GetForward() && r.config.Mode == Wrapped:
		r.neverForwarded(v.GetId())
		fallthrough
	case p == nil || p.judged:
		r.mu.Unlock()
		return
	}
	p.judged = true
	p.verdict = RelayVerdict{
		ID: v.GetId(), Forward: v.GetForward(), Code: int(v.GetCode()), Message: v.GetMessage(), Next: v.GetNext(),
		Policy: v.GetPolicy(), Action: v.GetAction(), Reason: wire.Reason(v.GetReasonCode()), ApprovalID: v.GetApprovalId(),
		Approved: v.GetApproved(), Replay: v.GetReplay(), ReplayError: v.GetReplayError(),
	}
	close(p.decided)
	r.mu.Unlock()
	p.tell()
}

// hearAnswer collects the pieces of an answer. One beyond all bounds is none.
func (r *Relay) hearAnswer(a *brokerv1.RelayAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.waiting[a.GetId()]
	if p == nil || !p.judged || p.end != 0 || p.done == nil {
		return
	}
	size := len(a.GetPiece())
	tooLong := len(p.answer)+size > maxAnswer || !r.run.answers.fit(size, maxAnswers)
	if !tooLong {
		p.held += size
		p.answer = append(p.answer, a.GetPiece()...)
	}
	if a.GetMore() && !tooLong {
		return
	}
	p.end = RelayEnd(a.GetEnd())
	if tooLong || p.end == 0 {
		p.end = EndTransport
	}
	if p.end == EndTransport {
		p.answer = nil
		r.run.answers.give(p.held)
		p.held = 0
	}
	close(p.done)
}

// maxHeardTools is the most that the daemon may offer, in bytes.
const maxHeardTools = 64 << 20

func (r *Relay) hearTools(t *brokerv1.RelayTools) {
	if r.coming.Add(wire.ToolPiece{Tools: t.GetTools(), Instructions: t.GetInstructions(), More: t.GetMore()}, maxHeardTools) != nil {
		r.cancel() // it is no daemon of ours
		return
	}
	if t.GetMore() {
		return
	}
	whole := r.coming
	r.coming = wire.JoinedTools{}
	tools := RelayTools{Instructions: whole.Instructions, Trusted: true}
	for _, one := range whole.Tools {
		tools.Tools = append(tools.Tools, ServerTool{Name: one.GetName(), Object: one.GetObject()})
	}
	r.mu.Lock()
	r.tools, r.trusted, r.heard = tools, true, true
	close(r.told)
	r.told = make(chan struct{})
	r.mu.Unlock()
	if r.config.Tools != nil {
		r.config.Tools(tools)
	}
}

// budget is a number of bytes that several share.
type budget struct {
	mu    sync.Mutex
	taken int
	freed chan struct{} // closed, and made anew, when something was given back
}

// take waits until there is room for n bytes; alone, any n fits.
func (b *budget) take(ctx context.Context, over <-chan struct{}, n int) error {
	for {
		b.mu.Lock()
		if b.taken == 0 || b.taken+n <= maxUnjudged {
			b.taken += n
			b.mu.Unlock()
			return nil
		}
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-over:
			return wire.Deny(wire.BrokerUnavailable)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fit takes n bytes of limit if they are there. It does not wait.
func (b *budget) fit(n, limit int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken+n > limit {
		return false
	}
	b.taken += n
	return true
}

func (b *budget) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}
