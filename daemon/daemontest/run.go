package daemontest

import (
	"context"
	"time"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Run is an open run. It is safe for concurrent use.
type Run struct {
	brokerv1.BrokerServiceClient
	ID   string
	Conn *grpc.ClientConn
	d    *Daemon
}

// Claim asks for a run of a subject, as a shim does.
func Claim(subject string) *brokerv1.OpenRunRequest {
	return &brokerv1.OpenRunRequest{
		Api: wire.API, ShimVersion: Version, Claim: &brokerv1.OpenRunRequest_Subject{Subject: &brokerv1.SubjectClaim{Subject: subject}},
	}
}

// Open opens a run on a connection of its own.
func (d *Daemon) Open(subject string) *Run {
	d.t.Helper()
	return d.OpenOn(d.Connect(), subject)
}

// OpenOn opens a run on a connection.
func (d *Daemon) OpenOn(conn *grpc.ClientConn, subject string) *Run {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(ctx, Claim(subject))
	d.must("opening a run of "+subject, err)
	return &Run{BrokerServiceClient: broker, ID: opened.GetRunId(), Conn: conn, d: d}
}

// RunOf is a run that the test opened itself, with a claim of its own.
func (d *Daemon) RunOf(broker brokerv1.BrokerServiceClient, conn *grpc.ClientConn, id string) *Run {
	return &Run{BrokerServiceClient: broker, ID: id, Conn: conn, d: d}
}

// Read acquires a resource and returns its content, or why it was refused.
func (r *Run) Read(name string) (string, wire.Reason) {
	ctx, cancel := r.d.context()
	defer cancel()
	got, err := r.Acquire(ctx, &brokerv1.AcquireRequest{RunId: r.ID, ResourceId: name})
	return string(got.GetContent()), Reason(err)
}

// Refused is the reason why a resource cannot be acquired; ALLOWED when it can.
func (r *Run) Refused(name string) wire.Reason {
	_, reason := r.Read(name)
	return reason
}

// Explained is the decision about a resource and its public reason.
func (r *Run) Explained(name string) (decision string, reason wire.Reason) {
	ctx, cancel := r.d.context()
	defer cancel()
	got, err := r.Explain(ctx, &brokerv1.ExplainRequest{RunId: r.ID, ResourceId: name})
	if err != nil {
		return "", Reason(err)
	}
	return got.GetDecision(), wire.Reason(got.GetReasonCode())
}

// List names what may be read.
func (r *Run) List() []string {
	r.d.t.Helper()
	ctx, cancel := r.d.context()
	defer cancel()
	list, err := r.ListResources(ctx, &brokerv1.ListResourcesRequest{RunId: r.ID})
	r.d.must("listing", err)
	names := []string{}
	for _, resource := range list.GetResources() {
		names = append(names, resource.GetName())
	}
	return names
}

// Close ends the run.
func (r *Run) Close() {
	r.d.t.Helper()
	ctx, cancel := r.d.context()
	defer cancel()
	_, err := r.CloseRun(ctx, &brokerv1.CloseRunRequest{RunId: r.ID})
	r.d.must("closing a run", err)
}

// Watching is a stream of changes.
type Watching struct {
	stream grpc.ServerStreamingClient[brokerv1.WatchResponse]
	r      *Run
}

// Follow watches the run, and returns when changes from here on are reported.
func (r *Run) Follow() *Watching {
	r.d.t.Helper()
	stream, err := r.Watch(context.WithoutCancel(r.d.t.Context()), &brokerv1.WatchRequest{RunId: r.ID})
	r.d.must("watching", err)
	w := &Watching{stream, r}
	if first := w.Next(); first != "ready" {
		r.d.t.Fatalf("the first event is %s, want ready", first)
	}
	return w
}

// Next waits for the next event, in words: "list changed", "NAME updated",
// "ended REASON", "over REASON" when the stream broke off, or "no event".
func (w *Watching) Next() string {
	type received struct {
		event *brokerv1.WatchResponse
		err   error
	}
	next := make(chan received, 1)
	go func() {
		event, err := w.stream.Recv()
		next <- received{event, err}
	}()
	var event *brokerv1.WatchResponse
	select {
	case r := <-next:
		if event = r.event; r.err != nil {
			return "over " + string(Reason(r.err))
		}
	case <-time.After(Patience):
		return "no event"
	}
	switch e := event.GetEvent().(type) {
	case *brokerv1.WatchResponse_Ready:
		return "ready"
	case *brokerv1.WatchResponse_ListChanged:
		return "list changed"
	case *brokerv1.WatchResponse_ResourceUpdated:
		return e.ResourceUpdated.GetResourceId() + " updated"
	case *brokerv1.WatchResponse_RunEnded:
		return "ended " + e.RunEnded.GetReasonCode()
	}
	return "unknown event"
}
