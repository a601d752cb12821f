package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type runsCmd struct {
	List runsListCmd `cmd:"" default:"withargs" help:"List open runs and launches"`
	Show runsShowCmd `cmd:"" help:"Show one run or launch and what was read under it"`
	End  runsEndCmd  `cmd:"" help:"End a run, or a launch with all its processes"`
}

// Help is the manual of runs.
func (runsCmd) Help() string {
	return `A run is one authenticated session of one subject. A shim has one for each of its
connections; it ends with the connection at the latest. A launch is a process
tree that "sbctl run" started; the runs of its shims are shown below it.

ATTESTED says how the daemon knows who that is:
  launched      a launch: every process in it is the subject
  launch        a run inside a launch, whatever it claims to be
  mapped        by its uid, which belongs to the subject
  plain         by its own word, from a process of the same uid as the daemon
  key NAME      by an agent key, of that name or id, which a gateway handed in
  unattributed  by its own word, from a process tree that is no launch
  unproven      a launch that could not be recognised after a restart of the
                daemon: what still runs in it is nobody`
}

type runsListCmd struct {
	All bool `help:"Also those that ended recently."`
}

// Help is the manual of runs list.
func (runsListCmd) Help() string {
	return `CALLS is how many calls of tools were let through, DENIALS what was refused of reads
and calls. RESOURCES names what was handed out under a run; of a launch also what it
was started with. In JSON "items" are the runs and "launches" the launches, each with
the ids of its runs.

Examples:
  sbctl runs
  sbctl runs --all -o json`
}

// runsView is the JSON shape of runs: a list with the launches beside it.
type runsView struct {
	Schema   int          `json:"schema"`
	Items    []runView    `json:"items"`
	Launches []launchView `json:"launches"`
}

// Run lists runs and launches.
func (c runsListCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "listing runs", &operatorv1.ListRunsRequest{Ended: c.All}, operatorv1.OperatorServiceClient.ListRuns)
	if err != nil {
		return err
	}
	runs, launches := got.GetRuns(), got.GetLaunches()
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: runsView{Schema: 1, Items: viewRuns(runs), Launches: viewLaunches(launches, runs)}})
	}
	list := ui.List{Head: runHead, Rows: a.runRows(runs, launches)}
	for _, p := range grouped(runs, launches) {
		list.IDs = append(list.IDs, p.id())
	}
	if err := a.list(list, "no run is open"); err != nil {
		return err
	}
	a.tellUnproven(launches)
	return nil
}

type runsShowCmd struct {
	ID string `arg:"" help:"Id of the run or launch, or its unique beginning."`
}

// Help is the manual of runs show.
func (runsShowCmd) Help() string {
	return `Examples:
  sbctl runs show kmpx`
}

// Run shows one run or launch.
func (c runsShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing run " + c.ID
	got, err := call(ctx, a, doing, &operatorv1.ListRunsRequest{Ended: true}, operatorv1.OperatorServiceClient.ListRuns)
	if err != nil {
		return err
	}
	var found []presence
	for _, p := range grouped(got.GetRuns(), got.GetLaunches()) {
		if p.id() == c.ID {
			found = []presence{p}
			break
		}
		if c.ID != "" && strings.HasPrefix(p.id(), c.ID) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 0:
		return refuse(doing, "there is no such run or launch").withHint("sbctl runs --all")
	case len(found) > 1:
		return refuse(doing, "%d runs begin with %s", len(found), c.ID).withHint("sbctl runs --all")
	case found[0].launch != nil:
		return a.printLaunch(found[0].launch, got.GetRuns())
	}
	return a.printRun(found[0].run)
}

type runsEndCmd struct {
	ID string `arg:"" help:"Id of the run or launch, or its unique beginning."`
}

// Help is the manual of runs end.
func (runsEndCmd) Help() string {
	return `The subject may open a new run; "subject disable" keeps it from doing so. To end a
launch kills every process in it.

Examples:
  sbctl runs end kmpx`
}

// Run ends a run or a launch.
func (c runsEndCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "ending run "+c.ID, &operatorv1.EndRunRequest{RunId: c.ID}, operatorv1.OperatorServiceClient.EndRun)
	if err != nil {
		return err
	}
	if l := got.GetLaunch(); l != nil {
		return a.printLaunch(l, nil)
	}
	return a.printRun(got.GetRun())
}

func (a *app) printRun(r *operatorv1.Run) error {
	return a.out.Object(ui.Object{
		ID: r.GetRunId(),
		Fields: []ui.Field{
			{Name: "run", Value: r.GetRunId()},
			{Name: "subject", Value: r.GetSubject()},
			{Name: "profile", Value: r.GetProfile()},
			{Name: "tier", Value: r.GetTier()},
			{Name: "attested", Value: attestedWords(r)},
			{Name: "agent key", Value: strings.TrimSpace(r.GetKeyId() + " " + r.GetKeyName())},
			{Name: "launch", Value: r.GetLaunchId()},
			{Name: "peer", Value: fmt.Sprintf("pid %d, uid %d", r.GetPid(), r.GetUid())},
			{Name: "command", Value: r.GetCommand()},
			{Name: "shim", Value: r.GetShimVersion()},
			{Name: "opened", Value: a.out.When(r.GetOpened())},
			{Name: "ended", Value: a.endedWords(r.GetEnded())},
			{Name: "reads", Value: fmt.Sprint(r.GetReads())},
			{Name: "calls", Value: fmt.Sprint(r.GetCalls())},
			{Name: "denials", Value: fmt.Sprint(r.GetDenials())},
			{Name: "resources", Value: strings.Join(r.GetResources(), ", ")},
		},
		Value: viewRun(r),
	})
}

// launchFullView is a launch with its runs.
type launchFullView struct {
	launchView
	Runs []runView `json:"runs"`
}

// printLaunch shows l, with those of runs that belong to it.
func (a *app) printLaunch(l *operatorv1.Launch, runs []*operatorv1.Run) error {
	own := runsOf(l, runs)
	network := "as outside"
	if l.GetNoNet() {
		network = "none but its own loopback"
	}
	err := a.out.Object(ui.Object{
		ID: l.GetLaunchId(),
		Fields: []ui.Field{
			{Name: "launch", Value: l.GetLaunchId()},
			{Name: "subject", Value: l.GetSubject()},
			{Name: "profile", Value: l.GetProfile()},
			{Name: "tier", Value: l.GetTier()},
			{Name: "state", Value: launchStateWords(l)},
			{Name: "first process", Value: fmt.Sprintf("pid %d, uid %d", l.GetPid(), l.GetUid())},
			{Name: "command", Value: l.GetCommand()},
			{Name: "workspace", Value: l.GetWorkspace()},
			{Name: "network", Value: network},
			{Name: "opened", Value: a.out.When(l.GetOpened())},
			{Name: "ended", Value: a.endedWords(l.GetEnded())},
			{Name: "runs", Value: fmt.Sprintf("%d open", l.GetRuns())},
			{Name: "reads", Value: fmt.Sprint(l.GetReads())},
			{Name: "denials", Value: fmt.Sprint(l.GetDenials())},
			{Name: "started with", Value: strings.Join(l.GetDisclosed(), ", ")},
			{Name: "resources", Value: strings.Join(readUnder(l, runs), ", ")},
		},
		Value: launchFullView{viewLaunch(l, runs), viewRuns(own)},
	})
	if err != nil {
		return err
	}
	return a.out.Section("Runs", runHead, a.runRows(own, nil))
}

// endedWords is when something ended; empty when it has not.
func (a *app) endedWords(ended int64) string {
	if ended == 0 {
		return ""
	}
	return a.out.When(ended)
}
