package daemon

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Limits of relays. Who goes beyond them is refused or has to wait; nobody else is.
const (
	maxJudging  = 64      // calls of one stream that wait for the log: what comes then is read later
	maxGoing    = 1024    // calls of one stream that wait for a person or are on their way
	maxLeftSaid = 4 << 10 // bytes of what a client says when it cancels a call
	maxCallMeta = 64 << 10
	maxUnjudged = 16 << 20              // bytes that one process has us hold of what it said: see relays
	maxUntaken  = 4 << 20               // bytes of answers that are made for one process and not on their way
	callWeight  = 2 << 10               // bytes that a call counts beside what it says
	maxMethod   = 128                   // bytes of the name of a method
	maxToolName = 1024                  // and of a tool, which may be any
	maxCall     = 24 * time.Hour        // that a hosted server has for one call
	drainLimit  = 50 * time.Millisecond // for the last messages of a stream
)

// launchID is the launch that the run is in; empty: none.
func (r *run) launchID() string {
	if r.launch == nil {
		return ""
	}
	return r.launch.id
}

// relay is one stream: what one client says to one server. One goroutine reads it
// and brings each call to its place in the log, or to a person, in the order in
// which they came; for a hosted server, which may have to be started, that is
// another one. One waits until what has its place is durable. A call that waits for
// a person, or is on its way to a hosted server, has a goroutine of its own.
type relay struct {
	d      *Daemon
	run    *run
	server string
	hosted bool
	stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse]
	ctx    context.Context //nolint:containedctx // of the stream: its goroutines end with it
	cancel context.CancelFunc

	out     chan outgoing
	writing sync.Mutex   // held while the stream is written
	queued  atomic.Int64 // messages that come before any other
	untaken int64        // bytes of answers; guarded by relays.mu

	queue  chan *relayCall // hosted: what comes to its place in the log
	placed chan placedCall // has it, and is not durable yet
	killed chan string     // policy
	heard  chan struct{}   // the server's tools have come
	lasts  chan struct{}   // the session has begun, and may have to end
	begun  chan struct{}   // closed when what is read can be dealt with
	read   chan error      // why nothing more is read

	mu    sync.Mutex
	over  bool
	last  uint64 // highest number of a call
	parts *relayCall
	calls map[uint64]*relayCall // that are being judged, or on their way
	offer *offer                // of a wrapped server; nil: it has not said
	holds int64                 // bytes of relays, for offer

	counted *state // where it is counted as open; of begin, serve and close alone

	// Of the reader alone, until it is done.
	ending *endPieces
	coming *offerPieces
}

// Relay judges what one client says to one server.
func (b broker) Relay(stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse]) error {
	d := b.d
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	s := &relay{
		d: d, stream: stream, ctx: ctx, cancel: cancel,
		out: make(chan outgoing, 16), placed: make(chan placedCall, maxJudging), killed: make(chan string, 1),
		heard: make(chan struct{}, 1), lasts: make(chan struct{}, 1), begun: make(chan struct{}), read: make(chan error, 1), calls: map[uint64]*relayCall{},
	}
	first := make(chan *brokerv1.RelayRequest)
	go s.reader(first)
	var open *brokerv1.RelayOpen
	select {
	case err := <-s.read:
		return err
	case message := <-first:
		open = message.GetOpen()
	case <-d.life.Done():
		return wire.Deny(wire.BrokerUnavailable)
	}
	if err := s.begin(open); err != nil {
		return err
	}
	defer s.close()
	return s.serve()
}

// begin identifies the run and writes the stream's entry.
func (s *relay) begin(open *brokerv1.RelayOpen) error {
	d := s.d
	r, err := d.identify(s.ctx, open.GetRunId())
	if err != nil {
		return err
	}
	s.run, s.server, s.hosted = r, open.GetServer(), open.GetMode() == brokerv1.RelayMode_RELAY_MODE_HOSTED
	e := r.entry(kindRunRelay)
	if grants.CheckServer(s.server) != nil || !s.hosted && open.GetMode() != brokerv1.RelayMode_RELAY_MODE_WRAPPED {
		e.Server = d.nameOrMask(s.server)
		return d.malformed(s.ctx, r.peer, e)
	}
	// Which servers there are, and who may call what, is told by the verdicts on calls
	// alone: each has its entry with its true cause.
	e.Server, e.Decision, e.ReasonCode = s.server, decisionAllow, string(wire.Allowed)
	st := d.state()
	opened := meterEvent{what: meterOpen, subject: r.subject, server: s.server, launch: r.launchID(), policy: st.policyOf(r.subject, s.server)}
	counts := !s.misnamed(st)
	if counts {
		s.counted = st
	}
	noted := false
	ticket, err := d.log().Append(func(seq uint64, now time.Time) (audit.Entry, error) {
		if counts {
			opened.seq, opened.at, noted = seq, now, true
			st.meters.note(opened)
		}
		return e, nil
	})
	if err == nil {
		err = ticket.Wait(s.ctx)
	}
	if err != nil {
		if noted {
			s.left()
		}
		return wire.Deny(wire.AuditFailed)
	}
	d.relays.add(s)
	return nil
}

// misnamed reports whether the stream is of a wrapped server under the name of a hosted
// one. Nothing of it may be called, and it has no part in what is counted for that. It
// takes mu.
func (s *relay) misnamed(st *state) bool { return !s.hosted && st.isHosted(s.server) }

// left counts that the stream is over, where it was counted that it is open: what is
// in force now may have been read from the vault since, and not know of it.
func (s *relay) left() {
	if s.counted == nil {
		return
	}
	s.counted.meters.note(meterEvent{what: meterClose, subject: s.run.subject, server: s.server, launch: s.run.launchID(), at: s.d.clock.now()})
}

// close ends what is still on its way: nobody waits for it any more.
func (s *relay) close() {
	s.cancel()
	s.d.relays.remove(s)
	s.mu.Lock()
	s.over = true
	var going []*forwarded
	for id, c := range s.calls {
		switch {
		case c.going == nil:
			c.cancel()
		case !s.hosted:
			c.cancel()
			going = append(going, c.going)
			delete(s.calls, id)
			s.letGo(c)
		case !c.going.approved(): // whoever asks again gets the answer of one that was
			c.cancel()
		}
	}
	if s.parts != nil {
		s.letGo(s.parts)
		s.parts = nil
	}
	d, holds := s.d, s.holds
	s.holds = 0
	s.mu.Unlock()
	if holds > 0 {
		d.relays.release(s.run.peer.Key(), holds)
	}
	for _, one := range going {
		one.end(rules.EndCancelled, nil, false)
	}
	s.left()
}

// moved counts the stream as open in what is in force now, where that was read from
// the vault since.
func (s *relay) moved() {
	if st := s.d.state(); st.open && st != s.counted && !s.misnamed(st) {
		s.counted = st
		st.meters.note(meterEvent{
			what: meterOpen, subject: s.run.subject, server: s.server, launch: s.run.launchID(), at: s.d.clock.now(),
			policy: st.policyOf(s.run.subject, s.server),
		})
	}
}

// serve goes on until the client, the run, policy or the daemon ends it.
func (s *relay) serve() error {
	d, r := s.d, s.run
	w := d.hub.watch(r.subject)
	defer d.hub.unwatch(w)
	s.moved()
	written := make(chan struct{})
	go s.writer(written)
	var methods []string
	if policy := d.state().policyOf(r.subject, s.server); policy != nil {
		methods = policy.Policy().Methods
	}
	s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Opened{Opened: &brokerv1.RelayOpened{
		Methods: methods, Trusted: s.hosted || d.state().trusted(s.server) || s.misnamed(d.state()),
		Ended: true,
	}}})
	told := s.tell(nil)
	close(s.begun)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	s.arm(timer)
	if policy := s.killedBy(); policy != "" && !s.hosted { // calls of a hosted server are told, until it is restarted
		select {
		case s.killed <- policy:
		default: // it is on its way already
		}
	}
	var idle chan struct{} // closed when what was read has been answered
	for {
		select {
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-r.done:
			r.mu.Lock()
			reason := r.reason
			r.mu.Unlock()
			return wire.Deny(reason)
		case <-d.life.Done():
			return wire.Deny(wire.BrokerUnavailable)
		case <-written: // the client is gone, or does not read
			return wire.Deny(wire.BrokerUnavailable)
		case policy := <-s.killed:
			s.releaseWaiting()
			s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Kill{Kill: &brokerv1.RelayKill{
				Message: "the session was ended by " + policy + " (kill). " + nextStep, Policy: policy,
			}}})
			return s.drain(written)
		case err := <-s.read:
			if !errors.Is(err, io.EOF) {
				return err
			}
			idle = make(chan struct{})
			go s.awaitIdle(idle)
		case <-idle:
			return s.drain(written)
		case <-timer.C:
			s.ripe()
			s.arm(timer)
		case <-w.dirty:
			w.take()
			s.moved()
			told = s.tell(told)
			s.arm(timer)
		case <-s.lasts:
			s.arm(timer)
		case <-s.heard:
			told = s.tell(nil) // in any case: the other side waits for it before it shows what its server lists
		}
	}
}

// awaitIdle closes idle when no call is being judged any more, and none is on its way of
// which anything is still to be told.
func (s *relay) awaitIdle(idle chan struct{}) {
	for {
		s.mu.Lock()
		left := false
		for _, c := range s.calls {
			left = left || s.hosted || c.going == nil
		}
		s.mu.Unlock()
		if !left {
			close(idle)
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// drain lets the last messages out.
func (s *relay) drain(written <-chan struct{}) error {
	timer := time.NewTimer(drainLimit)
	defer timer.Stop()
	select {
	case s.out <- outgoing{}:
	case <-timer.C:
		return nil
	}
	select {
	case <-written:
	case <-timer.C:
	}
	return nil
}

// killedBy is the policy that killed the stream's session; empty: none did, or its
// rules only log.
func (s *relay) killedBy() string {
	st := s.d.state()
	policy := st.policyOf(s.run.subject, s.server)
	if policy == nil || st.observes(policy, s.d.clock.reached()) || s.misnamed(st) {
		return ""
	}
	return st.meters.killedBy(s.run.subject, s.server, s.run.launchID())
}

// releaseLimit is how long a stream that was killed goes on until its calls that wait
// for a person are told so.
const releaseLimit = 2 * time.Second

// releaseWaiting sees to it that calls that wait for a person get the answer of the
// policy that killed the session, before the stream is over: see callAsk.person.
func (s *relay) releaseWaiting() {
	s.d.sweep()
	for end := time.Now().Add(releaseLimit); time.Now().Before(end); {
		s.mu.Lock()
		left := false
		for _, c := range s.calls {
			left = left || c.going == nil
		}
		s.mu.Unlock()
		if !left {
			return
		}
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// arm sets the timer to when the session has lasted as long as it may, if that ends
// it.
func (s *relay) arm(timer *time.Timer) {
	at, action := s.deadline()
	wait := time.Hour // a clock may be set meanwhile
	if action == rules.Kill && s.killedBy() == "" {
		wait = min(wait, max(at.Sub(s.d.clock.now()), 0))
	}
	timer.Reset(wait)
}

func (s *relay) deadline() (time.Time, rules.Action) {
	st := s.d.state()
	policy := st.policyOf(s.run.subject, s.server)
	if policy == nil || st.observes(policy, s.d.clock.reached()) || s.misnamed(st) {
		return time.Time{}, ""
	}
	return st.meters.deadline(meterEvent{subject: s.run.subject, server: s.server, launch: s.run.launchID()}, policy)
}

// ripe kills the session when it has lasted as long as it may.
func (s *relay) ripe() {
	at, action := s.deadline()
	now := s.d.clock.now()
	if action != rules.Kill || now.Before(at) || s.killedBy() != "" {
		return
	}
	st := s.d.state()
	kill := meterEvent{
		what: meterKill, subject: s.run.subject, server: s.server, launch: s.run.launchID(), killedBy: rules.MaxRuntimePolicy, at: now,
		policy: st.policyOf(s.run.subject, s.server),
	}
	if s.hosted {
		kill.what = meterStop
	}
	e := s.run.entry(audit.Call)
	e.Server, e.Decision, e.ReasonCode = s.server, decisionDeny, string(wire.PolicyBlocked)
	e.Cause = policyWords[rules.MaxRuntimePolicy]
	noted := false
	_, _ = s.d.log().Append(func(seq uint64, _ time.Time) (audit.Entry, error) {
		kill.seq, noted = seq, true
		st.meters.note(kill)
		return e, nil
	})
	if !noted {
		st.meters.note(kill)
	}
	s.d.kill(s.run, s.server, s.hosted, rules.MaxRuntimePolicy)
}

// kill ends the streams of a session that a rule has killed, and stops a hosted
// server.
func (d *Daemon) kill(r *run, server string, hosted bool, policy string) {
	d.relays.kill(r.subject, server, r.launchID(), hosted, policy)
	if hosted {
		d.hosts.killByPolicy(hostKey{r.subject, server}, policy)
	}
}

// tell sends what may be called now, if that is not what was told before, and
// returns it. Of a wrapped server that was not trusted nothing is told.
func (s *relay) tell(before []string) []string {
	st := s.d.state()
	var tools []pin
	var instructions string
	switch {
	case s.misnamed(st): // nothing of it
	case !s.hosted && !st.trusted(s.server):
		return nil
	default:
		tools, instructions = s.d.callableOf(s.run, s.server, s.offered())
	}
	message := &brokerv1.RelayTools{Instructions: instructions}
	now := []string{instructions}
	for _, p := range tools {
		tool := &brokerv1.ServerTool{Name: p.Tool}
		if s.hosted {
			tool.Object = p.Object
		}
		message.Tools = append(message.Tools, tool)
		now = append(now, p.Tool+"\x00"+p.hash())
	}
	if before != nil && slices.Equal(before, now) {
		return before
	}
	for _, piece := range wire.CutTools(message.GetTools(), message.GetInstructions()) {
		s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Tools{Tools: &brokerv1.RelayTools{
			Tools: piece.Tools, Instructions: piece.Instructions, More: piece.More,
		}}})
	}
	return now
}

// offered is what the server says that it offers; nil: nobody knows.
func (s *relay) offered() *offer {
	if s.hosted {
		return s.d.hosts.offerOf(hostKey{s.run.subject, s.server})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offer
}

// outgoing is a message on its way to the client; without one nothing more comes.
type outgoing struct {
	message *brokerv1.RelayResponse
	held    int64 // bytes of relays
}

// send writes a message, or hands it to the writer, unless the stream is over.
func (s *relay) send(message *brokerv1.RelayResponse) bool {
	return s.sendHeld(outgoing{message: message})
}

func (s *relay) sendHeld(o outgoing) bool {
	if s.ctx.Err() != nil {
		return false
	}
	if s.queued.Load() == 0 && s.writing.TryLock() {
		if s.queued.Load() == 0 { // what was handed over comes first
			defer s.writing.Unlock()
			return s.write(o) == nil
		}
		s.writing.Unlock()
	}
	s.queued.Add(1)
	select {
	case s.out <- o:
		return true
	case <-s.ctx.Done():
		s.queued.Add(-1)
		return false
	}
}

// write writes a message. The caller holds writing.
func (s *relay) write(o outgoing) error {
	err := s.stream.Send(o.message)
	if o.held > 0 {
		s.d.relays.tookAnswer(s, o.held)
	}
	return err
}

// writer writes what is handed to it until that says that nothing more comes, the
// client does not take any more or the stream is over.
func (s *relay) writer(written chan<- struct{}) {
	defer close(written)
	for {
		select {
		case <-s.ctx.Done():
			return
		case o := <-s.out:
			if o.message == nil {
				return
			}
			s.writing.Lock()
			err := s.write(o)
			s.queued.Add(-1)
			s.writing.Unlock()
			if err != nil {
				return
			}
		}
	}
}

// reader reads the stream. The first message is handed over, the others are dealt
// with here, so that calls are judged in the order in which they were made as far as
// limits are concerned, and what cannot be judged yet is not read.
func (s *relay) reader(first chan<- *brokerv1.RelayRequest) {
	err := func() error {
		message, err := s.stream.Recv()
		if err != nil {
			return err
		}
		select {
		case first <- message:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		select {
		case <-s.begun:
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
		defer s.work()()
		defer s.dropPieces()
		for {
			message, err := s.stream.Recv()
			if err != nil {
				return s.broken(err)
			}
			if err := s.handle(message); err != nil {
				return err
			}
		}
	}()
	s.read <- err
}

// work starts what deals with calls beside the reader, and returns what says that
// no more come.
func (s *relay) work() (over func()) {
	s.d.relays.tasks.Go(s.finish)
	if !s.hosted {
		return func() { close(s.placed) }
	}
	s.queue = make(chan *relayCall, maxGoing)
	s.d.relays.tasks.Go(func() {
		defer close(s.placed)
		for c := range s.queue {
			if s.ctx.Err() != nil {
				s.forget(c)
				continue
			}
			s.judge(c)
		}
	})
	return func() { close(s.queue) }
}

// broken accounts for a message that could not be read at all: it was too large, or
// no message.
func (s *relay) broken(err error) error {
	switch status.Code(err) {
	case grpccodes.ResourceExhausted, grpccodes.Internal, grpccodes.InvalidArgument:
		if malformed := s.malformed(); refusal(malformed).Reason != wire.InvalidArgument {
			return malformed
		}
	}
	return err
}

// malformed ends the stream: what its client says cannot be understood. By the time
// of the entry the stream may be over.
func (s *relay) malformed() error {
	e := s.run.entry(kindRunRelay)
	e.Server = s.server
	return s.d.malformed(context.WithoutCancel(s.ctx), s.run.peer, e)
}

// handle deals with one message after the first. Its error ends the stream.
func (s *relay) handle(message *brokerv1.RelayRequest) error {
	ended := message.GetEnded() // that comes first
	if len(ended) > wire.MaxEnded || len(ended) > 0 && s.ending != nil {
		return s.malformed()
	}
	for _, one := range ended {
		if len(one.GetAnswer()) > 0 || one.GetMore() {
			return s.malformed()
		}
		if err := s.outcome(one); err != nil {
			return err
		}
	}
	switch m := message.GetMessage().(type) {
	case *brokerv1.RelayRequest_Call:
		return s.call(m.Call)
	case *brokerv1.RelayRequest_Cancel:
		s.mu.Lock()
		c := s.calls[m.Cancel.GetId()]
		if c != nil && len(m.Cancel.GetSaid()) <= maxLeftSaid {
			c.left = m.Cancel.GetSaid()
		}
		s.mu.Unlock()
		if c != nil { // else it has ended meanwhile
			c.cancel()
		}
		return nil
	case *brokerv1.RelayRequest_Outcome:
		return s.outcome(m.Outcome)
	case *brokerv1.RelayRequest_Listed:
		return s.listed(m.Listed)
	case nil:
		if len(ended) > 0 {
			return nil
		}
	}
	return s.malformed()
}
