package rules

import (
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxValue is how many characters of a value are looked at. A longer one counts as
// what the rule is against.
const maxValue = 8192

// matcher is a [Matcher] that matches.
type matcher struct {
	Matcher
	regex *regexp.Regexp
}

// finds reports whether the matcher matches v. Where that cannot be told, doubt is
// the answer: true in deny_if, false in allow_if.
func (m *matcher) finds(v *value, doubt bool, resolve Resolver) bool {
	if m.Path != nil || m.Host != nil {
		if v.kind != '"' || isLong(v.text) {
			return doubt
		}
		if m.Path != nil {
			return underAny(m.Path, v.text, doubt, resolve)
		}
		return hostOf(m.Host, v.text, doubt)
	}
	text := v.matched()
	switch {
	case isLong(text):
		return doubt
	case m.regex != nil:
		return m.regex.MatchString(text)
	case m.Exact != nil:
		return isSame(v, text, *m.Exact, doubt)
	case m.OneOf != nil:
		return slices.ContainsFunc(m.OneOf, func(one string) bool { return isSame(v, text, one, doubt) })
	case m.Prefix != nil:
		return slices.ContainsFunc(m.Prefix, func(prefix string) bool { return strings.HasPrefix(text, prefix) })
	}
	return doubt
}

func isLong(text string) bool {
	return len(text) > maxValue && utf8.RuneCountInString(text) > maxValue
}

// isSame reports whether v, as text, is what a rule names. Numbers are the same
// however they are written: 5, 5.0 and 0.5e1. In doubt are those that are the same to
// a reader who keeps no more of them than a float64 does.
func isSame(v *value, text, named string, doubt bool) bool {
	if text == named {
		return true
	}
	if v.kind != '0' {
		return false
	}
	a, ok := canonicalNumber(text)
	b, alsoOK := canonicalNumber(named)
	if ok && alsoOK && a == b {
		return true
	}
	if _, isNumber := canonicalNumber(named); !doubt || !isNumber {
		return false
	}
	x, err := strconv.ParseFloat(text, 64)
	y, alsoErr := strconv.ParseFloat(named, 64)
	return err == nil && alsoErr == nil && x == y
}

// number is a decimal number: digits without zeros at either end, times ten to the
// power of exponent.
type number struct {
	negative bool
	digits   string
	exponent int64
}

func canonicalNumber(text string) (n number, ok bool) {
	s := scanner{text: text}
	if s.number(&value{}); s.bad || s.at != len(text) {
		return n, false
	}
	text, n.negative = strings.TrimPrefix(text, "-"), strings.HasPrefix(text, "-")
	exponent := ""
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		text, exponent = text[:i], text[i+1:]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	n.digits = strings.TrimRight(digits, "0")
	if n.digits == "" {
		return number{}, true // zero has no sign, and no size
	}
	if exponent != "" {
		var err error
		if n.exponent, err = strconv.ParseInt(exponent, 10, 32); err != nil {
			return n, false
		}
	}
	n.exponent += int64(len(digits)-len(n.digits)) - int64(len(fraction))
	return n, true
}

// underAny reports whether text is one of the files or folders roots, or below it:
// by its name alone, and where its links lead. What a name means to the server
// cannot be known when it is neither absolute nor one of a folder that a rule names
// in the same way.
func underAny(roots []string, text string, doubt bool, resolve Resolver) bool {
	absolute := strings.HasPrefix(text, "/")
	roots = slices.DeleteFunc(slices.Clone(roots), func(root string) bool { return path.IsAbs(root) != absolute })
	if text == "" || len(roots) == 0 || strings.HasPrefix(text, "~") || strings.Contains(text, "://") || isFileURL(text) || strings.ContainsRune(text, 0) {
		return doubt
	}
	clean := path.Clean(text)
	if !absolute {
		if clean == ".." || strings.HasPrefix(clean, "../") {
			return doubt
		}
		return isUnder(roots, clean)
	}
	if resolve == nil {
		return isUnder(roots, clean)
	}
	for _, root := range roots {
		if resolved, err := resolve(root); err == nil && resolved != root {
			roots = append(roots, resolved)
		}
	}
	// The kernel follows a link before it goes up from there, so that the text as it
	// stands may lead elsewhere than what is left of it when it is cleaned first.
	places := []string{clean}
	for _, form := range slices.Compact([]string{clean, text}) {
		resolved, err := resolve(form)
		if err != nil {
			return doubt
		}
		places = append(places, resolved)
	}
	outside := func(place string) bool { return !isUnder(roots, place) }
	if doubt {
		return slices.ContainsFunc(places, func(place string) bool { return !outside(place) })
	}
	return !slices.ContainsFunc(places, outside)
}

// isFileURL reports whether text is a URL of a file, which needs no slashes.
func isFileURL(text string) bool { return len(text) >= 5 && strings.EqualFold(text[:5], "file:") }

func isUnder(roots []string, place string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return root == "/" || root == "." || place == root || strings.HasPrefix(place, root+"/")
	})
}

// hostOf reports whether text is the URL of one of hosts. What readers of URLs read
// differently is in doubt.
func hostOf(hosts []string, text string, doubt bool) bool {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Opaque != "" || u.Scheme == "file" || strings.ContainsFunc(text, isOddInURL) { // of a file the host says nothing
		return doubt
	}
	if u.User != nil && !doubt { // it is there to mislead
		return false
	}
	host, ok := canonicalHost(u.Hostname())
	if !ok {
		return doubt
	}
	return slices.ContainsFunc(hosts, func(named string) bool {
		if parent, below := strings.CutPrefix(named, "*."); below {
			return strings.HasSuffix(host, "."+parent)
		}
		return host == named
	})
}

func isOddInURL(r rune) bool { return r <= ' ' || r >= 0x7f || r == '\\' }

// canonicalHost returns a host in lower case, an address in its usual form. Not ok:
// it is a number that some read as an address, or no name of a host.
func canonicalHost(host string) (string, bool) {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().WithZone("").String(), true
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == "" || '0' <= last[0] && last[0] <= '9' || len(host) > 253 {
		return "", false
	}
	for i := range len(host) {
		c := host[i]
		if c != '.' && c != '-' && c != '_' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return host, !strings.Contains(host, "..") && host[0] != '.'
}
