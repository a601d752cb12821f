package main

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"subjectbroker/audit/check"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type auditCheckCmd struct {
	Window time.Duration `default:"10s" placeholder:"D" help:"Longest time from denial to allow that counts (default: 10s)."`
	Files  []string      `arg:"" optional:"" name:"file" help:"Logs to read, of the broker or of SubjectBroker, - for standard input; without any the log of the daemon."`
}

// Exit codes of audit check are those of the tool it comes from.
const (
	checkInvalid    = 1
	checkSuspicious = 2
)

// Help is the manual of audit check.
func (auditCheckCmd) Help() string {
	return `Finds each resource that one subject was denied and another was allowed soon
afterwards: what it looks like when an agent asks a colleague. A finding is a
reason to look, no proof. Whether the log is intact is for "audit verify".

The exit code is 0 when there is nothing, 2 when there are findings, 1 when the
input is no log, or the command is mistyped.

Examples:
  sbctl audit check
  sbctl audit check --window 1m old.jsonl new.jsonl`
}

type eventView struct {
	Seq        uint64 `json:"seq,omitempty"`
	Timestamp  string `json:"timestamp"`
	SubjectID  string `json:"subjectId"`
	ReasonCode string `json:"reasonCode"`
}

type findingView struct {
	ResourceID string    `json:"resourceId"`
	Action     string    `json:"action"`
	Denied     eventView `json:"denied"`
	Allowed    eventView `json:"allowed"`
}

// Run checks.
func (c auditCheckCmd) Run(ctx context.Context, a *app) error {
	return invalidIsOne(c.check(ctx, a))
}

// invalidIsOne gives refused input the exit code that it has here, because the
// usual one says that there are findings.
func invalidIsOne(err error) error {
	if refused, ok := errors.AsType[*failure](err); ok && refused.exit == wire.ExitUsage {
		refused.exit = checkInvalid
	}
	return err
}

func (c auditCheckCmd) check(ctx context.Context, a *app) error {
	const doing = "checking the log"
	if c.Window < 0 {
		return refuse(doing, "--window is not negative")
	}
	findings, err := c.findings(ctx, a, doing)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"RESOURCE", "ACTION", "DENIED", "AT", "ALLOWED", "AFTER"}}
	views := make([]findingView, 0, len(findings))
	for _, f := range findings {
		views = append(views, findingView{f.Allowed.ResourceID, f.Allowed.Action, viewEvent(f.Denied), viewEvent(f.Allowed)})
		list.IDs = append(list.IDs, f.Allowed.ResourceID)
		list.Rows = append(list.Rows, []string{
			f.Allowed.ResourceID, f.Allowed.Action, f.Denied.SubjectID, a.out.Clock(f.Denied.Timestamp.UnixMilli()),
			f.Allowed.SubjectID, f.Allowed.Timestamp.Sub(f.Denied.Timestamp).String(),
		})
	}
	list.Items = views
	if err := a.list(list, "nothing suspicious"); err != nil {
		return err
	}
	if len(findings) > 0 {
		return exitCode(checkSuspicious)
	}
	return nil
}

func viewEvent(e check.Event) eventView {
	return eventView{e.Seq, ui.Stamp(e.Timestamp.UnixMilli()), e.SubjectID, e.ReasonCode}
}

func (c auditCheckCmd) findings(ctx context.Context, a *app, doing string) ([]check.Finding, error) {
	options := check.Options{Window: max(c.Window, time.Nanosecond)} // 0 would mean the default
	if len(c.Files) == 0 {
		return a.checkDaemon(ctx, doing, options)
	}
	invalid := func(err error) error {
		return &failure{code: wire.InvalidArgument, doing: doing, what: err.Error(), exit: checkInvalid, cause: err}
	}
	var logs []io.Reader
	for _, name := range c.Files {
		if name == "-" {
			logs = append(logs, a.stdin)
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			return nil, invalid(err)
		}
		defer file.Close()
		logs = append(logs, file)
	}
	findings, err := check.Run(logs, options)
	if err != nil {
		return nil, invalid(err)
	}
	return findings, nil
}

// checkDaemon checks the daemon's log as it streams in.
func (a *app) checkDaemon(ctx context.Context, doing string, options check.Options) ([]check.Finding, error) {
	if _, err := a.operator(ctx); err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	streamed := make(chan error, 1)
	go func() {
		err := a.eachLine(ctx, doing, &operatorv1.ReadAuditRequest{}, func(line []byte) error {
			_, err := write.Write(line)
			return err
		})
		write.CloseWithError(err)
		streamed <- err
	}()
	findings, err := check.Run([]io.Reader{read}, options)
	_ = read.Close()
	if streamErr := <-streamed; streamErr != nil && err == nil {
		err = streamErr
	}
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	return findings, nil
}
