package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type auditBundleCmd struct {
	Since string `placeholder:"T" help:"Only segments with entries this far back: 90m, 7d, or a time."`
	Until string `placeholder:"T" help:"Only segments with entries before this: a time, or this far back."`
	Force bool   `help:"Take the place of a file that is there."`
	File  string `arg:"" help:"The file to write, a tar archive."`
}

// Help is the manual of audit bundle.
func (auditBundleCmd) Help() string {
	return `For somebody who should check the log on another machine. In the bundle are the
segments of the range, whole; of the others only the signed first and last entry,
which chain the range to the beginning; the head, and a summary for people. Who
has the genesis fingerprint verifies it with "sbctl audit verify FILE", and needs
no daemon and no key for that. Whoever else gets it can read who was allowed what;
contents are never in the log.

The file has mode 0600, and a file of that name is not replaced without --force.

Examples:
  sbctl audit bundle --since 30d january.tar
  sbctl audit verify --genesis FP january.tar`
}

type bundleView struct {
	Path     string   `json:"path"`
	Since    string   `json:"since,omitempty"`
	Until    string   `json:"until,omitempty"`
	Segments []uint32 `json:"segments"`
	Entries  uint64   `json:"entries"`
	Seq      uint64   `json:"seq"`
	Hash     string   `json:"hash"`
	Genesis  string   `json:"genesis"`
}

// Run writes the bundle.
func (c auditBundleCmd) Run(ctx context.Context, a *app) error {
	const doing = "bundling the log"
	since, err := pastMillis(doing, "--since", c.Since, a.now())
	if err != nil {
		return err
	}
	until, err := pastMillis(doing, "--until", c.Until, a.now())
	if err != nil {
		return err
	}
	if since != 0 && until != 0 && since >= until {
		return refuse(doing, "--since lies behind --until")
	}
	path, err := filepath.Abs(c.File)
	if err != nil {
		return fail(err, doing)
	}
	if err := refuseFile(doing, path, c.Force); err != nil {
		return err
	}
	head, err := a.auditHead(ctx, doing)
	if err != nil {
		return err
	}
	progress := ui.NewProgress(a.stderr, "bundling")
	options := verify.BundleOptions{Since: timeOf(since), Until: timeOf(until), Head: headOf(head), Progress: progress.Show}
	var report verify.Report
	err = replaceFile(doing, path, c.Force, func(file *os.File) error {
		if _, err := verify.WriteBundle(ctx, file, head.GetDir(), options); err != nil {
			return bundleFailure(err, doing)
		}
		var err error // what a stranger will find in it
		report, err = verify.Bundle(ctx, file.Name(), verify.Options{Genesis: head.GetGenesis(), Progress: progress.Show})
		if err == nil && report.Fault != nil {
			err = report.Fault
		}
		return bundleFailure(err, doing)
	})
	progress.Done()
	if err != nil {
		return err
	}
	a.done("whoever verifies it needs the genesis fingerprint from you, by another way than the file")
	return a.printBundle(path, since, until, &report)
}

func (a *app) printBundle(path string, since, until int64, report *verify.Report) error {
	view := bundleView{
		Path: path, Since: ui.Stamp(since), Until: ui.Stamp(until), Segments: []uint32{}, Entries: report.Entries,
		Seq: report.Last.Seq, Hash: report.Last.Hash, Genesis: report.Genesis,
	}
	stubs := 0
	if span := report.Bundle; span != nil {
		view.Segments = append(view.Segments, span.Whole...)
		stubs = len(span.Stubs)
	}
	return a.out.Object(ui.Object{
		ID: path, Value: view,
		Fields: []ui.Field{
			{Name: "file", Value: path},
			{Name: "segments", Value: fmt.Sprintf("%d whole, the ends of %d", len(view.Segments), stubs)},
			{Name: "entries", Value: fmt.Sprint(view.Entries)},
			{Name: "head", Value: fmt.Sprintf("%d:%s", view.Seq, view.Hash)},
			{Name: "genesis", Value: view.Genesis},
		},
	})
}

// bundleFailure is why a bundle could not be written.
func bundleFailure(err error, doing string) error {
	if fault, ok := errors.AsType[*verify.Fault](err); ok {
		return &failure{code: wire.IntegrityFailed, doing: doing, what: fault.Error(), hint: "sbctl audit verify", exit: wire.ExitIntegrity, cause: err}
	}
	if errors.Is(err, verify.ErrNothing) {
		return refuse(doing, "%v", err)
	}
	return fail(err, "%s", doing)
}

// timeOf is a time in Unix milliseconds; the zero time for 0.
func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// headOf is the daemon's word on its log as the verifier takes it.
func headOf(head *operatorv1.AuditHeadResponse) *verify.Head {
	return &verify.Head{Genesis: head.GetGenesis(), VaultID: head.GetVaultId(), Seq: head.GetSeq(), Hash: head.GetHash()}
}
