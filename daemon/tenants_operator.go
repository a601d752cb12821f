package daemon

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
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
	return &operatorv1.AddTenantResponse{Tenant: st.tenantMessage(t, memory.TenantStats{}, at)}, nil
}

// ListTenants lists tenants.
func (o operator) ListTenants(context.Context, *operatorv1.ListTenantsRequest) (*operatorv1.ListTenantsResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	st, at := d.state(), d.clock.read()
	if err := st.knowledge.failed(); err != nil { // numbers would be zeros, and hide it
		return nil, &wire.Error{Reason: refusal(err).Reason, Message: "the memory is not used: " + err.Error()}
	}
	response := &operatorv1.ListTenantsResponse{}
	response.Indexed, response.ToIndex = st.knowledge.progress()
	st.mu.RLock()
	names := slices.Sorted(maps.Keys(st.tenants))
	st.mu.RUnlock()
	stats := st.knowledge.stats(names) // which takes its time, and nobody waits for it
	st.mu.RLock()
	defer st.mu.RUnlock()
	for i, name := range names {
		if t, ok := st.tenants[name]; ok {
			response.Tenants = append(response.Tenants, st.tenantMessage(t, stats[i], at))
		}
	}
	return response, nil
}

// RemoveTenant removes a tenant, and the grants that name it and nothing else.
func (o operator) RemoveTenant(ctx context.Context, req *operatorv1.RemoveTenantRequest) (*operatorv1.RemoveTenantResponse, error) {
	d, name := o.d, req.GetName()
	if err := checkName("tenant", name); err != nil {
		return nil, err
	}
	if err := d.awaitMemory(ctx); err != nil {
		return nil, err
	}
	response := &operatorv1.RemoveTenantResponse{}
	var since time.Time
	err := d.mutate(ctx, func(st *state) (change, error) {
		t, err := st.knownTenant(name)
		if err != nil {
			return change{}, err
		}
		since = t.Created
		if _, err := st.knowledge.use(); err != nil {
			return change{}, err
		}
		gone := st.set.ExactTenant(name)
		entries := st.knowledge.ids(name)
		response.Entries = uint64(len(entries))
		response.Revoked = uint32(len(gone))
		c := o.tenantRemoval(ctx, st, name, gone)
		c.after = func() { d.hub.listChanged() }
		return o.withoutEntries(c, name, entries), nil
	})
	if err != nil {
		return nil, err
	}
	if response.Entries > 0 {
		_, _ = d.state().knowledge.use() // out of the index before the answer
		response.Backups, response.Kept, err = d.copiesSince(since)
	}
	return response, err
}

// withoutEntries has the entries of a tenant, if there are any, removed with it, and
// the vault's file written anew without them as soon as that can be done.
func (o operator) withoutEntries(c change, tenant string, ids []string) change {
	if len(ids) == 0 {
		return c
	}
	write, restrict, permit, after := c.write, c.restrict, c.permit, c.after
	c.restrict = func(st *state) {
		restrict(st)
		st.knowledge.cut(tenant)
	}
	c.write = func(tx *vault.Tx) error {
		for _, id := range ids {
			if err := tx.Delete(bucketKnowledge, id); err != nil {
				return err
			}
		}
		return errors.Join(write(tx), tx.Put(bucketDaemon, rowPurge, []byte{1}))
	}
	c.permit = func(st *state) {
		if permit != nil {
			permit(st)
		}
		st.knowledge.note(func(k *knowledge) { k.removeTenant(tenant) })
	}
	c.after = func() {
		if after != nil {
			after()
		}
		o.d.upkeep.wake()
	}
	return c
}

// tenantMessage is a tenant as the operator sees it. The caller holds mu.
func (s *state) tenantMessage(t grants.Tenant, stats memory.TenantStats, at reading) *operatorv1.Tenant {
	var current uint64
	for _, n := range stats.Kinds {
		current += uint64(n)
	}
	return &operatorv1.Tenant{
		Entries: current, Superseded: uint64(stats.Superseded), Forgotten: uint64(stats.Forgotten), Newest: stats.Newest,
		Name: t.Name, Created: millis(t.Created), Owner: t.Owner,
		Readers: s.mayTenant(grants.MemoryRead, t.Name, at), Writers: s.mayTenant(grants.MemoryWrite, t.Name, at),
	}
}
