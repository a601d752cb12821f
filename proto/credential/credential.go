// Package credential knows the shapes of tokens and private keys. What looks like
// one is not filed as an ordinary document, and not shown where arguments of an
// agent are.
//
// It protects people from an oversight. It is no scanner: content that it does not
// recognise may still be secret.
package credential

import (
	"cmp"
	"regexp"
	"slices"
)

// aPrivateKey is the one that has more lines than the one that tells it.
const aPrivateKey = "a private key"

// credentials are the shapes of tokens and keys that are worth asking about.
// Each is anchored by its issuer's prefix, so that prose does not match.
var credentials = []struct {
	what  string
	shape *regexp.Regexp
}{
	{aPrivateKey, regexp.MustCompile(`-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----`)},
	{aPrivateKey, regexp.MustCompile(`PuTTY-User-Key-File-[0-9]+:`)},
	{"an age secret key", regexp.MustCompile(`AGE-SECRET-KEY-1[0-9A-Z]{20,}`)},
	{"a GitHub token", regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})`)},
	{"a GitLab token", regexp.MustCompile(`\bgl(?:pat|dt|ptt|rt|cbt|ft|soat|imt|agent)-[A-Za-z0-9_-]{16,}`)},
	{"an API key", regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{20,}`)},
	{"a payment key", regexp.MustCompile(`\b[sr]k_(?:live|test)_[A-Za-z0-9]{16,}`)},
	{"an AWS access key", regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b`)},
	{"a Google API key", regexp.MustCompile(`\bAIza[0-9A-Za-z_-]{35}`)},
	{"a Google OAuth token", regexp.MustCompile(`\bya29\.[0-9A-Za-z_-]{20,}`)},
	{"a Slack token", regexp.MustCompile(`\bxox[abeoprs]-[0-9A-Za-z-]{10,}`)},
	{"a Slack token", regexp.MustCompile(`\bxapp-[0-9]-[0-9A-Za-z-]{10,}`)},
	{"an npm token", regexp.MustCompile(`\bnpm_[A-Za-z0-9]{30,}`)},
	{"a PyPI token", regexp.MustCompile(`\bpypi-[A-Za-z0-9_-]{16,}`)},
	{"a Hugging Face token", regexp.MustCompile(`\bhf_[A-Za-z0-9]{30,}`)},
	{"a SendGrid key", regexp.MustCompile(`\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}`)},
	{"a DigitalOcean token", regexp.MustCompile(`\bdo[opr]_v1_[a-f0-9]{32,}`)},
	{"a Vault token", regexp.MustCompile(`\bhv[sbr]\.[A-Za-z0-9_-]{20,}`)},
	{"an agent key", regexp.MustCompile(`\bak_live_[0-9A-Za-z]{16,}`)},
	{"a signed token (JWT)", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}`)},
}

// Find says what b looks like, when it looks like a known token or a private key,
// or holds one.
func Find(b []byte) (what string, found bool) {
	for _, credential := range credentials {
		if credential.shape.Match(b) {
			return credential.what, true
		}
	}
	return "", false
}

// Span is a part of a text, from its first byte to the one behind it.
type Span struct{ Begin, End int }

// keyBody is a piece of what stands inside a private key.
var keyBody = regexp.MustCompile(`[A-Za-z0-9+/=_-]{16,}`)

// keyLine is how long a line of a private key is at least, in bytes, but for the
// last one. A shorter piece may be a path or an option that only stands near.
const keyLine = 40

// Spans says where in b what looks like a token or a private key is, in order and
// apart from each other: that alone is not to be shown. Of a private key it is the
// first line, whatever pieces without space follow that are as long as its lines, and
// a shorter one on the line right after, so that nothing else is hidden by standing
// beside one.
func Spans(b []byte) []Span {
	var all []Span
	key := len(b)
	ends := map[int]bool{} // of what belongs to a key
	for _, credential := range credentials {
		for _, at := range credential.shape.FindAllIndex(b, -1) {
			if credential.what == aPrivateKey {
				key = min(key, at[0])
				ends[at[1]] = true
			}
			end := at[1]
			for end < len(b) && isTokenByte(b[end]) { // perhaps another one, without space between
				end++
			}
			all = append(all, Span{at[0], end})
		}
	}
	for _, at := range keyBody.FindAllIndex(b[key:], -1) {
		begin, end := key+at[0], key+at[1]
		if end-begin >= keyLine || ends[lineBefore(b, begin)] {
			ends[end] = true
			all = append(all, Span{begin, end})
		}
	}
	return Apart(all)
}

// lineBefore is where the line ends before the one that begins with b[at], -1 when
// something else stands before it in its line. A line may end in an escape.
func lineBefore(b []byte, at int) int {
	ends := at < len(b) && (b[at] == 'n' || b[at] == 'r') && at > 0 && b[at-1] == '\\'
	for at > 0 {
		switch b[at-1] {
		case '\n', '\r':
			ends = true
		case ' ', '\t', '\\':
		default:
			if !ends {
				return -1
			}
			return at
		}
		at--
	}
	return -1
}

func isTokenByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

// Apart returns spans in order, with those that touch or overlap made one.
func Apart(spans []Span) []Span {
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Or(a.Begin-b.Begin, a.End-b.End) })
	var apart []Span
	for _, s := range spans {
		if n := len(apart); n > 0 && s.Begin <= apart[n-1].End {
			apart[n-1].End = max(apart[n-1].End, s.End)
			continue
		}
		apart = append(apart, s)
	}
	return apart
}
