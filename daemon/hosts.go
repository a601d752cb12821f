package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// Times in the life of the processes of servers.
const (
	hostStartLimit = 60 * time.Second       // from its start until a server has said what it offers
	hostGrace      = 2 * time.Second        // between the end of the last run that used it and its own
	hostStopGrace  = 2 * time.Second        // for calls that are open when it is told to stop
	hostHardGrace  = 500 * time.Millisecond // the same, when the daemon stops or the vault is locked
	hostFirstPause = time.Second            // between a death and the next start
	hostLastPause  = time.Minute
	hostSteady     = time.Minute // a process that ran so long has made good for those before it
	hostPatience   = 5 * time.Second
)

// hosts are the processes of hosted servers: sb-mcp host, one for each server and
// subject that somebody uses. They outlive no run that uses them, no lock of the
// vault and no daemon.
type hosts struct {
	d       *Daemon
	program string // path of sb-mcp
	strays  strays // what lost its parent below the daemon

	mu     sync.Mutex
	all    map[hostKey]*host
	alive  map[*hostProcess]bool // also those that are on their way out
	closed bool
	tasks  sync.WaitGroup
	misses atomic.Uint64 // starts that failed, of all servers; see hosts.ready

	logs *hostLogs
}

// hostKey names one process. Without a subject it is the operator's, to see what a
// server offers.
type hostKey struct{ subject, server string }

// host is what is known of one server and subject: its process, or why there is
// none. hosts.mu guards it.
type host struct {
	key      hostKey
	server   grants.Server // that the rest is about
	born     time.Time     // when the subject was created that it is about
	process  *hostProcess
	attempt  *hostAttempt
	killed   string // policy that stopped it until RestartServer; empty: none did
	loose    bool   // namespaces of its own are not to be had for it
	failures int    // deaths in a row
	retry    time.Time
	started  time.Time
	starts   uint32
	cause    string // why it does not run, in words; empty: it runs, or nobody asked
	unborn   bool   // the last start failed
	lastErr  error  // of the last start, where that failed…
	lastNo   uint64 // …as number lastNo of all that did
}

// hostAttempt is one start, for which several calls may wait.
type hostAttempt struct {
	run  *run // under whose right it is made; nil: the operator's
	done chan struct{}
	err  error // set before done is closed
}

// hostCall is a call that was judged, on its way to a server.
type hostCall struct {
	run        *run   // under which it is made: whose right to use the server's secrets counts
	tool       string // exact bytes
	pin        string // hash that the tool was judged by
	args, meta []byte // JSON objects; meta may be empty. call does not keep them
	progress   bool   // it is wanted
	// left is what the client said when it cancelled the call, for the server; nil:
	// nobody can say.
	left func() []byte
	// sent is called, maybe more than once, when the host has the call; nil: nobody
	// wants to know. Calls that are made one after the other's sent come to the
	// server in that order.
	sent func()
	// answer takes the pieces of the answer in order, the last with more false. Its
	// error ends the call; it is not called after call has returned.
	answer func(piece []byte, more bool, end hostv1.End) error
	// onProgress takes the parameters of notifications; nil: they are dropped. It is
	// not called after call has returned, nor while answer runs.
	onProgress func(params []byte)
}

// Errors of hosts. Each comes with a *wire.Error, whose reason is for the agent and
// whose cause is for the log; the text is for the operator.
var (
	// errHostRefused: the run may not use the server now: a secret is missing or
	// not granted, or it was killed by policy. The agent gets the plain denial.
	errHostRefused = errors.New("the server may not be used")
	// errHostGone: the server could not be reached, or died before it got the call.
	errHostGone = errors.New("the server cannot be reached")
	// errHostChanged: the tool is not what was trusted any more. The agent gets the
	// plain denial.
	errHostChanged = errors.New("the tool is not what was trusted")
)

// Causes that are about the processes of servers.
const (
	causeNoServer      = "NO_SERVER"      // none of that name was added
	causeServerKilled  = "SERVER_KILLED"  // a policy stopped it
	causeSecretDenied  = "SECRET_DENIED"  // the subject may not use one of its secrets
	causeSecretMissing = "SECRET_MISSING" // there is nothing in one of them
	causeToolChanged   = "TOOL_CHANGED"   // see errHostChanged
	causeServerWaits   = "SERVER_WAITS"   // it died too often to be started again at once
	causeServerBusy    = "SERVER_BUSY"    // too many calls are open
	causeServerFailed  = "SERVER_FAILED"  // it could not be started
	causeServerExited  = "SERVER_EXITED"  // it ended by itself, or by somebody else's signal
	causeHostProtocol  = "HOST_PROTOCOL"  // its host said what it must not say
	causeServerIdle    = "NOT_USED"       // the last run that used it has ended
	causeServerSet     = "SERVER_CHANGED" // another command, url, environment or headers
	causeServerGone    = "SERVER_REMOVED" //
	causeSecretChanged = "SECRET_CHANGED" // one of its secrets has another version, or is not granted any more
	causeServerRestart = "RESTARTED"      // on the operator's word
	causeServerListed  = "LISTED"         // the operator has seen what it offers
	causeLocked        = "LOCKED"         // the vault was
	causeDaemonStopped = "DAEMON_STOPPED" //
)

// hostFailure is one of the errors of hosts. Its words may name secrets, so that
// only plain goes to an agent, whoever sends it.
type hostFailure struct {
	kind  error
	plain *wire.Error
	words string
	hint  string // command that mends it, which names what words do; empty: none does
}

func (f *hostFailure) Error() string { return f.kind.Error() + ": " + f.words }

// Unwrap returns the kind and what an agent may see.
func (f *hostFailure) Unwrap() []error { return []error{f.kind, f.plain} }

// GRPCStatus makes grpc send what an agent may see, and not the words.
func (f *hostFailure) GRPCStatus() *status.Status { return wire.Deny(f.plain.Reason).GRPCStatus() }

func hostRefusal(cause, format string, args ...any) error {
	return &hostFailure{errHostRefused, &wire.Error{Reason: wire.AccessDenied, Cause: cause}, fmt.Sprintf(format, args...), ""}
}

// hostGone is about the server, unless it is the broker that is the reason.
func hostGone(cause, format string, args ...any) error {
	reason := wire.ServerUnavailable
	switch cause {
	case causeDaemonStopped:
		reason = wire.BrokerUnavailable
	case causeLocked:
		reason = wire.VaultLocked
	}
	return &hostFailure{errHostGone, &wire.Error{Reason: reason, Cause: cause}, fmt.Sprintf(format, args...), ""}
}

func hostChanged(tool string) error {
	return &hostFailure{errHostChanged, &wire.Error{Reason: wire.AccessDenied, Cause: causeToolChanged}, shown(tool) + " is new, changed or gone", ""}
}

func newHosts(d *Daemon, program string, adopt bool) *hosts {
	return &hosts{d: d, program: program, strays: strays{adopt: adopt}, all: map[hostKey]*host{}, alive: map[*hostProcess]bool{}, logs: newHostLogs()}
}

// ready sees to it that the server runs for the run's subject, and that it offers
// tool as it was pinned; with an empty tool, only that it runs. It belongs before
// the entry of a call, where content is opened: what it refuses (errHostRefused,
// errHostChanged, errHostGone) was not forwarded. It waits for a start as long as
// ctx lets it, at most a minute. came is how many starts had failed when the call
// came: one that failed since was for this call too, however late its turn is.
func (h *hosts) ready(ctx context.Context, r *run, server, tool string, came uint64) error {
	p, err := h.ensure(ctx, r, server, came)
	if err != nil {
		return err
	}
	if tool == "" {
		return nil
	}
	if _, ok := h.d.state().callable(server, tool, p.offers()); !ok {
		return hostChanged(tool)
	}
	return nil
}

// call forwards one call, after its entry is durable, and passes on the answer. It
// starts the server when it does not run any more. It returns nil after the last
// piece was taken; an answer of END_TRANSPORT, without a piece, when the server
// died meanwhile. When ctx ends the server is told that nobody waits, and call
// returns ctx's error at once. The other errors, which mean that the server never
// saw the call, are those of ready.
func (h *hosts) call(ctx context.Context, k hostKey, c hostCall) error {
	if c.run == nil || c.run.subject != k.subject {
		return hostRefusal(causeNoServer, "a call without a run of %s", shown(k.subject))
	}
	for range 2 { // it may end between the two steps, and be started again
		p, err := h.ensure(ctx, c.run, k.server, h.misses.Load())
		if err != nil {
			return err
		}
		if o := p.offers(); o == nil || pinHash(o.tools[c.tool]) != c.pin {
			return hostChanged(c.tool)
		}
		if err := p.call(ctx, c); !errors.Is(err, errHostGone) {
			return err
		}
	}
	return hostGone(causeServerExited, "it ended as soon as it was called")
}

// offerOf returns what the process of k offers, or else what the server was last
// seen to offer; nil when nobody knows.
func (h *hosts) offerOf(k hostKey) *offer {
	h.mu.Lock()
	e := h.all[k]
	if e != nil && e.process != nil {
		if o := e.process.offers(); o != nil {
			h.mu.Unlock()
			return o
		}
	}
	h.mu.Unlock()
	return h.d.offers.of(k.server)
}

// ensure returns a process of the server for the run's subject, and remembers that
// the run uses it. Concurrent calls start one, and share what came of it; came is
// as in ready.
func (h *hosts) ensure(ctx context.Context, r *run, name string, came uint64) (*hostProcess, error) {
	k := hostKey{r.subject, name}
	for {
		if h.d.over(r) {
			return nil, &hostFailure{errHostRefused, &wire.Error{Reason: wire.RunEnded, Cause: string(wire.RunEnded)}, "the run has ended", ""}
		}
		server, ok := h.d.state().server(name)
		if !ok || !server.Hosted {
			return nil, hostRefusal(causeNoServer, "there is none of that name")
		}
		if err := h.mayUse(r, server); err != nil {
			h.failed(k, server, r.born, err)
			return nil, err
		}
		p, again, err := h.step(ctx, k, r, server, came)
		if !again {
			return p, err
		}
	}
}

// mayUse says why the run may not use one of a server's secrets now: whoever may
// not could use it through the process of a run that may.
func (h *hosts) mayUse(r *run, server grants.Server) error {
	st, at := h.d.state(), h.d.clock.read()
	for _, name := range server.Secrets() {
		decision := st.decide(r.asker(), grants.Capability{Action: grants.Use, Object: name}, at)
		if decision.Outcome == grants.Denied {
			return secretDenied(r.subject, name, decision.Cause)
		}
	}
	return nil
}

func secretDenied(subject, name string, cause grants.Cause) error {
	if cause == grants.CauseUnknownResource || cause == grants.CauseNoContent {
		return &hostFailure{errHostRefused, &wire.Error{Reason: wire.AccessDenied, Cause: causeSecretMissing}, "the secret " + name + " has no content", "sbctl secret put " + name}
	}
	return hostRefusal(causeSecretDenied, "%s may not use the secret %s (%s)", subject, name, cause)
}

// step does one thing towards a process: it joins the one there is, waits for what
// has to happen before, or starts one. With again there is more to do.
func (h *hosts) step(ctx context.Context, k hostKey, r *run, server grants.Server, came uint64) (p *hostProcess, again bool, err error) {
	h.mu.Lock()
	e := h.entry(k, server, r.born)
	switch {
	case h.closed:
		h.mu.Unlock()
		return nil, false, hostGone(causeDaemonStopped, "sbd stops")
	case e.killed != "":
		defer h.mu.Unlock()
		return nil, false, hostRefusal(causeServerKilled, "%s stopped it until it is restarted by the operator", e.killed)
	case e.process != nil && e.process.join(r, h.d.state(), server):
		p := e.process
		h.mu.Unlock()
		return p, false, nil
	case e.process != nil: // on its way out
		done := e.process.done
		h.mu.Unlock()
		return nil, true, wait(ctx, done)
	case e.attempt != nil:
		a := e.attempt
		h.mu.Unlock()
		if err := wait(ctx, a.done); err != nil {
			return nil, false, err
		}
		// What was refused to another run need not be refused to this one.
		refused := a.err != nil && a.run != r && errors.Is(a.err, errHostRefused)
		return nil, a.err == nil || refused, a.err
	case e.lastErr != nil && e.lastNo > came:
		defer h.mu.Unlock()
		return nil, false, e.lastErr
	}
	if pause := time.Until(e.retry); pause > 0 {
		cause := e.cause
		h.mu.Unlock()
		if pause > hostPatience {
			return nil, false, hostGone(causeServerWaits, "it is started again in %s: %s", pause.Round(time.Second), cause)
		}
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil, false, ctx.Err()
		case <-timer.C:
			return nil, true, nil
		}
	}
	h.begin(e, r, nil)
	h.mu.Unlock()
	return nil, true, nil
}

// wait waits for a channel to be closed.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// entry is what is known of k, as long as it is about the same server and the same
// subject: later ones of their names inherit nothing. The caller holds mu.
func (h *hosts) entry(k hostKey, server grants.Server, born time.Time) *host {
	e, ok := h.all[k]
	switch {
	case !ok, !e.about(server, born):
		if ok && e.process != nil {
			e.process.stop(causeSubjectChanged, 0)
		}
		e = &host{key: k, server: server, born: born}
		h.all[k] = e
	case !same(e.server, server) && e.process == nil && e.attempt == nil: // what was learnt of another command
		e.server, e.loose, e.failures, e.retry, e.cause, e.unborn = server, false, 0, time.Time{}, "", false
	}
	return e
}

// about reports whether what is known is about these.
func (e *host) about(server grants.Server, born time.Time) bool {
	return e.server.Created.Equal(server.Created) && e.born.Equal(born)
}

// born is when a subject was created; zero: there is none. It takes mu.
func (s *state) born(subject string) time.Time {
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, _ := s.set.Subject(subject)
	return found.Created
}

// same reports whether two servers are run the same way.
func same(a, b grants.Server) bool {
	return a.Created.Equal(b.Created) && slices.Equal(a.Command, b.Command) && a.Cwd == b.Cwd && a.URL == b.URL &&
		maps.Equal(a.Env, b.Env) && maps.Equal(a.Headers, b.Headers)
}

// failed remembers why there is no process, for the operator.
func (h *hosts) failed(k hostKey, server grants.Server, born time.Time, err error) {
	h.mu.Lock()
	e := h.entry(k, server, born)
	running := e.process != nil
	if !running {
		e.cause = wordsOf(err)
	}
	h.mu.Unlock()
	if running { // what it was entitled by may have run out
		h.review()
	}
}

// wordsOf is why there is no process, in words for the operator.
func wordsOf(err error) string {
	if f, ok := errors.AsType[*hostFailure](err); ok {
		return f.words
	}
	return err.Error()
}

// begin starts a process in the background. The caller holds mu.
func (h *hosts) begin(e *host, r *run, o *operatorStart) *hostAttempt {
	a := &hostAttempt{run: r, done: make(chan struct{})}
	e.attempt = a
	h.tasks.Go(func() { h.start(e, a, o) })
	return a
}

// start makes one attempt, or two where the first shows that the host cannot have
// namespaces of its own: then its secrets are disclosed as what can be reached.
func (h *hosts) start(e *host, a *hostAttempt, o *operatorStart) {
	h.mu.Lock()
	loose, server := e.loose, e.server
	h.mu.Unlock()
	p, err := h.spawn(e.key, server, a.run, o, loose)
	if errors.Is(err, errUnconfined) {
		loose = true
		p, err = h.spawn(e.key, server, a.run, o, loose)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(a.done)
	e.attempt = nil
	e.loose = loose
	if err != nil {
		a.err, e.cause, e.unborn = err, wordsOf(err), true
		if errors.Is(err, errHostGone) {
			e.died(0)
			e.lastErr, e.lastNo = err, h.misses.Add(1)
		}
		return
	}
	e.process, e.cause, e.lastErr, e.unborn = p, "", nil, false
	if own := h.all[hostKey{server: e.key.server}]; own != nil { // it is known now what there is to see
		own.unborn = false
	}
	e.started, e.starts = h.d.clock.now(), e.starts+1
	h.tasks.Go(func() { h.attend(e, p) })
	if a.run != nil {
		p.use(a.run)
	} else {
		p.stop(causeServerListed, 0)
	}
	switch now, ok := h.d.state().server(e.key.server); {
	case h.closed:
		p.stop(causeDaemonStopped, 0)
	case h.d.locked():
		p.stop(causeLocked, 0)
	case h.all[e.key] != e: // a later server or subject has the name
		p.stop(causeSubjectChanged, 0)
	case !ok || !same(now, server):
		p.stop(causeServerSet, 0)
	case e.killed != "":
		p.stop(causeServerKilled, 0)
	}
}

// died puts off the next start after a process, or an attempt, that ended by
// itself. The caller holds hosts.mu.
func (e *host) died(ran time.Duration) {
	if ran >= hostSteady {
		e.failures = 0
	}
	pause := hostLastPause
	if e.failures < 6 { // 2^6 s are more than hostLastPause
		pause = hostFirstPause << e.failures
	}
	e.failures++
	e.retry = time.Now().Add(pause)
}

// attend waits for the end of a process and says what comes next.
func (h *hosts) attend(e *host, p *hostProcess) {
	<-p.done
	cause, words := p.why()
	h.mu.Lock()
	e.process = nil
	if cause == causeServerExited || cause == causeHostProtocol {
		e.died(time.Since(p.born))
	}
	if e.killed == "" || cause != causeServerKilled { // else it names the policy
		e.cause = words
	}
	h.mu.Unlock()
	stopped := audit.Entry{Kind: kindServerStop, SubjectID: p.key.subject, Server: p.key.server, Cause: cause}
	h.note(stopped)
	h.d.hub.listChanged(p.key.subject)
}

// note writes an entry that nobody waits for.
func (h *hosts) note(e audit.Entry) {
	log := h.d.log()
	if log == nil {
		return
	}
	if _, err := log.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil }); err != nil {
		h.d.logger.Warn("the log did not take what became of a server", "kind", e.Kind, "error", err)
	}
}

// killByPolicy stops the process of k, which nothing starts again until
// RestartServer. policy is the policy's name.
func (h *hosts) killByPolicy(k hostKey, policy string) {
	st := h.d.state()
	server, ok := st.server(k.server)
	if !ok {
		return
	}
	born := st.born(k.subject)
	h.mu.Lock()
	e := h.entry(k, server, born)
	before := e.killed
	e.killed, e.cause = policy, "stopped by "+policy+" until it is restarted"
	if e.process != nil {
		e.process.stop(causeServerKilled, 0)
	}
	h.mu.Unlock()
	if before == "" {
		h.note(audit.Entry{Kind: kindServerKill, SubjectID: k.subject, Server: k.server, Policy: policy})
	}
}

// restart ends the processes of a server, of one subject unless that is empty, and
// lets those be started again that must not be. It returns how many there were.
func (h *hosts) restart(server, subject string) (n uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, e := range h.all {
		if k.server != server || subject != "" && k.subject != subject {
			continue
		}
		if k.subject != "" && (e.process != nil || e.killed != "") {
			n++
		}
		if e.process != nil {
			e.process.stop(causeServerRestart, hostStopGrace)
		}
		e.killed, e.failures, e.retry, e.cause, e.unborn = "", 0, time.Time{}, "", false
	}
	return n
}

// review ends the processes that would not be started now as they are. It is
// called whenever something else is in force.
func (h *hosts) review() {
	st := h.d.state()
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, e := range h.all {
		server, ok := st.server(k.server)
		gone := !ok || !e.server.Created.Equal(server.Created)
		switch {
		case e.process == nil:
			if (gone || !e.about(server, st.born(k.subject))) && e.attempt == nil && st.open {
				delete(h.all, k)
			}
		case !st.open:
			e.process.stop(causeLocked, hostHardGrace)
		case gone:
			e.process.stop(causeServerGone, 0)
		case !same(e.process.server, server):
			e.process.stop(causeServerSet, hostStopGrace)
		default:
			e.process.review(st, false)
		}
	}
}

// watch reviews the processes after every change, until the daemon stops.
func (h *hosts) watch() {
	for {
		select {
		case <-h.d.life.Done():
			return
		case <-h.d.hub.changed:
			h.review()
		}
	}
}

// lock ends every process: what it holds are contents of the vault.
func (h *hosts) lock() { h.endAll(causeLocked) }

func (h *hosts) endAll(cause string) {
	h.mu.Lock()
	ending := slices.Collect(maps.Keys(h.alive))
	h.mu.Unlock()
	for _, p := range ending {
		p.stop(cause, hostHardGrace)
	}
	for _, p := range ending {
		<-p.done
	}
}

// close ends every process, and starts none any more.
func (h *hosts) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.endAll(causeDaemonStopped)
	h.tasks.Wait()
	h.strays.end()
}

// holds reports whether a process lives under one of the hosts: it descends from
// one, is in the session that was made for one, or is a stray. Where that cannot be
// told while there are any, it may.
func (h *hosts) holds(pid int32) (is, may bool) {
	h.mu.Lock()
	tops := make(map[int32]uint64, len(h.alive))
	for p := range h.alive {
		tops[p.pid] = p.startTime
	}
	h.mu.Unlock()
	adopts := h.strays.adopts()
	if len(tops) == 0 && !adopts {
		return false, false
	}
	var err error
	for range 3 { // a process may be given another parent while it is looked at
		var line []peer.Process
		line, err = peer.Ancestry(pid)
		if adopts && isStray(line) {
			return true, true
		}
		for _, ancestor := range line {
			if start, ok := tops[ancestor.PID]; ok && start == ancestor.Start {
				return true, true
			}
			if _, ok := tops[ancestor.Session]; ok {
				return true, true
			}
		}
		if err == nil {
			return false, false
		}
	}
	return false, true
}

// hostFacts is what the operator is told of one process.
type hostFacts struct {
	subject     string
	state       string // starting, running, waiting, killed, stopped
	pid         int32
	started     time.Time
	starts      uint32
	cause       string
	open        uint32
	confinement []string
	loose       bool
}

// of returns what is known of the processes of a server, by subject. The operator's,
// which comes first, is among them as long as it could not be started: else it ends
// as soon as it has said what there is to see.
func (h *hosts) of(server string) []hostFacts {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []hostFacts
	for k, e := range h.all {
		if k.server == server && (k.subject != "" || e.unborn) {
			all = append(all, e.facts())
		}
	}
	slices.SortFunc(all, byProcess)
	return all
}

// facts is what there is to tell. The caller holds hosts.mu.
func (e *host) facts() hostFacts {
	f := hostFacts{subject: e.key.subject, started: e.started, starts: e.starts, cause: e.cause, loose: e.loose}
	switch {
	case e.killed != "":
		f.state = "killed"
	case e.process != nil:
		f.state, f.pid = "running", e.process.pid
		e.process.mu.Lock()
		f.open, f.confinement = uint32(len(e.process.calls)), slices.Clone(e.process.confinement)
		e.process.mu.Unlock()
	case e.attempt != nil:
		f.state = "starting"
	case time.Now().Before(e.retry):
		f.state = "waiting"
	default:
		f.state = "stopped"
	}
	return f
}

// look asks a process of the server what it offers now. Where there is none, one is
// started on the operator's word, which ends when it has answered.
func (h *hosts) look(ctx context.Context, o operator, server grants.Server) error {
	h.mu.Lock()
	for k, e := range h.all {
		if p := e.process; k.server == server.Name && p != nil && same(p.server, server) && p.serves() {
			h.mu.Unlock()
			return p.list(ctx)
		}
	}
	if h.closed {
		h.mu.Unlock()
		return hostGone(causeDaemonStopped, "sbd stops")
	}
	e := h.entry(hostKey{"", server.Name}, server, time.Time{})
	a := e.attempt
	if a == nil && e.process == nil {
		a = h.begin(e, nil, &operatorStart{ctx, o})
	}
	h.mu.Unlock()
	if a == nil { // the one of another call has just answered
		return nil
	}
	if err := wait(ctx, a.done); err != nil {
		return err
	}
	return a.err
}

// count returns how many processes of servers there are, for the metrics.
func (h *hosts) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.alive)
}
