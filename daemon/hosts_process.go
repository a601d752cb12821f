package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// Limits on what a host may say. One that exceeds them is ended: it is ours, and
// either broken or taken over by what it runs.
const (
	maxHostPiece    = 256 << 10 // bytes in a piece of an answer, and of the arguments of a call
	maxHostAnswer   = 65 << 20  // bytes in an answer
	maxHostProgress = 64 << 10  // bytes in a notification
	maxHostWords    = 16        // of what holds for it
	maxHostCalls    = 1024      // open ones

	hostPieces     = 8  // of an answer that wait for who asked
	hostProgresses = 16 // notifications that wait; more are dropped

	hostWriteLimit = 10 * time.Second // for a message to a host that does not read
	hostKillAfter  = time.Second      // that a host has after it should have ended by itself
)

// hostProcess is one process of sb-mcp host, from its start to its end. What it
// says is bounded here, and passed on without being looked into.
type hostProcess struct {
	h         *hosts
	key       hostKey
	server    grants.Server    // that it was told to run
	owner     time.Time        // when its subject was created
	secrets   map[string]facts // that it was given, as they were
	disclosed string
	born      time.Time // when it was started, for how long it ran

	pid       int32
	startTime uint64 // clock ticks since boot
	kill      func() // ends it at once; harmless when it has ended
	conn      net.Conn
	w         *frame.Writer

	ready  chan struct{} // closed when it has said for the first time what the server offers
	silent chan struct{} // closed when nothing is read from it any more
	done   chan struct{} // closed when it is gone, with everything that it started

	offer atomic.Pointer[offer]

	mu          sync.Mutex // taken after hosts.mu, where both are
	calls       map[uint64]*openCall
	lastID      uint64
	users       map[*run]bool
	idle        *time.Timer // to its end, while nobody uses it
	ending      *time.Timer // to its being killed, once it should have ended
	stopping    string      // cause of its being stopped; empty: it is not
	mute        bool        // nothing is read from it any more
	stale       bool        // it is to be started again as soon as it is idle
	listing     chan struct{}
	ended       *hostv1.Ended
	broken      string // what it must not have said
	confinement []string
}

// openCall is a call that the host has and has not answered.
type openCall struct {
	pieces   chan *hostv1.Answer // closed without the last piece when the host dies
	progress chan []byte
	left     chan struct{} // closed when nobody waits any more
	size     int
}

// offers returns what the server offers; nil: it has not said yet.
func (p *hostProcess) offers() *offer { return p.offer.Load() }

// join reports whether the process serves a run as it is, and remembers that it
// does. Where it does not it is on its way out.
func (p *hostProcess) join(r *run, st *state, server grants.Server) bool {
	if !same(p.server, server) {
		p.stop(causeServerSet, hostStopGrace)
		return false
	}
	p.review(st, true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping != "" || p.mute {
		return false
	}
	p.useLocked(r)
	return true
}

// serves reports whether the process has said what the server offers and goes on.
func (p *hostProcess) serves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.offers() != nil && p.stopping == "" && !p.mute
}

// use remembers that a run uses the process.
func (p *hostProcess) use(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.useLocked(r)
}

func (p *hostProcess) useLocked(r *run) {
	if p.idle != nil {
		p.idle.Stop()
	}
	if p.users[r] {
		return
	}
	p.users[r] = true
	p.h.tasks.Go(func() {
		select {
		case <-r.done:
			p.leave(r)
		case <-p.done:
		}
	})
}

// leave says that a run has ended. After the last one the process waits a little
// for another.
func (p *hostProcess) leave(r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.users, r)
	if len(p.users) > 0 || p.stopping != "" {
		return
	}
	p.idle = time.AfterFunc(hostGrace, func() {
		p.mu.Lock()
		unused := len(p.users) == 0
		p.mu.Unlock()
		if unused {
			p.stop(causeServerIdle, hostStopGrace)
		}
	})
}

// review ends the process when it would not be started now as it is: its subject
// may not run any more, none of the runs that use it may use its secrets, more
// could see them than was said, or, as soon as it is idle, they have other
// contents. With entitled it is known that one of those runs may.
func (p *hostProcess) review(st *state, entitled bool) {
	if p.key.subject == "" { // the operator's, which ends by itself
		return
	}
	st.mu.RLock()
	subject, exists := st.set.Subject(p.key.subject)
	stale := false
	for name, used := range p.secrets {
		now, ok := st.catalog[name]
		stale = stale || !ok || !now.created.Equal(used.created) || now.version != used.version
	}
	st.mu.RUnlock()
	if !exists || subject.Disabled || !subject.Created.Equal(p.owner) {
		p.stop(causeSubjectChanged, 0)
		return
	}
	if p.disclosed == disclosedNo && p.h.disclosure(st, p.key.subject) != disclosedNo {
		p.stop(causeSubjectChanged, hostStopGrace)
		return
	}
	p.mu.Lock()
	p.stale = stale
	idle := len(p.calls) == 0
	users := make([]*run, 0, len(p.users))
	for r := range p.users {
		users = append(users, r)
	}
	p.mu.Unlock()
	entitled = entitled || len(p.secrets) == 0 || len(users) == 0
	for _, r := range users {
		entitled = entitled || p.h.mayUse(r, p.server) == nil
	}
	if !entitled || stale && idle {
		p.stop(causeSecretChanged, hostStopGrace)
	}
}

// stop tells the process to end: what is open may take that long, and a little
// later it is killed. The first cause counts.
func (p *hostProcess) stop(cause string, grace time.Duration) {
	p.mu.Lock()
	first := p.stopping == ""
	if first {
		p.stopping = cause
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	p.endWithin(grace + hostKillAfter)
	p.mu.Unlock()
	if first {
		p.h.tasks.Go(func() { // it may not read
			_ = p.say(&hostv1.HostRequest{Message: &hostv1.HostRequest_Stop{Stop: &hostv1.Stop{GraceMs: uint32(grace.Milliseconds())}}})
		})
	}
}

// endWithin kills the process if it is still there by then. An earlier end stands.
// The caller holds mu.
func (p *hostProcess) endWithin(limit time.Duration) {
	if p.ending == nil {
		p.ending = time.AfterFunc(limit, p.kill)
		return
	}
	// Two timers would do as well; a timer that was set for later is replaced.
	if p.ending.Stop() {
		p.ending = time.AfterFunc(limit, p.kill)
	}
}

// say writes a message to the host, which has a time to read it.
func (p *hostProcess) say(m *hostv1.HostRequest) error {
	_ = p.conn.SetWriteDeadline(time.Now().Add(hostWriteLimit))
	err := p.w.Write(m)
	if err != nil && !errors.Is(err, frame.ErrTooLong) {
		p.breaks("it does not read what it is told")
	}
	return err
}

// breaks ends a process that does what it must not do.
func (p *hostProcess) breaks(what string) {
	p.mu.Lock()
	if p.broken == "" && p.stopping == "" && p.ended == nil && !p.mute {
		p.broken = what
	}
	p.mu.Unlock()
	p.kill()
}

// read takes what the host says until it says nothing more.
func (p *hostProcess) read() {
	defer close(p.silent)
	defer p.fallSilent()
	var coming *offering
	for {
		var m hostv1.HostResponse
		if err := frame.ReadMessage(p.conn, &m); err != nil {
			if errors.Is(err, frame.ErrTooLong) {
				p.breaks("it says more than 1 MiB at once")
			}
			return
		}
		var err error
		switch m := m.GetMessage().(type) {
		case *hostv1.HostResponse_Started:
			p.started(m.Started)
		case *hostv1.HostResponse_Listed:
			if coming, err = coming.add(m.Listed); err == nil && !m.Listed.GetMore() {
				p.listed(coming.offer())
				coming = nil
			}
		case *hostv1.HostResponse_Answer:
			err = p.answered(m.Answer)
		case *hostv1.HostResponse_Progress:
			err = p.progressed(m.Progress)
		case *hostv1.HostResponse_Log:
			p.h.logs.add(p.key, p.h.d.clock.now(), m.Log.GetLine())
		case *hostv1.HostResponse_Ended:
			p.mu.Lock()
			if p.ended == nil {
				p.ended = m.Ended
			}
			p.mu.Unlock()
			return // it exits, or is made to
		default:
			err = errors.New("a message of no kind")
		}
		if err != nil {
			p.breaks(err.Error())
			return
		}
	}
}

// fallSilent answers every open call for the host, and sees to its end.
func (p *hostProcess) fallSilent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = true
	for id, c := range p.calls {
		close(c.pieces)
		delete(p.calls, id)
	}
	p.endWithin(hostKillAfter)
}

func (p *hostProcess) started(m *hostv1.Started) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confinement = nil
	for _, word := range m.GetConfinement()[:min(len(m.GetConfinement()), maxHostWords)] {
		p.confinement = append(p.confinement, peer.Printable(word))
	}
}

// listed takes what the server offers from now on.
func (p *hostProcess) listed(o *offer) {
	first := p.offer.Swap(o) == nil
	if p.h.d.offered(p.key.subject, p.key.server, o, &p.server) || first {
		p.h.d.hub.listChanged()
	}
	p.mu.Lock()
	if p.listing != nil {
		close(p.listing)
		p.listing = nil
	}
	p.mu.Unlock()
	if first {
		close(p.ready)
	}
}

// list asks what the server offers now, and waits for the answer.
func (p *hostProcess) list(ctx context.Context) error {
	p.mu.Lock()
	if p.listing == nil {
		p.listing = make(chan struct{})
	}
	listed := p.listing
	p.mu.Unlock()
	if err := p.say(&hostv1.HostRequest{Message: &hostv1.HostRequest_List{List: &hostv1.List{}}}); err != nil {
		return hostGone(causeServerExited, "it does not listen any more")
	}
	select {
	case <-listed:
		return nil
	case <-p.done:
		return hostGone(causeServerExited, "it ended before it said what it offers")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answered passes on a piece of an answer. A call that nobody waits for any more
// holds up nothing; one whose answer is not taken holds up the server, and so the
// others of its subject.
func (p *hostProcess) answered(m *hostv1.Answer) error {
	if len(m.GetPiece()) > maxHostPiece {
		return errors.New("a piece of an answer is too long")
	}
	if end := m.GetEnd(); end < hostv1.End_END_OK || end > hostv1.End_END_TRANSPORT {
		return errors.New("an answer that does not say how the call ended")
	}
	c, err := p.find(m.GetId())
	if c == nil {
		return err
	}
	if c.size += len(m.GetPiece()); c.size > maxHostAnswer {
		return errors.New("an answer without an end")
	}
	select {
	case c.pieces <- m:
	case <-c.left:
	}
	return nil
}

func (p *hostProcess) progressed(m *hostv1.Progress) error {
	if len(m.GetParams()) > maxHostProgress {
		return errors.New("a notification is too long")
	}
	c, err := p.find(m.GetId())
	if c == nil {
		return err
	}
	select {
	case c.progress <- m.GetParams():
	default: // more than anybody would look at
	}
	return nil
}

// find returns an open call; nil for one that is over.
func (p *hostProcess) find(id uint64) (*openCall, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id == 0 || id > p.lastID {
		return nil, errors.New("something about a call that was not made")
	}
	return p.calls[id], nil
}

// call sends one call and passes on its answer. errHostGone: the server never saw
// it.
func (p *hostProcess) call(ctx context.Context, c hostCall) error {
	id, open, err := p.begin()
	if err != nil {
		return err
	}
	defer p.end(id, open)
	if err := p.send(id, c); err != nil {
		return hostGone(causeServerExited, "it ended before it had the call")
	}
	if c.sent != nil {
		c.sent()
	}
	for {
		select {
		case <-ctx.Done():
			var said []byte
			if c.left != nil {
				said = c.left()
			}
			p.cancel(id, said)
			return ctx.Err()
		case params := <-open.progress:
			c.tell(params)
		case m, ok := <-open.pieces:
			for more := true; more; { // what came before it
				select {
				case params := <-open.progress:
					c.tell(params)
				default:
					more = false
				}
			}
			if !ok {
				return c.answer(nil, false, hostv1.End_END_TRANSPORT)
			}
			if err := c.answer(m.GetPiece(), m.GetMore(), m.GetEnd()); err != nil {
				p.cancel(id, nil)
				return err
			}
			if !m.GetMore() {
				return nil
			}
		}
	}
}

func (c hostCall) tell(params []byte) {
	if c.onProgress != nil {
		c.onProgress(params)
	}
}

func (p *hostProcess) begin() (uint64, *openCall, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping != "" || p.mute {
		return 0, nil, hostGone(causeServerExited, "it ends")
	}
	if len(p.calls) >= maxHostCalls {
		return 0, nil, &hostFailure{errHostRefused, &wire.Error{Reason: wire.RateLimited, Cause: causeServerBusy}, fmt.Sprintf("%d calls are open", maxHostCalls), ""}
	}
	p.lastID++
	open := &openCall{pieces: make(chan *hostv1.Answer, hostPieces), progress: make(chan []byte, hostProgresses), left: make(chan struct{})}
	p.calls[p.lastID] = open
	return p.lastID, open, nil
}

// end forgets a call. A process that was only waited for until it is idle is ended.
func (p *hostProcess) end(id uint64, open *openCall) {
	close(open.left)
	p.mu.Lock()
	delete(p.calls, id)
	over := p.stale && len(p.calls) == 0
	p.mu.Unlock()
	if over {
		p.stop(causeSecretChanged, hostStopGrace)
	}
}

// send writes a call in pieces.
func (p *hostProcess) send(id uint64, c hostCall) error {
	first := &hostv1.Call{Id: id, Tool: c.tool, Progress: c.progress, Meta: c.meta}
	for m, rest := first, c.args; ; m = (&hostv1.Call{Id: id}) {
		m.Arguments = rest[:min(len(rest), maxHostPiece)]
		rest = rest[len(m.Arguments):]
		m.More = len(rest) > 0
		if err := p.say(&hostv1.HostRequest{Message: &hostv1.HostRequest_Call{Call: m}}); err != nil || !m.GetMore() {
			return err
		}
	}
}

// cancel says that nobody waits for a call any more, and what the client said,
// without waiting itself.
func (p *hostProcess) cancel(id uint64, said []byte) {
	p.h.tasks.Go(func() {
		_ = p.say(&hostv1.HostRequest{Message: &hostv1.HostRequest_Cancel{Cancel: &hostv1.Cancel{Id: id, Said: said}}})
	})
}

// why says how it ended: for the log, and in words for the operator.
func (p *hostProcess) why() (cause, words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.stopping != "":
		return p.stopping, stopWords[p.stopping]
	case p.broken != "":
		return causeHostProtocol, "its host was ended: " + p.broken
	case p.ended != nil:
		words := "the server " + endedWords[p.ended.GetWhy()]
		if endedWords[p.ended.GetWhy()] == "" {
			words = "the server is gone"
		}
		if code := p.ended.GetCode(); code > 0 && p.ended.GetWhy() == "exited" {
			words += fmt.Sprintf(" with code %d", code)
		}
		switch detail := peer.Printable(p.ended.GetDetail()); {
		case strings.HasPrefix(detail, words): // it says the same, and perhaps more
			words = detail
		case p.ended.GetWhy() == "exited" && strings.HasPrefix(detail, "the server "):
			words = detail
		case detail != "":
			words += ": " + detail
		}
		return causeServerExited, words
	}
	return causeServerExited, "its host died"
}

// endedWords are those of hostv1.Ended, for people.
var endedWords = map[string]string{
	"exited": "exited", "refused": "was not started", "unreachable": "cannot be reached", "protocol": "does not speak MCP", "stopped": "was stopped",
}

// stopWords are the causes of a stop, for people.
var stopWords = map[string]string{
	causeServerIdle: "nobody uses it", causeServerListed: "it was asked what it offers", causeServerSet: "it was changed", causeServerGone: "it was removed", causeServerRestart: "the operator restarted it",
	causeSecretChanged: "one of its secrets changed", causeSubjectChanged: "its subject changed", causeLocked: "the vault was locked",
	causeDaemonStopped: "sbd stopped", causeServerKilled: "a policy stopped it",
}

// offering is what a host is saying that its server offers.
type offering struct {
	tools        map[string][]byte
	instructions string
	size         int
}

// add takes a piece. What is too much, or does not fit together, is an error.
func (o *offering) add(m *hostv1.Listed) (*offering, error) {
	if o == nil {
		o = &offering{tools: map[string][]byte{}, instructions: m.GetInstructions(), size: len(m.GetInstructions())}
		if len(o.instructions) > maxInstructions {
			return nil, errors.New("instructions that are too long")
		}
	} else if m.GetInstructions() != "" {
		return nil, errors.New("instructions in a later piece")
	}
	for _, t := range m.GetTools() {
		o.size += len(t.GetName()) + len(t.GetObject())
		_, twice := o.tools[t.GetName()]
		if twice || t.GetName() == "" || len(t.GetObject()) > maxToolObject || o.size > maxOfferedBytes || len(o.tools) == maxOffered {
			return nil, errors.New("more tools than there may be, or one twice")
		}
		o.tools[t.GetName()] = t.GetObject()
	}
	return o, nil
}

func (o *offering) offer() *offer { return &offer{o.tools, o.instructions} }
