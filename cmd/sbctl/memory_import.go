package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"google.golang.org/grpc"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

type memoryImportCmd struct {
	File   string `arg:"" help:"File of lines of JSON, or - for standard input."`
	Tenant string `placeholder:"TENANT" help:"Tenant of the lines that name none."`
	DryRun bool   `help:"Read and judge everything, and add nothing."`
}

// Help is the manual of memory import.
func (memoryImportCmd) Help() string {
	return `Each line is one entry, as "sbctl memory export" writes it:

  {"tenant":"acme","kind":"decision","title":"We ship on Tuesday","text":"…"}

kind (` + strings.Join(wire.EntryKinds(), ", ") + `) and title are needed, and tenant where --tenant names
none; text, tags, created (Unix milliseconds), subject, id and supersedes may be
left out. What supersedes another comes after it. Tenants have to exist.

An entry that is there already, with the same tenant, kind, title, text and tags, is
not added again: an import that was broken off is simply begun anew. Neither is one
that was forgotten here; a line brings it back only with an id of its own. A line that
is no good ends the import; what stood in whole pieces of up to 1 MiB before it stays
added, and how many that were is said.

Examples:
  sbctl memory import notes.jsonl --tenant acme --dry-run
  sbctl memory export | sbctl --home /srv/other memory import -`
}

type memoryImportedView struct {
	Lines   uint64 `json:"lines"`
	Added   uint64 `json:"added"`
	Existed uint64 `json:"existed"`
	Forgot  uint64 `json:"forgotten"` // here, and not added again
	DryRun  bool   `json:"dryRun"`
}

// Run imports.
func (c memoryImportCmd) Run(ctx context.Context, a *app) error {
	doing := "importing " + c.File
	in, size := a.stdin, int64(0)
	if c.File == "-" {
		doing = "importing"
		if terminal.Is(a.stdin) {
			a.say("reading lines of JSON from the terminal, up to Ctrl-D")
		}
	} else {
		file, err := os.Open(c.File)
		if err != nil {
			return fail(err, "%s", doing)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return fail(err, "%s", doing)
		}
		if info.IsDir() {
			return refuse(doing, "it is a directory")
		}
		in, size = file, info.Size()
	}
	got, err := a.importLines(ctx, doing, c, in, size)
	if err != nil {
		return broken(err, got, c.DryRun)
	}
	if a.out.Quiet {
		return nil // there are no ids
	}
	added := ui.Field{Name: "added", Value: fmt.Sprint(got.GetAdded())}
	if c.DryRun {
		added.Name = "to be added"
	}
	fields := []ui.Field{
		{Name: "lines", Value: fmt.Sprint(got.GetLines())}, added,
		{Name: "there already", Value: fmt.Sprint(got.GetExisted())},
	}
	if n := got.GetForgotten(); n > 0 {
		fields = append(fields, ui.Field{Name: "forgotten here", Value: fmt.Sprintf("%d, which were not added again", n)})
	}
	return a.out.Object(ui.Object{
		Fields: fields,
		Value:  memoryImportedView{got.GetLines(), got.GetAdded(), got.GetExisted(), got.GetForgotten(), c.DryRun},
	})
}

// broken is the failure of an import, which says what became of the lines before it.
func broken(err error, got *operatorv1.ImportKnowledgeResponse, dry bool) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || dry || got.GetLines() == 0 {
		return err
	}
	failed.what += fmt.Sprintf("; the lines up to %d were taken in, with %s added, and are not added twice", got.GetLines(), count(got.GetAdded(), "entry"))
	return failed
}

// importLines sends what in has, and returns the last answer, also with an error.
func (a *app) importLines(ctx context.Context, doing string, c memoryImportCmd, in io.Reader, size int64) (*operatorv1.ImportKnowledgeResponse, error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress := ui.NewProgress(a.stderr, "importing")
	defer progress.Done()
	pieces := newLinePieces(in)
	var stream grpc.BidiStreamingClient[operatorv1.ImportKnowledgeRequest, operatorv1.ImportKnowledgeResponse]
	var last *operatorv1.ImportKnowledgeResponse
	exchange := func(request *operatorv1.ImportKnowledgeRequest) error {
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		got, err := stream.Recv() // a refusal ends the stream, and says why here
		if err == nil {
			last = got
		}
		return err
	}
	var sent int64
	for {
		lines, readErr := pieces.next()
		if len(lines) > 0 || stream == nil {
			if stream == nil {
				err = a.streamed(ctx, doing, func() (err error) {
					if stream, err = operator.ImportKnowledge(ctx); err != nil {
						return err
					}
					return exchange(&operatorv1.ImportKnowledgeRequest{Tenant: c.Tenant, DryRun: c.DryRun, Lines: lines})
				})
			} else {
				err = fail(exchange(&operatorv1.ImportKnowledgeRequest{Lines: lines}), "%s", doing)
			}
			if err != nil {
				return last, err
			}
			sent += int64(len(lines))
			progress.Show(min(sent, size), size)
		}
		switch {
		case errors.Is(readErr, io.EOF):
			return last, nil
		case errors.Is(readErr, bufio.ErrBufferFull):
			return last, refuse(doing, "line %d is longer than %d KiB", pieces.lines+1, wire.MaxImportLine>>10)
		case readErr != nil:
			return last, fail(readErr, "%s", doing)
		}
	}
}

// linePieces cuts what it reads into pieces of whole lines.
type linePieces struct {
	in    *bufio.Reader
	kept  []byte // a line that did not go into the piece before
	lines uint64 // that were read
}

func newLinePieces(in io.Reader) *linePieces {
	return &linePieces{in: bufio.NewReaderSize(in, wire.MaxImportLine+len("\r\n"))}
}

// next returns as many lines as go into one piece, which is the caller's. With the
// last of them, and where no more can be read, there is an error: io.EOF, or
// bufio.ErrBufferFull where the line after them is too long.
func (p *linePieces) next() ([]byte, error) {
	piece := p.kept
	p.kept = nil
	for {
		line, err := p.in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return piece, err
		case len(line) > 0:
			p.lines++
		}
		if len(piece)+len(line) > wire.MaxImportPiece {
			p.kept = append([]byte(nil), line...)
			return piece, nil // an end is found again by the next call
		}
		piece = append(piece, line...)
		if err != nil {
			return piece, err
		}
	}
}
