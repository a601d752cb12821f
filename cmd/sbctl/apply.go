package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type applyCmd struct {
	File     string `short:"f" required:"" placeholder:"FILE" help:"The document; - is standard input."`
	DryRun   bool   `help:"Print what would change, and change nothing."`
	ExitCode bool   `help:"With --dry-run: exit with 1 when something would change."`
	Prune    bool   `help:"Also remove what carries the document's owner and is not in it. Asks first, or needs --yes."`
}

// Help is the manual of apply.
func (applyCmd) Help() string {
	return `Adds and changes; removes only with --prune. Applying the same document again
changes nothing: it resets no use counts and extends nothing. A document that is
wrong anywhere is refused as a whole, with line numbers.

${home} in a file's path is your home directory. Declared secrets that still have
no content are listed at the end. Servers, and the policies around them, are part
of a document; a server from one is trusted like any other, with "server trust".

Examples:
  sbctl apply -f broker.yaml --dry-run
  sbctl export | ssh other sbctl apply -f -`
}

type changeView struct {
	Verb   string `json:"verb"`
	What   string `json:"what"`
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
}

type applyView struct {
	DryRun      bool         `json:"dryRun"`
	Changes     []changeView `json:"changes"`
	NeedContent []string     `json:"needContent"`
	Warnings    []string     `json:"warnings"`
}

// Run applies the document.
func (c applyCmd) Run(ctx context.Context, a *app) error {
	doing := "applying " + c.File
	if c.ExitCode && !c.DryRun {
		return refuse(doing, "--exit-code goes with --dry-run")
	}
	document, err := a.readDocument(doing, c.File)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return fail(err, "%s", doing)
	}
	request := &operatorv1.ApplyRequest{Document: document, DryRun: c.DryRun, Prune: c.Prune, HomeDir: filepath.Clean(home)}
	if c.Prune && !c.DryRun {
		if err := a.confirmPrune(ctx, doing, request); err != nil {
			return err
		}
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.Apply)
	if err != nil {
		return err
	}
	if err := a.printChanges(got, c.DryRun); err != nil {
		return err
	}
	if c.ExitCode && len(got.GetChanges()) > 0 {
		return exitCode(wire.ExitFailed)
	}
	return nil
}

// confirmPrune asks before anything is removed, and says what.
func (a *app) confirmPrune(ctx context.Context, doing string, request *operatorv1.ApplyRequest) error {
	trial, err := call(ctx, a, doing, &operatorv1.ApplyRequest{
		Document: request.GetDocument(), DryRun: true, Prune: true, HomeDir: request.GetHomeDir(),
	}, operatorv1.OperatorServiceClient.Apply)
	if err != nil {
		return err
	}
	removals := 0
	for _, change := range trial.GetChanges() {
		if change.GetVerb() == "remove" {
			removals++
			a.say("would remove %s %s", change.GetWhat(), change.GetName())
		}
	}
	if removals == 0 {
		return nil
	}
	return a.confirm(ctx, doing, fmt.Sprintf("Remove %s?", count(removals, "thing")))
}

func (a *app) printChanges(got *operatorv1.ApplyResponse, dryRun bool) error {
	view := applyView{
		DryRun: dryRun, Changes: []changeView{}, NeedContent: append([]string{}, got.GetNeedContent()...), Warnings: append([]string{}, got.GetWarnings()...),
	}
	for _, warning := range view.Warnings {
		a.say("warning: %s", warning)
	}
	list := ui.List{Head: []string{"CHANGE", "WHAT", "NAME", "DETAIL"}}
	for _, change := range got.GetChanges() {
		view.Changes = append(view.Changes, changeView{change.GetVerb(), change.GetWhat(), change.GetName(), change.GetDetail()})
		list.IDs = append(list.IDs, change.GetName())
		list.Rows = append(list.Rows, []string{change.GetVerb(), change.GetWhat(), change.GetName(), change.GetDetail()})
	}
	if a.out.Format == ui.JSON && !a.out.Quiet {
		return a.out.Object(ui.Object{Value: view})
	}
	if err := a.list(list, "nothing to change"); err != nil {
		return err
	}
	for _, change := range view.Changes {
		if !dryRun && change.Verb == "add" && change.What == "server" {
			a.done("nothing of %s is trusted yet: %s", change.Name, a.paste("server", "trust", change.Name))
		}
	}
	for _, name := range view.NeedContent {
		a.done("%s has no content yet: %s", name, a.paste("secret", "put", name))
	}
	return nil
}

// readDocument reads a document from a file or from standard input.
func (a *app) readDocument(doing, name string) ([]byte, error) {
	from := a.stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, fail(err, "%s", doing)
		}
		defer file.Close()
		from = file
	}
	document, err := io.ReadAll(io.LimitReader(from, policy.MaxSize+1))
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	if len(document) > policy.MaxSize {
		return nil, refuse(doing, "a document has at most %d bytes", policy.MaxSize)
	}
	return document, nil
}

type exportCmd struct {
	WithPins bool `help:"Include the pins of registered files: right for this machine only."`
	All      bool `help:"Include grants that end within a day."`
}

// Help is the manual of export.
func (exportCmd) Help() string {
	return `Writes resources, tenants, subjects, profiles, tools, servers, policies and grants as
one document, stable in order, without contents: it can live in git and be applied on
another machine. What was trusted of servers, and what policies have counted, is not
in it, nor are grants that have ended, or that end within a day, but with --all.

Examples:
  sbctl export > broker.yaml`
}

type documentView struct {
	Document string `json:"document"`
}

// Run writes the document.
func (c exportCmd) Run(ctx context.Context, a *app) error {
	const doing = "exporting"
	request := &operatorv1.ExportRequest{WithPins: c.WithPins, All: c.All}
	if home, err := os.UserHomeDir(); err == nil {
		request.HomeDir = filepath.Clean(home)
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.Export)
	if err != nil {
		return err
	}
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{Value: documentView{string(got.GetDocument())}})
	}
	if _, err := a.stdout.Write(got.GetDocument()); err != nil {
		return fail(err, doing)
	}
	if c.All {
		return nil
	}
	if left := a.shortGrants(ctx); left > 0 {
		a.done("left out, for ending within a day: %s; --all writes them too", count(left, "grant"))
	}
	return nil
}

// shortGrants are how many grants end within a day; none where that cannot be known.
func (a *app) shortGrants(ctx context.Context) (short int) {
	got, _ := call(ctx, a, "", &operatorv1.ListGrantsRequest{}, operatorv1.OperatorServiceClient.ListGrants)
	day := time.Now().Add(24 * time.Hour).UnixMilli()
	for _, g := range got.GetGrants() {
		if until := g.GetUntil(); g.GetState() == "active" && until > 0 && until < day {
			short++
		}
	}
	return short
}
