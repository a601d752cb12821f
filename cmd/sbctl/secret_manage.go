package main

import (
	"context"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// sealed and file are the types of resources.
const (
	typeSealed = "sealed"
	typeFile   = "file"
)

type secretListCmd struct{}

// Help is the manual of secret list.
func (secretListCmd) Help() string {
	return `Names, kinds and sizes; never content. Registered files are in "resource list".

Examples:
  sbctl secret list
  sbctl secrets -q`
}

// Run lists sealed content.
func (secretListCmd) Run(ctx context.Context, a *app) error {
	resources, err := a.resources(ctx, "listing secrets")
	if err != nil {
		return err
	}
	var sealed []*operatorv1.Resource
	for _, r := range resources {
		if r.GetType() == typeSealed {
			sealed = append(sealed, r)
		}
	}
	list := ui.List{Head: []string{"NAME", "KIND", "VERSION", "SIZE", "UPDATED", "DOMAIN", "NOTE"}}
	views := make([]resourceView, 0, len(sealed))
	for _, r := range sealed {
		list.IDs = append(list.IDs, r.GetName())
		list.Rows = append(list.Rows, []string{r.GetName(), r.GetKind(), versionWords(r), ui.Size(r.GetSize()), a.out.When(r.GetUpdated()), r.GetDomain(), r.GetNote()})
		views = append(views, viewResource(r))
	}
	list.Items = views
	return a.list(list, "nothing is sealed")
}

// versionWords is the newest version, or that there is none.
func versionWords(r *operatorv1.Resource) string {
	switch {
	case r.GetType() == typeFile:
		return "-"
	case r.GetVersion() == 0:
		return "no content yet"
	}
	return fmt.Sprint(r.GetVersion())
}

type secretShowCmd struct {
	Name string `arg:"" help:"Name of the resource."`
}

// Help is the manual of secret show.
func (secretShowCmd) Help() string {
	return `Shows everything about a name but its content.

Examples:
  sbctl secret show github.token`
}

// Run shows one name.
func (c secretShowCmd) Run(ctx context.Context, a *app) error {
	return a.showResource(ctx, c.Name)
}

type secretHistoryCmd struct {
	Name string `arg:"" help:"Name of the resource."`
}

// Help is the manual of secret history.
func (secretHistoryCmd) Help() string {
	return `Versions, newest first.

Examples:
  sbctl secret history design-doc
  sbctl secret get design-doc --version 2`
}

// Run lists versions.
func (c secretHistoryCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "reading the history of "+c.Name, &operatorv1.GetResourceRequest{Name: c.Name}, operatorv1.OperatorServiceClient.GetResource)
	if err != nil {
		return err
	}
	list := ui.List{Head: versionHead, Rows: a.versionRows(got.GetVersions()), Items: viewVersions(got.GetVersions())}
	for _, v := range got.GetVersions() {
		list.IDs = append(list.IDs, fmt.Sprint(v.GetVersion()))
	}
	return a.out.List(list)
}

var versionHead = []string{"VERSION", "SIZE", "STORED", "ORIGIN"}

func (a *app) versionRows(versions []*operatorv1.Version) [][]string {
	var rows [][]string
	for _, v := range versions {
		origin := "put"
		if v.GetRevertedFrom() != 0 {
			origin = fmt.Sprintf("reverted from %d", v.GetRevertedFrom())
		}
		rows = append(rows, []string{fmt.Sprint(v.GetVersion()), ui.Size(v.GetSize()), a.out.When(v.GetCreated()), origin})
	}
	return rows
}

type secretRevertCmd struct {
	Name string `arg:"" help:"Name of the resource."`
	To   uint32 `required:"" placeholder:"N" help:"Version whose content becomes the newest version."`
}

// Help is the manual of secret revert.
func (secretRevertCmd) Help() string {
	return `The old content becomes a new version; nothing is lost, and the history says
where it came from.

Examples:
  sbctl secret revert design-doc --to 2`
}

// Run reverts.
func (c secretRevertCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, fmt.Sprintf("reverting %s to version %d", c.Name, c.To),
		&operatorv1.RevertSecretRequest{Name: c.Name, To: c.To}, operatorv1.OperatorServiceClient.RevertSecret)
	if err != nil {
		return err
	}
	return a.showPut(&operatorv1.PutSecretResponse{Resource: got.GetResource()})
}

type secretRmCmd struct {
	Name  string `arg:"" help:"Name of the resource."`
	Purge bool   `help:"Also remove the sealed bytes from the vault's file, as far as the medium allows."`
}

// Help is the manual of secret rm.
func (secretRmCmd) Help() string {
	return `Removes the name, all its versions, and the grants that name it exactly. A new
one of the same name inherits nothing but patterns. Asks first, or needs --yes.

What was removed stays in free pages of the vault's file, sealed, until it is
written over. --purge writes a new file without it, and without whatever was
removed before, and overwrites the old file. Backups that were made while it was
there are listed: they still hold it. So may snapshots, copy-on-write file
systems and the spare blocks of a flash disk, which nothing can overwrite.

Examples:
  sbctl secret rm old.token
  sbctl secret rm leaked.key --purge`
}

// Run removes a name.
func (c secretRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing " + c.Name
	got, err := call(ctx, a, doing, &operatorv1.GetResourceRequest{Name: c.Name}, operatorv1.OperatorServiceClient.GetResource)
	if err != nil {
		return err
	}
	if got.GetResource().GetType() != typeSealed {
		return refuse(doing, "it is a registered file, not a secret").withHint("sbctl resource rm %s", c.Name)
	}
	return a.removeResource(ctx, doing, got, c.Purge)
}
