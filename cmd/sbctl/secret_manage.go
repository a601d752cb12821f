package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"subjectbroker/cmd/sbctl/internal/content"
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
	list := ui.List{Head: []string{"NAME", "KIND", "VERSION", "SIZE", "UPDATED", "NOTE"}}
	views := make([]resourceView, 0, len(sealed))
	for _, r := range sealed {
		list.IDs = append(list.IDs, r.GetName())
		list.Rows = append(list.Rows, []string{r.GetName(), r.GetKind(), versionWords(r), ui.Size(r.GetSize()), a.out.When(r.GetUpdated()), r.GetNote()})
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
	Name string `arg:"" help:"Name of the resource."`
}

// Help is the manual of secret rm.
func (secretRmCmd) Help() string {
	return `Removes the name, all its versions, and the grants that name it exactly. A new
one of the same name inherits nothing but patterns. Asks first, or needs --yes.

Examples:
  sbctl secret rm old.token`
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
	return a.removeResource(ctx, doing, got)
}

type secretExportCmd struct {
	To     string `required:"" placeholder:"DIR" help:"Directory to write into; made when it does not exist."`
	Reveal bool   `required:"" help:"Say that all content will lie there in clear."`
}

// Help is the manual of secret export.
func (secretExportCmd) Help() string {
	return `Writes the newest version of everything sealed, in clear, one file a name, mode
0600. No file is overwritten. Every disclosure is recorded in the audit log.

Examples:
  sbctl secret export --to ~/exported --reveal`
}

type exportedView struct {
	ResourceID string `json:"resourceId"`
	Path       string `json:"path"`
	Version    uint32 `json:"version"`
	Bytes      int    `json:"bytes"`
}

// Run writes the files.
func (c secretExportCmd) Run(ctx context.Context, a *app) error {
	const doing = "exporting secrets"
	resources, err := a.resources(ctx, doing)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.To, 0o700); err != nil {
		return fail(err, doing)
	}
	root, err := os.OpenRoot(c.To)
	if err != nil {
		return fail(err, doing)
	}
	defer func() { _ = root.Close() }()
	list := ui.List{Head: []string{"NAME", "VERSION", "SIZE", "FILE"}}
	views := []exportedView{}
	for _, r := range resources {
		if r.GetType() != typeSealed || r.GetVersion() == 0 {
			continue
		}
		got, err := call(ctx, a, "exporting "+r.GetName(), &operatorv1.GetSecretRequest{Name: r.GetName()}, operatorv1.OperatorServiceClient.GetSecret)
		if err != nil {
			return err
		}
		b := content.Bytes(got.GetContent())
		view := exportedView{ResourceID: r.GetName(), Path: root.Name() + string(os.PathSeparator) + r.GetName(), Version: got.GetVersion(), Bytes: len(b)}
		err = writeNew(root, r.GetName(), b)
		b.Wipe()
		if errors.Is(err, fs.ErrExist) {
			return refuse("exporting "+r.GetName(), "%s exists already", view.Path)
		}
		if err != nil {
			return fail(err, "exporting %s", r.GetName())
		}
		views = append(views, view)
		list.IDs = append(list.IDs, view.ResourceID)
		list.Rows = append(list.Rows, []string{view.ResourceID, fmt.Sprint(view.Version), ui.Size(uint64(view.Bytes)), view.Path})
	}
	list.Items = views
	return a.out.List(list)
}

// writeNew writes a file that must not exist yet; half a file is removed.
func writeNew(root *os.Root, name string, b content.Bytes) (err error) {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = root.Remove(name)
		}
	}()
	_, err = file.Write(b)
	return err
}
