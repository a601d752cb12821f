package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type tenantCmd struct {
	Add  tenantAddCmd  `cmd:"" help:"Add a tenant"`
	List tenantListCmd `cmd:"" default:"1" help:"List tenants, and who may read them and write to them"`
	Show tenantShowCmd `cmd:"" help:"Show a tenant: entries, who reaches it, and with which agent keys"`
	Rm   tenantRmCmd   `cmd:"" help:"Remove a tenant"`
}

// Help is the manual of tenant.
func (tenantCmd) Help() string {
	return `A tenant is a body of knowledge. Who may read it is said by grants of
memory.read:TENANT, who may write to it by memory.write:TENANT. What is in it,
"sbctl memory" exports.`
}

type tenantAddCmd struct {
	Tenant string `arg:"" help:"Name: letters, digits, dot, dash, underscore."`
}

// Help is the manual of tenant add.
func (tenantAddCmd) Help() string {
	return `Patterns that were granted before, such as memory.read:*, cover it.

Examples:
  sbctl tenant add acme`
}

// Run adds a tenant.
func (c tenantAddCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "adding tenant "+c.Tenant, &operatorv1.AddTenantRequest{Name: c.Tenant}, operatorv1.OperatorServiceClient.AddTenant)
	if err != nil {
		return err
	}
	t := got.GetTenant()
	return a.out.Object(ui.Object{ID: t.GetName(), Fields: []ui.Field{
		{Name: "tenant", Value: t.GetName()},
		{Name: "readers", Value: strings.Join(t.GetReaders(), ", ")},
		{Name: "writers", Value: strings.Join(t.GetWriters(), ", ")},
		{Name: "created", Value: a.out.When(t.GetCreated())},
	}, Value: viewTenant(t)})
}

type tenantListCmd struct{}

// Help is the manual of tenant list.
func (tenantListCmd) Help() string {
	return `ENTRIES are those that are current; superseded and forgotten ones are told by
"sbctl tenant show". READERS and WRITERS are subjects whose grants reach it now; an
agent key narrows them to the tenants that it was minted with.

Examples:
  sbctl tenant list
  sbctl tenants -q`
}

// Run lists tenants.
func (tenantListCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "listing tenants", &operatorv1.ListTenantsRequest{}, operatorv1.OperatorServiceClient.ListTenants)
	if err != nil {
		return err
	}
	tenants := got.GetTenants()
	if got.GetToIndex() > 0 {
		a.done("the memory is being read, and entries are not counted yet")
	}
	list := ui.List{Head: []string{"TENANT", "READERS", "WRITERS", "ENTRIES", "CREATED", "OWNER"}}
	views := make([]tenantView, 0, len(tenants))
	for _, t := range tenants {
		list.IDs = append(list.IDs, t.GetName())
		list.Rows = append(list.Rows, []string{
			t.GetName(), strings.Join(t.GetReaders(), " "), strings.Join(t.GetWriters(), " "), fmt.Sprint(t.GetEntries()), a.out.When(t.GetCreated()), t.GetOwner(),
		})
		views = append(views, viewTenant(t))
	}
	list.Items = views
	return a.list(list, "there are no tenants")
}

// tenants are all tenants, sorted by name.
func (a *app) tenants(ctx context.Context, doing string) ([]*operatorv1.Tenant, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListTenantsRequest{}, operatorv1.OperatorServiceClient.ListTenants)
	return got.GetTenants(), err
}

// tenant is the tenant of a name; one that does not exist is refused.
func (a *app) tenant(ctx context.Context, doing, name string) (*operatorv1.Tenant, error) {
	tenants, err := a.tenants(ctx, doing)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(tenants, func(t *operatorv1.Tenant) bool { return t.GetName() == name })
	if at < 0 {
		return nil, fail(&wire.Error{Reason: wire.InvalidArgument, Message: "no tenant is named " + name, Unknown: wire.UnknownTenant, Name: name}, "%s", doing)
	}
	return tenants[at], nil
}

type tenantShowCmd struct {
	Tenant string `arg:"" help:"Name of the tenant."`
}

// Help is the manual of tenant show.
func (tenantShowCmd) Help() string {
	return `Examples:
  sbctl tenant show acme`
}

type tenantShownView struct {
	tenantView
	AgentKeys []string `json:"agentKeys"` // ids of those that are good and hold it
}

// Run shows a tenant.
func (c tenantShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing tenant " + c.Tenant
	t, err := a.tenant(ctx, doing, c.Tenant)
	if err != nil {
		return err
	}
	keys, err := call(ctx, a, doing, &operatorv1.ListAgentKeysRequest{}, operatorv1.OperatorServiceClient.ListAgentKeys)
	if err != nil {
		return err
	}
	view := tenantShownView{viewTenant(t), []string{}}
	for _, k := range keys.GetKeys() {
		if slices.Contains(k.GetTenants(), c.Tenant) {
			view.AgentKeys = append(view.AgentKeys, k.GetKeyId())
		}
	}
	return a.out.Object(ui.Object{ID: t.GetName(), Fields: []ui.Field{
		{Name: "tenant", Value: t.GetName()},
		{Name: "entries", Value: fmt.Sprintf("%d, and %d superseded, %d forgotten", t.GetEntries(), t.GetSuperseded(), t.GetForgotten())},
		{Name: "newest", Value: a.out.When(t.GetNewest())},
		{Name: "readers", Value: strings.Join(t.GetReaders(), ", ")},
		{Name: "writers", Value: strings.Join(t.GetWriters(), ", ")},
		{Name: "agent keys", Value: strings.Join(view.AgentKeys, ", ")},
		{Name: "created", Value: a.out.When(t.GetCreated())},
		{Name: "owner", Value: t.GetOwner()},
	}, Value: view})
}

type tenantRmCmd struct {
	Tenant string `arg:"" help:"Name of the tenant."`
}

// Help is the manual of tenant rm.
func (tenantRmCmd) Help() string {
	return `Its entries go with it, out of the vault and the index; backups that were made
before still hold them, and are listed. The grants that name it and nothing else are
revoked, and it is taken out of every agent key: a new one of the same name inherits
nothing but patterns. Asks first, or needs --yes.

Examples:
  sbctl tenant rm acme`
}

// Run removes a tenant.
func (c tenantRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing tenant " + c.Tenant
	if _, err := a.tenant(ctx, doing, c.Tenant); err != nil { // before anybody is asked
		return err
	}
	if err := a.confirm(ctx, doing, fmt.Sprintf("Remove tenant %s, with all its entries and the grants that name it?", c.Tenant)); err != nil {
		return err
	}
	got, err := callWithin(ctx, a, purgePatience, doing, &operatorv1.RemoveTenantRequest{Name: c.Tenant}, operatorv1.OperatorServiceClient.RemoveTenant)
	if err != nil {
		return err
	}
	a.tellBackups(got.GetBackups(), got.GetKept())
	return a.out.Object(ui.Object{ID: c.Tenant, Fields: []ui.Field{
		{Name: "removed", Value: c.Tenant},
		{Name: "entries", Value: fmt.Sprint(got.GetEntries())},
		{Name: "grants revoked", Value: fmt.Sprint(got.GetRevoked())},
	}, Value: tenantRemovedView{c.Tenant, true, got.GetEntries(), got.GetRevoked(), append([]string{}, got.GetBackups()...), append([]string{}, got.GetKept()...)}})
}

// tenantView is a tenant for programs.
type tenantView struct {
	Tenant  string   `json:"tenant"`
	Readers []string `json:"readers"`
	Writers []string `json:"writers"`
	Created string   `json:"created"`
	Owner   string   `json:"owner,omitempty"`

	Entries    uint64 `json:"entries"` // current ones
	Superseded uint64 `json:"superseded"`
	Forgotten  uint64 `json:"forgotten"`
	Newest     string `json:"newest,omitempty"`
}

type tenantRemovedView struct {
	Tenant  string   `json:"tenant"`
	Removed bool     `json:"removed"`
	Entries uint64   `json:"entries"`
	Revoked uint32   `json:"revoked"` // grants
	Backups []string `json:"backups"` // that still hold the entries
	Kept    []string `json:"kept"`    // files of before a recovery
}

func viewTenant(t *operatorv1.Tenant) tenantView {
	return tenantView{
		Tenant: t.GetName(), Readers: append([]string{}, t.GetReaders()...), Writers: append([]string{}, t.GetWriters()...),
		Created: ui.Stamp(t.GetCreated()), Owner: t.GetOwner(),
		Entries: t.GetEntries(), Superseded: t.GetSuperseded(), Forgotten: t.GetForgotten(), Newest: ui.Stamp(t.GetNewest()),
	}
}

// tenantNames completes names of tenants, with what stands before them.
func (a *app) tenantNames(ctx context.Context, before string) (names []complete.Candidate) {
	tenants, _ := a.tenants(ctx, "")
	for _, t := range tenants {
		names = append(names, complete.Candidate{Word: before + t.GetName(), Help: "tenant"})
	}
	return names
}

// agentKeyNames completes ids and names of agent keys.
func (a *app) agentKeyNames(ctx context.Context) (names []complete.Candidate) {
	got, _ := call(ctx, a, "", &operatorv1.ListAgentKeysRequest{}, operatorv1.OperatorServiceClient.ListAgentKeys)
	for _, k := range got.GetKeys() {
		names = append(names, complete.Candidate{Word: k.GetKeyId(), Help: strings.TrimSpace(k.GetSubject() + " " + k.GetName())})
	}
	said := map[string]bool{"": true} // a key that was rotated shares its name for a while
	for _, k := range got.GetKeys() {
		if !said[k.GetName()] {
			said[k.GetName()] = true
			names = append(names, complete.Candidate{Word: k.GetName(), Help: "of " + k.GetSubject()})
		}
	}
	return names
}
