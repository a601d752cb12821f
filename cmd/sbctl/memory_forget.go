package main

import (
	"context"
	"slices"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type memoryForgetCmd struct {
	ID      []string `arg:"" name:"entry" help:"Id of an entry, whole: 16 letters and digits."`
	History bool     `help:"The older versions of each, too."`
}

// Help is the manual of memory forget.
func (memoryForgetCmd) Help() string {
	return `Takes title, text, tags and who captured it out of the vault, whose file is written
anew without them, out of the index, and out of every history. What stays is that
there was an entry: its id, tenant, kind, times and place among the versions.

Forgetting an older version leaves the current one. Where the current one is
forgotten nothing stands in its place until another supersedes it; --history takes
its older versions along. Asks first, or needs --yes.

Backups that were made before still hold it, and are listed: make a new one and
remove them, wherever they lie. A file that "memory export" wrote, and what an agent
has read, is out of reach. The ids stand in an export, and in what agents are told.

Examples:
  sbctl memory forget abcdefgh234567xy
  sbctl memory forget abcdefgh234567xy --history --yes`
}

type memoryForgottenView struct {
	EntryIDs []string `json:"entryIds"`
	Backups  []string `json:"backups"` // that still hold it
}

// mostForgotten is how many entries the daemon forgets at once.
const mostForgotten = 256

// Run forgets.
func (c memoryForgetCmd) Run(ctx context.Context, a *app) error {
	const doing = "forgetting"
	if len(c.ID) > mostForgotten {
		return refuse(doing, "at most %s at once", count(mostForgotten, "entry"))
	}
	question := "Forget the content of " + count(len(c.ID), "entry")
	if c.History {
		question += ", with all older versions"
	}
	if err := a.confirm(ctx, doing, question+"?"); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.ForgetKnowledgeRequest{EntryIds: c.ID, History: c.History}, operatorv1.OperatorServiceClient.ForgetKnowledge)
	if err != nil {
		return err
	}
	view := memoryForgottenView{EntryIDs: append([]string{}, got.GetEntryIds()...), Backups: append([]string{}, got.GetBackups()...)}
	slices.Sort(view.EntryIDs)
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
	a.tellBackups(view.Backups)
	return nil
}

// tellBackups names the backups that hold what was taken out, and what to do about
// them.
func (a *app) tellBackups(backups []string) {
	if len(backups) == 0 {
		return
	}
	for _, one := range backups {
		a.done("still in backup %s", one)
	}
	a.done("whoever opens one of them has it: make a new one and remove these, wherever they lie: %s", a.paste("backup", "FILE"))
}
