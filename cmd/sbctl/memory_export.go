package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type memoryExportCmd struct {
	File    string   `arg:"" optional:"" default:"-" help:"The file to write, or - for standard output."`
	Tenant  []string `xor:"which" placeholder:"TENANT" help:"Only this tenant; may be given again."`
	All     bool     `xor:"which" help:"Every tenant, as without --tenant."`
	History bool     `help:"Entries that were superseded, too."`
	Force   bool     `help:"Take the place of a file that is there."`
}

// Help is the manual of memory export.
func (memoryExportCmd) Help() string {
	return `One line of JSON an entry, the oldest first, and what supersedes another after it:
"sbctl memory import" reads it back, here or elsewhere. Without --tenant it is every
tenant; without --history what is current now. Forgotten entries are not in it.

All of it is in clear, and the audit log says that it was handed out. A file has
mode 0600 and its name only when it is complete; one that is there is not replaced
without --force. A backup is sealed, and holds the memory too.

Examples:
  sbctl memory export memory.jsonl --history
  sbctl memory export --tenant acme | jq -r .title`
}

type memoryExportedView struct {
	Path    string `json:"path"`
	Entries uint64 `json:"entries"`
}

// Run exports.
func (c memoryExportCmd) Run(ctx context.Context, a *app) error {
	const doing = "exporting the memory"
	request := &operatorv1.ExportKnowledgeRequest{Tenants: c.Tenant, History: c.History}
	if c.File == "-" {
		entries, err := a.receiveMemory(ctx, doing, request, a.stdout)
		if err == nil {
			a.done("%s exported", count(entries, "entry"))
		}
		return err
	}
	path, err := filepath.Abs(c.File)
	if err != nil {
		return fail(err, doing)
	}
	if err := refuseFile(doing, path, c.Force); err != nil {
		return err
	}
	var entries uint64
	err = replaceFile(doing, path, c.Force, func(file *os.File) error {
		entries, err = a.receiveMemory(ctx, doing, request, file)
		return err
	})
	if err != nil {
		return err
	}
	a.done("all of it lies there in clear: move it where it is safe")
	return a.out.Object(ui.Object{
		ID:     path,
		Fields: []ui.Field{{Name: "file", Value: path}, {Name: "entries", Value: fmt.Sprint(entries)}},
		Value:  memoryExportedView{path, entries},
	})
}

// receiveMemory writes what the daemon streams to out, and returns how many entries
// that were.
func (a *app) receiveMemory(ctx context.Context, doing string, request *operatorv1.ExportKnowledgeRequest, out io.Writer) (entries uint64, err error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress := ui.NewProgress(a.stderr, "exporting")
	defer progress.Done()
	var piece *operatorv1.ExportKnowledgeResponse
	var next func() (*operatorv1.ExportKnowledgeResponse, error)
	err = a.streamed(ctx, doing, func() error {
		stream, err := operator.ExportKnowledge(ctx, request)
		if err == nil {
			next = stream.Recv
			piece, err = next()
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for {
		if _, err := out.Write(piece.GetLines()); err != nil {
			return entries, fail(err, "%s", doing)
		}
		entries += uint64(bytes.Count(piece.GetLines(), []byte("\n")))
		progress.Show(int64(min(entries, piece.GetTotal())), int64(piece.GetTotal()))
		clear(piece.GetLines())
		if piece, err = next(); errors.Is(err, io.EOF) {
			return entries, nil
		} else if err != nil {
			return entries, fail(err, "%s", doing)
		}
	}
}
