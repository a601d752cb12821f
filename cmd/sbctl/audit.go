package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type auditCmd struct {
	List   auditListCmd   `cmd:"" help:"List entries"`
	Tail   auditTailCmd   `cmd:"" help:"Show the newest entries, and with -f those to come"`
	Verify auditVerifyCmd `cmd:"" help:"Verify chain, fields and signatures of the log"`
	Check  auditCheckCmd  `cmd:"" help:"Look for a subject that got what another was just denied"`
	Head   auditHeadCmd   `cmd:"" help:"Show what to keep elsewhere to verify against later"`
	Export auditExportCmd `cmd:"" help:"Write the log for other programs"`
	Bundle auditBundleCmd `cmd:"" help:"Write a part of the log as one file that a stranger can verify"`
	Prune  auditPruneCmd  `cmd:"" help:"Reduce old segments, of which you hold a copy, to their ends"`
}

// Help is the manual of audit.
func (auditCmd) Help() string {
	return `Every decision is an entry, and nothing is handed out before its entry is on
disk. Entries are chained by hash and signed; "verify" finds what was changed.`
}

// auditFilter chooses entries.
type auditFilter struct {
	Subject  string `placeholder:"S" help:"Only entries of this subject."`
	Resource string `placeholder:"R" help:"Only entries about this resource."`
	Decision string `enum:",allow,deny,error,pending" default:"" placeholder:"D" help:"Only this decision: allow, deny, error or pending."`
	Kind     string `placeholder:"K" help:"Only this kind, such as acquire, or a family, such as grant.*."`
	Since    string `placeholder:"T" help:"Only this far back: 90m, 2h, 7d, or a time."`
	Until    string `placeholder:"T" help:"Only before this: a time, or this far back."`
}

func (f auditFilter) request(doing string, now time.Time) (*operatorv1.ReadAuditRequest, error) {
	if err := f.checkKind(doing); err != nil {
		return nil, err
	}
	since, err := pastMillis(doing, "--since", f.Since, now)
	if err != nil {
		return nil, err
	}
	until, err := pastMillis(doing, "--until", f.Until, now)
	if err != nil {
		return nil, err
	}
	return &operatorv1.ReadAuditRequest{
		Subject: f.Subject, Resource: f.Resource, Decision: f.Decision, Kind: f.Kind, Since: since, Until: until,
	}, nil
}

// eachLine hands every line of the log that request asks for, its newline
// included, to fn, oldest first.
func (a *app) eachLine(ctx context.Context, doing string, request *operatorv1.ReadAuditRequest, fn func(line []byte) error) error {
	operator, err := a.operator(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when fn fails
	stream, err := operator.ReadAudit(ctx, request)
	if err != nil {
		return fail(err, "%s", doing)
	}
	for {
		batch, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fail(err, "%s", doing)
		}
		for _, line := range batch.GetLines() {
			if err := fn(line); err != nil {
				return fail(err, "%s", doing)
			}
		}
	}
}

type auditListCmd struct {
	auditFilter
}

// Help is the manual of audit list.
func (auditListCmd) Help() string {
	return `Oldest first. In JSON each item is the entry as it stands in the log.

Examples:
  sbctl audit list --since 1h --decision deny
  sbctl audit list --kind 'grant.*' --subject worker`
}

// Run lists entries.
func (c auditListCmd) Run(ctx context.Context, a *app) error {
	const doing = "listing entries"
	request, err := c.request(doing, a.now())
	if err != nil {
		return err
	}
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.listEntriesJSON(ctx, doing, request)
	}
	table := entryTable{app: a}
	if err := a.eachLine(ctx, doing, request, table.add); err != nil {
		return err
	}
	return a.list(table.List, "no entry matches")
}

// listEntriesJSON writes one JSON list while the entries arrive: a log can be
// larger than memory.
func (a *app) listEntriesJSON(ctx context.Context, doing string, request *operatorv1.ReadAuditRequest) error {
	out := &stickyWriter{w: a.stdout}
	separator := `{"schema":1,"items":[`
	err := a.eachLine(ctx, doing, request, func(line []byte) error {
		out.write(separator)
		out.write(string(line[:max(len(line)-1, 0)]))
		separator = ","
		return out.err
	})
	if err != nil {
		return err
	}
	if separator != "," {
		out.write(separator)
	}
	out.write("]}\n")
	return fail(out.err, "%s", doing)
}

// stickyWriter remembers the first error, so that a sequence of writes is
// checked once.
type stickyWriter struct {
	w   io.Writer
	err error
}

func (s *stickyWriter) write(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

type auditTailCmd struct {
	auditFilter
	Follow bool   `short:"f" help:"Go on with new entries until interrupted."`
	Lines  uint32 `short:"n" default:"10" placeholder:"N" help:"How many of the newest entries (default: 10)."`
}

// Help is the manual of audit tail.
func (auditTailCmd) Help() string {
	return `In JSON each line of the output is a line of the log, byte for byte.

Examples:
  sbctl audit tail -f
  sbctl audit tail -n 100 --subject worker -o json`
}

// Run shows the newest entries.
func (c auditTailCmd) Run(ctx context.Context, a *app) error {
	const doing = "following the log"
	request, err := c.request(doing, a.now())
	if err != nil {
		return err
	}
	request.Follow, request.Last = c.Follow, max(c.Lines, 1)
	err = a.eachLine(ctx, doing, request, a.printLine)
	if c.Follow && interrupted(ctx, err) {
		return nil // the person had seen enough
	}
	return err
}

// printLine prints one line of the log as one element of a stream.
func (a *app) printLine(line []byte) error {
	if a.out.Format == ui.JSON {
		_, err := a.stdout.Write(line)
		return err
	}
	e, err := parseEntry(line)
	if err != nil {
		return err
	}
	if a.out.Quiet {
		return a.out.Event(nil, fmt.Sprint(e.Seq))
	}
	return a.out.Event(nil, e.line(a.out))
}

type auditHeadCmd struct{}

// Help is the manual of audit head.
func (auditHeadCmd) Help() string {
	return `Keep it on another machine. Later "audit verify --expect" with it, or with a file
of such lines, proves that the log still contains everything up to that entry.

Examples:
  sbctl audit head
  sbctl audit head -o json | ssh other 'cat >> heads.jsonl'`
}

type headView struct {
	Genesis   string `json:"genesis"`
	Seq       uint64 `json:"seq"`
	Hash      string `json:"hash"`
	Signature string `json:"signature"`
	Segment   uint32 `json:"segment"`
	Vault     string `json:"vault"`
	Dir       string `json:"dir"`
}

// Run shows the head.
func (auditHeadCmd) Run(ctx context.Context, a *app) error {
	head, err := a.auditHead(ctx, "asking for the head of the log")
	if err != nil {
		return err
	}
	return a.out.Object(ui.Object{
		ID: fmt.Sprintf("%d:%s", head.GetSeq(), head.GetHash()),
		Fields: []ui.Field{
			{Name: "genesis", Value: head.GetGenesis()},
			{Name: "seq", Value: fmt.Sprint(head.GetSeq())},
			{Name: "hash", Value: head.GetHash()},
			{Name: "signature", Value: head.GetSignature()},
			{Name: "segment", Value: fmt.Sprint(head.GetSegment())},
			{Name: "vault", Value: head.GetVaultId()},
			{Name: "dir", Value: head.GetDir()},
		},
		Value: headView{head.GetGenesis(), head.GetSeq(), head.GetHash(), head.GetSignature(), head.GetSegment(), head.GetVaultId(), head.GetDir()},
	})
}

func (a *app) auditHead(ctx context.Context, doing string) (*operatorv1.AuditHeadResponse, error) {
	return call(ctx, a, doing, &operatorv1.AuditHeadRequest{}, operatorv1.OperatorServiceClient.AuditHead)
}
