package audit

import (
	"encoding/hex"
	"strconv"
)

// One entry is one line of compact JSON in ASCII, fields in the order of
// [Entry], zero values left out:
//
//	{"v":1,"seq":7,…,"prev":"<64 hex>"}\n                       most entries
//	{"v":1,"seq":8,…,"prev":"<64 hex>","sig":"<88 base64>"}\n   the last of each commit
//
// prev and sig come last so that the writer can fill them in when a commit is
// sealed, and a reader can find them from the end.
const (
	prevKey   = `,"prev":"`
	sigKey    = `,"sig":"`
	lineEnd   = "\"}\n"
	prevDigit = 64
	sigDigit  = 88
	// maxLine bounds a line in bytes; check.go keeps every entry below it.
	maxLine = 16 << 10
)

const timestampLayout = "2006-01-02T15:04:05.000Z"

// appendHead appends the line of e up to and without its prev.
func appendHead(b []byte, e *Entry) []byte {
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, int64(e.V), 10)
	b = append(b, `,"seq":`...)
	b = strconv.AppendUint(b, e.Seq, 10)
	b = append(b, `,"timestamp":"`...)
	b = e.Timestamp.UTC().AppendFormat(b, timestampLayout)
	b = append(b, `","vault":`...)
	b = appendQuoted(b, e.Vault)
	b = append(b, `,"segment":`...)
	b = strconv.AppendUint(b, uint64(e.Segment), 10)
	b = appendNumber(b, "generation", e.Generation)
	b = appendHash(b, "digest", e.Digest)
	b = appendText(b, "kind", string(e.Kind))
	b = appendText(b, "launchId", e.LaunchID)
	b = appendText(b, "runId", e.RunID)
	b = appendText(b, "sessionId", e.SessionID)
	b = appendText(b, "subjectId", e.SubjectID)
	b = appendText(b, "tier", e.Tier)
	if e.Peer != nil {
		b = append(b, `,"peer":{"uid":`...)
		b = strconv.AppendUint(b, uint64(e.Peer.UID), 10)
		b = append(b, `,"pid":`...)
		b = strconv.AppendInt(b, int64(e.Peer.PID), 10)
		b = append(b, '}')
	}
	b = appendText(b, "shimVersion", e.ShimVersion)
	b = appendText(b, "profileId", e.ProfileID)
	b = appendText(b, "keyId", e.KeyID)
	b = appendList(b, "tenants", e.Tenants)
	b = appendText(b, "resourceId", e.ResourceID)
	b = appendNumber(b, "version", uint64(e.Version))
	b = appendHash(b, "contentSha256", e.ContentSHA256)
	b = appendText(b, "action", e.Action)
	b = appendText(b, "capability", e.Capability)
	b = appendText(b, "server", e.Server)
	b = appendText(b, "tool", e.Tool)
	b = appendHash(b, "argsDigest", e.ArgsDigest)
	b = appendText(b, "pin", e.Pin)
	b = appendText(b, "policy", e.Policy)
	b = appendText(b, "grantId", e.GrantID)
	b = appendText(b, "approvalId", e.ApprovalID)
	b = appendText(b, "decision", e.Decision)
	b = appendText(b, "reasonCode", e.ReasonCode)
	b = appendText(b, "cause", e.Cause)
	b = appendText(b, "disclosed", e.Disclosed)
	if e.Bytes != nil {
		b = append(b, `,"bytes":`...)
		b = strconv.AppendInt(b, *e.Bytes, 10)
	}
	b = appendNumber(b, "count", e.Count)
	if e.Void != nil {
		b = append(b, `,"void":{"segment":`...)
		b = strconv.AppendUint(b, uint64(e.Void.Segment), 10)
		b = appendNumber(b, "offset", uint64(e.Void.Offset))
		b = appendNumber(b, "seq", e.Void.Seq)
		b = append(b, '}')
	}
	return b
}

// appendLine appends the whole line of e, which already has its Prev and, or
// not, its Sig.
func appendLine(b []byte, e *Entry) []byte {
	b = appendHead(b, e)
	b = append(b, prevKey...)
	b = hex.AppendEncode(b, e.Prev[:])
	if e.Sig != "" {
		b = append(b, '"')
		b = append(b, sigKey...)
		b = append(b, e.Sig...)
	}
	return append(b, lineEnd...)
}

func appendKey(b []byte, key string) []byte {
	b = append(b, ',', '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

func appendNumber(b []byte, key string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendUint(appendKey(b, key), n, 10)
}

func appendText(b []byte, key, s string) []byte {
	if s == "" {
		return b
	}
	return appendQuoted(appendKey(b, key), s)
}

func appendHash(b []byte, key string, h Hash) []byte {
	if h == (Hash{}) {
		return b
	}
	b = append(appendKey(b, key), '"')
	b = hex.AppendEncode(b, h[:])
	return append(b, '"')
}

func appendList(b []byte, key string, list []string) []byte {
	if len(list) == 0 {
		return b
	}
	b = append(appendKey(b, key), '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendQuoted(b, s)
	}
	return append(b, ']')
}

// appendQuoted escapes, byte by byte, all but plain printable ASCII. check lets
// no such byte through; this is the second lock on the same door.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			b = append(b, `\u00`...)
			b = hex.AppendEncode(b, []byte{c})
			continue
		}
		b = append(b, c)
	}
	return append(b, '"')
}
