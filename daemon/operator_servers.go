package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// AddServer puts a server behind the broker, and grants its tools to subjects.
func (o operator) AddServer(ctx context.Context, req *operatorv1.AddServerRequest) (*operatorv1.AddServerResponse, error) {
	d, q := o.d, req.GetServer()
	now := d.clock.now().UTC().Truncate(time.Millisecond)
	server := grants.Server{
		Name: q.GetName(), Command: q.GetCommand(), Cwd: q.GetCwd(), URL: q.GetUrl(), Env: q.GetEnv(), Headers: q.GetHeaders(),
		Hosted: true, Created: now,
	}
	if seconds := req.GetObserveSeconds(); seconds > 0 {
		if seconds > uint64(maxObserve/time.Second) {
			return nil, refuse("rules can only log for at most %d days", maxObserve/(24*time.Hour))
		}
		server.ObserveUntil = now.Add(time.Duration(seconds) * time.Second)
	}
	if err := server.Validate(); err != nil {
		return nil, refuse("server: %v", err)
	}
	var made []grants.Grant
	err := d.mutate(ctx, func(st *state) (change, error) {
		made = nil
		if _, exists := st.servers[server.Name]; exists {
			return change{}, refuse("server %s exists already", server.Name)
		}
		for i, subject := range req.GetSubjects() {
			if slices.Contains(req.GetSubjects()[:i], subject) {
				return change{}, refuse("%s is named twice", shown(subject))
			}
			if _, err := st.knownSubject(subject); err != nil {
				return change{}, err
			}
			all := grants.Pattern{Action: grants.Call, Object: server.Name + "/", Prefix: true}
			g, _, err := d.newGrant(ctx, st, &operatorv1.CreateGrantsRequest{Subject: subject}, all.String())
			if err != nil {
				return change{}, err
			}
			made = append(made, g)
		}
		if err := d.needAuth(ctx, st, st.needOfGrants(made...)); err != nil {
			return change{}, err
		}
		return joined(o.serverChange(ctx, st, server), o.granting(ctx, made, true)), nil
	})
	if err != nil {
		return nil, err
	}
	response := &operatorv1.AddServerResponse{Server: o.serverMessage(ctx, server.Name)}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	for _, g := range made {
		response.Grants = append(response.Grants, st.grantMessage(g, at))
	}
	st.mu.RUnlock()
	added, _ := st.server(server.Name)
	response.Missing = st.missingUses(added, req.GetSubjects(), at)
	return response, nil
}

// maxObserve is how long rules may only log.
const maxObserve = 366 * 24 * time.Hour

// missingUses returns which subjects could not use a server's secrets whatever their
// runs are like, as SUBJECT use:NAME. It takes mu.
func (s *state) missingUses(server grants.Server, subjects []string, at reading) []string {
	var missing []string
	for _, subject := range subjects {
		for _, name := range server.Secrets() {
			use := grants.Capability{Action: grants.Use, Object: name}
			best := asker{subject: subject, tier: grants.Sandboxed, host: true}
			s.mu.RLock()
			given := s.given(&server, name)
			s.mu.RUnlock()
			if !given || s.decide(best, use, at).Outcome == grants.Denied {
				missing = append(missing, subject+" "+use.String())
			}
		}
	}
	return missing
}

// ListServers lists the servers that were added, trusted, seen, or named in a policy.
func (o operator) ListServers(ctx context.Context, _ *operatorv1.ListServersRequest) (*operatorv1.ListServersResponse, error) {
	if err := o.d.needUnlocked(); err != nil {
		return nil, err
	}
	response := &operatorv1.ListServersResponse{}
	for _, name := range o.d.serverNames() {
		response.Servers = append(response.Servers, o.serverMessage(ctx, name))
	}
	return response, nil
}

// serverNames are the servers of which anything is known, sorted.
func (d *Daemon) serverNames() []string {
	names := map[string]bool{}
	for _, name := range d.offers.names() {
		names[name] = true
	}
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for name := range st.servers {
		names[name] = true
	}
	for k := range st.pins {
		names[k.server] = true
	}
	for k := range st.policies {
		names[k.server] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// knownServer refuses a name of nothing.
func (o operator) knownServer(name string) error {
	if err := grants.CheckServer(name); err != nil {
		return refuse("server: %v", err)
	}
	if err := o.d.needUnlocked(); err != nil {
		return err
	}
	if !slices.Contains(o.d.serverNames(), name) {
		return refuse("no server is named %s", name)
	}
	return nil
}

// serversAdded is how many servers were added.
func (d *Daemon) serversAdded() uint32 {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return uint32(len(st.servers))
}

// untrustedServers are those with something that the operator has not trusted,
// sorted: for status.
func (d *Daemon) untrustedServers() []string {
	var names []string
	st := d.state()
	for _, name := range d.offers.names() {
		o := d.offers.of(name)
		st.mu.RLock()
		_, added := st.servers[name]
		judged := added || st.trustedLocked(name)
		if judged && slices.ContainsFunc(st.toolStates(name, o), toolState.untrusted) {
			names = append(names, name)
		}
		st.mu.RUnlock()
	}
	return names
}

// serverMessage is a server as the operator sees it.
func (o operator) serverMessage(ctx context.Context, name string) *operatorv1.Server {
	d := o.d
	offered, processes := d.offers.of(name), d.hosts.of(name)
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	m := &operatorv1.Server{Name: name, Subjects: st.callers(name, at)}
	if server, added := st.servers[name]; added {
		m.Command, m.Cwd, m.Url, m.Env, m.Headers = server.Command, server.Cwd, server.URL, server.Env, server.Headers
		m.Hosted, m.ObserveUntil, m.Created, m.Owner = server.Hosted, millis(server.ObserveUntil), millis(server.Created), server.Owner
		if len(server.Secrets()) > 0 {
			m.Disclosed = st.disclosedBy(m.GetSubjects(), processes)
		}
	}
	for _, t := range st.toolStates(name, offered) {
		if t.pin != nil {
			m.Trusted = max(m.GetTrusted(), millis(t.pin.Trusted))
			if t.name != "" {
				m.TrustedTools++
			}
		}
		if t.untrusted() {
			m.UntrustedTools++
		}
	}
	for _, p := range processes {
		m.Processes = append(m.Processes, p.message())
	}
	st.unnamedServer(callerOf(ctx).UID, st.servers[name], m)
	return m
}

// disclosedBy says how the secrets of a server are disclosed to the subjects that it
// serves. The caller holds mu.
func (s *state) disclosedBy(subjects []string, processes []hostFacts) string {
	for _, name := range subjects {
		if subject, ok := s.set.Subject(name); !ok || !apart(subject) {
			return disclosedReachable
		}
	}
	for _, p := range processes {
		if p.loose {
			return disclosedReachable
		}
	}
	return disclosedNo
}

// GetServer shows one server.
func (o operator) GetServer(ctx context.Context, req *operatorv1.GetServerRequest) (*operatorv1.GetServerResponse, error) {
	if err := o.knownServer(req.GetName()); err != nil {
		return nil, err
	}
	if req.GetRefresh() {
		if err := o.look(ctx, req.GetName()); err != nil {
			return nil, err
		}
	}
	states := o.toolStates(req.GetName())
	return &operatorv1.GetServerResponse{Server: o.serverMessage(ctx, req.GetName()), Tools: toolMessages(req.GetName(), states)}, nil
}

// toolStates is what a server was last seen to offer beside what was trusted.
func (o operator) toolStates(name string) []toolState {
	offered, st := o.d.offers.of(name), o.d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.toolStates(name, offered)
}

func toolMessages(server string, states []toolState) []*operatorv1.ServerToolState {
	var all []*operatorv1.ServerToolState
	for _, t := range states {
		m := &operatorv1.ServerToolState{Name: t.name, State: t.state}
		if t.pin != nil {
			m.Trusted, m.Pin = t.pin.Object, t.pin.hash()
		}
		if t.present && (t.pin == nil || string(t.pin.Object) != string(t.seen)) {
			m.Seen = t.seen
		}
		if t.name != "" {
			m.Exposed = exposed(server, t.name)
		}
		all = append(all, m)
	}
	return all
}

// look sees to it that it is known what a server offers now. A hosted one that
// nobody runs is started for it, on the operator's word.
func (o operator) look(ctx context.Context, name string) error {
	d := o.d
	server, added := d.state().server(name)
	if !added || !server.Hosted {
		if d.offers.of(name) == nil && !d.state().trusted(name) {
			return refuse("nobody has seen yet what %s offers: let an agent start it with sb-mcp wrap", name)
		}
		return nil
	}
	if err := d.meets(ctx, fixed(whenRaised), nil); err != nil { // its secrets are used
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, hostStartLimit)
	defer cancel()
	err := d.hosts.look(waiting, o, server)
	switch {
	case err == nil: // a tier may have been raised, or the session have ended, meanwhile
		return d.meets(ctx, fixed(whenRaised), nil)
	case errors.Is(err, errHostRefused):
		words := wordsOf(err)
		refusal := refuse("%s was not started: %s", name, d.unnamedWords(ctx, server, words))
		if failure, ok := errors.AsType[*hostFailure](err); ok && d.unnamedWords(ctx, server, words) == words {
			refusal.Hint = failure.hint
		}
		return refusal
	case waiting.Err() != nil && !errors.Is(err, errHostGone):
		return &wire.Error{Reason: wire.InternalError, Message: name + " did not say in time what it offers"}
	}
	return &wire.Error{Reason: wire.InternalError, Message: name + " was not started: " + d.unnamedWords(ctx, server, wordsOf(err))}
}

// TrustServer pins what a server offers now.
func (o operator) TrustServer(ctx context.Context, req *operatorv1.TrustServerRequest) (*operatorv1.TrustServerResponse, error) {
	d, name := o.d, req.GetName()
	if err := o.knownServer(name); err != nil {
		return nil, err
	}
	if d.offers.of(name) == nil {
		if err := o.look(ctx, name); err != nil {
			return nil, err
		}
	}
	offered := d.offers.of(name)
	if offered == nil {
		return nil, refuse("nobody has seen since sbd was started what %s offers", name)
	}
	response := &operatorv1.TrustServerResponse{}
	plan := func(st *state) (change, error) {
		states := st.toolStates(name, offered)
		response.Shown = fingerprint(states)
		if req.GetShown() != "" && req.GetShown() != response.GetShown() {
			return change{}, refuse("%s offers something else by now than was shown: look again", name)
		}
		chosen, err := choose(states, req.GetTools())
		if err != nil {
			return change{}, err
		}
		response.Tools = toolMessages(name, chosen)
		if !req.GetDryRun() {
			response.Warnings = d.liftedHere(ctx, st)
		}
		added, gone := pinsOf(name, chosen, d.clock.now().UTC().Truncate(time.Millisecond))
		return o.pinsChange(ctx, added, gone), nil
	}
	if req.GetDryRun() {
		st := d.state()
		st.mu.RLock()
		_, err := plan(st)
		st.mu.RUnlock()
		if err != nil {
			return nil, err
		}
	} else {
		if err := d.mutate(ctx, plan); err != nil {
			return nil, err
		}
		d.hub.listChanged()
	}
	response.Server = o.serverMessage(ctx, name)
	return response, nil
}

// fingerprint is of what the operator is shown: each name with its state, with what
// was trusted and with what was seen.
func fingerprint(states []toolState) string {
	sum := sha256.New()
	for _, t := range states {
		trusted := ""
		if t.pin != nil {
			trusted = t.pin.hash()
		}
		fmt.Fprintf(sum, "%d %s %s %s %v %s\n", len(t.name), t.name, t.state, trusted, t.present, pinHash(t.seen))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// choose returns what of the states is to be trusted, or to be forgotten: all that
// is not as it was trusted, or the named tools.
func choose(states []toolState, tools []string) ([]toolState, error) {
	var chosen []toolState
	for _, t := range states {
		if t.untrusted() || t.state == toolGone {
			chosen = append(chosen, t)
		}
	}
	if len(tools) == 0 {
		return chosen, nil
	}
	for i, tool := range tools {
		j := slices.IndexFunc(states, func(t toolState) bool { return t.name == tool })
		switch {
		case tool == "" || j < 0:
			return nil, refuse("it has no tool named %s", shown(tool))
		case slices.Contains(tools[:i], tool):
			return nil, refuse("%s is named twice", shown(tool))
		case states[j].state == toolWithheld:
			return nil, refuse("%s cannot be shown to agents: its name is too long, or has characters that names do not have", shown(tool))
		}
	}
	return slices.DeleteFunc(chosen, func(t toolState) bool { return !slices.Contains(tools, t.name) }), nil
}

// pinsOf are the pins that trusting makes, and those that it forgets.
func pinsOf(server string, chosen []toolState, now time.Time) (added, gone []pin) {
	for _, t := range chosen {
		if t.state == toolGone {
			gone = append(gone, *t.pin)
			continue
		}
		added = append(added, pin{Server: server, Tool: t.name, Object: t.seen, Trusted: now})
	}
	return added, gone
}

// RestartServer ends the processes of a server and lifts kills.
func (o operator) RestartServer(ctx context.Context, req *operatorv1.RestartServerRequest) (*operatorv1.RestartServerResponse, error) {
	d, name := o.d, req.GetName()
	if err := o.knownServer(name); err != nil {
		return nil, err
	}
	if req.GetSubject() != "" {
		if err := checkName("subject", req.GetSubject()); err != nil {
			return nil, err
		}
		st := d.state()
		st.mu.RLock()
		_, err := st.knownSubject(req.GetSubject())
		st.mu.RUnlock()
		if err != nil {
			return nil, err
		}
	}
	e := o.entry(ctx, kindServerRestart)
	e.Server, e.SubjectID = name, req.GetSubject()
	accountFor(ctx)
	if err := d.revive(*e); err != nil {
		return nil, err
	}
	n := d.hosts.restart(name, req.GetSubject())
	d.hub.listChanged()
	return &operatorv1.RestartServerResponse{Processes: n}, nil
}

// revive lets servers run again that a rule has stopped, once the entry that says so is
// durable.
func (d *Daemon) revive(e audit.Entry) error {
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	if d.log() == nil {
		return wire.Deny(wire.AuditFailed)
	}
	entries := []audit.Entry{e}
	if err := d.recordAll(entries); err != nil {
		return wire.Deny(wire.AuditFailed)
	}
	d.state().meters.heard(entries)
	return nil
}

// ReadServerLogs streams what the processes of a server wrote.
func (o operator) ReadServerLogs(req *operatorv1.ReadServerLogsRequest, stream grpc.ServerStreamingServer[operatorv1.ReadServerLogsResponse]) error {
	d := o.d
	if err := o.knownServer(req.GetName()); err != nil {
		return err
	}
	for number := uint64(0); ; {
		lines, newest, more := d.hosts.logs.after(number, req.GetName(), req.GetSubject(), req.GetSubject() == "")
		for i, text := range d.unsaid(req.GetName(), lines) {
			line := lines[i]
			if err := stream.Send(&operatorv1.ReadServerLogsResponse{Subject: line.subject, Time: millis(line.at), Line: text}); err != nil {
				return err
			}
		}
		number = newest
		if !req.GetFollow() {
			return nil
		}
		select {
		case <-more:
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-d.life.Done():
			return nil
		}
	}
}

// RemoveServer removes a server with what was trusted of it, its policies and the
// grants that name it: a later one of its name inherits nothing.
func (o operator) RemoveServer(ctx context.Context, req *operatorv1.RemoveServerRequest) (*operatorv1.RemoveServerResponse, error) {
	d, name := o.d, req.GetName()
	if err := o.knownServer(name); err != nil {
		return nil, err
	}
	response := &operatorv1.RemoveServerResponse{}
	err := d.mutate(ctx, func(st *state) (change, error) {
		gone := st.serverGrants(name)
		policies, n := o.policyRemovals(ctx, st, func(k policyKey) bool { return k.server == name })
		response.Revoked, response.Policies, response.Warnings = uint32(len(gone)), uint32(n), d.liftedHere(ctx, st)
		return joined(o.serverRemoval(ctx, st, name), o.revocation(ctx, st, gone), policies), nil
	})
	if err != nil {
		return nil, err
	}
	d.hosts.review() // before the answer
	d.hosts.logs.forget(name)
	return response, nil
}

// message is a process as the operator sees it.
func (f hostFacts) message() *operatorv1.ServerProcess {
	return &operatorv1.ServerProcess{
		Subject: f.subject, State: f.state, Pid: f.pid, Started: millis(f.started), Starts: f.starts, Cause: f.cause, Open: f.open,
		Confinement: f.confinement,
	}
}

func byProcess(a, b hostFacts) int { return cmp.Compare(a.subject, b.subject) }
