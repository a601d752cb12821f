package daemon

import (
	"context"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
	"subjectbroker/proto/wire"
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
	return d.offeredTo(r), nil
}

// offeredTo is what a run may call now beside what every run may.
func (d *Daemon) offeredTo(r *run) *brokerv1.ListServersResponse {
	return &brokerv1.ListServersResponse{Servers: d.callableServers(r), Knowledge: d.knowledgeTools(r)}
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

// callables are the tools of hosted servers, and of the memory, that the run may call
// now, as they are.
func (d *Daemon) callables(r *run) []string {
	all := d.knowledgeTools(r)
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
	policy := st.policyOf(r.subject, server)
	if policy != nil && st.observes(policy, d.clock.reached()) {
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
