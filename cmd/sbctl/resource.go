package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type resourceCmd struct {
	Add    resourceAddCmd    `cmd:"" help:"Register a file"`
	List   resourceListCmd   `cmd:"" default:"1" help:"List sealed content and registered files"`
	Show   resourceShowCmd   `cmd:"" help:"Show one resource, its history and who holds it"`
	Status resourceStatusCmd `cmd:"" help:"Compare registered files with their pins"`
	Repin  resourceRepinCmd  `cmd:"" help:"Take the present state of a file as the right one"`
	Rm     resourceRmCmd     `cmd:"" help:"Remove a resource and its exact grants"`
}

// Help is the manual of resource.
func (resourceCmd) Help() string {
	return `A resource is named content: sealed in the vault ("secret put"), or a registered
file that stays where it is. Both share one set of names.

A registered file is pinned. With --pin content any change makes it unreadable
until "repin"; with --pin path its content may change, but owner, directories,
device and the file being a regular one with a single link may not.`
}

type resourceAddCmd struct {
	Name string `arg:"" help:"Name of the resource."`
	File string `required:"" placeholder:"PATH" help:"The file. No part of the path may be a symbolic link."`
	Pin  string `enum:"content,path" default:"content" placeholder:"content|path" help:"What must stay as it is (default: content)."`
	Note string `placeholder:"T" help:"A note for people."`

	Domain string `enum:",personal" default:"" placeholder:"personal" help:"personal: only the operator who adds it can grant it or look at it."`
}

// Help is the manual of resource add.
func (resourceAddCmd) Help() string {
	return `The daemon opens the file itself, without following links, and remembers its
identity and its SHA-256. What is personal belongs to your uid: no other operator
can grant it or look at it.

Examples:
  sbctl resource add readme --file ./README.md
  sbctl resource add journal --file ~/notes/today.md --pin path
  sbctl resource add diary --file ~/diary.md --pin path --domain personal`
}

// Run registers a file.
func (c resourceAddCmd) Run(ctx context.Context, a *app) error {
	doing := "registering " + c.Name
	path, err := filepath.Abs(c.File) // the daemon's working directory is not ours
	if err != nil {
		return fail(err, "%s", doing)
	}
	got, err := call(ctx, a, doing, &operatorv1.AddFileRequest{Name: c.Name, Path: path, Pin: c.Pin, Note: c.Note, Domain: c.Domain}, operatorv1.OperatorServiceClient.AddFile)
	if err != nil {
		return err
	}
	return a.printResource(got.GetResource())
}

type resourceListCmd struct{}

// Help is the manual of resource list.
func (resourceListCmd) Help() string {
	return `Examples:
  sbctl resource list
  sbctl resources -o json`
}

// Run lists resources.
func (resourceListCmd) Run(ctx context.Context, a *app) error {
	resources, err := a.resources(ctx, "listing resources")
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"NAME", "TYPE", "KIND", "VERSION", "SIZE", "UPDATED", "DOMAIN", "FILE", "NOTE"}}
	views := make([]resourceView, 0, len(resources))
	for _, r := range resources {
		list.IDs = append(list.IDs, r.GetName())
		list.Rows = append(list.Rows, []string{
			r.GetName(), r.GetType(), r.GetKind(), versionWords(r), ui.Size(r.GetSize()), a.out.When(r.GetUpdated()), r.GetDomain(), r.GetPath(), r.GetNote(),
		})
		views = append(views, viewResource(r))
	}
	list.Items = views
	return a.list(list, "there are no resources")
}

// resources are all resources, sorted by name.
func (a *app) resources(ctx context.Context, doing string) ([]*operatorv1.Resource, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListResourcesRequest{}, operatorv1.OperatorServiceClient.ListResources)
	return got.GetResources(), err
}

type resourceShowCmd struct {
	Name string `arg:"" help:"Name of the resource."`
}

// Help is the manual of resource show.
func (resourceShowCmd) Help() string {
	return `Examples:
  sbctl resource show readme`
}

// Run shows one resource.
func (c resourceShowCmd) Run(ctx context.Context, a *app) error {
	return a.showResource(ctx, c.Name)
}

type resourceFullView struct {
	resourceView
	Versions []versionView `json:"versions"`
	Grants   []grantView   `json:"grants"`
}

func (a *app) showResource(ctx context.Context, name string) error {
	got, err := call(ctx, a, "showing "+name, &operatorv1.GetResourceRequest{Name: name}, operatorv1.OperatorServiceClient.GetResource)
	if err != nil {
		return err
	}
	err = a.out.Object(ui.Object{
		ID: name, Fields: a.resourceFields(got.GetResource()),
		Value: resourceFullView{viewResource(got.GetResource()), viewVersions(got.GetVersions()), viewGrants(got.GetGrants())},
	})
	if err != nil {
		return err
	}
	if err := a.out.Section("Versions", versionHead, a.versionRows(got.GetVersions())); err != nil {
		return err
	}
	return a.out.Section("Grants", grantHead, a.grantRows(got.GetGrants()))
}

func (a *app) printResource(r *operatorv1.Resource) error {
	return a.out.Object(ui.Object{ID: r.GetName(), Fields: a.resourceFields(r), Value: viewResource(r)})
}

func (a *app) resourceFields(r *operatorv1.Resource) []ui.Field {
	version := ""
	if r.GetType() == typeSealed {
		version = versionWords(r)
	}
	return []ui.Field{
		{Name: "resource", Value: r.GetName()},
		{Name: "type", Value: r.GetType()},
		{Name: "kind", Value: r.GetKind()},
		{Name: "version", Value: version},
		{Name: "size", Value: ui.Size(r.GetSize())},
		{Name: "file", Value: r.GetPath()},
		{Name: "pin", Value: r.GetPin()},
		{Name: "sha256", Value: r.GetSha256()},
		{Name: "created", Value: a.out.When(r.GetCreated())},
		{Name: "updated", Value: a.out.When(r.GetUpdated())},
		{Name: "owner", Value: r.GetOwner()},
		{Name: "domain", Value: r.GetDomain()},
		{Name: "note", Value: r.GetNote()},
	}
}

type resourceRmCmd struct {
	Name string `arg:"" help:"Name of the resource."`
}

// Help is the manual of resource rm.
func (resourceRmCmd) Help() string {
	return `Removes the name and the grants that name it exactly; sealed content goes with
all its versions, a registered file stays where it is. Asks first, or needs
--yes.

Examples:
  sbctl resource rm readme`
}

// Run removes a resource.
func (c resourceRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing " + c.Name
	got, err := call(ctx, a, doing, &operatorv1.GetResourceRequest{Name: c.Name}, operatorv1.OperatorServiceClient.GetResource)
	if err != nil {
		return err
	}
	return a.removeResource(ctx, doing, got, false)
}

type removedView struct {
	ResourceID string     `json:"resourceId,omitempty"`
	SubjectID  string     `json:"subjectId,omitempty"`
	Removed    bool       `json:"removed"`
	Revoked    []string   `json:"revokedGrantIds"`
	EndedRuns  *uint32    `json:"endedRuns,omitempty"`
	Purge      *purgeView `json:"purge,omitempty"`
}

type purgeView struct {
	Overwritten bool         `json:"overwritten"`
	Backups     []backupView `json:"backups"`
	Kept        []string     `json:"kept"` // files of before a recovery
}

// purgePatience bounds a removal that writes the whole vault anew.
const purgePatience = 5 * time.Minute

// removeResource asks, saying what will be lost, and removes.
func (a *app) removeResource(ctx context.Context, doing string, got *operatorv1.GetResourceResponse, purge bool) error {
	name := got.GetResource().GetName()
	what := fmt.Sprintf("Remove %s with %s", name, count(len(got.GetVersions()), "version"))
	if got.GetResource().GetType() == typeFile {
		what = fmt.Sprintf("Remove %s (the file %s stays)", name, got.GetResource().GetPath())
	}
	if exact := exactGrants(got.GetGrants(), name); exact > 0 {
		what += fmt.Sprintf(" and revoke %s", count(exact, "grant"))
	}
	if purge {
		what += ", and write the vault's file anew"
	}
	if err := a.confirm(ctx, doing, what+"?"); err != nil {
		return err
	}
	patient := patience
	if purge {
		patient = purgePatience
	}
	removed, err := callWithin(ctx, a, patient, doing, &operatorv1.RemoveResourceRequest{Name: name, Purge: purge}, operatorv1.OperatorServiceClient.RemoveResource)
	if err != nil {
		return err
	}
	view := removedView{ResourceID: name, Removed: true, Revoked: append([]string{}, removed.GetRevokedGrantIds()...)}
	fields := []ui.Field{
		{Name: "removed", Value: name},
		{Name: "revoked", Value: strings.Join(removed.GetRevokedGrantIds(), ", ")},
	}
	if purge {
		view.Purge = &purgeView{removed.GetOverwritten(), viewBackups(removed.GetBackups()), append([]string{}, removed.GetKept()...)}
		fields = append(fields, ui.Field{Name: "purged", Value: purgeWords(removed.GetOverwritten())})
		for _, file := range removed.GetKept() {
			fields = append(fields, ui.Field{Name: "may still hold it", Value: file})
		}
		a.done("snapshots, copy-on-write file systems and spare blocks of a flash disk may still hold it, sealed: if it is a credential, change it where it is used")
	}
	if err := a.out.Object(ui.Object{ID: name, Fields: fields, Value: view}); err != nil {
		return err
	}
	return a.out.Section("Backups that may still hold it", backupHead, a.backupRows(removed.GetBackups()))
}

func purgeWords(overwritten bool) string {
	if overwritten {
		return "the vault's file was written anew, and the old one overwritten"
	}
	return "the vault's file was written anew; the old one could not be overwritten and was only removed"
}

// exactGrants is how many grants name the resource itself and no pattern.
func exactGrants(grants []*operatorv1.Grant, name string) (n int) {
	for _, g := range grants {
		if resourceOf(g.GetCapability()) == name {
			n++
		}
	}
	return n
}
