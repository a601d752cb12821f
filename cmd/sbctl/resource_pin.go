package main

import (
	"context"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// States of a registered file.
const (
	fileOK      = "ok"
	fileChanged = "changed"
)

type resourceStatusCmd struct {
	Names []string `arg:"" optional:"" name:"name" help:"Names of resources; all registered files when none is given."`
}

// Help is the manual of resource status.
func (resourceStatusCmd) Help() string {
	return `Reads every file as an acquire would, and changes nothing.

Examples:
  sbctl resource status
  sbctl resource status readme -o json`
}

type fileView struct {
	ResourceID    string `json:"resourceId"`
	Path          string `json:"path"`
	State         string `json:"state"`
	Detail        string `json:"detail,omitempty"`
	PinnedSHA256  string `json:"pinnedSha256,omitempty"`
	CurrentSHA256 string `json:"currentSha256,omitempty"`
	PinnedBytes   uint64 `json:"pinnedBytes"`
	CurrentBytes  uint64 `json:"currentBytes"`
}

func viewFile(f *operatorv1.FileCheck) fileView {
	return fileView{
		ResourceID: f.GetName(), Path: f.GetPath(), State: f.GetState(), Detail: f.GetDetail(),
		PinnedSHA256: f.GetPinnedSha256(), CurrentSHA256: f.GetCurrentSha256(),
		PinnedBytes: f.GetPinnedSize(), CurrentBytes: f.GetCurrentSize(),
	}
}

// Run compares files with their pins.
func (c resourceStatusCmd) Run(ctx context.Context, a *app) error {
	files, err := a.checkFiles(ctx, "checking files", c.Names)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"NAME", "STATE", "FILE", "DETAIL"}}
	views := make([]fileView, 0, len(files))
	for _, f := range files {
		list.IDs = append(list.IDs, f.GetName())
		list.Rows = append(list.Rows, []string{f.GetName(), f.GetState(), f.GetPath(), f.GetDetail()})
		views = append(views, viewFile(f))
	}
	list.Items = views
	return a.list(list, "no file is registered")
}

func (a *app) checkFiles(ctx context.Context, doing string, names []string) ([]*operatorv1.FileCheck, error) {
	got, err := call(ctx, a, doing, &operatorv1.CheckFilesRequest{Names: names}, operatorv1.OperatorServiceClient.CheckFiles)
	return got.GetFiles(), err
}

type resourceRepinCmd struct {
	Names   []string `arg:"" optional:"" name:"name" help:"Names of registered files."`
	Changed bool     `help:"Repin every file that changed."`
}

// Help is the manual of resource repin.
func (resourceRepinCmd) Help() string {
	return `Shows the old and the new state of each file, and takes the new one: exactly the
one that was shown. A file that changes once more in between is refused.

Examples:
  sbctl resource repin readme
  sbctl resource repin --changed`
}

type repinView struct {
	resourceView
	Before fileView `json:"before"`
}

// Run repins files.
func (c resourceRepinCmd) Run(ctx context.Context, a *app) error {
	const doing = "repinning files"
	if c.Changed == (len(c.Names) > 0) {
		return refuse(doing, "say either the names or --changed").withHint("sbctl resource repin --help")
	}
	files, err := a.checkFiles(ctx, doing, c.Names)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"NAME", "WAS", "IS", "SHA256 WAS", "SHA256 IS"}}
	views, none := []repinView{}, "no file has changed"
	for _, f := range files {
		if c.Changed && f.GetState() != fileChanged {
			if f.GetState() != fileOK {
				a.done("%s is left as it is: %s", f.GetName(), f.GetDetail())
				none = "nothing was repinned"
			}
			continue
		}
		if f.GetCurrentSha256() == "" {
			return &failure{
				code: wire.ResourceChanged, doing: "repinning " + f.GetName(), exit: wire.ExitFailed,
				what: f.GetDetail(), hint: "sbctl resource status " + f.GetName(),
			}
		}
		got, err := call(ctx, a, "repinning "+f.GetName(),
			&operatorv1.RepinFileRequest{Name: f.GetName(), ExpectSha256: f.GetCurrentSha256()}, operatorv1.OperatorServiceClient.RepinFile)
		if err != nil {
			return err
		}
		before, r := got.GetBefore(), got.GetResource()
		list.IDs = append(list.IDs, r.GetName())
		list.Rows = append(list.Rows, []string{
			r.GetName(), ui.Size(before.GetPinnedSize()), ui.Size(r.GetSize()),
			fingerprintShort(before.GetPinnedSha256()), fingerprintShort(r.GetSha256()),
		})
		views = append(views, repinView{viewResource(r), viewFile(before)})
	}
	if len(views) == 1 && !c.Changed {
		return a.out.Object(ui.Object{ID: list.IDs[0], Fields: repinFields(views[0]), Value: views[0]})
	}
	list.Items = views
	return a.list(list, none)
}

func repinFields(v repinView) []ui.Field {
	return []ui.Field{
		{Name: "resource", Value: v.ResourceID},
		{Name: "file", Value: v.Path},
		{Name: "was", Value: fmt.Sprintf("%s, %s", v.Before.PinnedSHA256, ui.Size(v.Before.PinnedBytes))},
		{Name: "is", Value: fmt.Sprintf("%s, %s", v.SHA256, ui.Size(v.Bytes))},
	}
}
