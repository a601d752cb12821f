package daemon

import (
	"cmp"
	"fmt"

	"subjectbroker/daemon/memory"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
)

// merge decides which lines of an import are added to the memory, and as what. It
// reads and writes nothing but what it is made of: what is there and what time it is
// comes in, what is to be added comes out.
type merge struct {
	tenants map[string]grants.Tenant
	present *knowledge
	index   *memory.Index                              // of present
	these   imported                                   // what the import adds, and is not in present
	ids     map[string]string                          // those of the file that became others
	become  func(id string, digest entryDigest) string // see importing.become
	now     int64                                      // in Unix milliseconds
}

// fate is what becomes of a line.
type fate int

const (
	isAdded      fate = iota
	isThere           // an entry says the same, or a current one of another id does
	wasForgotten      // here, and is not added again
	fates
)

// imported is what an import adds.
type imported struct {
	catalogue
	tenants map[string]string // by id
	old     map[string]bool   // what they take the place of
}

func newImported() imported {
	return imported{newCatalogue(), map[string]string{}, map[string]bool{}}
}

func (i *imported) add(e knowledgeEntry) {
	i.catalogue.add(&e)
	i.tenants[e.ID] = e.Tenant
	i.promote(e.ID)
	if e.Supersedes != "" {
		i.old[e.Supersedes] = true
		i.retire(e.Supersedes)
	}
}

// all decides about lines, in their order: added are the entries of those that are
// new, and count is how many lines have which fate.
func (m *merge) all(lines []knowledgeLine) (added []knowledgeEntry, count [fates]uint64, err error) {
	for _, line := range lines {
		e, what, err := m.one(line)
		if err != nil {
			return nil, count, err
		}
		if what == isAdded {
			m.these.add(e)
			added = append(added, e)
		}
		count[what]++
	}
	return added, count, nil
}

// one decides about a line.
func (m *merge) one(line knowledgeLine) (e knowledgeEntry, what fate, err error) {
	if _, ok := m.tenants[line.Tenant]; !ok {
		return e, what, &wire.Error{
			Reason: wire.InvalidArgument, Message: fmt.Sprintf("line %d: no tenant is named %s", line.at, line.Tenant), Unknown: wire.UnknownTenant, Name: line.Tenant,
		}
	}
	e = line.entry(m.now)
	digest := e.digest()
	ids := []string{m.become(line.ID, digest)}
	if line.ID != "" {
		ids = []string{line.ID, ids[0]}
	}
	e.ID, what = m.find(ids, e.Tenant, digest)
	if what == isAdded {
		e.ID = m.free(ids)
	}
	if err := m.rename(line, e.ID); err != nil {
		return e, what, err
	}
	if what == isAdded && line.Supersedes != "" {
		e.Supersedes, err = m.superseded(line)
	}
	return e, what, err
}

// find looks for what a line says: under one of its ids, current or not, or forgotten;
// else under any id, current. It is isAdded where there is no such entry.
func (m *merge) find(ids []string, tenant string, digest entryDigest) (string, fate) {
	for _, id := range ids {
		switch {
		case m.present.grave(tenant, id):
			return id, wasForgotten
		case m.present.says(id, digest), m.these.says(id, digest):
			return id, isThere
		}
	}
	if id := m.present.same(digest); id != "" && !m.these.old[id] { // else it is current no more
		return id, isThere
	}
	if id := m.these.current[digest]; id != "" {
		return id, isThere
	}
	return "", isAdded
}

// free is the first of ids that no entry has, or another one.
func (m *merge) free(ids []string) string {
	for _, id := range ids {
		if _, taken := m.index.TenantOf(id); !taken && m.these.tenants[id] == "" {
			return id
		}
	}
	return newEntryID()
}

// rename remembers what the id of a line became.
func (m *merge) rename(line knowledgeLine, became string) error {
	if line.ID == "" || line.ID == became {
		delete(m.ids, line.ID)
		return nil
	}
	if m.ids[line.ID] = became; len(m.ids) > maxImportIDs {
		return refuse("line %d: more than %d ids of one import are those of other entries here", line.at, maxImportIDs)
	}
	return nil
}

// superseded is the entry whose place a line takes: one of its tenant, and current.
func (m *merge) superseded(line knowledgeLine) (string, error) {
	id := cmp.Or(m.ids[line.Supersedes], line.Supersedes)
	older, known := m.index.Version(id)
	tenant, current := older.Tenant, known && older.SupersededBy == ""
	if of := m.these.tenants[id]; of != "" {
		tenant, current = of, true
	}
	if !current || tenant != line.Tenant || m.these.old[id] {
		return "", refuse("line %d: %s, which it supersedes, is no current entry of %s", line.at, line.Supersedes, line.Tenant)
	}
	return id, nil
}
