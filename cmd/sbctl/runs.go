package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type runsCmd struct {
	List runsListCmd `cmd:"" default:"withargs" help:"List open runs"`
	Show runsShowCmd `cmd:"" help:"Show one run and what was read under it"`
	End  runsEndCmd  `cmd:"" help:"End a run"`
}

// Help is the manual of runs.
func (runsCmd) Help() string {
	return `A run is one authenticated session of one subject. A shim has one for each of its
connections; it ends with the connection at the latest.`
}

type runsListCmd struct {
	All bool `help:"Also those that ended recently."`
}

// Help is the manual of runs list.
func (runsListCmd) Help() string {
	return `Examples:
  sbctl runs
  sbctl runs --all -o json`
}

// Run lists runs.
func (c runsListCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "listing runs", &operatorv1.ListRunsRequest{Ended: c.All}, operatorv1.OperatorServiceClient.ListRuns)
	if err != nil {
		return err
	}
	list := ui.List{Head: runHead, Rows: a.runRows(got.GetRuns()), Items: viewRuns(got.GetRuns())}
	for _, r := range got.GetRuns() {
		list.IDs = append(list.IDs, r.GetRunId())
	}
	return a.list(list, "no run is open")
}

type runsShowCmd struct {
	ID string `arg:"" help:"Id of the run, or its unique beginning."`
}

// Help is the manual of runs show.
func (runsShowCmd) Help() string {
	return `Examples:
  sbctl runs show kmpx`
}

// Run shows one run.
func (c runsShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing run " + c.ID
	got, err := call(ctx, a, doing, &operatorv1.ListRunsRequest{Ended: true}, operatorv1.OperatorServiceClient.ListRuns)
	if err != nil {
		return err
	}
	var found []*operatorv1.Run
	for _, r := range got.GetRuns() {
		if r.GetRunId() == c.ID {
			return a.printRun(r)
		}
		if c.ID != "" && strings.HasPrefix(r.GetRunId(), c.ID) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return refuse(doing, "there is no such run").withHint("sbctl runs --all")
	case 1:
		return a.printRun(found[0])
	}
	return refuse(doing, "%d runs begin with %s", len(found), c.ID).withHint("sbctl runs --all")
}

type runsEndCmd struct {
	ID string `arg:"" help:"Id of the run, or its unique beginning."`
}

// Help is the manual of runs end.
func (runsEndCmd) Help() string {
	return `The subject may open a new run; "subject disable" keeps it from doing so.

Examples:
  sbctl runs end kmpx`
}

// Run ends a run.
func (c runsEndCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "ending run "+c.ID, &operatorv1.EndRunRequest{RunId: c.ID}, operatorv1.OperatorServiceClient.EndRun)
	if err != nil {
		return err
	}
	return a.printRun(got.GetRun())
}

func (a *app) printRun(r *operatorv1.Run) error {
	ended := ""
	if r.GetEnded() != 0 {
		ended = a.out.When(r.GetEnded())
	}
	return a.out.Object(ui.Object{
		ID: r.GetRunId(),
		Fields: []ui.Field{
			{Name: "run", Value: r.GetRunId()},
			{Name: "subject", Value: r.GetSubject()},
			{Name: "tier", Value: r.GetTier()},
			{Name: "attested", Value: r.GetAttested()},
			{Name: "peer", Value: fmt.Sprintf("pid %d, uid %d", r.GetPid(), r.GetUid())},
			{Name: "command", Value: r.GetCommand()},
			{Name: "shim", Value: r.GetShimVersion()},
			{Name: "opened", Value: a.out.When(r.GetOpened())},
			{Name: "ended", Value: ended},
			{Name: "reads", Value: fmt.Sprint(r.GetReads())},
			{Name: "denials", Value: fmt.Sprint(r.GetDenials())},
			{Name: "resources", Value: strings.Join(r.GetResources(), ", ")},
		},
		Value: viewRun(r),
	})
}
