package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"
)

// Entry is one line of the log. The fields stand in the order in which they are
// written; zero values are left out.
//
// V, Seq, Timestamp, Vault, Segment, Prev and Sig belong to the log, which
// overwrites whatever a caller put there. Strings hold words of closed lists,
// ids, and names: [Log.Append] refuses anything else, and text that comes from
// a stranger and breaks the rules for names enters only through [Mask].
//
// What Count counts depends on Kind:
//
//	acquire         which use of a limited grant this was, from 1
//	call            what an allowed call costs, in millionths of its budget's unit
//	call.done       Seq of the call that ended
//	list            how many names were returned
//	run.end         how many reads the run had
//	launch.end      how many reads the runs of the launch had
//	server.changed  how much of what the server offers is not trusted
//	suppressed      how many refusals this entry stands for
//	recovered       how many entries could not be written
//	audit.pruned    how many entries are gone
//	segment.opened  see Origin
//
// Server, Tool, ArgsDigest, Pin and Policy are about calls of tools: ArgsDigest is a
// keyed digest of the exact arguments, Pin the hash of the tool as it was trusted,
// Policy the version of the rules that judged.
type Entry struct {
	V         int       `json:"v"`
	Seq       uint64    `json:"seq"`
	Timestamp time.Time `json:"timestamp"`
	Vault     string    `json:"vault"`
	Segment   uint32    `json:"segment"`

	// Generation and Digest publish the vault's state before and after a mutation.
	Generation uint64 `json:"generation,omitempty"`
	Digest     Hash   `json:"digest,omitzero"`

	Kind Kind `json:"kind"`

	LaunchID    string   `json:"launchId,omitempty"`
	RunID       string   `json:"runId,omitempty"`
	SessionID   string   `json:"sessionId,omitempty"`
	SubjectID   string   `json:"subjectId,omitempty"`
	Tier        string   `json:"tier,omitempty"`
	Peer        *Peer    `json:"peer,omitempty"`
	ShimVersion string   `json:"shimVersion,omitempty"`
	ProfileID   string   `json:"profileId,omitempty"`
	KeyID       string   `json:"keyId,omitempty"`
	Tenants     []string `json:"tenants,omitempty"`

	ResourceID    string `json:"resourceId,omitempty"`
	Version       uint32 `json:"version,omitempty"`      // sealed resources
	ContentSHA256 Hash   `json:"contentSha256,omitzero"` // files only
	Action        string `json:"action,omitempty"`       // what was asked, or the verb of a mutation
	Capability    string `json:"capability,omitempty"`   // action:object
	Server        string `json:"server,omitempty"`       //
	Tool          string `json:"tool,omitempty"`         //
	ArgsDigest    Hash   `json:"argsDigest,omitzero"`    //
	Pin           string `json:"pin,omitempty"`          //
	Policy        string `json:"policy,omitempty"`       //
	GrantID       string `json:"grantId,omitempty"`      //
	ApprovalID    string `json:"approvalId,omitempty"`   //
	Decision      string `json:"decision,omitempty"`     // allow, deny, error, pending
	ReasonCode    string `json:"reasonCode,omitempty"`   // public
	Cause         string `json:"cause,omitempty"`        // operator only
	Disclosed     string `json:"disclosed,omitempty"`    // no, reachable, yes
	Bytes         *int64 `json:"bytes,omitempty"`        // released, or set aside
	Count         uint64 `json:"count,omitempty"`        // see below
	Void          *Void  `json:"void,omitempty"`         //
	Prev          Hash   `json:"prev"`                   // SHA-256 of the previous line with its newline
	Sig           string `json:"sig,omitempty"`          // base64, see sign.go
}

// Peer is what the operating system said about a connection when it was
// accepted.
type Peer struct {
	UID uint32 `json:"uid"`
	PID int32  `json:"pid"`
}

// Void names a part of the log that does not count. In segment.opened it is
// everything from Offset on in the abandoned Segment; in recovered, the bytes
// at Offset that were set aside; in release.withheld, the entry Seq, whose
// content was never handed out; in audit.pruned, the whole Segment.
type Void struct {
	Segment uint32 `json:"segment"`
	Offset  int64  `json:"offset,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`
}

// Hash is a SHA-256 sum, or another digest of 32 bytes. It is written as
// lower-case hex.
type Hash [sha256.Size]byte

// String returns h as lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText writes lower-case hex.
func (h Hash) MarshalText() ([]byte, error) {
	return hex.AppendEncode(nil, h[:]), nil
}

// UnmarshalText reads 64 hex digits.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) != 2*len(h) {
		return fmt.Errorf("a hash has %d hex digits, not %d", 2*len(h), len(text))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// Position names one entry, and through its hash all entries before it. The
// zero Position is before the first.
type Position struct {
	Segment uint32
	Seq     uint64
	Hash    [sha256.Size]byte
}

// Head is what an operator keeps elsewhere to compare with later.
type Head struct {
	Genesis   string   // SHA-256 of the first line of the log, lower-case hex
	VaultID   string   // lower-case hex
	Segment   uint32   // number of the open segment
	Seq       uint64   // newest durable entry
	Hash      [32]byte // SHA-256 of its line with its newline
	Signature string   // its signature, base64
}
