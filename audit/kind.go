package audit

import "strings"

// Kind says what an entry is about. The list is closed: the words below, and
// one further word within each family of kindFamilies.
type Kind string

// Kinds that the log writes itself.
const (
	SegmentOpened   Kind = "segment.opened"   // first entry of a segment, with its public key
	KeyHandover     Kind = "key.handover"     // last entry of a closed segment, names the next key
	Recovered       Kind = "recovered"        // the log was mended: a tail set aside, or a failure over
	ReleaseWithheld Kind = "release.withheld" // an allow became durable too late to be honoured
	AuditPruned     Kind = "audit.pruned"     // a closed segment was reduced to its first and last line
)

// Kinds that stand alone, outside a family.
const (
	Acquire      Kind = "acquire"
	Explain      Kind = "explain"
	List         Kind = "list"
	Call         Kind = "call"
	Auth         Kind = "auth"
	Authz        Kind = "authz"
	Flag         Kind = "flag"
	Suppressed   Kind = "suppressed"
	OpIntent     Kind = "op.intent"
	OpApplied    Kind = "op.applied"
	OpNotApplied Kind = "op.not_applied"
)

// kindFamilies may be followed by a dot and one word.
var kindFamilies = [...]string{
	"vault", "run", "approval", "grant", "subject", "resource", "key", "server", "memory",
	"launch", "operator", "policy", "audit", "call", "agentkey",
}

// Known reports whether k is on the closed list.
func (k Kind) Known() bool {
	switch k {
	case SegmentOpened, Recovered, ReleaseWithheld, Acquire, Explain, List, Call, Auth, Authz, Flag,
		Suppressed, OpIntent, OpApplied, OpNotApplied:
		return true
	}
	family, word, found := strings.Cut(string(k), ".")
	if !found || !isWord(word) {
		return false
	}
	for _, known := range kindFamilies {
		if family == known {
			return true
		}
	}
	return false
}
