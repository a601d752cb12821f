package memory

// Limits of what is taken in. What the daemon allows is less.
const (
	// MaxText is the largest size of an entry's title, text and tags together, in bytes.
	MaxText = 2 << 20
	// MaxName is the largest size of an id and of a tenant's name, in bytes.
	MaxName = 255
	// MaxKinds is the largest number of kinds.
	MaxKinds = 64
)

// Entry is what goes into the index. Title, Text and Tags are read while it is
// added and not kept.
type Entry struct {
	// ID names it, once in the whole index.
	ID string
	// Tenant that holds it. A tenant is there as soon as it holds an entry.
	Tenant string
	// Kind is one of [Config.Kinds].
	Kind string
	// Title, Text and Tags are one text to a search, in this order; a phrase never
	// reaches from one into the next.
	Title string
	Text  string
	Tags  []string
	// Created is when it was captured, in Unix milliseconds.
	Created int64
	// Supersedes is the entry of the same tenant whose place it takes; empty when
	// of none. That one may be added later.
	Supersedes string
	// Forgotten is true for what is left of an entry whose content was taken out:
	// its place in its chain. Title, Text and Tags are not looked at.
	Forgotten bool
}

// Version is one entry of a chain.
type Version struct {
	// ID, Tenant, Kind and Created are the entry's.
	ID      string
	Tenant  string
	Kind    string
	Created int64
	// Supersedes is the entry whose place it took, as it was said when it was
	// added; empty when of none. It may be one that is not there.
	Supersedes string
	// SupersededBy is the entry that took its place, and Superseded when that one
	// was captured; empty and 0 for the current one.
	SupersededBy string
	Superseded   int64
	// Forgotten is true when its content was taken out.
	Forgotten bool
}

// TenantStats counts the entries of a tenant. Those whose content was taken out
// are in Forgotten and nowhere else.
type TenantStats struct {
	// Tenant is its name.
	Tenant string
	// Kinds has the number of current entries of each kind that occurs.
	Kinds map[string]int
	// Superseded is the number of entries that another took the place of.
	Superseded int
	// Forgotten is the number of entries whose content was taken out.
	Forgotten int
	// Newest and Oldest are times of capture in Unix milliseconds; 0 when there is none.
	Newest int64
	Oldest int64
}

// Size is what the index holds.
type Size struct {
	// Tenants and Entries are numbers; Forgotten are those entries of which only
	// the place in their chain is left.
	Tenants   int
	Entries   int
	Forgotten int
	// Words is the number of words of all entries, Terms that of different ones,
	// summed over the parts of each tenant's index.
	Words int64
	Terms int64
	// Postings is the number of bytes in which dictionaries and postings lie.
	Postings int64
}
