package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketTenants holds one row for each tenant, by name.
const bucketTenants = "tenants"

// loadTenants reads the tenants.
func (s *state) loadTenants(tx *vault.Tx) error {
	return tx.Each(bucketTenants, func(name string, row []byte) error {
		t, err := grants.DecodeTenant(row)
		if err != nil || t.Name != name {
			return fmt.Errorf("%w: tenant row %s: %v", vault.ErrIntegrity, name, err)
		}
		s.tenants[name] = t
		return nil
	})
}

// knownTenant returns a tenant that must exist. The caller holds changing.mu or mu.
func (s *state) knownTenant(name string) (grants.Tenant, error) {
	t, ok := s.tenants[name]
	if !ok {
		return grants.Tenant{}, unknown(wire.UnknownTenant, name)
	}
	return t, nil
}

// tenantAddition adds a tenant.
func (o operator) tenantAddition(ctx context.Context, t grants.Tenant) change {
	e := o.entry(ctx, kindTenantAdd)
	e.Tenants = []string{t.Name}
	return change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := grants.EncodeTenant(t)
			if err != nil {
				return err
			}
			return tx.Put(bucketTenants, t.Name, row)
		},
		permit: func(st *state) { st.tenants[t.Name] = t },
		after:  func() { o.d.hub.listChanged() }, // for whom a pattern covers it
	}
}

// tenantRemoval removes a tenant with the exact grants that name it, which are
// given, and takes its name out of agent keys: a later tenant of the same name
// inherits nothing but patterns. From the intent on it is out of everybody's scope.
func (o operator) tenantRemoval(ctx context.Context, st *state, name string, gone []grants.Grant) change {
	e := o.entry(ctx, kindTenantRemove)
	e.Tenants = []string{name}
	revoke := o.revocation(ctx, st, gone)
	var keys []grants.AgentKey
	for _, k := range st.keys.all() {
		if slices.Contains(k.Tenants, name) {
			k.Tenants = slices.DeleteFunc(slices.Clone(k.Tenants), func(one string) bool { return one == name })
			keys = append(keys, k)
		}
	}
	c := change{
		effects: append([]*audit.Entry{e}, revoke.effects...),
		write: func(tx *vault.Tx) error {
			if err := revoke.write(tx); err != nil {
				return err
			}
			for _, k := range keys {
				if err := putAgentKey(tx, k); err != nil {
					return err
				}
			}
			return tx.Delete(bucketTenants, name)
		},
		restrict: func(st *state) {
			delete(st.tenants, name)
			revoke.restrict(st)
			for _, k := range keys {
				st.keys.put(k)
			}
		},
	}
	return c
}

// scope is what a request about memory is about. Named tenants are judged for
// exactly those: each that is not granted is outside, whether it exists or not, and
// the request is refused whole. None named means every one that is granted. Both
// lists are sorted, and nothing twice; granted is then what the whole request may
// touch, and nothing when there is anything outside. It takes mu.
//
// A key reaches no more than its own tenants, as far as the subject's grants do. A
// grant that needs a person's approval grants nothing here: nobody is asked. Neither
// does one whose uses are counted: here nobody counts.
func (s *state) scope(who asker, action grants.Action, named []string, at reading) (granted, outside []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	allowed := s.tenantJudge(who, action, at)
	if len(named) == 0 {
		for _, name := range slices.Sorted(maps.Keys(s.tenants)) {
			if allowed(name) {
				granted = append(granted, name)
			}
		}
		return granted, nil
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(named))) {
		if allowed(name) {
			granted = append(granted, name)
		} else {
			outside = append(outside, name)
		}
	}
	if len(outside) > 0 {
		return nil, outside
	}
	return granted, nil
}

// anyTenant reports whether a request that names no tenant would be about any. It
// takes mu.
func (s *state) anyTenant(who asker, action grants.Action, at reading) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	allowed := s.tenantJudge(who, action, at)
	for name := range s.tenants {
		if allowed(name) {
			return true
		}
	}
	return false
}

// tenantJudge says of tenants, one after the other, whether they are granted: see
// scope. The caller holds mu as long as it is used.
func (s *state) tenantJudge(who asker, action grants.Action, at reading) func(name string) bool {
	q := s.request(who, grants.Capability{Action: action}, at)
	reach := s.keys.reach(who.key)
	return func(name string) bool {
		if who.key != "" && !reach[name] {
			return false
		}
		q.Capability.Object = name
		q.Object = s.object(q.Capability)
		decided := grants.Decide(s.set, &q)
		return decided.Outcome == grants.Allowed && !decided.Limited
	}
}

// mayTenant returns the subjects that may do action in a tenant, whatever their runs
// are like, sorted. The caller holds mu.
func (s *state) mayTenant(action grants.Action, tenant string, at reading) []string {
	var names []string
	for _, subject := range s.set.Subjects() {
		if s.tenantJudge(asker{subject: subject.Name, tier: grants.Sandboxed}, action, at)(tenant) {
			names = append(names, subject.Name)
		}
	}
	return names
}
