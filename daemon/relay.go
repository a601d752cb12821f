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
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// Limits of relays. Who goes beyond them is refused or has to wait; nobody else is.
const (
	maxJudging  = 64   // calls of one stream that wait for the log: what comes then is read later
	maxGoing    = 1024 // calls of one stream that wait for a person or are on their way
	maxCallMeta = 64 << 10
	maxUnjudged = 16 << 20              // bytes that one process has us hold of what it said: see relays
	maxUntaken  = 4 << 20               // bytes of answers that are made for one process and not on their way
	callWeight  = 2 << 10               // bytes that a call counts beside what it says
	maxMethod   = 128                   // bytes of the name of a method
	maxToolName = 1024                  // and of a tool, which may be any
	maxCall     = 24 * time.Hour        // that a hosted server has for one call
	drainLimit  = 50 * time.Millisecond // for the last messages of a stream
)

// ListServers names the hosted servers of which the run may call a tool now.
func (b broker) ListServers(ctx context.Context, req *brokerv1.ListServersRequest) (*brokerv1.ListServersResponse, error) {
	d := b.d
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	e := r.entry(audit.List)
	e.Action, e.Decision, e.ReasonCode, e.Count = "list-servers", decisionAllow, string(wire.Allowed), uint64(len(d.callableServers(r)))
	if err := d.record(ctx, e); err != nil {
		return nil, err
	}
	if d.over(r) {
		return nil, wire.Deny(wire.RunEnded)
	}
	return &brokerv1.ListServersResponse{Servers: d.callableServers(r)}, nil
}

// callableServers are the hosted servers of which the run may call a tool now, sorted.
func (d *Daemon) callableServers(r *run) []string {
	var names []string
	for _, name := range d.state().hostedServers() {
		if tools, _ := d.callableOf(r, name, d.hosts.offerOf(hostKey{r.subject, name})); len(tools) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// callables are the tools of hosted servers that the run may call now, as they are.
func (d *Daemon) callables(r *run) []string {
	var all []string
	for _, name := range d.state().hostedServers() {
		tools, instructions := d.callableOf(r, name, d.hosts.offerOf(hostKey{r.subject, name}))
		for _, p := range tools {
			all = append(all, name+"/"+p.Tool+"\x00"+p.hash())
		}
		if len(tools) > 0 {
			all = append(all, name+"/\x00"+instructions)
		}
	}
	return all
}

// hostedServers are the names of the servers that the daemon has run, sorted. It
// takes mu.
func (s *state) hostedServers() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var names []string
	for name, server := range s.servers {
		if server.Hosted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// callableOf are the tools of a trusted server that the run may call now, as far as
// that can be said of the tool alone, and the server's instructions. What is not
// listed here is refused.
func (d *Daemon) callableOf(r *run, server string, o *offer) (tools []pin, instructions string) {
	st := d.state()
	now := d.clock.now()
	policy := st.policyOf(r.subject, server)
	if policy != nil && (policy.Observes(now) || st.observed(server, now)) {
		policy = nil
	}
	if policy != nil && st.meters.killedBy(r.subject, server, r.launchID()) != "" {
		return nil, ""
	}
	all, instructions := st.callableTools(server, o)
	at := d.clock.read()
	for _, p := range all {
		if policy != nil && !policy.Offers(p.Tool) {
			continue
		}
		capability := grants.Capability{Action: grants.Call, Object: server + "/" + p.Tool}
		if st.decide(r.asker(), capability, at).Outcome != grants.Denied {
			tools = append(tools, p)
		}
	}
	return tools, instructions
}

// launchID is the launch that the run is in; empty: none.
func (r *run) launchID() string {
	if r.launch == nil {
		return ""
	}
	return r.launch.id
}

// relays are the open streams, and what they have us hold for each process over all
// of its connections: what its clients have said and is not judged, what servers
// that it runs offer, and answers that it has not taken.
type relays struct {
	mu      sync.Mutex
	open    map[*relay]struct{}
	bytes   map[peer.ProcessKey]int64 // said
	untaken map[peer.ProcessKey]int64 // answers
	taken   chan struct{}             // closed, and made anew, when an answer was taken; nil: nobody waits
	tasks   sync.WaitGroup            // calls
}

func newRelays() *relays {
	return &relays{open: map[*relay]struct{}{}, bytes: map[peer.ProcessKey]int64{}, untaken: map[peer.ProcessKey]int64{}}
}

// hold reserves room for what was said, or reports that the process has too much.
func (rs *relays) hold(key peer.ProcessKey, n int64) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.bytes[key]+n > maxUnjudged {
		return false
	}
	rs.bytes[key] += n
	return true
}

func (rs *relays) release(key peer.ProcessKey, n int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.bytes[key] -= n; rs.bytes[key] <= 0 {
		delete(rs.bytes, key)
	}
}

// offerAnswer reserves room for a piece of an answer. With wait it waits until there
// is some, or the stream is over.
func (rs *relays) offerAnswer(s *relay, n int64, wait bool) bool {
	key := s.run.peer.Key()
	for {
		rs.mu.Lock()
		if _, open := rs.open[s]; !open {
			rs.mu.Unlock()
			return false
		}
		if rs.untaken[key] == 0 || rs.untaken[key]+n <= maxUntaken {
			rs.untaken[key] += n
			s.untaken += n
			rs.mu.Unlock()
			return true
		}
		if rs.taken == nil {
			rs.taken = make(chan struct{})
		}
		taken := rs.taken
		rs.mu.Unlock()
		if !wait {
			return false
		}
		select {
		case <-taken:
		case <-s.ctx.Done():
			return false
		}
	}
}

// tookAnswer gives back the room of a piece, or of all of a stream that is over.
func (rs *relays) tookAnswer(s *relay, n int64) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.took(s, n)
}

func (rs *relays) took(s *relay, n int64) {
	n = min(n, s.untaken)
	if n == 0 {
		return
	}
	s.untaken -= n
	key := s.run.peer.Key()
	if rs.untaken[key] -= n; rs.untaken[key] <= 0 {
		delete(rs.untaken, key)
	}
	if rs.taken != nil {
		close(rs.taken)
		rs.taken = nil
	}
}

func (rs *relays) add(s *relay) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.open[s] = struct{}{}
}

func (rs *relays) remove(s *relay) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.open, s)
	rs.took(s, s.untaken)
}

// kill ends the streams of a session; of all of the subject's, where its server is
// stopped.
func (rs *relays) kill(subject, server, launch string, stopped bool, policy string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for s := range rs.open {
		if s.run.subject == subject && s.server == server && (stopped && s.hosted || s.run.launchID() == launch) {
			select {
			case s.killed <- policy:
			default: // it is on its way already
			}
		}
	}
}

// count is the number of open streams.
func (rs *relays) count() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.open)
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
	begun  chan struct{}   // closed when what is read can be dealt with
	read   chan error      // why nothing more is read

	mu    sync.Mutex
	over  bool
	last  uint64 // highest number of a call
	parts *relayCall
	calls map[uint64]*relayCall // that are being judged, or on their way
	offer *offer                // of a wrapped server; nil: it has not said
	holds int64                 // bytes of relays, for offer

	// Of the reader alone, until it is done.
	ending *endPieces
	coming *offerPieces
}

// endPieces is how a call ended, as far as it was said.
type endPieces struct {
	id        uint64
	end       rules.End
	delivered bool
	answer    []byte
	lost      bool // there is no room for the answer
	held      int64
}

// offerPieces is what a server offers, as far as it was said.
type offerPieces struct {
	wire.JoinedTools
	held int64
}

// relayCall is one call of a stream.
type relayCall struct {
	id       uint64
	method   string
	tool     string
	args     []byte
	meta     []byte
	progress bool
	came     uint64      // how many starts of servers had failed then
	refused  wire.Reason // it is refused whatever it is; empty: not yet
	held     int64       // bytes that it holds of relays

	ctx    context.Context //nolint:containedctx // ends when the client does not wait any more
	cancel context.CancelFunc
	going  *forwarded // guarded by relay.mu; nil: it is not on its way
}

// Relay judges what one client says to one server.
func (b broker) Relay(stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse]) error {
	d := b.d
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	s := &relay{
		d: d, stream: stream, ctx: ctx, cancel: cancel,
		out: make(chan outgoing, 16), placed: make(chan placedCall, maxJudging), killed: make(chan string, 1),
		heard: make(chan struct{}, 1), begun: make(chan struct{}), read: make(chan error, 1), calls: map[uint64]*relayCall{},
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
	e.Server = s.server
	known, _ := d.state().server(s.server)
	switch {
	case s.hosted && !known.Hosted:
		e.Cause = causeNoServer
	case s.hosted && !slices.Contains(d.callableServers(r), s.server):
		e.Cause = string(grants.CauseNoGrant)
	case !s.hosted && known.Hosted:
		e.Cause = causeHosted
	}
	if e.Cause != "" {
		e.Decision, e.ReasonCode = decisionDeny, string(wire.AccessDenied)
		if err := d.recordDenial(s.ctx, r.peer, e); err != nil {
			return err
		}
		return wire.Deny(wire.AccessDenied)
	}
	e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
	st := d.state()
	opened := meterEvent{what: meterOpen, subject: r.subject, server: s.server, launch: r.launchID(), policy: st.policyOf(r.subject, s.server)}
	noted := false
	ticket, err := d.log().Append(func(seq uint64, now time.Time) (audit.Entry, error) {
		opened.seq, opened.at, noted = seq, now, true
		st.meters.note(opened)
		return e, nil
	})
	if err == nil {
		err = ticket.Wait(s.ctx)
	}
	if err != nil {
		if noted {
			s.left(st)
		}
		return wire.Deny(wire.AuditFailed)
	}
	d.relays.add(s)
	return nil
}

// left counts that the stream is over.
func (s *relay) left(st *state) {
	st.meters.note(meterEvent{what: meterClose, subject: s.run.subject, server: s.server, launch: s.run.launchID(), at: s.d.clock.now()})
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
	s.left(s.d.state())
}

// serve goes on until the client, the run, policy or the daemon ends it.
func (s *relay) serve() error {
	d, r := s.d, s.run
	w := d.hub.watch(r.subject)
	defer d.hub.unwatch(w)
	written := make(chan struct{})
	go s.writer(written)
	var methods []string
	if policy := d.state().policyOf(r.subject, s.server); policy != nil {
		methods = policy.Policy().Methods
	}
	s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Opened{Opened: &brokerv1.RelayOpened{
		Methods: methods, Trusted: s.hosted || d.state().trusted(s.server),
	}}})
	told := s.tell(nil)
	close(s.begun)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	s.arm(timer)
	if policy := s.killedBy(); policy != "" {
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
			told = s.tell(told)
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
	st, now := s.d.state(), s.d.clock.now()
	policy := st.policyOf(s.run.subject, s.server)
	if policy == nil || policy.Observes(now) || st.observed(s.server, now) {
		return ""
	}
	return st.meters.killedBy(s.run.subject, s.server, s.run.launchID())
}

// arm sets the timer to when the session has lasted as long as it may, if that ends
// it.
func (s *relay) arm(timer *time.Timer) {
	at, action := s.deadline()
	wait := time.Hour // a clock may be set meanwhile
	if action == rules.Kill {
		wait = min(wait, max(at.Sub(s.d.clock.now()), 0))
	}
	timer.Reset(wait)
}

func (s *relay) deadline() (time.Time, rules.Action) {
	st := s.d.state()
	now := s.d.clock.now()
	policy := st.policyOf(s.run.subject, s.server)
	if policy == nil || policy.Observes(now) || st.observed(s.server, now) {
		return time.Time{}, ""
	}
	return st.meters.deadline(meterEvent{subject: s.run.subject, server: s.server, launch: s.run.launchID(), at: now}, policy)
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
	if !s.hosted && !s.d.state().trusted(s.server) {
		return nil
	}
	o := s.offered()
	tools, instructions := s.d.callableOf(s.run, s.server, o)
	message := &brokerv1.RelayTools{}
	now := []string{instructions}
	for _, p := range tools {
		tool := &brokerv1.ServerTool{Name: p.Tool}
		if s.hosted {
			tool.Object = p.Object
		}
		message.Tools = append(message.Tools, tool)
		now = append(now, p.Tool+"\x00"+p.hash())
	}
	if s.hosted {
		message.Instructions = instructions
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
	switch m := message.GetMessage().(type) {
	case *brokerv1.RelayRequest_Call:
		return s.call(m.Call)
	case *brokerv1.RelayRequest_Cancel:
		s.mu.Lock()
		c := s.calls[m.Cancel.GetId()]
		s.mu.Unlock()
		if c != nil { // else it has ended meanwhile
			c.cancel()
		}
		return nil
	case *brokerv1.RelayRequest_Outcome:
		return s.outcome(m.Outcome)
	case *brokerv1.RelayRequest_Listed:
		return s.listed(m.Listed)
	}
	return s.malformed()
}

// call takes in a call, or a piece of one.
func (s *relay) call(m *brokerv1.RelayCall) error {
	s.mu.Lock()
	c := s.parts
	rest := c != nil
	switch {
	case rest && (m.GetId() != c.id || m.GetMethod() != "" || m.GetTool() != "" || m.GetProgress()),
		!rest && m.GetId() <= s.last,
		rest && len(c.meta)+len(m.GetMeta()) > maxCallMeta, len(m.GetMeta()) > maxCallMeta, len(m.GetMethod()) > maxMethod,
		m.GetMore() && len(m.GetArguments())+len(m.GetMeta()) == 0:
		s.mu.Unlock()
		return s.malformed()
	case !rest:
		s.last = m.GetId()
		c = &relayCall{id: m.GetId(), method: m.GetMethod(), tool: m.GetTool(), progress: m.GetProgress(), came: s.d.hosts.misses.Load()}
		if len(c.tool) > maxToolName {
			c.refused = wire.InvalidArgument
		}
		if !s.room(c, callWeight) || len(s.calls) >= maxGoing {
			c.refuse(s, wire.RateLimited)
		}
	}
	switch {
	case c.refused != "":
	case len(c.args)+len(m.GetArguments()) > rules.MaxArgs:
		c.refuse(s, wire.InvalidArgument)
	case !s.room(c, len(m.GetArguments())+len(m.GetMeta())):
		c.refuse(s, wire.RateLimited)
	case !rest && !m.GetMore(): // the message is not used any more
		c.args, c.meta = m.GetArguments(), m.GetMeta()
	default:
		c.args, c.meta = append(c.args, m.GetArguments()...), append(c.meta, m.GetMeta()...)
	}
	s.parts = nil
	if m.GetMore() && !s.over {
		s.parts = c
		s.mu.Unlock()
		return nil
	}
	if s.over {
		s.letGo(c)
		s.mu.Unlock()
		return s.ctx.Err()
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(s.ctx)) // see close
	s.calls[c.id] = c
	s.mu.Unlock()
	if !s.hosted {
		s.judge(c)
		return nil
	}
	select {
	case s.queue <- c:
		return nil
	case <-s.ctx.Done():
		s.forget(c)
		return s.ctx.Err()
	}
}

// room reserves room for n bytes of a call.
func (s *relay) room(c *relayCall, n int) bool {
	if n == 0 {
		return true
	}
	if !s.d.relays.hold(s.run.peer.Key(), int64(n)) {
		return false
	}
	c.held += int64(n)
	return true
}

// refuse drops what was read of a call.
func (c *relayCall) refuse(s *relay, reason wire.Reason) {
	c.refused, c.args, c.meta = reason, nil, nil
	s.letGo(c)
}

// letGo gives back the room of a call.
func (s *relay) letGo(c *relayCall) {
	if c.held > 0 {
		s.d.relays.release(s.run.peer.Key(), c.held)
		c.held = 0
	}
}

// letGoArgs gives back the room of what a call said: it is only on its way.
func (s *relay) letGoArgs(c *relayCall) {
	if more := c.held - callWeight; more > 0 {
		s.d.relays.release(s.run.peer.Key(), more)
		c.held = callWeight
	}
}

// forget ends a call of the stream.
func (s *relay) forget(c *relayCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.cancel()
	delete(s.calls, c.id)
	s.letGo(c)
}

// judge brings a call to its place in the log, or to a person. Whoever was asked
// already may have answered for this call too: then it is its turn.
func (s *relay) judge(c *relayCall) {
	passed := make(chan struct{})
	waited := false // set before passed is closed
	g := s.start(c, func() {
		waited = true
		close(passed)
	})
	if g.asks() {
		s.d.relays.tasks.Go(func() {
			g.person(s.ctx)
			g.place()
			if waited {
				s.settle(c, g.finish(s.ctx))
				return
			}
			close(passed)
		})
		if <-passed; waited {
			return
		}
	} else {
		g.place()
	}
	if !g.waits() {
		s.settle(c, g.finish(s.ctx))
		return
	}
	s.placed <- placedCall{c, g, time.Now()} // s.finish takes it, also when the stream is over
}

// placedCall is a call that has its place in the log.
type placedCall struct {
	call    *relayCall
	judging *judging
	since   time.Time
}

// finish tells what came of calls once they are durable, in the order of their
// places: what comes later is not durable earlier.
func (s *relay) finish() {
	for one := range s.placed {
		s.settle(one.call, s.await(one))
	}
}

// await waits for the log. Where that does not answer, those behind the first do not
// wait as long again.
func (s *relay) await(one placedCall) judged {
	ctx := s.ctx
	if age := time.Since(one.since); age > audit.DefaultWaitLimit/4 {
		limited, cancel := context.WithTimeout(ctx, max(audit.DefaultWaitLimit-age, 0))
		defer cancel()
		ctx = limited
	}
	return one.judging.finish(ctx)
}

// settle tells what came of a call that was judged; a hosted one it forwards.
func (s *relay) settle(c *relayCall, j judged) {
	message := &brokerv1.RelayVerdict{
		Id: c.id, Forward: j.forward, Code: j.code, Message: j.message, Policy: j.policy, Action: j.action,
		ReasonCode: string(j.reason), ApprovalId: j.approvalID, Next: j.next,
	}
	if j.replay != nil {
		message.Replay, message.ReplayError = j.replay.answer, j.replay.isError
	}
	verdict := &brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Verdict{Verdict: message}}
	switch {
	case j.going == nil: // nothing is on its way of which anybody tells how it ends
		s.forget(c)
		s.send(verdict)
		if j.killed {
			s.d.kill(s.run, s.server, s.hosted, j.policy)
		}
	case !s.hosted:
		message.Approved = j.going.approved()
		s.mu.Lock()
		s.letGoArgs(c)
		c.args, c.meta, c.going = nil, nil, j.going
		s.mu.Unlock()
		if !s.send(verdict) {
			s.forget(c)
			j.going.end(rules.EndCancelled, nil, false)
		}
	default:
		message.Approved = j.going.approved()
		s.mu.Lock()
		c.going = j.going
		s.mu.Unlock()
		if !s.send(verdict) {
			s.forget(c)
			j.going.end(rules.EndCancelled, nil, false)
			return
		}
		sent := make(chan struct{})
		s.d.relays.tasks.Go(func() {
			defer s.forget(c)
			s.forward(c, j.going, sync.OnceFunc(func() { close(sent) }))
		})
		<-sent // the next one goes out after it
	}
}

// start decides about a call as far as that needs nobody. waits is called when a
// person is waited for.
func (s *relay) start(c *relayCall, waits func()) *judging {
	d, r := s.d, s.run
	isCall := c.method == "tools/call" || c.method == "call_tool"
	switch {
	case c.refused != "":
		ask := &callAsk{d: d, run: r, call: toolCall{server: s.server}}
		if c.refused == wire.RateLimited {
			d.budgets.suppress(r.peer.Key(), d.clock.now())
			return ask.refuse(noted{none: true}, wire.RateLimited)
		}
		e := r.entry(audit.Call)
		e.Server, e.Tool = s.server, d.maskedTool(s.server, c.tool)
		if err := d.admit(s.ctx, r.peer, r.subject); err != nil {
			return ask.refuse(noted{err: err}, "")
		}
		return ask.refuse(d.noteMalformed(r.peer, e), wire.InvalidArgument)
	case !isCall:
		return d.beginMethod(s.ctx, r, s.server, c.method)
	}
	return d.beginCall(r, toolCall{
		ctx: c.ctx, server: s.server, hosted: s.hosted, tool: c.tool, args: c.args, came: c.came, offer: s.offered(),
		waiting: func(approvalID string) {
			waits()
			s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Waiting{Waiting: &brokerv1.RelayWaiting{Id: c.id, ApprovalId: approvalID}}})
		},
	})
}

// forward lets the host of a server make a call, and passes the answer on. sent is
// called when the host has the call, or never will.
func (s *relay) forward(c *relayCall, going *forwarded, sent func()) {
	defer sent()
	end, delivered := brokerv1.RelayEnd_RELAY_END_TRANSPORT, false
	var kept []byte
	call := hostCall{
		run: s.run, tool: c.tool, pin: going.ask.pin, args: c.args, meta: c.meta, progress: c.progress, sent: sent,
		answer: func(piece []byte, more bool, how hostv1.End) error {
			end = relayEnds[how]
			if going.approved() && len(kept)+len(piece) <= maxKeptAnswer {
				kept = append(kept, piece...)
			}
			if !s.sendAnswer(c.id, piece, more, end) {
				if going.approved() {
					return nil
				}
				return s.ctx.Err()
			}
			delivered = !more
			return nil
		},
	}
	if c.progress {
		call.onProgress = func(params []byte) {
			if n := int64(len(params)); s.d.relays.offerAnswer(s, n, false) { // it is for looking at
				s.sendHeld(outgoing{&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Progress{Progress: &brokerv1.RelayProgress{Id: c.id, Params: params}}}, n})
			}
		}
	}
	ctx, cancel := context.WithTimeout(c.ctx, maxCall)
	defer cancel()
	defer context.AfterFunc(s.d.life, cancel)()
	err := s.d.hosts.call(ctx, hostKey{s.run.subject, s.server}, call)
	switch {
	case ctx.Err() != nil && !delivered:
		going.end(rules.EndCancelled, nil, false)
		return
	case err != nil && !delivered:
		end = brokerv1.RelayEnd_RELAY_END_TRANSPORT
		s.send(&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{Id: c.id, End: end}}})
	}
	going.end(endsOf[end], kept, delivered)
}

// sendAnswer sends a piece of an answer in pieces that are small enough. It waits
// until the process has taken enough of what came before.
func (s *relay) sendAnswer(id uint64, piece []byte, more bool, end brokerv1.RelayEnd) bool {
	for {
		n := min(len(piece), wire.PieceSize)
		if n > 0 && !s.d.relays.offerAnswer(s, int64(n), true) {
			return false
		}
		rest := more || n < len(piece)
		if !s.sendHeld(outgoing{&brokerv1.RelayResponse{Message: &brokerv1.RelayResponse_Answer{Answer: &brokerv1.RelayAnswer{
			Id: id, Piece: piece[:n], More: rest, End: end,
		}}}, int64(n)}) {
			return false
		}
		if piece = piece[n:]; len(piece) == 0 {
			return true
		}
	}
}

// relayEnds are the ends of calls, as hosts and relays say them.
var relayEnds = map[hostv1.End]brokerv1.RelayEnd{
	hostv1.End_END_OK: brokerv1.RelayEnd_RELAY_END_OK, hostv1.End_END_TOOL_ERROR: brokerv1.RelayEnd_RELAY_END_TOOL_ERROR,
	hostv1.End_END_ERROR: brokerv1.RelayEnd_RELAY_END_ERROR, hostv1.End_END_TRANSPORT: brokerv1.RelayEnd_RELAY_END_TRANSPORT,
}

// endsOf are the same, as policies count them.
var endsOf = map[brokerv1.RelayEnd]rules.End{
	brokerv1.RelayEnd_RELAY_END_OK: rules.EndOK, brokerv1.RelayEnd_RELAY_END_TOOL_ERROR: rules.EndToolError,
	brokerv1.RelayEnd_RELAY_END_ERROR: rules.EndError, brokerv1.RelayEnd_RELAY_END_TRANSPORT: rules.EndTransport,
	brokerv1.RelayEnd_RELAY_END_CANCELLED: rules.EndCancelled,
}

// outcome takes in how a wrapped call ended, or a piece of it. One that nobody waits
// for is late.
func (s *relay) outcome(m *brokerv1.RelayOutcome) error {
	key := s.run.peer.Key()
	o := s.ending
	end, known := endsOf[m.GetEnd()]
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	switch {
	case s.hosted, m.GetMore() && len(m.GetAnswer()) == 0,
		o == nil && (!known || m.GetId() > last),
		o != nil && (m.GetId() != o.id || m.GetEnd() != 0 || m.GetDelivered()):
		return s.malformed()
	case o == nil:
		o = &endPieces{id: m.GetId(), end: end, delivered: m.GetDelivered()}
	}
	switch n := int64(len(m.GetAnswer())); {
	case len(o.answer)+len(m.GetAnswer()) > maxKeptAnswer:
		return s.malformed()
	case n == 0 || o.lost:
	case !s.d.relays.hold(key, n):
		o.lost = true
	default:
		o.held += n
		o.answer = append(o.answer, m.GetAnswer()...)
	}
	if m.GetMore() {
		s.ending = o
		return nil
	}
	s.ending = nil
	if o.held > 0 {
		defer s.d.relays.release(key, o.held)
	}
	if o.lost {
		o.answer = nil
	}
	s.mu.Lock()
	c := s.calls[o.id]
	if c == nil || c.going == nil {
		s.mu.Unlock()
		return nil
	}
	going := c.going
	delete(s.calls, c.id)
	s.letGo(c)
	c.cancel()
	s.mu.Unlock()
	going.end(o.end, o.answer, o.delivered)
	return nil
}

// listed takes in what a wrapped server says that it offers, or a piece of it.
func (s *relay) listed(m *brokerv1.RelayListed) error {
	key := s.run.peer.Key()
	if s.hosted {
		return s.malformed()
	}
	l := s.coming
	if l == nil {
		l = &offerPieces{}
		s.coming = l
	}
	before := l.Size()
	if err := l.Add(wire.ToolPiece{Tools: m.GetTools(), Instructions: m.GetInstructions(), More: m.GetMore()}, maxOfferedBytes+maxOffered*64); err != nil {
		return s.malformed()
	}
	if n := int64(l.Size() - before); !s.d.relays.hold(key, n) {
		s.d.budgets.suppress(key, s.d.clock.now())
		return wire.Deny(wire.RateLimited)
	} else {
		l.held += n
	}
	if m.GetMore() {
		return nil
	}
	o, err := newOffer(&l.JoinedTools)
	if err != nil {
		return s.malformed()
	}
	s.coming = nil
	s.mu.Lock()
	old := s.holds
	if s.offer, s.holds = o, l.held; s.over {
		old, s.holds = old+s.holds, 0
	}
	s.mu.Unlock()
	if old > 0 {
		s.d.relays.release(key, old)
	}
	s.d.offered(s.run.subject, s.server, o, nil)
	select {
	case s.heard <- struct{}{}:
	default:
	}
	return nil
}

// dropPieces forgets what was not said to the end.
func (s *relay) dropPieces() {
	held := int64(0)
	if s.ending != nil {
		held += s.ending.held
	}
	if s.coming != nil {
		held += s.coming.held
	}
	s.ending, s.coming = nil, nil
	if held > 0 {
		s.d.relays.release(s.run.peer.Key(), held)
	}
}

// newOffer is what a list says. The error says that it is none.
func newOffer(m *wire.JoinedTools) (*offer, error) {
	all := &hostv1.Listed{Instructions: m.Instructions}
	for _, t := range m.Tools {
		all.Tools = append(all.Tools, &hostv1.Tool{Name: t.GetName(), Object: t.GetObject()})
	}
	o, err := (*offering)(nil).add(all)
	if err != nil {
		return nil, err
	}
	return o.offer(), nil
}
