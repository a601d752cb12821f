package audit

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
)

// Mask stands in for text that breaks the rules for names: its length and a
// keyed hash, so that equal texts look equal and none can be guessed from the
// log. The result is accepted wherever a name is.
//
//	~<bytes>~<16 hex digits of HMAC-SHA256(key, text)>
func Mask(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	b := append(make([]byte, 0, 40), '~')
	b = strconv.AppendInt(b, int64(len(text)), 10)
	b = append(b, '~')
	return string(hex.AppendEncode(b, mac.Sum(nil)[:8]))
}

// Limits of a line, so that no caller can write one that readers refuse.
const (
	maxName    = 128
	maxID      = 64
	maxToken   = 300
	maxTenants = 64
)

// check refuses every field that could carry more than a word, a name or an
// id. Errors name the field and never repeat its value.
func (e *Entry) check() error {
	if !e.Kind.Known() {
		return fmt.Errorf("%w: kind is not on the list", ErrInvalid)
	}
	for _, f := range [...]struct {
		name, value string
		ok          func(string) bool
	}{
		{"launchId", e.LaunchID, isID},
		{"runId", e.RunID, isID},
		{"sessionId", e.SessionID, isID},
		{"subjectId", e.SubjectID, isName},
		{"tier", e.Tier, isTier},
		{"shimVersion", e.ShimVersion, isName},
		{"profileId", e.ProfileID, isName},
		{"keyId", e.KeyID, isToken},
		{"resourceId", e.ResourceID, isName},
		{"action", e.Action, isAction},
		{"capability", e.Capability, isToken},
		{"server", e.Server, isName},
		{"tool", e.Tool, isToken},
		{"pin", e.Pin, isToken},
		{"policy", e.Policy, isToken},
		{"grantId", e.GrantID, isID},
		{"approvalId", e.ApprovalID, isID},
		{"decision", e.Decision, isDecision},
		{"reasonCode", e.ReasonCode, isCode},
		{"cause", e.Cause, isCode},
		{"disclosed", e.Disclosed, isDisclosed},
	} {
		if f.value != "" && !f.ok(f.value) {
			return fmt.Errorf("%w: %s is malformed", ErrInvalid, f.name)
		}
	}
	if len(e.Tenants) > maxTenants {
		return fmt.Errorf("%w: more than %d tenants", ErrInvalid, maxTenants)
	}
	for _, tenant := range e.Tenants {
		if !isName(tenant) {
			return fmt.Errorf("%w: tenants is malformed", ErrInvalid)
		}
	}
	if e.Peer != nil && e.Peer.PID < 0 {
		return fmt.Errorf("%w: peer is malformed", ErrInvalid)
	}
	if e.Bytes != nil && *e.Bytes < 0 {
		return fmt.Errorf("%w: bytes is negative", ErrInvalid)
	}
	if e.Void != nil && e.Void.Offset < 0 {
		return fmt.Errorf("%w: void is negative", ErrInvalid)
	}
	return nil
}

func isTier(s string) bool {
	switch s {
	case "cooperative", "keyed", "bound", "sandboxed", "separate":
		return true
	}
	return false
}

func isDecision(s string) bool {
	switch s {
	case "allow", "deny", "error", "pending":
		return true
	}
	return false
}

func isDisclosed(s string) bool { return s == "no" || s == "reachable" || s == "yes" }

// isWord takes the second word of a kind.
func isWord(s string) bool {
	return isMadeOf(s, maxID, func(c byte) bool { return isLower(c) || isDigit(c) || c == '_' || c == '-' || c == '.' }) &&
		isLower(s[0])
}

// isAction takes a capability's action, a verb such as grant.create, or a mask.
func isAction(s string) bool { return isWord(s) || isMask(s) }

// isCode takes SHOUTING_WORDS.
func isCode(s string) bool {
	return isMadeOf(s, maxID, func(c byte) bool { return isUpper(c) || isDigit(c) || c == '_' }) && isUpper(s[0])
}

func isID(s string) bool {
	return isMadeOf(s, maxID, func(c byte) bool { return isAlnum(c) || c == '_' || c == '-' })
}

// isName takes a name of the contract, or a mask.
func isName(s string) bool {
	return isMadeOf(s, maxName, func(c byte) bool { return isAlnum(c) || c == '.' || c == '_' || c == '-' }) && isAlnum(s[0]) ||
		isMask(s)
}

// isToken takes capabilities (with masked objects, too), key ids, digests with
// a prefix: longer than a name, but no blanks, quotes, escapes or controls.
func isToken(s string) bool {
	return isMadeOf(s, maxToken, func(c byte) bool {
		switch c {
		case '.', '_', '-', ':', '/', '*', '+', '=', '~', '@', ',':
			return true
		}
		return isAlnum(c)
	})
}

func isMask(s string) bool {
	if len(s) < 19 || len(s) > 40 || s[0] != '~' || s[len(s)-17] != '~' {
		return false
	}
	for i := 1; i < len(s)-17; i++ {
		if !isDigit(s[i]) {
			return false
		}
	}
	for i := len(s) - 16; i < len(s); i++ {
		if !isDigit(s[i]) && (s[i] < 'a' || s[i] > 'f') {
			return false
		}
	}
	return true
}

func isMadeOf(s string, limit int, ok func(byte) bool) bool {
	if s == "" || len(s) > limit {
		return false
	}
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isUpper(c byte) bool { return 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isAlnum(c byte) bool { return isLower(c) || isUpper(c) || isDigit(c) }
