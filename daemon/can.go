package daemon

import (
	"context"

	"subjectbroker/audit"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// Can answers whether the run may do something by itself, for a host that asks
// before it uses a tool of its own. It is an explain of any capability: recorded
// as one, on the same path, and nothing is used up.
func (b broker) Can(ctx context.Context, req *brokerv1.CanRequest) (*brokerv1.CanResponse, error) {
	r, err := b.d.identify(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	a := b.d.ask(r, audit.Explain, req.GetCapability())
	who := r.asker()
	who.host = true
	a.decide = func(c grants.Capability) grants.Decision { return b.d.state().decide(who, c, b.d.clock.read()) }
	got, err := b.d.release(ctx, a)
	if err != nil {
		return nil, err
	}
	return &brokerv1.CanResponse{Decision: got.decision.String(), ReasonCode: string(got.reason)}, nil
}
