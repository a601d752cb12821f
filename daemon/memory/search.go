package memory

// Scope says where to look and for what. Kinds and Since are those of the current
// entry, which is what an answer hands out, and take out before anything is
// ranked; the frequencies of words do not depend on them.
type Scope struct {
	// Tenants to look in; none means that nothing is found. Unknown ones are empty.
	Tenants []string
	// Kinds to look for; none means all.
	Kinds []string
	// Since leaves out what was captured before it, in Unix milliseconds; 0 leaves
	// out nothing.
	Since int64
	// Limit is the largest number of hits, at most [MaxHits]; 0 means 10.
	Limit int
}

const (
	// MaxHits is the largest number of hits of a search.
	MaxHits = 1000
	// MaxReplaced is the largest number of replaced entries that a hit lists.
	MaxReplaced = 32
)

// Result is the answer to a query.
type Result struct {
	// Hits are the best, best first; of equal scores the newer entry, then by id.
	Hits []Hit
	// Total is the number of entries that fit.
	Total int
}

// Hit is the current version of something that fits.
type Hit struct {
	// ID is the current entry, Tenant its tenant.
	ID     string
	Tenant string
	// Score is Okapi BM25 of the version that fits best.
	Score float64
	// Matched is that version when it is not the current one, else empty.
	Matched string
	// Replaced are the entries that the current one took the place of, newest
	// first, at most [MaxReplaced]; [Index.History] has all.
	Replaced []Version
}

// Search returns what fits, best first.
func (ix *Index) Search(query Query, scope Scope) Result { return Result{} }
