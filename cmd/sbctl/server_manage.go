package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type serverRestartCmd struct {
	Server  string `arg:"" help:"Name of the server."`
	Subject string `placeholder:"S" help:"Only the process of this subject."`
}

// Help is the manual of server restart.
func (serverRestartCmd) Help() string {
	return `Its processes end, and calls that are open fail; the next call starts it again. What
a policy has killed may run again; what it counted stays counted, and "sbctl policy
reset" begins that anew. A new version of a secret needs no restart: the server is
started anew with it as soon as no call is open.

Examples:
  sbctl server restart github
  sbctl server restart github --subject coder`
}

type serverRestartView struct {
	Server    string `json:"server"`
	SubjectID string `json:"subjectId,omitempty"`
	Processes uint32 `json:"processes"`
}

// Run ends the processes of a server.
func (c serverRestartCmd) Run(ctx context.Context, a *app) error {
	killed := a.killedProcesses(ctx, c.Server, c.Subject)
	got, err := call(ctx, a, "restarting server "+c.Server, &operatorv1.RestartServerRequest{Name: c.Server, Subject: c.Subject},
		operatorv1.OperatorServiceClient.RestartServer)
	if err != nil {
		return a.nearServer(ctx, err, "restart", c.Server)
	}
	a.warn(stillCounted(c.Server, killed))
	return a.out.Object(ui.Object{
		ID: c.Server,
		Fields: []ui.Field{
			{Name: "server", Value: c.Server},
			{Name: "subject", Value: c.Subject},
			{Name: "processes", Value: fmt.Sprint(got.GetProcesses())},
		},
		Value: serverRestartView{c.Server, c.Subject, got.GetProcesses()},
	})
}

type serverLogsCmd struct {
	Server  string `arg:"" help:"Name of the server."`
	Subject string `placeholder:"S" help:"Only of the process of this subject."`
	Follow  bool   `short:"f" help:"Go on with new lines until interrupted."`
}

// Help is the manual of server logs.
func (serverLogsCmd) Help() string {
	return `What its processes wrote to their standard error, and lines of their standard output
that are no message, oldest first. It is the word of the server, kept in memory only,
and gone with the daemon; who called what is in "sbctl audit list --kind call".

Examples:
  sbctl server logs github
  sbctl server logs github --subject coder -f`
}

type serverLogView struct {
	Timestamp string `json:"timestamp"`
	Server    string `json:"server"`
	SubjectID string `json:"subjectId,omitempty"`
	Line      string `json:"line"`
}

// Run shows the lines.
func (c serverLogsCmd) Run(ctx context.Context, a *app) error {
	doing := "reading the log of server " + c.Server
	operator, err := a.operator(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when nobody takes its lines
	stream, err := operator.ReadServerLogs(ctx, &operatorv1.ReadServerLogsRequest{Name: c.Server, Subject: c.Subject, Follow: c.Follow})
	if err != nil {
		return fail(err, "%s", doing)
	}
	lines := 0
	for {
		line, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			if lines == 0 {
				a.done("it wrote nothing")
			}
			return nil
		case c.Follow && interrupted(ctx, err):
			return nil // the person had seen enough
		case err != nil:
			return a.nearServer(ctx, fail(err, "%s", doing), "logs", c.Server)
		}
		lines++
		text := strings.TrimSpace(fmt.Sprintf("%s %s", a.out.Clock(line.GetTime()), line.GetSubject())) + " " + line.GetLine()
		view := serverLogView{ui.Stamp(line.GetTime()), c.Server, line.GetSubject(), line.GetLine()}
		if err := a.out.Event(view, text); err != nil {
			return fail(err, "%s", doing)
		}
	}
}

type serverRmCmd struct {
	Server string `arg:"" help:"Name of the server."`
}

// Help is the manual of server rm.
func (serverRmCmd) Help() string {
	return `Its processes end, and with it go what was trusted of it, its policies and the
grants to call it: a later server of the same name inherits nothing. Secrets that it
used stay. Asks first, or needs --yes.

Examples:
  sbctl server rm github`
}

type serverRemovedView struct {
	Server   string `json:"server"`
	Removed  bool   `json:"removed"`
	Revoked  uint32 `json:"revokedGrants"`
	Policies uint32 `json:"removedPolicies"`
}

// Run removes a server.
func (c serverRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing server " + c.Server
	s, err := a.server(ctx, doing, c.Server, false)
	if err != nil {
		return a.nearServer(ctx, err, "rm", c.Server)
	}
	policies, err := call(ctx, a, doing, &operatorv1.ListPoliciesRequest{Server: c.Server}, operatorv1.OperatorServiceClient.ListPolicies)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("Remove server %s (%s), %s, and the grants to call it?", c.Server, toolsOf(s.GetServer()), count(len(policies.GetPolicies()), "policy"))
	if err := a.confirm(ctx, doing, question); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.RemoveServerRequest{Name: c.Server}, operatorv1.OperatorServiceClient.RemoveServer)
	if err != nil {
		return err
	}
	a.warn(got.GetWarnings())
	return a.out.Object(ui.Object{
		ID: c.Server,
		Fields: []ui.Field{
			{Name: "removed", Value: c.Server},
			{Name: "grants revoked", Value: fmt.Sprint(got.GetRevoked())},
			{Name: "policies removed", Value: fmt.Sprint(got.GetPolicies())},
		},
		Value: serverRemovedView{c.Server, true, got.GetRevoked(), got.GetPolicies()},
	})
}
