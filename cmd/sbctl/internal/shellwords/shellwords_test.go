package shellwords

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplit(t *testing.T) {
	for _, test := range []struct {
		line string
		want []string
	}{
		{"", nil},
		{"   ", nil},
		{"# a comment", nil},
		{"subject list # and a comment", []string{"subject", "list"}},
		{"  grant\tworker  read:docs.* ", []string{"grant", "worker", "read:docs.*"}},
		{"a#b", []string{"a#b"}},
		{`'a b' "c d" e\ f ''`, []string{"a b", "c d", "e f", ""}},
		{`a'b'"c"d`, []string{"abcd"}},
		{`'$x | y' "a \"b\" \\ \$"`, []string{"$x | y", `a "b" \ $`}},
		{`"it's"`, []string{"it's"}},
		{"~/notes ~ a~/b '~/c'", []string{"/home/me/notes", "~", "a~/b", "~/c"}},
	} {
		got, err := Split(test.line, "/home/me")
		if err != nil {
			t.Errorf("%q: %v", test.line, err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", test.line, diff)
		}
	}
	for line, want := range map[string]string{
		"a | b":      `quote '|'`,
		"a > b":      `quote '>'`,
		"a; b":       `quote ';'`,
		"a & b":      `quote '&'`,
		"$HOME":      `quote '$'`,
		"`id`":       "quote '`'",
		`"$HOME"`:    `write '$' in single quotes`,
		`'a`:         "a quote is not closed",
		`"a`:         "a quote is not closed",
		`a\`:         "a backslash stands at the end",
		"(a)":        `quote '('`,
		"cat < file": `quote '<'`,
	} {
		if got, err := Split(line, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q, %v; want %s", line, got, err, want)
		}
	}
}

// quote is a word as a shell reads it back.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// What parses is the same when it is quoted and parsed again.
func FuzzSplit(f *testing.F) {
	f.Add(`a 'b c' "d" \e # f`)
	f.Fuzz(func(t *testing.T, line string) {
		found, err := Split(line, "")
		if err != nil {
			return
		}
		var quoted []string
		for _, word := range found {
			quoted = append(quoted, quote(word))
		}
		again, err := Split(strings.Join(quoted, " "), "")
		if diff := cmp.Diff(found, again); err != nil || diff != "" {
			t.Fatalf("%q: %v\n%s", line, err, diff)
		}
	})
}
