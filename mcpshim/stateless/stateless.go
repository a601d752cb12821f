// Package stateless has the words of MCP's era without sessions, as they stand in
// headers over HTTP: for the gateway, which reads them, and for the host of servers,
// which writes them. It decides nothing.
package stateless

import (
	"encoding/base64"
	"strings"
)

// Revision is the first revision of MCP without initialize and sessions: each request
// says by itself which revision it is in and whose it is.
const Revision = "2026-07-28"

// Earlier are the revisions with initialize that are spoken, newest first.
var Earlier = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Headers of a request. HeaderRevision is older than the era.
const (
	HeaderRevision   = "Mcp-Protocol-Version"
	HeaderMethod     = "Mcp-Method"
	HeaderName       = "Mcp-Name"
	HeaderParameters = "Mcp-Param-" // and the name of an argument
)

const before, after = "=?base64?", "?="

// HeaderText is text as it may stand in a header: plain, or in base64 where it could
// not be written so.
func HeaderText(text string) string {
	plain := text == strings.TrimSpace(text) && !strings.HasPrefix(text, before) &&
		!strings.ContainsFunc(text, func(c rune) bool { return c < 0x20 || c > 0x7e })
	if plain {
		return text
	}
	return before + base64.StdEncoding.EncodeToString([]byte(text)) + after
}

// Text is what HeaderText was made of; ok is false for what it would not have written.
func Text(header string) (text string, ok bool) {
	inner, ok := strings.CutPrefix(header, before)
	if !ok {
		return header, true
	}
	inner, ok = strings.CutSuffix(inner, after)
	if !ok { // half of it is none
		return header, true
	}
	decoded, err := base64.StdEncoding.DecodeString(inner)
	return string(decoded), err == nil
}
