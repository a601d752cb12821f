package rules

import (
	"errors"
	"strings"
	"testing"
)

func text(s string) *string { return &s }

// links is a file system of links alone.
func links(all map[string]string) Resolver {
	return func(path string) (string, error) {
		if strings.HasPrefix(path, "/secret") {
			return "", errors.New("permission denied")
		}
		for range 10 {
			found := false
			for from, to := range all {
				if path == from || strings.HasPrefix(path, from+"/") {
					path, found = to+path[len(from):], true
				}
			}
			if !found {
				break
			}
		}
		return cleanPath(path), nil
	}
}

func cleanPath(path string) string {
	var parts []string
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "" || part == ".":
		case part == ".." && len(parts) > 0:
			parts = parts[:len(parts)-1]
		default:
			parts = append(parts, part)
		}
	}
	return "/" + strings.Join(parts, "/")
}

// Each line: what a matcher makes of a value, in allow_if and in deny_if.
func TestMatchers(t *testing.T) {
	resolve := links(map[string]string{"/data/link": "/etc", "/shared": "/data/shared", "/data/up": "/data/a/b/c"})
	long := strings.Repeat("é", maxValue)
	for _, tc := range []struct {
		name        string
		m           Matcher
		value       string // JSON
		allow, deny bool
	}{
		{"a regex anywhere", Matcher{Regex: `\.env`}, `"/app/.env.local"`, true, true},
		{"a regex nowhere", Matcher{Regex: `\.env`}, `"/app/env"`, false, false},
		{"a regex on a number", Matcher{Regex: `^5$`}, `5`, true, true},
		{"a regex on a word", Matcher{Regex: `^(true|null)$`}, `null`, true, true},
		{"a regex on an object", Matcher{Regex: `^\{"a":1\}$`}, `{ "a" : 1 }`, true, true},
		{"a regex on a list", Matcher{Regex: `"x"`}, `["x"]`, true, true},
		{"a value as long as may be", Matcher{Regex: `^é+$`}, `"` + long + `"`, true, true},
		{"a longer one is in doubt", Matcher{Regex: `^é+$`}, `"` + long + `é"`, false, true},
		{"a longer one is in doubt when nothing matches", Matcher{Regex: `^x$`}, `"` + long + `é"`, false, true},

		{"exactly", Matcher{Exact: text("a")}, `"a"`, true, true},
		{"not exactly", Matcher{Exact: text("a")}, `"ab"`, false, false},
		{"exactly nothing", Matcher{Exact: text("")}, `""`, true, true},
		{"a number however written", Matcher{Exact: text("50")}, `5.0e1`, true, true},
		{"a number however the rule writes it", Matcher{Exact: text("0.50")}, `0.5`, true, true},
		{"another sign", Matcher{Exact: text("5")}, `-5`, false, false},
		{"zero has none", Matcher{Exact: text("0")}, `-0.0`, true, true},
		{"another size", Matcher{Exact: text("5")}, `50`, false, false},
		{"an exponent beyond all bounds", Matcher{Exact: text("5")}, `5e99999999999999999999`, false, false},
		{"zero, whatever its exponent", Matcher{Exact: text("0")}, `0.0e99999999999999999999`, true, true},
		{"what many readers take for it", Matcher{Exact: text("5")}, `5.00000000000000000001`, false, true},
		{"what many readers take for one of", Matcher{OneOf: []string{"a", "9007199254740993"}}, `9007199254740992`, false, true},
		{"a string is its characters", Matcher{Exact: text("5")}, `"5.0"`, false, false},
		{"one of", Matcher{OneOf: []string{"a", "b"}}, `"b"`, true, true},
		{"none of", Matcher{OneOf: []string{"a", "b"}}, `"c"`, false, false},
		{"a prefix", Matcher{Prefix: []string{"feature-"}}, `"feature-x"`, true, true},
		{"no prefix", Matcher{Prefix: []string{"feature-"}}, `"a feature-x"`, false, false},

		{"below a folder", Matcher{Path: []string{"/data"}}, `"/data/x"`, true, true},
		{"the folder itself", Matcher{Path: []string{"/data"}}, `"/data/"`, true, true},
		{"beside the folder", Matcher{Path: []string{"/data"}}, `"/database/x"`, false, false},
		{"out of the folder", Matcher{Path: []string{"/data"}}, `"/data/../etc/passwd"`, false, false},
		{"into a folder that is denied", Matcher{Path: []string{"/etc"}}, `"/data/../etc/passwd"`, true, true},
		{"out by a link", Matcher{Path: []string{"/data"}}, `"/data/link/passwd"`, false, true},
		{"into by a link", Matcher{Path: []string{"/etc"}}, `"/data/link/passwd"`, false, true},
		{"up after a link", Matcher{Path: []string{"/data/a"}}, `"/data/up/../../x"`, false, true},
		{"a folder that is a link", Matcher{Path: []string{"/shared"}}, `"/shared/x"`, true, true},
		{"below where a link leads", Matcher{Path: []string{"/shared"}}, `"/data/shared/x"`, true, true},
		{"what cannot be looked into", Matcher{Path: []string{"/secret"}}, `"/secret/x"`, false, true},
		{"root", Matcher{Path: []string{"/"}}, `"/x"`, true, true},
		{"a relative name against absolute ones", Matcher{Path: []string{"/data"}}, `"x"`, false, true},
		{"an absolute name against relative ones", Matcher{Path: []string{"src"}}, `"/x"`, false, true},
		{"relative below", Matcher{Path: []string{"src"}}, `"./src/a/../b"`, true, true},
		{"relative beside", Matcher{Path: []string{"src"}}, `"doc/a"`, false, false},
		{"relative and out", Matcher{Path: []string{"src"}}, `"src/../../etc"`, false, true},
		{"both kinds", Matcher{Path: []string{"/data", "src"}}, `"src/x"`, true, true},
		{"a home", Matcher{Path: []string{"/home/u"}}, `"~/x"`, false, true},
		{"a home against relative names", Matcher{Path: []string{"src"}}, `"~/x"`, false, true},
		{"a URL of a file", Matcher{Path: []string{"/data"}}, `"file:///data/x"`, false, true},
		{"a URL of a file, without slashes", Matcher{Path: []string{"."}}, `"File:/etc/passwd"`, false, true},
		{"a name with a colon", Matcher{Path: []string{"."}}, `"a/file:b"`, true, true},
		{"a NUL", Matcher{Path: []string{"/data"}}, `"/data/x\u0000/../../etc"`, false, true},
		{"no text is no file", Matcher{Path: []string{"/data"}}, `["/data/x"]`, false, true},
		{"nothing is no file", Matcher{Path: []string{"/data"}}, `""`, false, true},

		{"a host", Matcher{Host: []string{"example.com"}}, `"https://example.com/x?y#z"`, true, true},
		{"a port does not matter", Matcher{Host: []string{"example.com"}}, `"https://EXAMPLE.com.:8443"`, true, true},
		{"another host", Matcher{Host: []string{"example.com"}}, `"https://example.com.evil.org/"`, false, false},
		{"a host below is another", Matcher{Host: []string{"example.com"}}, `"https://a.example.com/"`, false, false},
		{"a host below", Matcher{Host: []string{"*.example.com"}}, `"https://a.b.example.com/"`, true, true},
		{"not itself", Matcher{Host: []string{"*.example.com"}}, `"https://example.com/"`, false, false},
		{"a user that looks like a host", Matcher{Host: []string{"example.com"}}, `"https://example.com@evil.org/"`, false, false},
		{"a user before a host that is denied", Matcher{Host: []string{"evil.org"}}, `"https://example.com@evil.org/"`, false, true},
		{"a backslash", Matcher{Host: []string{"example.com"}}, `"https://example.com\\@evil.org/"`, false, true},
		{"no scheme", Matcher{Host: []string{"example.com"}}, `"example.com/x"`, false, true},
		{"a file of this machine", Matcher{Host: []string{"localhost"}}, `"FILE://localhost/etc/passwd"`, false, true},
		{"no slashes", Matcher{Host: []string{"example.com"}}, `"https:example.com"`, false, true},
		{"a space", Matcher{Host: []string{"example.com"}}, `" https://example.com"`, false, true},
		{"letters beyond ASCII", Matcher{Host: []string{"example.com"}}, `"https://éxample.com"`, false, true},
		{"an address", Matcher{Host: []string{"127.0.0.1"}}, `"http://127.0.0.1:80/"`, true, true},
		{"an address in six", Matcher{Host: []string{"127.0.0.1"}}, `"http://[::ffff:127.0.0.1]/"`, true, true},
		{"an address as a number", Matcher{Host: []string{"127.0.0.1"}}, `"http://2130706433/"`, false, true},
		{"an address in octal", Matcher{Host: []string{"127.0.0.1"}}, `"http://0177.0.0.1/"`, false, true},
		{"an address in hexadecimal", Matcher{Host: []string{"127.0.0.1"}}, `"http://0x7f.1/"`, false, true},
		{"no text is no URL", Matcher{Host: []string{"example.com"}}, `5`, false, true},
	} {
		if _, err := tc.m.check(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		args, err := ParseArgs([]byte(`{"v":` + tc.value + `}`))
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		m, v := compileMatcher(tc.m), args.at([]string{"v"})
		if got := m.finds(v, false, resolve); got != tc.allow {
			t.Errorf("%s: in allow_if %v, want %v", tc.name, got, tc.allow)
		}
		if got := m.finds(v, true, resolve); got != tc.deny {
			t.Errorf("%s: in deny_if %v, want %v", tc.name, got, tc.deny)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, good := range []string{
		`a`, `^/var/data/`, `(a|b)+`, `(ab)+c+`, `[(+)]+`, `\(a+\)+`, `a{2,5}`, `(a{1})+`, `(a?)+`, `x{`, `\Q(a+)+\E`, `[]a+]+`, `[^]]+`, `(?i)token`, `a|b*`, `^$`, `(?m)^a$\n^b`,
		strings.Repeat("é", maxPattern), `[[:alpha:]]+`, `(?:ab)+`,
	} {
		if _, err := checkPattern(good); err != nil {
			t.Errorf("%.40s: %v", good, err)
		}
	}
	for bad, why := range map[string]string{
		`(`:                               "RE2",
		`a**`:                             "RE2",
		`(?=a)`:                           "RE2",
		`\1`:                              "RE2",
		`(a+)+`:                           "repeat",
		`(?:a+)+`:                         "repeat",
		`(a*)*`:                           "repeat",
		`((a+)b)*`:                        "repeat",
		`(a|b{2,})+`:                      "repeat",
		`(a+){2}`:                         "repeat",
		`(?P<x>[a-z]+)*`:                  "repeat",
		strings.Repeat("a", maxPattern+1): "512",
		`a^`:                              "ever match",
		`$a`:                              "ever match",
		`[^\x00-\x{10FFFF}]`:              "ever match",
		`\pL{500}\pL{500}\pL{500}\pL{500}\pL{500}\pL{500}\pL{500}\pL{500}\pL{500}`: "large",
	} {
		if _, err := checkPattern(bad); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%.40s: %v, want an error that says %q", bad, err, why)
		}
	}
}
