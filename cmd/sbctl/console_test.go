package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/cmd/sbctl/internal/complete"
)

func TestSplitLine(t *testing.T) {
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
		got, err := splitLine(test.line, "/home/me")
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
		if got, err := splitLine(line, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %q, %v; want %s", line, got, err, want)
		}
	}
}

// What is quoted for a shell is the same word in the console: a fix that why
// shows can be pasted into either.
func TestQuotedWordsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[ -~äé\t]{0,12}`), 1, 6).Draw(t, "words")
		var quoted []string
		for _, word := range words {
			quoted = append(quoted, shellQuote(word))
		}
		got, err := splitLine(strings.Join(quoted, " "), "/home/me")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(words, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	})
}

func FuzzSplitLine(f *testing.F) {
	f.Add(`a 'b c' "d" \e # f`)
	f.Fuzz(func(t *testing.T, line string) {
		words, err := splitLine(line, "")
		if err != nil {
			return
		}
		var quoted []string
		for _, word := range words {
			quoted = append(quoted, shellQuote(word))
		}
		again, err := splitLine(strings.Join(quoted, " "), "")
		if diff := cmp.Diff(words, again); err != nil || diff != "" {
			t.Fatalf("%q: %v\n%s", line, err, diff)
		}
	})
}

func TestCompleteLine(t *testing.T) {
	known := func(words []string) (found []complete.Candidate) {
		for _, word := range []string{"subject", "subscribe", "secret", "grüße", "grün"} {
			if strings.HasPrefix(word, words[len(words)-1]) {
				found = append(found, complete.Candidate{Word: word})
			}
		}
		return found
	}
	for _, test := range []struct {
		line, want string
		choices    int
	}{
		{"", "", 5},
		{"se", "secret ", 1},
		{"s", "s", 3},
		{"su", "sub", 2},
		{"sub", "sub", 2},
		{"sbctl se", "sbctl secret ", 1},
		{"nothing", "nothing", 0},
		{"secret ", "secret ", 5},
		{"gr", "grü", 2},
	} {
		got, choices := completeLine(test.line, known)
		if got != test.want || len(choices) != test.choices {
			t.Errorf("%q becomes %q with %d choices, want %q with %d", test.line, got, len(choices), test.want, test.choices)
		}
	}
}
