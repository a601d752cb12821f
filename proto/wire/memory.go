package wire

// EntryKinds are the kinds of entries of the governed memory.
func EntryKinds() []string { return []string{"note", "decision", "lesson"} }

// Limits of an entry, in bytes, and of its tags.
const (
	MaxEntryTitle = 256
	MaxEntryText  = 48 << 10 // so that a request with one is no larger than MaxAsked
	MaxEntryTag   = 64
	MaxEntryTags  = 16
)

// Limits of a request about the memory.
const (
	// MaxTenantsNamed is how many tenants one may name: no more than an entry of the
	// log has room for.
	MaxTenantsNamed = 64
	// MaxQuery is the largest query, in bytes.
	MaxQuery = 1 << 10
	// MaxHits is how many entries may be asked for; DefaultHits is how many a search
	// returns, and DefaultRecent a list, where that is not said.
	MaxHits       = 100
	DefaultHits   = 10
	DefaultRecent = 20
	// MaxVersions is how many versions of a history one answer has.
	MaxVersions = 200
	// MaxForget is how many entries are named in one request to forget them.
	MaxForget = 256
)

// Limits of an import, in bytes: of a line, and of the lines of one message.
const (
	MaxImportLine  = 256 << 10
	MaxImportPiece = 1 << 20
)
