package agents

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"subjectbroker/cmd/sbctl/internal/content"
)

// Scheme is what a reference to sealed content begins with: sb://NAME.
const Scheme = "sb://"

// verdict is what a value of a configuration is taken for.
type verdict struct {
	token  bool
	why    string // in words; for a value that is no token, why it is left
	scheme string // "Bearer " and the like, which is no part of the secret
}

func left(why string) verdict { return verdict{why: why} }

// schemes stand before the secret in a header.
var schemes = regexp.MustCompile(`(?i)^(?:bearer|basic|token|bot|apikey|api-key|key)[ \t]+`)

// judgeSetting says whether a variable or header holds a token in clear, by its
// name and by its shape. It errs on the side of a token where the name says so,
// and knows no way to recognise a password under the name of something else.
func judgeSetting(key, text string) verdict {
	v := verdict{scheme: schemes.FindString(text)}
	secret := strings.TrimSpace(text[len(v.scheme):])
	switch {
	case secret == "":
		return left("empty")
	case strings.HasPrefix(secret, Scheme):
		return left("a reference already")
	case isReference(secret):
		return left("names where the value comes from")
	case strings.ContainsRune(text, utf8.RuneError):
		return left("not valid Unicode")
	case isPlaceholder(secret):
		return left("a placeholder")
	}
	if what, found := content.Credential([]byte(secret)); found {
		v.token, v.why = true, "looks like "+what
		return v
	}
	if hasPassword(secret) {
		v.token, v.why, v.scheme = true, "an address with a password", ""
		return v
	}
	switch words := wordsOf(key); {
	case namesToken(words) && !isPlain(secret):
		v.token, v.why = true, "its name"
	case v.scheme != "" && !isPlain(secret):
		v.token, v.why = true, "a value to authenticate with"
	case !namesNoToken(words) && isRandom(secret):
		v.token, v.why = true, "looks random"
	default:
		return left("not taken for a token")
	}
	return v
}

// references are ways to say where a value comes from, of shells and agents.
var references = regexp.MustCompile(`\$\{[^}]*\}|\$\([^)]*\)|\{(?:env|file|input|secret):[^}]*\}`)

var wholeReference = regexp.MustCompile(`^(?:\$[A-Za-z_][A-Za-z0-9_]*|(?:op|vault|keyring|pass|file|env)://?\S+|%[A-Za-z_]+%)$`)

func isReference(text string) bool {
	return references.MatchString(text) && !longRest(references.ReplaceAllString(text, "")) || wholeReference.MatchString(text)
}

// longRest says whether enough stands around the references to be a secret of
// its own.
func longRest(rest string) bool {
	_, credential := content.Credential([]byte(rest))
	return credential || hasPassword(rest)
}

var placeholders = regexp.MustCompile(`(?i)^(?:<[^<>]*>|\[[^\[\]]*\]|x+|\*+|\.+|your[-_ ].*|change[-_ ]?me|replace[-_ ]?me|todo|none|null)$`)

func isPlaceholder(text string) bool { return placeholders.MatchString(text) }

// plain are values that are no secret, whatever they are called: switches,
// small numbers, and paths of files.
var plain = regexp.MustCompile(`(?i)^(?:true|false|yes|no|on|off|enabled|disabled|\d{1,5}|(?:~|\.{1,2}|[a-z]:)[/\\].*|(?:/[a-z0-9._@ -]+)+\.(?:pem|key|json|txt|crt|cer|p12|pfx|pub|env|ya?ml|toml|ini|sock)|/(?:home|users|etc|run|var|tmp|opt|usr|mnt|srv|root|dev)/.*)$`)

func isPlain(text string) bool { return plain.MatchString(text) }

// passwords matches an address with a user and a password.
var passwords = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://[^\s/@:]*:([^\s/@]+)@`)

func hasPassword(text string) bool {
	found := passwords.FindStringSubmatch(text)
	return found != nil && !isPlaceholder(found[1]) && !references.MatchString(found[1])
}

// wordsOf are the words of a name, small: GITHUB_TOKEN, githubToken, X-Api-Key.
func wordsOf(name string) []string {
	var words []string
	var word strings.Builder
	flush := func() {
		if word.Len() > 0 {
			words = append(words, strings.ToLower(word.String()))
			word.Reset()
		}
	}
	runes := []rune(name)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush()
			continue
		case i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			flush()
		}
		word.WriteRune(r)
	}
	flush()
	return words
}

// tokenWords end the names of what must stay secret.
var tokenWords = map[string]bool{
	"token": true, "secret": true, "password": true, "passwd": true, "passphrase": true, "pass": true, "pwd": true, "pw": true, "pat": true,
	"apikey": true, "accesskey": true, "secretkey": true, "privatekey": true, "apitoken": true, "accesstoken": true, "authtoken": true,
	"authorization": true, "auth": true, "credential": true, "credentials": true, "creds": true, "cookie": true, "bearer": true, "jwt": true, "key": true,
}

// keptWords, before "key", make it one that everybody may know.
var keptWords = map[string]bool{"public": true, "pub": true, "publishable": true, "primary": true, "foreign": true, "sort": true, "cache": true}

// namesToken says whether a name is that of a secret, by its last word; numbers
// at the end and a "value" or "base64" behind it do not count.
func namesToken(words []string) bool {
	for len(words) > 1 && (strings.Trim(words[len(words)-1], "0123456789") == "" || words[len(words)-1] == "value" || words[len(words)-1] == "base64" || words[len(words)-1] == "b64") {
		words = words[:len(words)-1]
	}
	if len(words) == 0 {
		return false
	}
	last := words[len(words)-1]
	if last == "key" && len(words) > 1 && keptWords[words[len(words)-2]] {
		return false
	}
	if tokenWords[last] {
		return true
	}
	// GITHUBTOKEN, without anything between the words.
	for _, end := range []string{"token", "password", "secret", "apikey"} {
		if strings.HasSuffix(last, end) {
			return true
		}
	}
	return false
}

// plainWords end the names of what looks random and is no secret.
var plainWords = map[string]bool{
	"id": true, "ids": true, "uuid": true, "guid": true, "url": true, "uri": true, "host": true, "path": true, "dir": true, "file": true, "hash": true,
	"sha": true, "sha1": true, "sha256": true, "digest": true, "checksum": true, "commit": true, "revision": true, "version": true, "fingerprint": true,
	"name": true, "user": true, "username": true, "email": true, "project": true, "region": true, "key": true, "agent": true, "type": true, "accept": true,
}

func namesNoToken(words []string) bool { return len(words) > 0 && plainWords[words[len(words)-1]] }

var (
	longHex  = regexp.MustCompile(`^[0-9a-fA-F]{32,}$`)
	longText = regexp.MustCompile(`^[A-Za-z0-9_+/=.-]{32,}$`)
)

// isRandom says whether text looks like nothing a person would have written.
func isRandom(text string) bool {
	if longHex.MatchString(text) {
		return strings.ContainsAny(text, "0123456789") && strings.ContainsAny(text, "abcdefABCDEF")
	}
	return longText.MatchString(text) && !strings.Contains(text, "//") && strings.Count(text, ".") < 3 && strings.Count(text, "/") < 4 &&
		strings.ContainsAny(text, "0123456789") && strings.ToLower(text) != text && strings.ToUpper(text) != text
}

// assigned finds a secret that is given a name inside a longer text, such as an
// argument or the query of an address.
var assigned = regexp.MustCompile(`([A-Za-z][A-Za-z0-9_-]*)(?:=|:[ \t]*)(?:(?i:bearer|basic|token)[ \t]+)?([^\s&"',;/?][^\s&"',;?]{7,})`)

// strayIn says what a text that is neither variable nor header holds in clear,
// "" if nothing that is recognised.
func strayIn(text string) string {
	if what, found := content.Credential([]byte(text)); found {
		return "looks like " + what
	}
	if hasPassword(text) {
		return "an address with a password"
	}
	for _, found := range assigned.FindAllStringSubmatch(text, -1) {
		secret := found[2]
		if namesToken(wordsOf(found[1])) && !isPlain(secret) && !isPlaceholder(secret) && !isReference(secret) &&
			!strings.HasPrefix(secret, Scheme) && !strings.HasPrefix(secret, "$") && !strings.HasPrefix(secret, "{") {
			return "has a token in it"
		}
	}
	return ""
}

// Token says by what a variable or header of that name is taken for a secret in
// clear; "" when it is not.
func Token(key, text string) string {
	if v := judgeSetting(key, text); v.token {
		return v.why
	}
	return ""
}

// TokenWithin says what an argument or an address holds in clear; "" if nothing that
// is recognised.
func TokenWithin(text string) string { return strayIn(text) }
