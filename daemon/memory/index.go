package memory

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Errors of [Index.Add], [Index.Forget] and [Index.Recent].
var (
	// ErrDropped is the answer of an index that was dropped.
	ErrDropped = errors.New("the index was dropped")
	// ErrExists is returned for an entry whose id is there already.
	ErrExists = errors.New("an entry with this id is in the index")
	// ErrUnknown is returned for an entry that is not there.
	ErrUnknown = errors.New("no such entry in the index")
	// ErrChain is returned for an entry that takes the place of itself, of an older
	// version of itself, of one that another has taken the place of, or of one of
	// another tenant; also for the one that such an entry was waiting for.
	ErrChain = errors.New("the entry cannot take that place")
	// ErrEntry is returned for an entry without an id or a tenant, of an unknown
	// kind, or above a limit.
	ErrEntry = errors.New("the entry cannot be indexed")
)

// Config says what an index takes in.
type Config struct {
	// Kinds of entries, at most [MaxKinds]: others are not taken in.
	Kinds []string
}

// Index holds the entries of all tenants. Its methods may be called from any
// number of goroutines. After [Index.Drop] it is empty and stays so.
type Index struct {
	kinds []string

	// life is held, shared, by every call, and alone only by Drop, once: so no call
	// waits for another.
	life    sync.RWMutex
	dropped bool

	// mu is never held while a text is read or a piece is merged or searched.
	mu      sync.RWMutex
	tenants map[string]*tenant
	entries map[string]*document
	// waiting has, by the id of an entry that is not there, the one that takes its
	// place.
	waiting map[string]*document

	// held is about what it takes in memory, in bytes.
	held atomic.Int64

	scratch sync.Pool
}

// New returns an index without entries. The error says which kinds of Config
// cannot be.
func New(config Config) (*Index, error) {
	kinds := slices.Clone(config.Kinds)
	if len(kinds) > MaxKinds {
		return nil, fmt.Errorf("kinds: %d, of at most %d", len(kinds), MaxKinds)
	}
	for i, kind := range kinds {
		if kind == "" || slices.Contains(kinds[:i], kind) {
			return nil, fmt.Errorf("kinds: %q is empty or there twice", kind)
		}
	}
	return &Index{
		kinds:   kinds,
		tenants: map[string]*tenant{},
		entries: map[string]*document{},
		waiting: map[string]*document{},
	}, nil
}

// Add takes an entry in. A search that begins afterwards finds it. Entries may
// come in any order: the result is the same. An error is one of [ErrExists],
// [ErrChain], [ErrEntry] and [ErrDropped], and then nothing has changed.
func (ix *Index) Add(e Entry) error {
	var refused error
	ix.AddAll([]Entry{e}, func(_ Entry, err error) { refused = err })
	return refused
}

// AddAll takes many entries in, which costs a fraction of adding each; a
// thousand at a time is enough. It takes what it can; for each entry that it
// cannot take, failed is called, once, with the reason, as [Index.Add] would
// return it. It returns how many it took.
func (ix *Index) AddAll(entries []Entry, failed func(Entry, error)) int {
	refused := map[int]error{}
	ix.addAll(entries, refused)
	for _, i := range slices.Sorted(maps.Keys(refused)) {
		failed(entries[i], refused[i])
	}
	return len(entries) - len(refused)
}

func (ix *Index) addAll(entries []Entry, refused map[int]error) {
	ix.life.RLock()
	defer ix.life.RUnlock()
	of := map[string][]int{}
	var names []string
	for i := range entries {
		name := entries[i].Tenant
		if ix.dropped {
			refused[i] = ErrDropped
		} else if err := ix.check(&entries[i]); err != nil {
			refused[i] = err
		} else {
			if of[name] == nil {
				names = append(names, name)
			}
			of[name] = append(of[name], i)
		}
	}
	for _, name := range names {
		ix.addTo(name, entries, of[name], refused)
	}
}

func (ix *Index) check(e *Entry) error {
	size := len(e.Title) + len(e.Text)
	for _, tag := range e.Tags {
		size += len(tag)
	}
	switch {
	case e.ID == "" || len(e.ID) > MaxName:
		return fmt.Errorf("%w: its id is empty or longer than %d bytes", ErrEntry, MaxName)
	case e.Tenant == "" || len(e.Tenant) > MaxName:
		return fmt.Errorf("%w: its tenant is empty or longer than %d bytes", ErrEntry, MaxName)
	case !slices.Contains(ix.kinds, e.Kind):
		return fmt.Errorf("%w: it has no kind that is known", ErrEntry)
	case !e.Forgotten && size > MaxText:
		return fmt.Errorf("%w: it is larger than %d bytes", ErrEntry, MaxText)
	}
	return nil
}

// addTo adds those entries that which names, all of one tenant.
func (ix *Index) addTo(name string, entries []Entry, which []int, refused map[int]error) {
	documents := make([]document, len(which)) // together, as searches go through them
	var pieces []*piece
	b := newBuilder()
	for n, i := range which {
		e := &entries[i]
		d := &documents[n]
		d.id, d.supersedes, d.created = e.ID, e.Supersedes, e.Created
		d.kind = uint8(slices.Index(ix.kinds, e.Kind))
		if e.Forgotten {
			d.gone.Store(true)
			continue
		}
		b.add(d, e)
		if b.words >= piecesWords {
			pieces = append(pieces, b.done())
		}
	}
	if len(b.piece.documents) > 0 {
		pieces = append(pieces, b.done())
	}

	t := ix.open(name)
	defer t.writing.Unlock()
	before := t.now.Load()
	forgotten, turn, all := before.forgotten, before.turn, true
	for n, i := range which {
		d := &documents[n]
		if err := ix.register(t, d); err != nil {
			refused[i], all = err, false
			continue
		}
		turn = d.turn
		if d.gone.Load() {
			forgotten = append(forgotten, d)
		}
	}
	if !all {
		pieces = without(pieces, func(d *document) bool { return d.tenant == nil })
	}
	if turn > before.turn {
		t.show(tidy(slices.Concat(before.pieces, pieces)), turn, forgotten)
	}
	ix.closeEmpty(t)
}

// without returns pieces less the documents that gone names.
func without(pieces []*piece, gone func(*document) bool) []*piece {
	var left []*piece
	for _, p := range pieces {
		if slices.ContainsFunc(p.documents, gone) {
			p = merge([]*piece{p}, gone)
		}
		if p != nil {
			left = append(left, p)
		}
	}
	return left
}

// open returns a tenant, made if there is none, with writing held.
func (ix *Index) open(name string) *tenant {
	for {
		ix.mu.Lock()
		t := ix.tenants[name]
		if t == nil {
			t = &tenant{name: name, all: &ix.held}
			t.now.Store(&view{})
			ix.tenants[name] = t
		}
		ix.mu.Unlock()
		t.writing.Lock()
		if !t.removed {
			return t
		}
		t.writing.Unlock()
	}
}

// closeEmpty takes out a tenant that came to nothing; the caller holds writing.
func (ix *Index) closeEmpty(t *tenant) {
	if v := t.now.Load(); len(v.pieces) == 0 && len(v.forgotten) == 0 && !t.removed {
		t.removed = true
		ix.mu.Lock()
		delete(ix.tenants, t.name)
		ix.mu.Unlock()
	}
}

// register gives an entry its place among the others, or says why it has none.
func (ix *Index) register(t *tenant, d *document) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.entries[d.id] != nil {
		return ErrExists
	}
	var older *document
	newer := ix.waiting[d.id]
	if d.supersedes != "" {
		older = ix.entries[d.supersedes]
		switch {
		case d.supersedes == d.id:
			return ErrChain
		case older == nil && ix.waiting[d.supersedes] != nil:
			return ErrChain // of which another takes the place
		case older != nil && (older.tenant != t || older.currentAt(^uint32(0)) != older):
			return ErrChain
		}
	}
	if newer != nil && (newer.tenant != t || older != nil && slices.Contains(line(older), newer)) {
		return ErrChain
	}
	t.turn++
	d.tenant, d.turn = t, t.turn
	ix.entries[d.id] = d
	delete(ix.waiting, d.id)
	if d.supersedes != "" && older == nil {
		ix.waiting[d.supersedes] = d
	}
	link(older, d, newer)
	return nil
}

// Settle merges what was added into as few pieces as searches like best. It is
// worth calling once, after everything was loaded; nothing depends on it.
func (ix *Index) Settle() {
	ix.life.RLock()
	defer ix.life.RUnlock()
	ix.mu.RLock()
	tenants := make([]*tenant, 0, len(ix.tenants))
	for _, t := range ix.tenants {
		tenants = append(tenants, t)
	}
	ix.mu.RUnlock()
	for _, t := range tenants {
		t.writing.Lock()
		if v := t.now.Load(); !t.removed {
			t.show(settle(slices.Clone(v.pieces)), v.turn, v.forgotten)
		}
		t.writing.Unlock()
	}
}

// Forget takes the content of an entry out: no search, count or statistic knows
// it any more, and no word of it is left that no other entry has. Its place in
// its chain stays. A chain whose current entry is forgotten is no hit: nothing
// says any longer what is true. It returns [ErrUnknown] for an entry that is not
// there, and nil for one that is forgotten already.
func (ix *Index) Forget(id string) error {
	ix.life.RLock()
	defer ix.life.RUnlock()
	d := ix.entry(id)
	if d == nil {
		return ErrUnknown
	}
	t := d.tenant
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.removed {
		return ErrUnknown
	}
	if d.gone.Swap(true) {
		return nil
	}
	d.mark()
	d.in = nil
	v := t.now.Load()
	pieces := without(v.pieces, func(other *document) bool { return other == d })
	t.show(pieces, v.turn, append(v.forgotten, d))
	return nil
}

// removedAtOnce is how many entries RemoveTenant takes out while others wait.
const removedAtOnce = 1000

// RemoveTenant takes a tenant out with all its entries, and returns how many
// they were, forgotten ones included.
func (ix *Index) RemoveTenant(name string) int {
	ix.life.RLock()
	defer ix.life.RUnlock()
	ix.mu.RLock()
	t := ix.tenants[name]
	ix.mu.RUnlock()
	if t == nil {
		return 0
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.removed {
		return 0
	}
	t.removed = true
	v := t.now.Load()
	t.now.Store(&view{})
	t.hold(nil)
	all := slices.Clone(v.forgotten)
	for _, p := range v.pieces {
		all = append(all, p.documents...)
	}
	for some := range slices.Chunk(all, removedAtOnce) {
		ix.mu.Lock()
		for _, d := range some {
			d.gone.Store(true) // for searches that are running
			delete(ix.entries, d.id)
			if ix.waiting[d.supersedes] == d {
				delete(ix.waiting, d.supersedes)
			}
		}
		ix.mu.Unlock()
	}
	ix.mu.Lock()
	delete(ix.tenants, name)
	ix.mu.Unlock()
	return len(all)
}

// Drop takes everything out, and overwrites the words and postings that it held.
// It waits for calls that are running; later ones find nothing.
func (ix *Index) Drop() {
	ix.life.Lock()
	defer ix.life.Unlock()
	ix.mu.Lock()
	defer ix.mu.Unlock()
	for _, t := range ix.tenants {
		for _, p := range t.now.Load().pieces {
			clear(p.dictionary)
			clear(p.runs)
			clear(p.blocks)
		}
	}
	ix.dropped = true
	ix.held.Store(0)
	ix.tenants, ix.entries, ix.waiting = nil, nil, nil
	ix.scratch = sync.Pool{}
}

// entry returns what is known of one, or nil.
func (ix *Index) entry(id string) *document {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	return ix.entries[id]
}

// views returns what the indexes of tenants are now, each once, those that are
// there.
func (ix *Index) views(names []string) []*view {
	names = slices.Clone(names)
	slices.Sort(names)
	var views []*view
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	for _, name := range slices.Compact(names) {
		if t := ix.tenants[name]; t != nil {
			views = append(views, t.now.Load())
		}
	}
	return views
}
