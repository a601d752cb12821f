package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// maxTenants is how many tenants there may be.
const maxTenants = 10_000

// AddTenant adds a tenant. Nobody may read it or write to it but by patterns that
// were granted before.
func (o operator) AddTenant(ctx context.Context, req *operatorv1.AddTenantRequest) (*operatorv1.AddTenantResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("tenant", name); err != nil {
		return nil, err
	}
	t := grants.Tenant{Name: name, Created: d.clock.now().UTC().Truncate(time.Millisecond)}
	err := d.mutate(ctx, func(st *state) (change, error) {
		if _, exists := st.tenants[name]; exists {
			return change{}, refuse("tenant %s exists already", name)
		}
		if len(st.tenants) >= maxTenants {
			return change{}, refuse("there are %d tenants, and there can be no more", len(st.tenants))
		}
		return o.tenantAddition(ctx, t), nil
	})
	if err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return &operatorv1.AddTenantResponse{Tenant: st.tenantMessage(t, at)}, nil
}

// ListTenants lists tenants.
func (o operator) ListTenants(context.Context, *operatorv1.ListTenantsRequest) (*operatorv1.ListTenantsResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	response := &operatorv1.ListTenantsResponse{}
	for _, name := range slices.Sorted(maps.Keys(st.tenants)) {
		response.Tenants = append(response.Tenants, st.tenantMessage(st.tenants[name], at))
	}
	return response, nil
}

// RemoveTenant removes a tenant, and the grants that name it and nothing else.
func (o operator) RemoveTenant(ctx context.Context, req *operatorv1.RemoveTenantRequest) (*operatorv1.RemoveTenantResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("tenant", name); err != nil {
		return nil, err
	}
	response := &operatorv1.RemoveTenantResponse{}
	err := d.mutate(ctx, func(st *state) (change, error) {
		if _, err := st.knownTenant(name); err != nil {
			return change{}, err
		}
		gone := st.set.ExactTenant(name)
		response.Revoked = uint32(len(gone))
		c := o.tenantRemoval(ctx, st, name, gone)
		c.after = func() { d.hub.listChanged() }
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// tenantMessage is a tenant as the operator sees it. The caller holds mu.
func (s *state) tenantMessage(t grants.Tenant, at reading) *operatorv1.Tenant {
	return &operatorv1.Tenant{
		Name: t.Name, Created: millis(t.Created), Owner: t.Owner,
		Readers: s.mayTenant(grants.MemoryRead, t.Name, at), Writers: s.mayTenant(grants.MemoryWrite, t.Name, at),
	}
}
