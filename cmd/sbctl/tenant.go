package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type tenantCmd struct {
	Add  tenantAddCmd  `cmd:"" help:"Add a tenant"`
	List tenantListCmd `cmd:"" default:"1" help:"List tenants, and who may read them and write to them"`
	Rm   tenantRmCmd   `cmd:"" help:"Remove a tenant"`
}

// Help is the manual of tenant.
func (tenantCmd) Help() string {
	return `A tenant is a body of knowledge. Who may read it is said by grants of
memory.read:TENANT, who may write to it by memory.write:TENANT.`
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
	return `Examples:
  sbctl tenant list
  sbctl tenants -q`
}

// Run lists tenants.
func (tenantListCmd) Run(ctx context.Context, a *app) error {
	tenants, err := a.tenants(ctx, "listing tenants")
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"TENANT", "READERS", "WRITERS", "CREATED", "OWNER"}}
	views := make([]tenantView, 0, len(tenants))
	for _, t := range tenants {
		list.IDs = append(list.IDs, t.GetName())
		list.Rows = append(list.Rows, []string{
			t.GetName(), strings.Join(t.GetReaders(), " "), strings.Join(t.GetWriters(), " "), a.out.When(t.GetCreated()), t.GetOwner(),
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

type tenantRmCmd struct {
	Tenant string `arg:"" help:"Name of the tenant."`
}

// Help is the manual of tenant rm.
func (tenantRmCmd) Help() string {
	return `The grants that name it and nothing else are revoked, and it is taken out of every
agent key: a new one of the same name inherits nothing but patterns. Asks first, or
needs --yes.

Examples:
  sbctl tenant rm acme`
}

// Run removes a tenant.
func (c tenantRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing tenant " + c.Tenant
	if err := a.confirm(ctx, doing, fmt.Sprintf("Remove tenant %s, with the grants that name it?", c.Tenant)); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.RemoveTenantRequest{Name: c.Tenant}, operatorv1.OperatorServiceClient.RemoveTenant)
	if err != nil {
		return err
	}
	return a.out.Object(ui.Object{ID: c.Tenant, Fields: []ui.Field{
		{Name: "removed", Value: c.Tenant},
		{Name: "grants revoked", Value: fmt.Sprint(got.GetRevoked())},
	}, Value: tenantRemovedView{c.Tenant, true, got.GetRevoked()}})
}

// tenantView is a tenant for programs.
type tenantView struct {
	Tenant  string   `json:"tenant"`
	Readers []string `json:"readers"`
	Writers []string `json:"writers"`
	Created string   `json:"created"`
	Owner   string   `json:"owner,omitempty"`
}

type tenantRemovedView struct {
	Tenant  string `json:"tenant"`
	Removed bool   `json:"removed"`
	Revoked uint32 `json:"revoked"` // grants
}

func viewTenant(t *operatorv1.Tenant) tenantView {
	return tenantView{
		Tenant: t.GetName(), Readers: append([]string{}, t.GetReaders()...), Writers: append([]string{}, t.GetWriters()...),
		Created: ui.Stamp(t.GetCreated()), Owner: t.GetOwner(),
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

// agentKeyNames completes ids of agent keys.
func (a *app) agentKeyNames(ctx context.Context) (names []complete.Candidate) {
	got, _ := call(ctx, a, "", &operatorv1.ListAgentKeysRequest{}, operatorv1.OperatorServiceClient.ListAgentKeys)
	for _, k := range got.GetKeys() {
		names = append(names, complete.Candidate{Word: k.GetKeyId(), Help: strings.TrimSpace(k.GetSubject() + " " + k.GetName())})
	}
	return names
}
