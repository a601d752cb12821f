package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

type auditVerifyCmd struct {
	Genesis       string `placeholder:"FP" help:"Fingerprint of the log's first entry, as init or audit head printed it."`
	Expect        string `placeholder:"SEQ:HASH|FILE" help:"An entry that the log must contain, as audit head printed it, or a file with such heads, one in JSON a line."`
	AllSignatures bool   `help:"Check every signature, not only those that vouch for a whole segment."`
	Dir           string `arg:"" optional:"" name:"log" help:"Directory of a log, or a bundle; without it the log of the daemon, against the daemon's word."`
}

// Help is the manual of audit verify.
func (auditVerifyCmd) Help() string {
	return `Reads the files itself, with code that shares nothing with the writer. A key found
in the log is never taken at its word: the log is held against the daemon, or
against what you noted earlier. A file that --expect names is what headFile and
headCommand keep, or what you collected from "audit head -o json"; its last line
counts, with its genesis.

The exit code is 0 when the log is intact and held against something, 1 when it
is consistent but nothing says whose it is, 5 when anything was changed; then the
first bad entry is named.

Examples:
  sbctl audit verify
  sbctl audit verify --genesis FP --expect 4711:HASH /backup/audit
  sbctl audit verify --expect /mnt/usb/head.json
  sbctl audit verify --genesis FP january.tar`
}

type verifyView struct {
	Result     string      `json:"result"` // intact, unproven, fault
	Dir        string      `json:"dir"`
	Vault      string      `json:"vault,omitempty"`
	Genesis    string      `json:"genesis,omitempty"`
	Segments   int         `json:"segments"`
	Entries    uint64      `json:"entries"`
	Seq        uint64      `json:"seq"`
	Hash       string      `json:"hash,omitempty"`
	Signatures uint64      `json:"signatures"`
	Anchors    []string    `json:"anchors"`
	Notes      []string    `json:"notes"`
	Pruned     []pruneView `json:"pruned"`
	Origin     *originView `json:"origin,omitempty"` // the older log in whose place it was begun
	Bundle     *spanView   `json:"bundle,omitempty"` // what a bundle is of
	Fault      *faultView  `json:"fault,omitempty"`
}

type spanView struct {
	Since    string   `json:"since,omitempty"`
	Until    string   `json:"until,omitempty"`
	Segments []uint32 `json:"segments"` // those that are in it whole
}

type originView struct {
	Cause string `json:"cause"`
	Seq   uint64 `json:"seq"`
	Hash  string `json:"hash,omitempty"`
}

type pruneView struct {
	Segment uint32 `json:"segment"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
}

type faultView struct {
	Seq     uint64 `json:"seq"`
	Segment uint32 `json:"segment"`
	File    string `json:"file,omitempty"`
	Message string `json:"message"`
}

// Run verifies.
func (c auditVerifyCmd) Run(ctx context.Context, a *app) error {
	const doing = "verifying the log"
	options := verify.Options{Genesis: c.Genesis, AllSignatures: c.AllSignatures}
	if c.Expect != "" {
		point, genesis, err := expectation(doing, c.Expect)
		if err != nil {
			return err
		}
		options.Expect = &point
		if options.Genesis == "" {
			options.Genesis = genesis
		}
	}
	dir, err := c.locate(ctx, a, doing, &options)
	if err != nil {
		return err
	}
	progress := ui.NewProgress(a.stderr, "verifying")
	options.Progress = progress.Show
	read := verify.Dir
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		read = verify.Bundle
	}
	report, err := read(ctx, dir, options)
	progress.Done()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse(doing, "%s does not exist", dir)
	case err != nil && report.Segments == 0 && errors.Unwrap(err) == nil:
		return refuse(doing, "%v", err) // malformed options
	case err != nil:
		return fail(err, doing)
	}
	if err := a.out.Object(verifyObject(dir, &report)); err != nil {
		return err
	}
	switch report.ExitCode() {
	case verify.ExitFault:
		return &failure{code: wire.IntegrityFailed, doing: "verifying " + dir, what: report.Fault.Error(), exit: wire.ExitIntegrity}
	case verify.ExitUnproven:
		return &failure{code: wire.IntegrityFailed, doing: "verifying " + dir, what: report.String(), hint: "sbctl audit verify --help", exit: wire.ExitFailed}
	}
	return nil
}

// locate finds the log. Without a directory the daemon says where it is and
// what its head is; when it does not answer, what was noted earlier must do.
func (c auditVerifyCmd) locate(ctx context.Context, a *app, doing string, options *verify.Options) (dir string, err error) {
	if c.Dir != "" {
		return c.Dir, nil
	}
	head, err := a.auditHead(ctx, doing)
	if err == nil {
		options.Head = headOf(head)
		return head.GetDir(), nil
	}
	if c.Genesis == "" && c.Expect == "" {
		return "", err
	}
	places, placeErr := a.places()
	if placeErr != nil {
		return "", placeErr
	}
	a.say("the daemon does not answer: reading its files, against what was given")
	return place.AuditDir(places.Home), nil
}

func verifyObject(dir string, report *verify.Report) ui.Object {
	view := verifyView{
		Result: "intact", Dir: dir, Vault: report.VaultID, Genesis: report.Genesis, Segments: report.Segments, Entries: report.Entries,
		Seq: report.Last.Seq, Hash: report.Last.Hash, Signatures: report.Signatures,
		Anchors: append([]string{}, report.Anchors...), Notes: append([]string{}, report.Notes...), Pruned: []pruneView{},
	}
	for _, p := range report.Pruned {
		view.Pruned = append(view.Pruned, pruneView{p.Segment, p.First, p.Last})
	}
	if report.ExitCode() == verify.ExitUnproven {
		view.Result = "unproven"
	}
	if f := report.Fault; f != nil {
		view.Result, view.Fault = "fault", &faultView{f.Seq, f.Segment, f.File, f.Problem}
	}
	if o := report.Origin; o != nil {
		view.Origin = &originView{o.Cause, o.Last.Seq, o.Last.Hash}
	}
	if b := report.Bundle; b != nil {
		view.Bundle = &spanView{stampOf(b.Since), stampOf(b.Until), append([]uint32{}, b.Whole...)}
	}
	fields := []ui.Field{
		{Name: "result", Value: report.String()},
		{Name: "genesis", Value: report.Genesis},
	}
	if report.Last.Hash != "" { // a log with a fault has no head to keep
		fields = append(fields, ui.Field{Name: "head", Value: fmt.Sprintf("%d:%s", report.Last.Seq, report.Last.Hash)})
	}
	if b := report.Bundle; b != nil {
		fields = append(fields, ui.Field{Name: "bundle", Value: fmt.Sprintf("%d segments whole, the ends of %d", len(b.Whole), len(b.Stubs))})
	}
	fields = append(fields, ui.Field{Name: "signatures", Value: fmt.Sprintf("%d checked", report.Signatures)})
	for _, note := range report.Notes {
		fields = append(fields, ui.Field{Name: "note", Value: note})
	}
	return ui.Object{ID: view.Result, Fields: fields, Value: view}
}

func stampOf(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ui.Stamp(at.UnixMilli())
}
