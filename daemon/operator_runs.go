package daemon

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// ListRuns lists runs.
func (o operator) ListRuns(_ context.Context, req *operatorv1.ListRunsRequest) (*operatorv1.ListRunsResponse, error) {
	response := &operatorv1.ListRunsResponse{}
	for _, r := range o.d.runs.list(req.GetEnded()) {
		response.Runs = append(response.Runs, r.message())
	}
	return response, nil
}

// EndRun ends one run.
func (o operator) EndRun(ctx context.Context, req *operatorv1.EndRunRequest) (*operatorv1.EndRunResponse, error) {
	r, err := o.d.runs.byPrefix(req.GetRunId())
	if err != nil {
		return nil, err
	}
	accountFor(ctx)
	if err := o.d.endRuns(wire.RunEnded, "ENDED_BY_OPERATOR", func(other *run) bool { return other == r }); err != nil {
		return nil, err
	}
	return &operatorv1.EndRunResponse{Run: r.message()}, nil
}

// WatchEvents streams the log's lines from now on.
func (o operator) WatchEvents(_ *operatorv1.WatchEventsRequest, stream grpc.ServerStreamingServer[operatorv1.WatchEventsResponse]) error {
	log := o.d.log()
	if log == nil {
		return wire.Deny(wire.VaultLocked)
	}
	durable, _ := log.Durable()
	if err := stream.SendHeader(nil); err != nil { // events from here on are reported
		return err
	}
	return o.d.followLog(stream.Context(), log, durable.Seq+1, func(line []byte) error {
		return stream.Send(&operatorv1.WatchEventsResponse{Line: line})
	})
}

// message is the run as the operator sees it.
func (r *run) message() *operatorv1.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &operatorv1.Run{
		RunId: r.id, Subject: r.subject, Tier: r.tier.String(), Pid: r.peer.PID, Uid: r.peer.UID, Command: r.command,
		ShimVersion: r.shimVersion, Opened: millis(r.opened), Ended: millis(r.ended), Reads: r.reads, Denials: r.denials,
		Resources: slices.Sorted(maps.Keys(r.resources)), Attested: string(r.peer.Class),
		Profile: r.profile.Name,
	}
}
