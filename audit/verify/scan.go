package verify

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strconv"
)

// A line is one JSON object in one form only:
//
//	{"v":1,"seq":…,…,"prev":"…"}\n    or    {"v":1,"seq":…,…,"prev":"…","sig":"…"}\n
//
// Fields stand in the order of the table below, each at most once, without
// blanks. No value needs an escape, so none is accepted.
const (
	fTimestamp = iota
	fVault
	fSegment
	fGeneration
	fDigest
	fKind
	fLaunchID
	fRunID
	fSessionID
	fSubjectID
	fTier
	fPeer
	fShimVersion
	fProfileID
	fKeyID
	fTenants
	fResourceID
	fVersion
	fContentSHA256
	fAction
	fCapability
	fServer
	fTool
	fArgsDigest
	fPin
	fPolicy
	fGrantID
	fApprovalID
	fDecision
	fReasonCode
	fCause
	fDisclosed
	fBytes
	fCount
	fVoid
	fPrev
	fSig
	fields
)

const maxLine = 16 << 10

// order is the grammar: each field's key, how its value is read, whether it
// must be there.
var order = [fields]struct {
	key      string // with its comma, quotes and colon
	read     func(rest []byte) (length int, ok bool)
	required bool
}{
	fTimestamp:     {`,"timestamp":`, quoted(isTimestamp), true},
	fVault:         {`,"vault":`, quoted(isHex(32)), true},
	fSegment:       {`,"segment":`, number(8), true},
	fGeneration:    {`,"generation":`, number(19), false},
	fDigest:        {`,"digest":`, quoted(isHex(64)), false},
	fKind:          {`,"kind":`, quoted(isKind), true},
	fLaunchID:      {`,"launchId":`, quoted(isID), false},
	fRunID:         {`,"runId":`, quoted(isID), false},
	fSessionID:     {`,"sessionId":`, quoted(isID), false},
	fSubjectID:     {`,"subjectId":`, quoted(isName), false},
	fTier:          {`,"tier":`, quoted(oneOf("cooperative", "keyed", "bound", "sandboxed", "separate")), false},
	fPeer:          {`,"peer":`, peer, false},
	fShimVersion:   {`,"shimVersion":`, quoted(isName), false},
	fProfileID:     {`,"profileId":`, quoted(isName), false},
	fKeyID:         {`,"keyId":`, quoted(isToken), false},
	fTenants:       {`,"tenants":`, list, false},
	fResourceID:    {`,"resourceId":`, quoted(isName), false},
	fVersion:       {`,"version":`, number(10), false},
	fContentSHA256: {`,"contentSha256":`, quoted(isHex(64)), false},
	fAction:        {`,"action":`, quoted(isAction), false},
	fCapability:    {`,"capability":`, quoted(isToken), false},
	fServer:        {`,"server":`, quoted(isName), false},
	fTool:          {`,"tool":`, quoted(isToken), false},
	fArgsDigest:    {`,"argsDigest":`, quoted(isHex(64)), false},
	fPin:           {`,"pin":`, quoted(isToken), false},
	fPolicy:        {`,"policy":`, quoted(isToken), false},
	fGrantID:       {`,"grantId":`, quoted(isID), false},
	fApprovalID:    {`,"approvalId":`, quoted(isID), false},
	fDecision:      {`,"decision":`, quoted(oneOf("allow", "deny", "error", "pending")), false},
	fReasonCode:    {`,"reasonCode":`, quoted(isCode), false},
	fCause:         {`,"cause":`, quoted(isCode), false},
	fDisclosed:     {`,"disclosed":`, quoted(oneOf("no", "reachable", "yes")), false},
	fBytes:         {`,"bytes":`, numberOrZero(18), false},
	fCount:         {`,"count":`, number(19), false},
	fVoid:          {`,"void":`, void, false},
	fPrev:          {`,"prev":`, quoted(isHex(64)), true},
	fSig:           {`,"sig":`, quoted(isSignature), false},
}

// line is one line, taken apart. The slices point into it.
type line struct {
	raw  []byte
	seq  uint64
	prev [32]byte
	body []byte // what sig is over: the line up to the comma before it; nil when unsigned
	void struct {
		segment uint32
		offset  int64
		seq     uint64
	}
	field [fields][]byte // without quotes; nil when absent
}

func (l *line) text(field int) string { return string(l.field[field]) }

func (l *line) number(field int) uint64 {
	n, _ := strconv.ParseUint(l.text(field), 10, 64)
	return n
}

func (l *line) is(kind string) bool { return string(l.field[fKind]) == kind }

func (l *line) signed() bool { return l.body != nil }

// scan reads one line with its newline. It allocates only to say what is wrong.
func (l *line) scan(raw []byte) error {
	*l = line{raw: raw}
	rest, ok := bytes.CutPrefix(raw, []byte(`{"v":1,"seq":`))
	if !ok {
		return fmt.Errorf("not an entry of version 1: %w", errMalformed)
	}
	if len(raw) > maxLine {
		return fmt.Errorf("longer than %d bytes: %w", maxLine, errMalformed)
	}
	n, ok := number(19)(rest)
	if !ok {
		return fmt.Errorf("seq: %w", errMalformed)
	}
	for _, digit := range rest[:n] {
		l.seq = l.seq*10 + uint64(digit-'0')
	}
	rest = rest[n:]
	for i := range order {
		f := &order[i]
		after, found := bytes.CutPrefix(rest, []byte(f.key))
		if !found {
			if f.required {
				return fmt.Errorf("%s is not where it belongs: %w", name(f.key), errMalformed)
			}
			continue
		}
		n, ok := f.read(after)
		if !ok {
			return fmt.Errorf("%s: %w", name(f.key), errMalformed)
		}
		if i == fSig {
			l.body = raw[:len(raw)-len(rest)]
		}
		value := after[:n]
		if value[0] == '"' {
			value = value[1 : n-1]
		}
		l.field[i] = value
		rest = after[n:]
	}
	if string(rest) != "}\n" {
		return fmt.Errorf("a field that is unknown, repeated or out of order: %w", errMalformed)
	}
	_, _ = hex.Decode(l.prev[:], l.field[fPrev])
	l.readVoid()
	return nil
}

func name(key string) string { return key[2 : len(key)-2] }

func (l *line) readVoid() {
	rest := l.field[fVoid]
	if rest == nil {
		return
	}
	take := func(key string) uint64 {
		_, after, found := bytes.Cut(rest, []byte(key))
		if !found {
			return 0
		}
		n, _ := number(19)(after)
		value, _ := strconv.ParseUint(string(after[:n]), 10, 64)
		return value
	}
	l.void.segment = uint32(take(`"segment":`))
	l.void.offset = int64(take(`"offset":`))
	l.void.seq = take(`"seq":`)
}

// The readers below return the length of the value at the beginning of rest.

func quoted(ok func([]byte) bool) func(rest []byte) (int, bool) {
	return func(rest []byte) (int, bool) {
		if len(rest) == 0 || rest[0] != '"' {
			return 0, false
		}
		end := bytes.IndexByte(rest[1:], '"')
		if end <= 0 {
			return 0, false
		}
		return end + 2, ok(rest[1 : 1+end])
	}
}

// number reads a positive integer without leading zeros.
func number(digits int) func(rest []byte) (int, bool) {
	return func(rest []byte) (int, bool) {
		n := 0
		for n < len(rest) && isDigit(rest[n]) {
			n++
		}
		return n, n > 0 && n <= digits && rest[0] != '0'
	}
}

func numberOrZero(digits int) func(rest []byte) (int, bool) {
	positive := number(digits)
	return func(rest []byte) (int, bool) {
		n, ok := positive(rest)
		return n, ok || n == 1
	}
}

func peer(rest []byte) (int, bool) {
	r := rest
	if !literal(&r, `{"uid":`) || !digits(&r, 10) || !literal(&r, `,"pid":`) || !digits(&r, 10) || !literal(&r, "}") {
		return 0, false
	}
	return len(rest) - len(r), true
}

func void(rest []byte) (int, bool) {
	r := rest
	read := number(19)
	if !literal(&r, `{"segment":`) {
		return 0, false
	}
	n, ok := number(8)(r)
	if !ok {
		return 0, false
	}
	r = r[n:]
	for _, key := range [...]string{`,"offset":`, `,"seq":`} {
		if literal(&r, key) {
			n, ok := read(r)
			if !ok || n == 19 && r[0] == '9' { // beyond an int64
				return 0, false
			}
			r = r[n:]
		}
	}
	if !literal(&r, "}") {
		return 0, false
	}
	return len(rest) - len(r), true
}

func list(rest []byte) (int, bool) {
	r := rest
	read := quoted(isName)
	if !literal(&r, "[") {
		return 0, false
	}
	for count := 0; count < 64; count++ {
		n, ok := read(r)
		if !ok {
			return 0, false
		}
		r = r[n:]
		if literal(&r, "]") {
			return len(rest) - len(r), true
		}
		if !literal(&r, ",") {
			return 0, false
		}
	}
	return 0, false
}

func literal(rest *[]byte, want string) bool {
	after, found := bytes.CutPrefix(*rest, []byte(want))
	if found {
		*rest = after
	}
	return found
}

// digits reads a number that may be zero.
func digits(rest *[]byte, limit int) bool {
	n, ok := numberOrZero(limit)(*rest)
	if ok {
		*rest = (*rest)[n:]
	}
	return ok
}
