package main

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"subjectbroker/audit/verify"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type memoryForgetCmd struct {
	ID      []string `arg:"" optional:"" name:"entry" help:"Id of an entry, whole: 16 letters and digits."`
	History bool     `help:"The older versions of each, too."`
	Log     string   `placeholder:"DIR" help:"Whatever the audit log in this folder says was forgotten, as far as it is here."`
}

// Help is the manual of memory forget.
func (memoryForgetCmd) Help() string {
	return `Takes title, text, tags and who captured it out of the vault, whose file is written
anew without them, out of the index, and out of every history. What stays is that
there was an entry: its id, tenant, kind, times and place among the versions.

Forgetting an older version leaves the current one. Where the current one is
forgotten nothing stands in its place until another supersedes it; --history takes
its older versions along. Asks first, or needs --yes.

Backups that were made before still hold it, and are listed, as are the files that
"sbd recover" has kept of the vault: make a new backup and remove them, wherever they
lie. A file that "memory export" wrote, and what an agent has read, is out of reach.
The ids stand in an export, and in what agents are told.

A backup that is restored brings back what was forgotten after it was made. --log
forgets that once more: it reads the audit log of the home that was lost, or of any
later moment, and forgets here what was forgotten there. It does not verify that log.

Examples:
  sbctl memory forget abcdefgh234567xy
  sbctl memory forget abcdefgh234567xy --history --yes
  sbctl memory forget --log /mnt/old/audit`
}

type memoryForgottenView struct {
	EntryIDs []string `json:"entryIds"`
	Backups  []string `json:"backups"` // that still hold it
	Kept     []string `json:"kept"`    // files of before a recovery
}

// entryIDLength is how long ids of entries are.
const entryIDLength = 16

// Run forgets.
func (c memoryForgetCmd) Run(ctx context.Context, a *app) error {
	const doing = "forgetting"
	question := "Forget the content of " + count(len(c.ID), "entry")
	switch {
	case len(c.ID) == 0 && c.Log == "":
		return refuse(doing, "name an entry, or --log with the folder of a log")
	case c.Log != "" && (len(c.ID) > 0 || c.History):
		return refuse(doing, "--log stands alone: it says which entries")
	case c.Log != "":
		var err error
		switch c.ID, err = forgottenIn(c.Log); {
		case errors.Is(err, fs.ErrNotExist):
			return refuse(doing, "there is no log in %s", c.Log)
		case err != nil:
			return fail(err, "%s", doing)
		}
		question = "Forget the content of " + count(len(c.ID), "entry") + ", as far as they are here"
	case len(c.ID) > wire.MaxForget:
		return refuse(doing, "at most %s at once", count(wire.MaxForget, "entry"))
	case slices.ContainsFunc(c.ID, func(id string) bool { return len(id) != entryIDLength }): // before anybody is asked
		return refuse(doing, "an id has %d letters and digits; sbctl memory list has them", entryIDLength)
	}
	if c.History {
		question += ", with all older versions"
	}
	if err := a.confirm(ctx, doing, question+"?"); err != nil {
		return err
	}
	view := memoryForgottenView{EntryIDs: []string{}, Backups: []string{}, Kept: []string{}}
	for ids := range slices.Chunk(c.ID, wire.MaxForget) {
		request := &operatorv1.ForgetKnowledgeRequest{EntryIds: ids, History: c.History, PresentOnly: c.Log != ""}
		got, err := callWithin(ctx, a, purgePatience, doing, request, operatorv1.OperatorServiceClient.ForgetKnowledge)
		if err != nil {
			return err
		}
		view.EntryIDs = append(view.EntryIDs, got.GetEntryIds()...)
		view.Backups = append(view.Backups, got.GetBackups()...)
		view.Kept = append(view.Kept, got.GetKept()...)
		if len(got.GetEntryIds()) > 0 && !got.GetOverwritten() {
			a.done("%s", purgeWords(false))
		}
	}
	for _, list := range []*[]string{&view.EntryIDs, &view.Backups, &view.Kept} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	list := ui.List{Head: []string{"FORGOTTEN"}, IDs: view.EntryIDs, Items: view.EntryIDs}
	for _, id := range view.EntryIDs {
		list.Rows = append(list.Rows, []string{id})
	}
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	if err := a.out.List(list); err != nil {
		return err
	}
	a.tellBackups(view.Backups, view.Kept)
	return nil
}

// forgottenIn are the entries that a log says were forgotten.
func forgottenIn(dir string) (ids []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "[0-9]*.jsonl"))
	if err == nil && len(files) == 0 {
		err = fs.ErrNotExist
	}
	for _, path := range files {
		err = errors.Join(err, eachLineOf(path, func(line []byte) {
			if e, err := verify.ParseLine(line); err == nil && e.Kind == "memory.forget" && e.Decision == decisionAllow && e.ResourceID != "" {
				ids = append(ids, e.ResourceID)
			}
		}))
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// eachLineOf reads a file line by line.
func eachLineOf(path string, each func(line []byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		each(lines.Bytes())
	}
	return lines.Err()
}

// tellBackups names the backups, and the files that recoveries have kept, that hold
// what was taken out, and what to do about them.
func (a *app) tellBackups(backups, kept []string) {
	for _, file := range kept {
		a.done("it may still be in %s: remove that when you do not need it any more", file)
	}
	if len(backups) == 0 {
		return
	}
	for _, one := range backups {
		a.done("still in backup %s", one)
	}
	a.done("whoever opens one of them has it: make a new one and remove these, wherever they lie: %s", a.paste("backup", "FILE"))
}
