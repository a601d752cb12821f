package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/daemon/memory"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// knowledge is the governed memory as it is in force: the index of what the vault
// holds, made after each unlock and dropped at lock. Texts stay in the vault.
//
// What a change did to the vault is written into the index behind it: the change
// only notes what is to be done, under the state's mutex, and whoever comes next
// does it.
type knowledge struct {
	index *memory.Index

	most int64 // bytes that the index may take, about

	indexed atomic.Int64 // rows, while it is built
	total   atomic.Int64
	dropped atomic.Bool
	life    context.Context // ends when it is dropped
	end     context.CancelFunc
	between func()        // called after each slice that build reads; only tests have one
	settled chan struct{} // closed by settle: it is ready, or will not be
	settle  func()

	// mu is never taken under the state's mutex: the index takes its time. Under it are
	// taken the index's own, and notes.
	mu    sync.Mutex
	ready bool
	fault error // why it will not be
	known catalogue

	// notes is held for a moment only, and everything else may be held meanwhile: who
	// notes something under the state's mutex does not wait for the index.
	notes   sync.Mutex
	pending []func(*knowledge)
	cuts    map[string]uint64 // of each tenant: how often content was taken out
	going   map[string]bool   // entries that are being forgotten
}

func newKnowledge() *knowledge {
	index, err := memory.New(memory.Config{Kinds: entryKinds})
	if err != nil { // of a list of kinds that is written above
		panic(err)
	}
	settled := make(chan struct{})
	life, end := context.WithCancel(context.Background())
	return &knowledge{
		index: index, most: maxIndex, life: life, end: end, settled: settled, settle: sync.OnceFunc(func() { close(settled) }),
		known: newCatalogue(), cuts: map[string]uint64{}, going: map[string]bool{},
	}
}

// errNotReady says that the index is not whole yet.
var errNotReady = &wire.Error{Reason: wire.BrokerUnavailable, Message: "the memory is being read; try again in a moment"}

// full reports whether the index takes as much as it may.
func (k *knowledge) full() bool { return k.index.Held() >= k.most }

// use returns the index with everything in it that is known by now.
func (k *knowledge) use() (*memory.Index, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.dropped.Load():
		return nil, wire.Deny(wire.VaultLocked)
	case k.fault != nil:
		return nil, k.fault
	case !k.ready:
		return nil, errNotReady
	}
	k.catchUp()
	return k.index, nil
}

// awaitMemory waits until the memory was read, for an operator: agents are told to
// come again.
func (d *Daemon) awaitMemory(ctx context.Context) error {
	if err := d.needUnlocked(); err != nil {
		return err
	}
	select {
	case <-d.state().knowledge.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// catchUp does what was noted. The caller holds mu.
func (k *knowledge) catchUp() {
	k.notes.Lock()
	pending := k.pending
	k.pending = nil
	k.notes.Unlock()
	if k.dropped.Load() {
		return
	}
	for _, do := range pending {
		do(k)
	}
}

// lock takes mu and does what was noted. Who calls it unlocks mu.
func (k *knowledge) lock() *catalogue {
	k.mu.Lock()
	k.catchUp()
	return &k.known
}

// note has something done before the index is used again. It does not wait for
// anything slow, and may be called under the state's mutex.
func (k *knowledge) note(do func(*knowledge)) {
	k.notes.Lock()
	defer k.notes.Unlock()
	k.pending = append(k.pending, do)
}

// cut says that content of a tenant is being taken out, that of entries where it is not
// all of it: what was read before and was not handed out yet is not handed out any
// more, and what is read from now on is without it, whatever the vault still holds. It
// may be called under any mutex.
func (k *knowledge) cut(tenant string, entries ...string) {
	k.notes.Lock()
	defer k.notes.Unlock()
	k.cuts[tenant]++
	for _, id := range entries {
		k.going[id] = true
	}
}

// stay takes back what cut said of entries, none of which is being forgotten any more:
// the log could not take it.
func (k *knowledge) stay() {
	k.notes.Lock()
	defer k.notes.Unlock()
	clear(k.going)
}

// goes reports whether an entry is being forgotten. It may be called under any mutex.
func (k *knowledge) goes(id string) bool {
	k.notes.Lock()
	defer k.notes.Unlock()
	return k.going[id]
}

// cutsOf is how often content was taken out of tenants. It may be called under any
// mutex.
func (k *knowledge) cutsOf(tenants []string) (n uint64) {
	k.notes.Lock()
	defer k.notes.Unlock()
	for _, tenant := range tenants {
		n += k.cuts[tenant]
	}
	return n
}

// entries is how many there are, forgotten ones too.
func (k *knowledge) entries() int {
	known := k.lock()
	defer k.mu.Unlock()
	return len(known.entries)
}

// add takes in an entry. One that is there was read from the vault before the log was
// told that it is in there. The caller holds mu.
func (k *knowledge) add(e knowledgeEntry) {
	err := k.index.Add(e.indexed())
	if errors.Is(err, memory.ErrExists) && (k.known.forgotten(e.ID) || k.known.says(e.ID, e.digest())) {
		return
	}
	if err != nil {
		k.fault = fmt.Errorf("%w: entry %s: %v", vault.ErrIntegrity, e.ID, err)
		return
	}
	k.known.retire(e.Supersedes)
	k.known.add(&e)
	k.promote(e.ID)
}

// promote notes that an entry is the current one, if it is. The caller holds mu.
func (k *knowledge) promote(id string) {
	if current, _ := k.index.Current(id); current == id {
		k.known.promote(id)
	}
}

// same is the current entry that says the same; empty when there is none.
func (k *knowledge) same(digest entryDigest) string {
	known := k.lock()
	defer k.mu.Unlock()
	return known.current[digest]
}

// says reports whether there is an entry with that id that says that, current or not.
func (k *knowledge) says(id string, digest entryDigest) bool {
	known := k.lock()
	defer k.mu.Unlock()
	return known.says(id, digest)
}

// grave reports whether there is a forgotten entry with that id in a tenant.
func (k *knowledge) grave(tenant, id string) bool {
	known := k.lock()
	defer k.mu.Unlock()
	of, _ := k.index.TenantOf(id)
	return known.forgotten(id) && of == tenant
}

// list is the ids of what has a content in tenants, the oldest first and nothing
// before what it took the place of; without history those that are current.
func (k *knowledge) list(tenants []string, history bool) []string {
	known := k.lock()
	var readable []string
	for id, one := range known.entries {
		if !one.forgotten {
			readable = append(readable, id)
		}
	}
	k.mu.Unlock()
	return oldestFirst(k.index, slices.DeleteFunc(readable, func(id string) bool {
		tenant, _ := k.index.TenantOf(id)
		current, _ := k.index.Current(id)
		return !inScope(tenants, tenant) || !history && current != id
	}))
}

// oldestFirst puts entries in the order in which they were captured, and each behind
// what it took the place of: clocks may have stood elsewhere.
func oldestFirst(ix *memory.Index, ids []string) []string {
	created := map[string]int64{} // of all of those whose chain was looked at
	older := map[string]string{}  // what each took the place of
	for _, id := range ids {
		if _, looked := created[id]; looked {
			continue
		}
		chain := ix.History(id)
		for i, version := range chain {
			created[version.ID] = version.Created
			if i+1 < len(chain) {
				older[version.ID] = chain[i+1].ID
			}
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(created[a], created[b]), cmp.Compare(a, b)) })
	wanted := make(map[string]bool, len(ids))
	for _, id := range ids {
		wanted[id] = true
	}
	passed := make(map[string]bool, len(ids))
	ordered := make([]string, 0, len(ids))
	var chain []string
	for _, id := range ids {
		for ; id != "" && !passed[id]; id = older[id] {
			passed[id] = true
			chain = append(chain, id)
		}
		for _, id := range slices.Backward(chain) {
			if wanted[id] {
				ordered = append(ordered, id)
			}
		}
		chain = chain[:0]
	}
	return ordered
}

// forget takes the content of an entry out. The caller holds mu. What the index said
// before that is not handed out any more: it had found the entry by its words.
func (k *knowledge) forget(id string) {
	tenant, _ := k.index.TenantOf(id)
	if err := k.index.Forget(id); err != nil {
		k.fault = fmt.Errorf("%w: forgetting entry %s: %v", vault.ErrIntegrity, id, err)
	}
	k.known.forget(id)
	k.notes.Lock()
	defer k.notes.Unlock()
	delete(k.going, id)
	k.cuts[tenant]++
}

// removeTenant takes a tenant out. The caller holds mu.
func (k *knowledge) removeTenant(tenant string) {
	for _, id := range k.idsOf(tenant) {
		k.known.remove(id)
	}
	k.index.RemoveTenant(tenant)
	k.cut(tenant)
}

// stats counts the entries of tenants, in their order; zeros until they are known.
func (k *knowledge) stats(tenants []string) []memory.TenantStats {
	ix, err := k.use()
	if err != nil {
		return make([]memory.TenantStats, len(tenants))
	}
	return ix.Stats(tenants)
}

// ids are all entries of a tenant, forgotten ones too.
func (k *knowledge) ids(tenant string) []string {
	k.lock()
	defer k.mu.Unlock()
	return k.idsOf(tenant)
}

// idsOf is ids for who holds mu and has caught up.
func (k *knowledge) idsOf(tenant string) (ids []string) {
	for id := range k.known.entries {
		if of, _ := k.index.TenantOf(id); of == tenant {
			ids = append(ids, id)
		}
	}
	return ids
}

// drop takes everything out, at lock.
func (k *knowledge) drop() {
	k.dropped.Store(true)
	k.end() // of searches that are going on: nothing waits for them to be done
	k.settle()
	k.lock() // what was noted goes into nothing
	defer k.mu.Unlock()
	k.index.Drop()
	k.known = catalogue{}
}

// failed is why the memory cannot be used; nil while it can, or is being read.
func (k *knowledge) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fault
}

// progress is how many rows were read of how many; both 0 when it is ready, or never
// will be.
func (k *knowledge) progress() (indexed, total uint64) {
	k.mu.Lock()
	over := k.ready || k.fault != nil
	k.mu.Unlock()
	if over {
		return 0, 0
	}
	return uint64(k.indexed.Load()), uint64(max(k.total.Load(), 1))
}

// stalledPause is how long reading the memory pauses on a disk that stands still.
const stalledPause = 200 * time.Millisecond

var errDropped = errors.New("the memory was dropped")

// build reads the vault into the index, a slice in each transaction, so that the file
// has no more to keep for it than for any other reader, and nothing that stops or
// exchanges the vault waits for the whole. Until it is done nothing is captured, and
// whoever takes something out waits; what is done to rows all the same was noted, and
// is done to the index behind it, in its order, whether the row was read before or
// after.
func (k *knowledge) build(v *vault.Vault) error {
	err := k.read(v)
	if err == nil {
		k.index.Settle()
	}
	defer k.settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dropped.Load() { // whatever went wrong then went wrong because of that
		return nil
	}
	for id := range k.known.entries {
		k.promote(id)
	}
	k.ready, k.fault = err == nil, err
	return err
}

// read is the reading of build.
func (k *knowledge) read(v *vault.Vault) error {
	err := k.slice(v, func(tx *vault.Tx) error {
		total, err := tx.Count(bucketKnowledge)
		k.total.Store(int64(total))
		return err
	})
	for after, end := "", false; !end && err == nil; {
		var entries []knowledgeEntry
		err = k.slice(v, func(tx *vault.Tx) error {
			entries = entries[:0]
			last, err := tx.Some(bucketKnowledge, after, func(id string, row []byte) error {
				e, err := decodeEntry(id, row)
				entries = append(entries, e)
				return err
			})
			if err == nil {
				after, end = last, last == ""
			}
			return err
		})
		if err == nil {
			err = k.take(entries)
			k.indexed.Add(int64(len(entries)))
		}
		if k.between != nil && err == nil {
			k.between()
		}
	}
	return err
}

// slice runs one transaction of the reading, as soon as the disk lets it.
func (k *knowledge) slice(v *vault.Vault, fn func(*vault.Tx) error) error {
	for {
		if k.dropped.Load() {
			return errDropped
		}
		err := v.View(fn)
		if !errors.Is(err, vault.ErrStalled) {
			return err
		}
		select {
		case <-k.life.Done():
		case <-time.After(stalledPause):
		}
	}
}

// take takes in a batch while the index is built.
func (k *knowledge) take(entries []knowledgeEntry) error {
	batch := make([]memory.Entry, len(entries))
	for i := range entries {
		batch[i] = entries[i].indexed()
	}
	var failed error
	k.index.AddAll(batch, func(e memory.Entry, err error) {
		failed = errors.Join(failed, fmt.Errorf("%w: entry %s: %v", vault.ErrIntegrity, e.ID, err))
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dropped.Load() {
		return errDropped
	}
	for i := range entries {
		k.known.add(&entries[i])
	}
	return failed
}

// indexKnowledge reads the memory after an unlock. It is part of the upkeep.
func (d *Daemon) indexKnowledge() {
	k := d.state().knowledge
	if !d.state().open || !k.wanted() {
		return
	}
	if err := k.build(d.vault); err != nil {
		d.logger.Error("reading the memory", "error", err)
	}
	d.hub.listChanged() // its tools can be used now
	if k.indexed.Load() >= manyEntries {
		debug.FreeOSMemory() // what reading them has left behind
	}
}

// manyEntries is how many make it worth giving memory back to the system at once.
const manyEntries = 10_000

// wanted reports whether it is to be built.
func (k *knowledge) wanted() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.ready && k.fault == nil && !k.dropped.Load()
}

// putInForce makes a state the one that holds. What was in the memory of the one
// before goes.
func (d *Daemon) putInForce(st *state) {
	if before := d.current.Swap(st); before != nil && before.knowledge != st.knowledge {
		before.knowledge.drop()
		if before.knowledge.indexed.Load() >= manyEntries {
			go debug.FreeOSMemory() // nobody waits for that
		}
	}
}
