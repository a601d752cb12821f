package memory

import (
	"slices"
	"sort"
)

// TenantOf returns the tenant of an entry, also of a forgotten one.
func (ix *Index) TenantOf(id string) (tenant string, known bool) {
	ix.life.RLock()
	defer ix.life.RUnlock()
	d := ix.entry(id)
	if d == nil {
		return "", false
	}
	return d.tenant.name, true
}

// Current returns the entry that stands in the place of another: itself, when
// none superseded it.
func (ix *Index) Current(id string) (current string, known bool) {
	ix.life.RLock()
	defer ix.life.RUnlock()
	d := ix.entry(id)
	if d == nil {
		return "", false
	}
	return d.currentAt(^uint32(0)).id, true
}

// History returns the chain of an entry, the current one first; nil when the
// entry is not there.
func (ix *Index) History(id string) []Version {
	ix.life.RLock()
	defer ix.life.RUnlock()
	d := ix.entry(id)
	if d == nil {
		return nil
	}
	versions := line(d)
	history := make([]Version, 0, len(versions))
	for i := len(versions) - 1; i >= 0; i-- {
		history = append(history, ix.version(versions, i))
	}
	return history
}

// Version returns what is known of an entry. Of one that is current, or nearly so, it
// costs the same however long its chain is.
func (ix *Index) Version(id string) (v Version, known bool) {
	ix.life.RLock()
	defer ix.life.RUnlock()
	d := ix.entry(id)
	if d == nil {
		return Version{}, false
	}
	versions := line(d)
	for i := len(versions) - 1; i >= 0; i-- {
		if versions[i] == d {
			return ix.version(versions, i), true
		}
	}
	return Version{}, false
}

// version is what the i-th of a chain is to others.
func (ix *Index) version(versions []*document, i int) Version {
	d := versions[i]
	v := Version{
		ID:         d.id,
		Tenant:     d.tenant.name,
		Kind:       ix.kinds[d.kind],
		Created:    d.created,
		Supersedes: d.supersedes,
		Forgotten:  d.gone.Load(),
	}
	if i+1 < len(versions) {
		v.SupersededBy, v.Superseded = versions[i+1].id, versions[i+1].created
	}
	return v
}

// Recent returns current entries that scope covers, the newest first (of equal
// times, by id), at most limit. With before, only those that come after that
// entry in this order; it has to be of a tenant of the scope, else the answer is
// [ErrUnknown]. Limit of the scope does not matter.
func (ix *Index) Recent(scope Scope, limit int, before string) ([]Version, error) {
	ix.life.RLock()
	defer ix.life.RUnlock()
	if ix.dropped {
		return nil, ErrDropped
	}
	var from *document
	if before != "" {
		from = ix.entry(before)
		if from == nil || !slices.Contains(scope.Tenants, from.tenant.name) {
			return nil, ErrUnknown
		}
	}
	if limit <= 0 {
		return nil, nil
	}
	wanted := ix.filter(scope)
	var found []*document
	for _, v := range ix.views(scope.Tenants) {
		for _, p := range v.pieces {
			at := 0
			if from != nil {
				at = sort.Search(len(p.newest), func(i int) bool { return byAge(p.documents[p.newest[i]], from) > 0 })
			}
			left := limit
			for _, n := range p.newest[at:] {
				d := p.documents[n]
				if d.created < wanted.since || left == 0 {
					break
				}
				if d.currentAt(v.turn) == d && !d.gone.Load() && wanted.fits(d) {
					found = append(found, d)
					left--
				}
			}
		}
	}
	slices.SortFunc(found, byAge)
	recent := make([]Version, 0, min(limit, len(found)))
	for _, d := range found[:min(limit, len(found))] {
		recent = append(recent, ix.version([]*document{d}, 0))
	}
	return recent, nil
}

// Stats counts the entries of tenants, one for each name, in the order of the
// names given. A tenant without entries has zeros.
func (ix *Index) Stats(tenants []string) []TenantStats {
	ix.life.RLock()
	defer ix.life.RUnlock()
	stats := make([]TenantStats, len(tenants))
	for i, name := range tenants {
		s := &stats[i]
		s.Tenant, s.Kinds = name, map[string]int{}
		for _, v := range ix.views([]string{name}) {
			s.Forgotten = len(v.forgotten)
			kinds := make([]int, len(ix.kinds))
			first := true
			for _, p := range v.pieces {
				for _, d := range p.documents {
					if d.currentAt(v.turn) == d {
						kinds[d.kind]++
					} else {
						s.Superseded++
					}
					if first || d.created > s.Newest {
						s.Newest = d.created
					}
					if first || d.created < s.Oldest {
						s.Oldest = d.created
					}
					first = false
				}
			}
			for kind, n := range kinds {
				if n > 0 {
					s.Kinds[ix.kinds[kind]] = n
				}
			}
		}
	}
	return stats
}

// Held returns about how many bytes of memory the index takes; entries without content
// take nothing.
func (ix *Index) Held() int64 { return ix.held.Load() }

// Size says what the index holds.
func (ix *Index) Size() Size {
	ix.life.RLock()
	defer ix.life.RUnlock()
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	size := Size{Tenants: len(ix.tenants), Entries: len(ix.entries)}
	for _, t := range ix.tenants {
		v := t.now.Load()
		size.Forgotten += len(v.forgotten)
		size.Words += v.words
		for _, p := range v.pieces {
			size.Terms += int64(p.terms)
			size.Postings += int64(cap(p.dictionary) + cap(p.runs) + 16*cap(p.blocks))
		}
	}
	return size
}
