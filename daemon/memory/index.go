package memory

import "errors"

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
	// another tenant.
	ErrChain = errors.New("the entry cannot take that place")
	// ErrEntry is returned for an entry without an id or a tenant, of an unknown
	// kind, or above a limit.
	ErrEntry = errors.New("the entry cannot be indexed")
)

// Config says what an index takes in.
type Config struct {
	// Kinds of entries, at most [MaxKinds]. Nil means note, decision and lesson.
	Kinds []string
}

// Index holds the entries of all tenants. Its methods may be called from any
// number of goroutines. After [Index.Drop] it is empty and stays so.
type Index struct{}

// New returns an index without entries.
func New(Config) (*Index, error) { return nil, errors.New("not built") }

// Add takes an entry in. A search that begins afterwards finds it. Entries may
// come in any order: the result is the same. An error is one of [ErrExists],
// [ErrChain], [ErrEntry] and [ErrDropped], and then nothing has changed.
func (ix *Index) Add(Entry) error { return ErrDropped }

// AddAll takes many entries in, which costs a fraction of adding each; a
// thousand at a time is enough. It takes what it can; for each entry that it
// cannot take, failed is called with the reason, as [Index.Add] would return it.
// It returns how many it took.
func (ix *Index) AddAll(entries []Entry, failed func(Entry, error)) int { return 0 }

// Settle merges what was added into as few pieces as searches like best. It is
// worth calling once, after everything was loaded; nothing depends on it.
func (ix *Index) Settle() {}

// Forget takes the content of an entry out: no search, count or statistic knows
// it any more, and no word of it is left that no other entry has. Its place in
// its chain stays. A chain whose current entry is forgotten is no hit: nothing
// says any longer what is true. It returns [ErrUnknown] for an entry that is not
// there, and nil for one that is forgotten already.
func (ix *Index) Forget(id string) error { return ErrUnknown }

// RemoveTenant takes a tenant out with all its entries, and returns how many
// they were, forgotten ones included.
func (ix *Index) RemoveTenant(tenant string) int { return 0 }

// Drop takes everything out and overwrites it. It waits for searches that are
// running.
func (ix *Index) Drop() {}

// TenantOf returns the tenant of an entry, also of a forgotten one.
func (ix *Index) TenantOf(id string) (tenant string, known bool) { return "", false }

// Current returns the entry that stands in the place of another: itself, when
// none superseded it.
func (ix *Index) Current(id string) (current string, known bool) { return "", false }

// History returns the chain of an entry, the current one first; nil when the
// entry is not there.
func (ix *Index) History(id string) []Version { return nil }

// Recent returns current entries that scope covers, the newest first (of equal
// times, by id), at most limit. With before, only those that come after that
// entry in this order; it has to be of a tenant of the scope, else the answer is
// [ErrUnknown]. Limit of the scope does not matter.
func (ix *Index) Recent(scope Scope, limit int, before string) ([]Version, error) {
	return nil, ErrDropped
}

// Stats counts the entries of tenants, one for each name, in the order of the
// names given. A tenant without entries has zeros.
func (ix *Index) Stats(tenants []string) []TenantStats { return nil }

// Size says what the index holds.
func (ix *Index) Size() Size { return Size{} }
