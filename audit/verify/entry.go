package verify

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Entry is one line of the log. Fields that the line does not have are zero;
// hashes are lower-case hex.
type Entry struct {
	Seq           uint64
	Timestamp     time.Time
	Vault         string
	Segment       uint32
	Generation    uint64
	Digest        string
	Kind          string
	LaunchID      string
	RunID         string
	SessionID     string
	SubjectID     string
	Tier          string
	PeerUID       uint32
	PeerPID       int32
	HasPeer       bool
	ShimVersion   string
	ProfileID     string
	KeyID         string
	Tenants       []string
	ResourceID    string
	Version       uint32
	ContentSHA256 string
	Action        string
	Capability    string
	Server        string
	Tool          string
	ArgsDigest    string
	Pin           string
	Policy        string
	GrantID       string
	ApprovalID    string
	Decision      string
	ReasonCode    string
	Cause         string
	Disclosed     string
	Bytes         int64
	HasBytes      bool
	Count         uint64
	VoidSegment   uint32 // 0: the entry voids nothing
	VoidOffset    int64
	VoidSeq       uint64
	Prev          string
	Sig           string // base64
}

// ParseLine reads one line, with or without its newline. It takes only what the
// writer writes: every field in its place, at most once, in its one form.
func ParseLine(text []byte) (Entry, error) {
	var l line
	if len(text) == 0 || text[len(text)-1] != '\n' {
		text = append(text[:len(text):len(text)], '\n')
	}
	if err := l.scan(text); err != nil {
		return Entry{}, err
	}
	at, err := time.Parse("2006-01-02T15:04:05.000Z", l.text(fTimestamp))
	if err != nil {
		return Entry{}, fmt.Errorf("timestamp: %w", errMalformed)
	}
	e := Entry{
		Seq: l.seq, Timestamp: at, Vault: l.text(fVault), Segment: uint32(l.number(fSegment)),
		Generation: l.number(fGeneration), Digest: l.text(fDigest), Kind: l.text(fKind),
		LaunchID: l.text(fLaunchID), RunID: l.text(fRunID), SessionID: l.text(fSessionID),
		SubjectID: l.text(fSubjectID), Tier: l.text(fTier), ShimVersion: l.text(fShimVersion),
		ProfileID: l.text(fProfileID), KeyID: l.text(fKeyID), ResourceID: l.text(fResourceID),
		Version: uint32(l.number(fVersion)), ContentSHA256: l.text(fContentSHA256), Action: l.text(fAction),
		Capability: l.text(fCapability), Server: l.text(fServer), Tool: l.text(fTool),
		ArgsDigest: l.text(fArgsDigest), Pin: l.text(fPin), Policy: l.text(fPolicy),
		GrantID: l.text(fGrantID), ApprovalID: l.text(fApprovalID), Decision: l.text(fDecision),
		ReasonCode: l.text(fReasonCode), Cause: l.text(fCause), Disclosed: l.text(fDisclosed),
		Bytes: int64(l.number(fBytes)), HasBytes: l.field[fBytes] != nil, Count: l.number(fCount),
		Prev: hex.EncodeToString(l.prev[:]), Sig: l.text(fSig),
	}
	if peer := l.text(fPeer); peer != "" {
		uid, pid, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(peer, `{"uid":`), "}"), `,"pid":`)
		u, _ := strconv.ParseUint(uid, 10, 32)
		p, _ := strconv.ParseInt(pid, 10, 32)
		e.HasPeer, e.PeerUID, e.PeerPID = true, uint32(u), int32(p)
	}
	if list := l.text(fTenants); list != "" {
		e.Tenants = strings.Split(strings.Trim(list, `["]`), `","`)
	}
	e.VoidSegment, e.VoidOffset, e.VoidSeq = l.void.segment, l.void.offset, l.void.seq
	return e, nil
}

var errMalformed = errors.New("malformed")
