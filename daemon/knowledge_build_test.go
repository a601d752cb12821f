package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/memory"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// newShelf has a memory that takes several slices to read: rows fa… to fz… and ga… to gz…
// of acme, each tenth one of other.
func newShelf(t *testing.T) (*library, []string) {
	t.Helper()
	l := newLibrary(t)
	var ids []string
	var entries []knowledgeEntry
	text := strings.Repeat("many words of which one is as good as another ", wire.MaxEntryText/48)
	for i := range 52 {
		id := fmt.Sprintf("%c%caaaaaaaaaaaaaa", "fg"[i/26], 'a'+i%26)
		ids = append(ids, id)
		e := knowledgeEntry{ID: id, Tenant: "acme", Kind: "note", Title: "row " + id[:2], Text: text, Created: int64(1000 + i)}
		if i%10 == 9 {
			e.Tenant = "other"
		}
		entries = append(entries, e)
	}
	l.store(false, entries)
	return l, ids
}

// store puts rows into the vault, and notes what the index has to be told of it.
func (l *library) store(note bool, entries []knowledgeEntry) {
	l.t.Helper()
	l.must(nil, l.mutate(l.desk.ctx, func(*state) (change, error) {
		record := l.op().entry(l.desk.ctx, kindMemoryImport)
		record.Tenants = []string{"acme"}
		c := change{write: func(tx *vault.Tx) error { return putEntries(tx, entries) }}
		c.effects = append(c.effects, record)
		if note {
			c.permit = func(st *state) {
				for _, e := range entries {
					st.knowledge.note(func(k *knowledge) {
						if e.Forgotten != 0 {
							k.forget(e.ID)
						} else {
							k.add(e)
						}
					})
				}
			}
		}
		return c, nil
	}))
}

// digests are what the entries with a content say, and which were forgotten, by ids.
func (k *knowledge) digests() (said map[string]entryDigest, graves map[string]bool) {
	said, graves = map[string]entryDigest{}, map[string]bool{}
	for id, one := range k.known.entries {
		if one.forgotten {
			graves[id] = true
		} else {
			said[id] = one.digest
		}
	}
	return said, graves
}

// known is all that a memory knows, in a form to be compared.
func (l *library) known(k *knowledge) map[string]any {
	l.t.Helper()
	ix, err := k.use()
	l.must(nil, err)
	scope := memory.Scope{Tenants: []string{"acme", "other"}, Limit: 100}
	digests, graves := k.digests()
	all := map[string]any{
		"digests": digests, "current": maps.Clone(k.known.current), "graves": graves,
		"stats": ix.Stats(scope.Tenants), "acme": k.list([]string{"acme"}, true), "other": k.list([]string{"other"}, true),
	}
	for _, word := range []string{"row", "words", "new", "fc", `"row ga"`} {
		query, err := memory.ParseQuery(word)
		l.must(nil, err)
		all[word] = ix.Search(query, scope)
	}
	for _, id := range slices.Collect(maps.Keys(k.known.entries)) {
		all[id] = ix.History(id)
	}
	return all
}

// Rows that are added, forgotten, superseded and removed while the memory is read are in
// it, or not, as if it had been read afterwards: whether they stand before or behind the
// place that the reading has come to.
func TestMemoryReadInSlices(t *testing.T) {
	l, ids := newShelf(t)
	k := l.state().knowledge
	slice := 0
	forget := func(id string) knowledgeEntry {
		return knowledgeEntry{ID: id, Tenant: "acme", Kind: "note", Created: int64(1000 + slices.Index(ids, id)), Forgotten: 5000}
	}
	k.between = func() {
		if slice++; slice != 2 {
			return
		}
		first, last := ids[0], ids[len(ids)-2]
		if n := k.indexed.Load(); n < 5 || n > 45 || k.known.entries[first] == (catalogued{}) || k.known.entries[last] != (catalogued{}) {
			t.Fatalf("%d rows were read by now: this says nothing", n)
		}
		added := func(id, supersedes string) knowledgeEntry {
			return knowledgeEntry{ID: id, Tenant: "acme", Kind: "note", Title: "new " + id[:3], Created: 6000, Supersedes: supersedes}
		}
		l.store(true, []knowledgeEntry{
			added("aaaaaaaaaaaaaaaa", ""), added("zaaaaaaaaaaaaaaa", ""), // on either side
			added("abaaaaaaaaaaaaaa", ids[len(ids)-4]), added("zbaaaaaaaaaaaaaa", ids[1]), // in place of the other side's
			added("acaaaaaaaaaaaaaa", ids[2]), added("zcaaaaaaaaaaaaaa", ids[len(ids)-5]),
		})
		grave := added("zaaaaaaaaaaaaaaa", "")
		l.store(true, []knowledgeEntry{forget(first), forget(last), grave.tombstone(5000)}) // the last was added just now
		var gone []string
		for i := 9; i < len(ids); i += 10 {
			gone = append(gone, ids[i])
		}
		l.must(nil, l.mutate(l.desk.ctx, func(st *state) (change, error) { // as of RemoveTenant, which would wait
			removal := l.op().tenantRemoval(l.desk.ctx, st, "other", nil)
			removal.after = func() {}
			return l.op().withoutEntries(removal, "other", gone), nil
		}))
		l.must(l.op().AddTenant(l.desk.ctx, &operatorv1.AddTenantRequest{Name: "other"}))
		l.store(true, []knowledgeEntry{{ID: "zzaaaaaaaaaaaaaa", Tenant: "other", Kind: "note", Title: "new", Created: 7000}, {ID: "azaaaaaaaaaaaaaa", Tenant: "other", Kind: "note", Title: "new of it", Created: 7000}})
	}
	l.indexKnowledge()
	if slice < 4 {
		t.Fatalf("it was read in %d slices: this says nothing", slice)
	}
	fresh := newKnowledge()
	l.must(nil, fresh.build(l.vault))
	want, got := l.known(fresh), l.known(k)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("not as if it had been read now (-want +got):\n%s", diff)
	}
	if said, graves := k.digests(); len(graves) != 3 || len(said) != 52-5-2+5+2 { // the control: it did happen
		t.Errorf("%d graves, %d entries", len(graves), len(said))
	}
}

// While the memory is read the vault can be changed, exchanged and locked: nothing of it
// waits for the reading, and no verb works with half of it.
func TestVerbsWhileTheMemoryIsRead(t *testing.T) {
	type meanwhile struct {
		*library
		ids   []string
		later chan func(t *testing.T) // what is looked at when it was read
	}
	tests := map[string]struct {
		do     func(m *meanwhile)
		locked bool
	}{
		"changed": {do: func(m *meanwhile) {
			for _, supersedes := range []string{"", m.ids[0]} {
				_, err := broker{d: m.Daemon}.CaptureKnowledge(m.ctx, &brokerv1.CaptureKnowledgeRequest{RunId: m.run.id, Tenant: "acme", Kind: "note", Title: "new", Supersedes: supersedes})
				if reasonOf(err) != wire.BrokerUnavailable {
					m.t.Errorf("%v", err)
				}
			}
			m.must(m.op().RotateKey(m.desk.ctx, &operatorv1.RotateKeyRequest{}))
			m.must(nil, m.rewrap())
			m.must(m.op().Rekey(m.desk.ctx, &operatorv1.RekeyRequest{}))
			m.must(m.vault.Compact()) // which waits for readers of the file
		}},
		"forgotten": {do: func(m *meanwhile) {
			m.wait(m.later, func() error {
				_, err := m.op().ForgetKnowledge(m.desk.ctx, &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{m.ids[0], m.ids[50]}})
				return err
			}, func(k *knowledge) bool { return k.known.forgotten(m.ids[0]) && k.known.forgotten(m.ids[50]) })
		}},
		"tenant removed": {do: func(m *meanwhile) {
			m.wait(m.later, func() error {
				_, err := m.op().RemoveTenant(m.desk.ctx, &operatorv1.RemoveTenantRequest{Name: "other"})
				return err
			}, func(k *knowledge) bool { return len(k.known.entries) == 47 && len(k.idsOf("other")) == 0 })
		}},
		"locked":   {locked: true, do: func(m *meanwhile) { m.must(m.op().Lock(m.desk.ctx, &operatorv1.LockRequest{})) }},
		"panicked": {locked: true, do: func(m *meanwhile) { m.must(m.op().Panic(m.desk.ctx, &operatorv1.PanicRequest{})) }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l, ids := newShelf(t)
			m := &meanwhile{library: l, ids: ids, later: make(chan func(*testing.T), 1)}
			k := l.state().knowledge
			slices := 0
			k.between = func() {
				if slices++; slices == 2 {
					tc.do(m)
				}
			}
			l.indexKnowledge()
			if tc.locked {
				if slices != 2 || k.failed() != nil || k.entries() != 0 || k.index.Size().Entries != 0 {
					t.Errorf("%d slices, %v, %d entries are left", slices, k.failed(), k.entries())
				}
				return
			}
			if slices < 4 {
				t.Fatalf("it was read in %d slices: this says nothing", slices)
			}
			select {
			case look := <-m.later:
				look(t)
			default:
				if _, err := k.use(); err != nil || len(k.known.entries) != 52 {
					t.Errorf("%d entries, %v", len(k.known.entries), err)
				}
			}
		})
	}
}

// wait has a verb begin, of which later looks that it did not end before the memory was
// read, and what came of it.
func (l *library) wait(later chan func(*testing.T), verb func() error, done func(*knowledge) bool) {
	k := l.state().knowledge
	ended := make(chan error, 1)
	go func() {
		err := verb()
		select {
		case <-k.settled:
		default:
			err = fmt.Errorf("it did not wait: %w", err)
		}
		ended <- err
	}()
	later <- func(t *testing.T) {
		err := <-ended
		if _, use := k.use(); err != nil || use != nil || !done(k) {
			t.Errorf("%v, %v", err, use)
		}
	}
}

// After a lock the memory takes no more than before it was read.
func TestLockGivesMemoryBack(t *testing.T) {
	l := newLibrary(t)
	const entries = 2000
	draw := rand.New(rand.NewPCG(1, 2))
	all := make([]knowledgeEntry, entries)
	for i := range all {
		var text strings.Builder
		for range 140 {
			fmt.Fprintf(&text, "word%d ", draw.IntN(20000))
		}
		all[i] = knowledgeEntry{ID: fmt.Sprintf("%c%c%c%caaaaaaaaaaaa", 'a'+i/17576, 'a'+i/676%26, 'a'+i/26%26, 'a'+i%26), Tenant: "acme", Kind: "note", Title: "row", Text: text.String(), Created: 1}
	}
	l.store(false, all)
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	base := heap()
	l.indexKnowledge()
	if n := l.state().knowledge.entries(); n != entries {
		t.Fatalf("%d entries", n)
	}
	held := heap() - base
	if held < entries*500 { // the control
		t.Fatalf("%d entries take %d bytes: this says nothing", entries, held)
	}
	l.must(l.op().Lock(context.WithoutCancel(l.desk.ctx), &operatorv1.LockRequest{}))
	if left := heap() - base; left > held/2 { // something is always allocated meanwhile
		t.Errorf("of %d bytes %d are left after a lock", held, left)
	}
}

// A disk that stands still for a while ends no reading of the memory; a lock does.
func TestMemoryReadOnAStalledDisk(t *testing.T) {
	l := newLibrary(t)
	k := l.state().knowledge
	tries := 0
	err := k.slice(l.vault, func(*vault.Tx) error {
		if tries++; tries < 3 {
			return vault.ErrStalled
		}
		return nil
	})
	if err != nil || tries != 3 {
		t.Errorf("%v after %d tries", err, tries)
	}
	err = k.slice(l.vault, func(*vault.Tx) error {
		tries++
		k.dropped.Store(true)
		k.end()
		return vault.ErrStalled
	})
	if !errors.Is(err, errDropped) || tries != 4 {
		t.Errorf("%v after %d tries", err, tries)
	}
	k.dropped.Store(false)
}
