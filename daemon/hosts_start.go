package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
)

// maxInjected is the longest value of a variable or a header with its secrets, in
// bytes. The kernel takes 128 KiB.
const maxInjected = 64 << 10

// errUnconfined: the host cannot have namespaces of its own, without which it was
// told not to run.
var errUnconfined = errors.New("the host cannot have namespaces of its own")

// operatorStart is a start on an operator's word, under which its secrets are used.
type operatorStart struct {
	ctx context.Context //nolint:containedctx // of the operator's call: who calls, and what that needs
	o   operator
}

// spawn starts a process and waits until it has said what the server offers.
// Nothing runs before every secret was released for it.
func (h *hosts) spawn(k hostKey, server grants.Server, r *run, o *operatorStart, loose bool) (*hostProcess, error) {
	ctx, cancel := context.WithTimeout(h.d.life, approvalWait+hostStartLimit)
	defer cancel()
	e := audit.Entry{Kind: kindServerStart, SubjectID: k.subject, Server: k.server}
	if o != nil {
		e = *o.o.entry(o.ctx, kindServerStart)
		e.Server = k.server
	}
	if r != nil {
		e = r.entry(kindServerStart)
		e.Server = k.server
	}
	if len(server.Secrets()) > 0 {
		e.Disclosed = h.disclosure(h.d.state(), k.subject)
		if loose {
			e.Disclosed = disclosedReachable
		}
	}
	p, err := h.begun(ctx, k, server, r, o, e.Disclosed)
	e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
	if failure, ok := errors.AsType[*hostFailure](err); ok {
		e.Decision, e.ReasonCode, e.Cause, e.Disclosed = decisionError, string(failure.plain.Reason), failure.plain.Cause, ""
	}
	if !errors.Is(err, errUnconfined) { // it is tried again
		h.note(e)
	}
	return p, err
}

// begun is spawn without the entry of how it ended.
func (h *hosts) begun(ctx context.Context, k hostKey, server grants.Server, r *run, o *operatorStart, disclosed string) (*hostProcess, error) {
	st := h.d.state()
	start, used, err := h.prepare(ctx, server, r, o, disclosed)
	defer wipeStart(start)
	if err != nil {
		return nil, err
	}
	p, err := h.launch(k, server)
	if err != nil {
		return nil, hostGone(causeServerFailed, "sb-mcp host cannot be started: %v", err)
	}
	if h.d.state() != st { // a lock that came before there was a process has not ended it
		p.kill()
		<-p.done
		return nil, hostGone(causeLocked, "the vault was locked")
	}
	p.secrets, p.disclosed = used, disclosed
	if r != nil {
		p.owner = r.born
	}
	if err := p.say(&hostv1.HostRequest{Message: &hostv1.HostRequest_Start{Start: start}}); err != nil {
		if errors.Is(err, frame.ErrTooLong) {
			err = errors.New("its command, environment and secrets are more than 1 MiB")
		}
		p.kill()
		<-p.done
		return nil, hostGone(causeServerFailed, "sb-mcp host did not take what it was told: %v", err)
	}
	select {
	case <-p.ready:
		return p, nil
	case <-p.silent:
	case <-ctx.Done():
		p.breaks("it did not say in time what it offers")
	}
	<-p.done
	if p.refused() && start.GetConfine() {
		return nil, errUnconfined
	}
	_, words := p.why()
	return nil, hostGone(causeServerFailed, "%s", words)
}

// refused reports whether the host would not run the server.
func (p *hostProcess) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended.GetWhy() == "refused"
}

// prepare makes what the host is told, with the secrets in it. The caller wipes it,
// also when there is an error.
func (h *hosts) prepare(ctx context.Context, server grants.Server, r *run, o *operatorStart, disclosed string) (*hostv1.Start, map[string]facts, error) {
	d := h.d
	start := &hostv1.Start{
		Server: server.Name, Command: server.Command, Cwd: server.Cwd, Url: server.URL,
		Home: d.home, SocketDir: d.socketDir, Confine: disclosed == disclosedNo,
	}
	used := map[string]facts{}
	contents := map[string][]byte{}
	defer func() {
		for _, content := range contents {
			clear(content)
		}
	}()
	for _, name := range server.Secrets() {
		content, f, err := h.secret(ctx, name, server, r, o, disclosed)
		if err != nil {
			return start, nil, err
		}
		contents[name], used[name] = content, f
	}
	expand := func(what, name, value string) ([]byte, error) {
		expanded, err := grants.Expand(value, func(name string) ([]byte, error) { return contents[name], nil })
		switch {
		case err != nil:
		case len(expanded) > maxInjected:
			err = fmt.Errorf("it is longer than %d KiB", maxInjected>>10)
		case bytes.IndexByte(expanded, 0) >= 0, what == "header" && bytes.ContainsAny(expanded, "\r\n"):
			err = errors.New("a secret in it holds a byte that cannot stand there")
		default:
			return expanded, nil
		}
		clear(expanded)
		return nil, hostRefusal(causeServerFailed, "the %s %s cannot be set: %v", what, name, err)
	}
	if len(server.Command) > 0 {
		for _, v := range baseEnv(os.Environ()) {
			if name, _, _ := strings.Cut(v, "="); server.Env[name] == "" {
				start.Env = append(start.Env, []byte(v))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(server.Env)) {
		value, err := expand("variable", name, server.Env[name])
		if err != nil {
			return start, nil, err
		}
		start.Env = append(start.Env, slices.Concat([]byte(name+"="), value))
		clear(value)
	}
	for _, name := range slices.Sorted(maps.Keys(server.Headers)) {
		value, err := expand("header", name, server.Headers[name])
		if err != nil {
			return start, nil, err
		}
		start.Headers = append(start.Headers, &hostv1.Header{Name: name, Value: value})
	}
	return start, used, nil
}

func wipeStart(start *hostv1.Start) {
	for _, v := range start.GetEnv() {
		clear(v)
	}
	for _, header := range start.GetHeaders() {
		clear(header.GetValue())
	}
}

// baseEnv is what the command of a server is given beside what is configured, in
// order: where programs and the person's files are, and how text is written.
func baseEnv(environ []string) []string {
	own := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}
	if u, err := user.LookupId(fmt.Sprint(os.Geteuid())); err == nil {
		own["HOME"], own["USER"] = u.HomeDir, u.Username
	}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case value == "":
		case slices.Contains([]string{"PATH", "HOME", "USER", "LANG", "TMPDIR"}, name), strings.HasPrefix(name, "LC_"):
			own[name] = value
		}
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(own)) {
		all = append(all, name+"="+own[name])
	}
	return all
}

// secret uses one resource for a server, on the one release path. The caller wipes
// the content.
func (h *hosts) secret(ctx context.Context, name string, server grants.Server, r *run, o *operatorStart, disclosed string) ([]byte, facts, error) {
	d := h.d
	var a ask
	if r != nil {
		a = d.ask(r, audit.Acquire, grants.Use.String()+":"+name)
		a.gate = func(ctx context.Context, _ grants.Capability, _ verdict) (gateAnswer, error) {
			return d.gateOn(ctx, gateAsk{
				run: r, resource: name, capability: a.capability, why: "the server " + server.Name + " is started with it",
			})
		}
	} else {
		caller := callerOf(o.ctx)
		a = ask{
			entry: *o.o.entry(o.ctx, audit.Acquire), peer: caller, capability: grants.Use.String() + ":" + name,
			decide: d.onItsWord(o.ctx), over: func() bool { return !caller.Alive() },
		}
	}
	a.entry.Server = server.Name
	a.also = useAs{disclosed}
	var openErr error
	open := d.openContent(ctx, name, 0)
	st := d.state()
	st.mu.RLock()
	f := st.catalog[name]
	st.mu.RUnlock()
	missing, decide := grants.Cause(""), a.decide
	a.decide = func(c grants.Capability) grants.Decision {
		st := d.state()
		st.mu.RLock()
		switch missing = ""; {
		case !st.given(&server, name), o != nil && st.hidden(a.peer.UID, name):
			missing = grants.CauseUnknownResource
		case o != nil && !st.catalog[name].content(): // of a subject the grants know it
			missing = grants.CauseNoContent
		}
		st.mu.RUnlock()
		if missing != "" {
			return grants.Decision{Outcome: grants.Denied, Reason: grants.ReasonAccessDenied, Cause: missing}
		}
		return decide(c)
	}
	a.open = func(out *opened) error {
		openErr = open(out)
		f.version, f.created = out.version, out.created
		return openErr
	}
	got, err := d.release(ctx, a)
	switch {
	case err != nil:
		reason := wire.FromError(err).Reason
		return nil, f, &hostFailure{errHostRefused, &wire.Error{Reason: reason, Cause: string(reason)}, "the secret " + name + " was not released: " + string(reason), ""}
	case got.reason == wire.Allowed:
		return got.content, f, nil
	case missing != "":
		return nil, f, secretDenied("", name, missing)
	case openErr != nil:
		why := openCause(openErr)
		if why == causeStorage { // which says less than the reason
			why = string(openReason(openErr))
		}
		return nil, f, hostRefusal(causeSecretMissing, "the secret %s cannot be opened (%s)", name, why)
	case r == nil:
		return nil, f, hostRefusal(causeSecretDenied, "the secret %s may not be used (%s)", name, got.reason)
	}
	decision := d.state().decide(r.asker(), grants.Capability{Action: grants.Use, Object: name}, d.clock.read())
	if decision.Outcome != grants.Denied {
		return nil, f, hostRefusal(causeSecretDenied, "nobody has approved that %s uses the secret %s", r.subject, name)
	}
	return nil, f, secretDenied(r.subject, name, decision.Cause)
}

// useAs says in the entry of a use how what is used is disclosed.
type useAs struct{ disclosed string }

func (useAs) at(uint64, time.Time) {}
func (useAs) judge(*verdict)       {}
func (useAs) take(*verdict)        {}
func (useAs) giveBack()            {}
func (useAs) strict() bool         { return true }

func (u useAs) tell(e *audit.Entry, _ verdict) {
	if e.Disclosed != "" {
		e.Disclosed = u.disclosed
	}
}

// disclosure says how a secret is disclosed that is used for a subject in a process
// of its own uid: not at all where every run of the subject is kept from looking
// into that process, and else it could be reached. Without a subject it is used for
// nobody, and all who could look into it count.
func (h *hosts) disclosure(st *state, subject string) string {
	st.mu.RLock()
	defer st.mu.RUnlock()
	if subject != "" {
		if s, ok := st.set.Subject(subject); ok && apart(s) {
			return disclosedNo
		}
		return disclosedReachable
	}
	for _, s := range st.set.Subjects() {
		if !apart(s) {
			return disclosedReachable
		}
	}
	return disclosedNo
}

// apart reports whether every run of a subject is kept from looking into processes
// of the daemon's uid.
func apart(s grants.Subject) bool { return s.MinTier.Satisfies(grants.Bound) }

// launch starts the program, which knows nothing yet.
func (h *hosts) launch(k hostKey, server grants.Server) (*hostProcess, error) {
	child, err := startHost(h.program, &h.strays)
	if err != nil {
		return nil, err
	}
	p := &hostProcess{
		h: h, key: k, server: server, born: time.Now(), pid: child.pid, startTime: child.start, kill: child.kill,
		conn: child.conn, w: frame.NewWriter(child.conn),
		ready: make(chan struct{}), silent: make(chan struct{}), done: make(chan struct{}),
		calls: map[uint64]*openCall{}, users: map[*run]bool{},
	}
	h.mu.Lock()
	h.alive[p] = true
	h.mu.Unlock()
	h.tasks.Go(p.read)
	logged := make(chan struct{})
	h.tasks.Go(func() { h.log(k, child.stderr); close(logged) })
	h.tasks.Go(func() {
		<-child.gone
		_ = child.conn.SetReadDeadline(time.Now().Add(hostKillAfter)) // what it said last is heard
		<-p.silent
		_ = child.conn.Close()
		_ = child.stderr.SetReadDeadline(time.Now().Add(hostKillAfter)) // what it said last
		<-logged
		p.mu.Lock()
		for _, t := range []*time.Timer{p.idle, p.ending} {
			if t != nil {
				t.Stop()
			}
		}
		p.mu.Unlock()
		h.mu.Lock()
		delete(h.alive, p)
		h.mu.Unlock()
		if st := h.d.state(); st.open {
			if _, exists := st.server(k.server); !exists { // a later one of its name has lines of its own
				h.logs.forget(k.server)
			}
		}
		close(p.done)
	})
	return p, nil
}

// log keeps what a host itself writes to its stderr.
func (h *hosts) log(k hostKey, stderr *os.File) {
	defer stderr.Close()
	lines := bufio.NewReaderSize(stderr, maxHostLine)
	for {
		line, err := lines.ReadSlice('\n')
		if len(line) > 0 {
			h.logs.add(k, h.d.clock.now(), bytes.TrimRight(line, "\r\n"))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			_, _ = io.Copy(io.Discard, stderr)
			return
		}
	}
}

// hostChild is the program as it was started.
type hostChild struct {
	pid    int32
	start  uint64 // clock ticks since boot
	conn   hostConn
	stderr *os.File
	kill   func()
	gone   chan struct{} // closed when it is gone, with all of its session
}
