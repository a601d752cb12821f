package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// memoryFilter is what list and search look for.
type memoryFilter struct {
	Tenant []string `placeholder:"TENANT" help:"Only this tenant; may be given again."`
	Kind   []string `placeholder:"KIND" help:"Only this kind: note, decision or lesson; may be given again."`
	Since  string   `placeholder:"D" help:"Only what was captured this far back: 90m, 2h, 7d, or a time."`
	Limit  uint32   `default:"20" placeholder:"N" help:"At most so many; 20 when not given."`
}

// Limits of what is asked for at once, and in all.
const (
	memoryPage     = wire.MaxHits
	memoryMostList = 10_000
)

// lookPatience is what a look at the memory may take: after an unlock it is read first.
const lookPatience = 3 * time.Minute

// entryIDRule says what an id is.
const entryIDRule = "an id has 16 letters and digits"

// memoryKinds are the kinds of entries.
var memoryKinds = wire.EntryKinds()

// check refuses what is no filter, and returns its time.
func (f memoryFilter) check(a *app, doing string, most uint32) (int64, error) {
	if f.Limit == 0 || f.Limit > most {
		return 0, refuse(doing, "--limit is a number from 1 to %d", most)
	}
	for _, kind := range f.Kind {
		if !slices.Contains(memoryKinds, kind) {
			return 0, refuse(doing, "--kind is one of %s", strings.Join(memoryKinds, ", "))
		}
	}
	return pastMillis(doing, "--since", f.Since, a.now())
}

type memoryListCmd struct {
	memoryFilter `embed:""`

	Before string `placeholder:"ID" help:"Only what comes after this entry in the list: its last one, for more."`
}

// Help is the manual of memory list.
func (memoryListCmd) Help() string {
	return `Current entries, the newest first: what was superseded or forgotten is not among
them, and "sbctl memory show" has it. BY is who captured it; of what was imported
that is the word of the file, in parentheses. JSON has the beginning of each text.

Characters that do not show are escaped here, and stand in JSON as they are meant.
What is handed out is content: it is recorded in the audit log, and needs you to be
authenticated while a subject has a minimum tier above cooperative.

Examples:
  sbctl memory list
  sbctl memory list --tenant acme --kind decision --since 7d
  sbctl memory list --limit 500 -o json | jq -r .items[].title`
}

// Run lists entries.
func (c memoryListCmd) Run(ctx context.Context, a *app) error {
	const doing = "listing the memory"
	since, err := c.check(a, doing, memoryMostList)
	if err != nil {
		return err
	}
	if c.Before != "" && len(c.Before) != entryIDLength {
		return refuse(doing, "--before: %s", entryIDRule)
	}
	list := ui.List{Head: []string{"ENTRY", "TENANT", "KIND", "BY", "CREATED", "TITLE"}}
	views := []memoryEntryView{}
	for before, left := c.Before, c.Limit; left > 0; {
		page := min(left, memoryPage)
		got, err := callWithin(ctx, a, lookPatience, doing, &operatorv1.ListKnowledgeRequest{
			Tenants: c.Tenant, Kinds: c.Kind, Since: since, Limit: page, Before: before,
		}, operatorv1.OperatorServiceClient.ListKnowledge)
		if err != nil {
			return err
		}
		for _, e := range got.GetEntries() {
			list.IDs = append(list.IDs, e.GetEntryId())
			list.Rows = append(list.Rows, []string{e.GetEntryId(), e.GetTenant(), e.GetKind(), capturedBy(e), a.out.When(e.GetCreated()), e.GetTitle()})
			views = append(views, viewEntry(e))
			before = e.GetEntryId()
		}
		if left -= page; len(got.GetEntries()) < int(page) {
			break
		}
	}
	list.Items = views
	if err := a.list(list, "there is nothing of the kind"); err != nil {
		return err
	}
	if n := len(list.IDs); n == int(c.Limit) {
		a.done("there may be more: --before %s goes on there", list.IDs[n-1])
	}
	return nil
}

type memorySearchCmd struct {
	memoryFilter `embed:""`

	Query []string `arg:"" help:"What to look for: words, \"phrases\", beginnings*."`
}

// Help is the manual of memory search.
func (memorySearchCmd) Help() string {
	return `Finds what an agent would find that may read these tenants, all when none is named,
in the order in which it would, with the same scores: words in any order, "a phrase"
as one, beginnings with a *. Of what was superseded the current entry is shown;
FOUND says that an older version of it fits, and which.

The query is in no log, but in the shell's history. What is handed out is content:
it is recorded, as that of "sbctl memory list".

Examples:
  sbctl memory search 'rotate keys'
  sbctl memory search '"data key" rot*' --tenant acme --limit 5 -o json`
}

type memoryHitView struct {
	Entry    memoryEntryView      `json:"entry"`
	Score    float64              `json:"score"`
	Matched  string               `json:"matched,omitempty"`
	Replaced []memoryReplacedView `json:"replaced"`
}

type memoryReplacedView struct {
	EntryID  string `json:"entryId"`
	Title    string `json:"title,omitempty"`
	Replaced string `json:"replaced"`
}

// Run searches.
func (c memorySearchCmd) Run(ctx context.Context, a *app) error {
	const doing = "searching the memory"
	since, err := c.check(a, doing, memoryPage)
	if err != nil {
		return err
	}
	got, err := callWithin(ctx, a, lookPatience, doing, &operatorv1.SearchKnowledgeRequest{
		Query: strings.Join(c.Query, " "), Tenants: c.Tenant, Kinds: c.Kind, Since: since, Limit: c.Limit,
	}, operatorv1.OperatorServiceClient.SearchKnowledge)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"ENTRY", "TENANT", "KIND", "BY", "CREATED", "FOUND", "TITLE"}}
	views := []memoryHitView{}
	for _, hit := range got.GetHits() {
		e := hit.GetEntry()
		list.IDs = append(list.IDs, e.GetEntryId())
		list.Rows = append(list.Rows, []string{
			e.GetEntryId(), e.GetTenant(), e.GetKind(), capturedBy(e), a.out.When(e.GetCreated()), hit.GetMatched(), e.GetTitle(),
		})
		view := memoryHitView{Entry: viewEntry(e), Score: hit.GetScore(), Matched: hit.GetMatched(), Replaced: []memoryReplacedView{}}
		for _, was := range hit.GetReplaced() {
			view.Replaced = append(view.Replaced, memoryReplacedView{was.GetEntryId(), was.GetTitle(), ui.Stamp(was.GetReplaced())})
		}
		views = append(views, view)
	}
	list.Items = views
	if err := a.list(list, "nothing fits"); err != nil {
		return err
	}
	if n := len(list.IDs); got.GetTotal() > uint64(n) {
		a.done("%d of %d that fit", n, got.GetTotal())
	}
	return nil
}

type memoryShowCmd struct {
	ID string `arg:"" name:"entry" help:"Id of an entry, whole: 16 letters and digits."`
}

// Help is the manual of memory show.
func (memoryShowCmd) Help() string {
	return `The entry with its whole text, who captured it, when, under which run, launch and
agent key, and its versions, the current one first: which one took the place of
which, and when. Of one that was forgotten there is what is left: its place, and when
that was. "captured by" of what was imported is the word of the file.

Control and other characters that do not show are escaped, line ends and tabs aside;
in JSON they stand as they are meant. What is handed out is content: it is recorded,
as that of "sbctl memory list".

Examples:
  sbctl memory show abcdefgh234567xy
  sbctl memory show abcdefgh234567xy -o json | jq -r .entry.text`
}

type memoryShownView struct {
	Entry    memoryEntryView   `json:"entry"`
	Versions []memoryEntryView `json:"versions"` // without texts, the current one first
	Total    uint64            `json:"total"`    // versions in all
}

// Run shows an entry.
func (c memoryShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing " + ui.Safe(c.ID)
	if len(c.ID) != entryIDLength {
		return refuse("showing an entry", entryIDRule)
	}
	got, err := callWithin(ctx, a, lookPatience, doing, &operatorv1.GetKnowledgeRequest{EntryId: c.ID}, operatorv1.OperatorServiceClient.GetKnowledge)
	if err != nil {
		return err
	}
	e := got.GetEntry()
	view := memoryShownView{Entry: viewEntry(e), Versions: []memoryEntryView{}, Total: got.GetTotal()}
	var rows [][]string
	for _, version := range got.GetVersions() {
		view.Versions = append(view.Versions, viewEntry(version))
		rows = append(rows, []string{version.GetEntryId(), standingOf(version), capturedBy(version), a.out.Clock(version.GetCreated()), version.GetTitle()})
	}
	fields := []ui.Field{
		{Name: "entry", Value: e.GetEntryId()}, {Name: "tenant", Value: e.GetTenant()}, {Name: "kind", Value: e.GetKind()},
	}
	if e.GetForgotten() != 0 {
		fields = append(fields, ui.Field{Name: "forgotten", Value: a.out.When(e.GetForgotten()) + "; this is what is left of it"})
	} else {
		fields = append(fields, ui.Field{Name: "title", Value: e.GetTitle()}, ui.Field{Name: "tags", Value: strings.Join(e.GetTags(), ", ")})
		fields = append(fields, ui.Field{Name: "captured by", Value: capturedBy(e)})
	}
	fields = append(fields, ui.Field{Name: "created", Value: a.out.When(e.GetCreated())})
	for _, one := range []ui.Field{{Name: "run", Value: e.GetRunId()}, {Name: "launch", Value: e.GetLaunchId()}, {Name: "agent key", Value: e.GetKeyId()}, {Name: "supersedes", Value: e.GetSupersedes()}} {
		if one.Value != "" {
			fields = append(fields, one)
		}
	}
	if e.GetSupersededBy() != "" {
		fields = append(fields, ui.Field{Name: "superseded by", Value: e.GetSupersededBy() + ", " + a.out.When(e.GetSuperseded())})
	}
	if err := a.out.Object(ui.Object{ID: c.ID, Fields: fields, Value: view}); err != nil {
		return err
	}
	if a.out.Format == ui.JSON || a.out.Quiet {
		return nil
	}
	if text := e.GetText(); text != "" {
		if _, err := fmt.Fprintf(a.stdout, "\n%s\n", strings.TrimSuffix(ui.SafeText(text), "\n")); err != nil {
			return err
		}
	}
	if len(rows) > 1 {
		if err := a.out.Section("versions", []string{"ENTRY", "IS", "BY", "CREATED", "TITLE"}, rows); err != nil {
			return err
		}
	}
	if n := ui.Hidden(e.GetTitle() + e.GetText()); n > 0 {
		a.done("%s that do not show are in it: they are escaped here", count(n, "character"))
	}
	if n := len(rows); got.GetTotal() > uint64(n) {
		a.done("%d of %d versions: show the last one for those before it", n, got.GetTotal())
	}
	return nil
}

// standingOf says in a word what became of an entry.
func standingOf(e *operatorv1.KnowledgeEntry) string {
	switch {
	case e.GetForgotten() != 0:
		return "forgotten"
	case e.GetSupersededBy() != "":
		return "superseded"
	}
	return "current"
}

// capturedBy is who captured an entry; in parentheses where a file says so.
func capturedBy(e *operatorv1.KnowledgeEntry) string {
	if e.GetSubject() != "" && e.GetRunId() == "" {
		return "(" + e.GetSubject() + ")"
	}
	return e.GetSubject()
}

// memoryEntryView is an entry for programs.
type memoryEntryView struct {
	EntryID      string   `json:"entryId"`
	Tenant       string   `json:"tenant"`
	Kind         string   `json:"kind"`
	State        string   `json:"state"` // current, superseded or forgotten
	Title        string   `json:"title,omitempty"`
	Text         string   `json:"text,omitempty"`
	Cut          bool     `json:"cut,omitempty"` // text is not all of it
	Tags         []string `json:"tags"`
	SubjectID    string   `json:"subjectId,omitempty"`
	Imported     bool     `json:"imported,omitempty"` // subjectId is the word of a file
	Created      string   `json:"created"`
	RunID        string   `json:"runId,omitempty"`
	LaunchID     string   `json:"launchId,omitempty"`
	KeyID        string   `json:"keyId,omitempty"`
	Supersedes   string   `json:"supersedes,omitempty"`
	SupersededBy string   `json:"supersededBy,omitempty"`
	Superseded   string   `json:"superseded,omitempty"`
	Forgotten    string   `json:"forgotten,omitempty"`
}

func viewEntry(e *operatorv1.KnowledgeEntry) memoryEntryView {
	return memoryEntryView{
		EntryID: e.GetEntryId(), Tenant: e.GetTenant(), Kind: e.GetKind(), State: standingOf(e), Title: e.GetTitle(), Text: e.GetText(), Cut: e.GetCut(),
		Tags: append([]string{}, e.GetTags()...), SubjectID: e.GetSubject(), Imported: e.GetRunId() == "" && e.GetForgotten() == 0, Created: ui.Stamp(e.GetCreated()),
		RunID: e.GetRunId(), LaunchID: e.GetLaunchId(), KeyID: e.GetKeyId(), Supersedes: e.GetSupersedes(), SupersededBy: e.GetSupersededBy(),
		Superseded: ui.Stamp(e.GetSuperseded()), Forgotten: ui.Stamp(e.GetForgotten()),
	}
}

// entryKindNames completes kinds of entries.
func entryKindNames() (names []complete.Candidate) {
	for _, kind := range memoryKinds {
		names = append(names, complete.Candidate{Word: kind})
	}
	return names
}
