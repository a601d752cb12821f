package daemon

import (
	"context"

	"google.golang.org/grpc"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// ListServers names the hosted servers of which the run may call a tool now.
func (b broker) ListServers(ctx context.Context, req *brokerv1.ListServersRequest) (*brokerv1.ListServersResponse, error) {
	if _, err := b.d.identify(ctx, req.GetRunId()); err != nil {
		return nil, err
	}
	return nil, wire.Deny(wire.PolicyUnavailable)
}

// Relay judges what one client says to one server.
func (b broker) Relay(stream grpc.BidiStreamingServer[brokerv1.RelayRequest, brokerv1.RelayResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if _, err := b.d.identify(stream.Context(), first.GetOpen().GetRunId()); err != nil {
		return err
	}
	return wire.Deny(wire.PolicyUnavailable)
}
