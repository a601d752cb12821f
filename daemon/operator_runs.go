package daemon

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// ListRuns lists runs and launches.
func (o operator) ListRuns(ctx context.Context, req *operatorv1.ListRunsRequest) (*operatorv1.ListRunsResponse, error) {
	uid := callerOf(ctx).UID
	response := &operatorv1.ListRunsResponse{Launches: o.d.launchMessages(uid, req.GetEnded())}
	for _, r := range o.d.runs.list(req.GetEnded()) {
		response.Runs = append(response.Runs, r.message(uid))
	}
	return response, nil
}

// launchMessages are the launches as an operator sees them.
func (d *Daemon) launchMessages(uid uint32, ended bool) []*operatorv1.Launch {
	var all []*operatorv1.Launch
	runs := d.runs.byLaunch()
	for _, l := range d.launches.list(ended) {
		all = append(all, l.unnamed(uid, l.message(runs[l])))
	}
	return all
}

// EndRun ends one run, or one launch with everything in it.
func (o operator) EndRun(ctx context.Context, req *operatorv1.EndRunRequest) (*operatorv1.EndRunResponse, error) {
	r, l, err := o.d.byPrefix(req.GetRunId())
	if err != nil {
		return nil, err
	}
	if l != nil {
		ended, err := o.endLaunch(ctx, l)
		if err != nil {
			return nil, err
		}
		return &operatorv1.EndRunResponse{Launch: l.unnamed(callerOf(ctx).UID, ended)}, nil
	}
	accountFor(ctx)
	if err := o.d.endRuns(wire.RunEnded, "ENDED_BY_OPERATOR", func(other *run) bool { return other == r }); err != nil {
		return nil, err
	}
	return &operatorv1.EndRunResponse{Run: r.message(callerOf(ctx).UID)}, nil
}

// byPrefix returns the one open run or the one open launch whose id starts with
// prefix.
func (d *Daemon) byPrefix(prefix string) (*run, *launch, error) {
	if prefix == "" {
		return nil, nil, refuse("no open run has an id that starts with %s", shown(prefix))
	}
	runs, launches := d.runs.withPrefix(prefix), d.launches.withPrefix(prefix)
	switch {
	case len(runs) == 1 && (len(launches) == 0 || runs[0].id == prefix):
		return runs[0], nil, nil
	case len(launches) == 1 && (len(runs) == 0 || launches[0].id == prefix):
		return nil, launches[0], nil
	case len(runs)+len(launches) > 0:
		return nil, nil, refuse("more than one run or launch has an id that starts with %s", shown(prefix))
	}
	return nil, nil, refuse("no open run or launch has an id that starts with %s", shown(prefix))
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

// message is the run as an operator sees it.
func (r *run) message(uid uint32) *operatorv1.Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	launchID := ""
	if r.launch != nil {
		launchID = r.launch.id
	}
	attested := string(r.peer.Class)
	if r.key != "" {
		attested = "key"
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(r.resources)) {
		if !hiddenFrom(uid, r.resources[name]) {
			names = append(names, name)
		}
	}
	return &operatorv1.Run{
		RunId: r.id, Subject: r.subject, Tier: r.tier.String(), Pid: r.peer.PID, Uid: r.peer.UID, Command: r.command,
		ShimVersion: r.shimVersion, Opened: millis(r.opened), Ended: millis(r.ended), Reads: r.reads, Denials: r.denials,
		Resources: names, Attested: attested, KeyId: r.key, KeyName: r.keyName,
		Profile: r.profile.Name, LaunchId: launchID, Calls: r.calls,
	}
}
