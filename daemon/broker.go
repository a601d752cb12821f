package daemon

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// broker is the worker plane's service. Each method identifies the run by its
// connection and hands the rest to the release path or to the log; none of them
// decides anything itself.
type broker struct {
	brokerv1.UnimplementedBrokerServiceServer
	d *Daemon
}

// CloseRun ends a run.
func (b broker) CloseRun(ctx context.Context, req *brokerv1.CloseRunRequest) (*brokerv1.CloseRunResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	if err := b.d.endRuns(wire.RunEnded, "CLOSED", func(other *run) bool { return other == r }); err != nil {
		return nil, err
	}
	return &brokerv1.CloseRunResponse{}, nil
}

// ListResources names what may be read now.
func (b broker) ListResources(ctx context.Context, req *brokerv1.ListResourcesRequest) (*brokerv1.ListResourcesResponse, error) {
	d := b.d
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	if !r.ceiling.Lists(grants.ToolList) {
		return nil, d.refuseTool(ctx, r, "list", grants.ToolList)
	}
	names := d.state().readable(r.asker(), d.clock.read())
	e := r.entry(audit.List)
	e.Decision, e.ReasonCode, e.Count = decisionAllow, string(wire.Allowed), uint64(len(names))
	if err := d.record(ctx, e); err != nil {
		return nil, err
	}
	if d.over(r) {
		return nil, wire.Deny(wire.RunEnded)
	}
	// What was taken away while the entry was written is not named any more.
	response := &brokerv1.ListResourcesResponse{Resources: make([]*brokerv1.Resource, 0, len(names))}
	d.state().eachReadable(r.asker(), d.clock.read(), names, func(name string, f facts) {
		response.Resources = append(response.Resources, &brokerv1.Resource{Name: name, Kind: f.kind, Size: f.size})
	})
	return response, nil
}

// Acquire releases content.
func (b broker) Acquire(ctx context.Context, req *brokerv1.AcquireRequest) (*brokerv1.AcquireResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	name := req.GetResourceId()
	a := b.d.ask(r, audit.Acquire, "read:"+name)
	a.open, a.gate = b.d.openContent(ctx, name, 0), b.d.gateRead(r, name)
	got, err := b.d.release(ctx, a)
	if err != nil {
		return nil, err
	}
	if got.reason != wire.ApprovalPending { // that is no denial
		r.count(name, got.reason == wire.Allowed, got.owner)
	}
	if got.reason != wire.Allowed {
		return nil, got.refusal()
	}
	// The codec wipes the content when it has been marshalled.
	return &brokerv1.AcquireResponse{ResourceId: name, Content: got.content, Kind: got.kind, Version: got.version, AuditSeq: got.seq}, nil
}

// Explain judges without acquiring.
func (b broker) Explain(ctx context.Context, req *brokerv1.ExplainRequest) (*brokerv1.ExplainResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	action := req.GetAction()
	if action == "" {
		action = grants.Read.String()
	}
	got, err := b.d.release(ctx, b.d.ask(r, audit.Explain, action+":"+req.GetResourceId()))
	if err != nil {
		return nil, err
	}
	return &brokerv1.ExplainResponse{Decision: got.decision.String(), ReasonCode: string(got.reason)}, nil
}

// Report says what holds for the run.
func (b broker) Report(ctx context.Context, req *brokerv1.ReportRequest) (*brokerv1.ReportResponse, error) {
	d := b.d
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	e := r.entry(kindRunReport)
	e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
	if err := d.record(ctx, e); err != nil {
		return nil, err
	}
	return d.report(r), nil
}

// Watch streams what changes for the run until it ends.
func (b broker) Watch(req *brokerv1.WatchRequest, stream grpc.ServerStreamingServer[brokerv1.WatchResponse]) error {
	d, ctx := b.d, stream.Context()
	r, err := d.identify(ctx, req.GetRunId())
	if err != nil {
		return err
	}
	w := d.hub.watch(r.subject)
	defer d.hub.unwatch(w)
	e := r.entry(kindRunWatch)
	e.Decision, e.ReasonCode = decisionAllow, string(wire.Allowed)
	if err := d.record(ctx, e); err != nil {
		return err
	}
	send := func(event *brokerv1.WatchResponse) error { return stream.Send(event) }
	last, lastTools := d.listed(r), d.callables(r)
	if err := send(&brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_Ready{Ready: &brokerv1.Ready{}}}); err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		d.armExpiry(timer, r)
		list := false
		var updated []string
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.done:
			r.mu.Lock()
			reason := r.reason
			r.mu.Unlock()
			return send(runEnded(reason))
		case <-d.life.Done():
			return send(runEnded(wire.BrokerUnavailable))
		case <-timer.C:
			list = true
		case <-w.dirty:
			list, updated = w.take()
		}
		if r.key != "" && !d.entitled(r) { // its time is over, and this is who notices first
			_, _ = d.endKeyRuns(r.key, causeKeyExpired)
			continue
		}
		if list {
			now := d.listed(r)
			if !slices.Equal(last, now) {
				if err := send(&brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ListChanged{ListChanged: &brokerv1.ListChanged{}}}); err != nil {
					return err
				}
			}
			last = now
			tools := d.callables(r)
			if !slices.Equal(lastTools, tools) {
				if err := send(&brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ServersChanged{ServersChanged: &brokerv1.ServersChanged{}}}); err != nil {
					return err
				}
			}
			lastTools = tools
		}
		for _, name := range updated {
			c := grants.Capability{Action: grants.Read, Object: name}
			if d.state().decide(r.asker(), c, d.clock.read()).Outcome == grants.Denied {
				continue
			}
			if err := send(&brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ResourceUpdated{ResourceUpdated: &brokerv1.ResourceUpdated{ResourceId: name}}}); err != nil {
				return err
			}
		}
	}
}

// listed is what the run's lists hold now; nothing when it may not list.
func (d *Daemon) listed(r *run) []string {
	if !r.ceiling.Lists(grants.ToolList) {
		return nil
	}
	return d.state().readable(r.asker(), d.clock.read())
}

func runEnded(reason wire.Reason) *brokerv1.WatchResponse {
	return &brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_RunEnded{RunEnded: &brokerv1.RunEnded{ReasonCode: string(reason)}}}
}

// armExpiry sets timer to when something changes for a run by the clock alone: its
// subject's list, or its key.
func (d *Daemon) armExpiry(timer *time.Timer, r *run) {
	const far = time.Hour // a clock may be set meanwhile
	wait := far
	now := d.clock.now()
	for _, next := range []time.Time{d.state().nextChange(r.subject, now), d.state().keyEnd(r.key)} {
		if !next.IsZero() {
			wait = min(wait, max(next.Sub(now), time.Millisecond))
		}
	}
	timer.Reset(wait)
}
