package descriptor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/descriptor"
	"subjectbroker/cmd/sbctl/internal/ui"
)

func TestLines(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"nothing":      {``, ``},
		"a word":       {`Be kind.`, `| Be kind.`},
		"an object":    {`{"b":1,"a":[true,null,1e3],"c":{}}`, "{\n  \"b\": 1\n  \"a\": [true, null, 1e3]\n  \"c\": {}\n}"},
		"a line break": {`{"d":"one\ntwo"}`, "{\n  \"d\":\n    | one\\n\n    | two\n}"},
		"a backslash":  {`{"d":"a\\nb \"q\""}`, "{\n  \"d\": \"a\\\\nb \\\"q\\\"\"\n}"},
		"not seen":     {`{"d":"a\u200bb\u202ec\u001b[31m\u3164\ufe0f\udb40\udc41"}`, "{\n  \"d\": \"a\\u{200b}b\\u{202e}c\\x1b[31m\\u{3164}\\u{fe0f}\\u{e0041}\"\n}"},
		"in a key":     {`{"a\u200b":1}`, "{\n  \"a\\u{200b}\": 1\n}"},
		"rest":         {`{} {}`, `| {} {}`},
	} {
		got := strings.Join(descriptor.Lines([]byte(test.text)), "\n")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// Nothing is wider than a terminal, nothing is pushed out of sight, and nothing is
// left out.
func TestLongTexts(t *testing.T) {
	words := strings.Repeat("some words of it ", 100)
	hard := ""
	for i := range 300 {
		hard += fmt.Sprint(i, ";")
	}
	lines := descriptor.Lines(fmt.Appendf(nil, `{"a":%q,"b":%q}`, words, hard))
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > descriptor.Width {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	shown := strings.NewReplacer("\n", "", " ", "", "|", "").Replace(strings.Join(lines, "\n"))
	if !strings.Contains(shown, hard) {
		t.Errorf("a part of %.20s… is missing", hard)
	}
	lines = descriptor.Lines(fmt.Appendf(nil, `{"a":%q}`, "harmless"+strings.Repeat("\n", 10_000)+"and not"))
	if len(lines) > 20 || !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, "9998 times more") }) {
		t.Errorf("%d lines:\n%.300s", len(lines), strings.Join(lines, "\n"))
	}
}

func TestDiff(t *testing.T) {
	before := strings.Split("a b c d e f g h i j k l m", " ")
	for name, test := range map[string]struct{ after, want string }{
		"the same":     {"a b c d e f g h i j k l m", ""},
		"one changed":  {"a b c d e f X h i j k l m", " …| d| e| f|-g|+X| h| i| j| …"},
		"one new":      {"N a b c d e f g h i j k l m", "+N| a| b| c| …"},
		"one gone":     {"a b c d e f g h i j k l", " …| j| k| l|-m"},
		"two far away": {"a X c d e f g h i j k Y m", " a|-b|+X| c| d| e| …| i| j| k|-l|+Y| m"},
	} {
		got := strings.Join(descriptor.Diff(before, strings.Split(test.after, " ")), "|")
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
	if got := descriptor.Diff(nil, []string{"x"}); !slices.Equal(got, []string{"+x"}) {
		t.Errorf("new: %q", got)
	}
	var many, other []string
	for i := range 5000 {
		many, other = append(many, fmt.Sprint("a", i)), append(other, fmt.Sprint("b", i))
	}
	if got := descriptor.Diff(many, other); len(got) != 10_000 {
		t.Errorf("%d lines of 10000", len(got))
	}
}

func TestHidden(t *testing.T) {
	for text, want := range map[string]int{"": 0, "plain\ttext\nñ": 0, "a\u200bb": 1, "\U000e0041\ufe0f\u2800\u3164": 4, "\x1b[31m": 1, "\xff": 1} {
		if got := ui.Hidden(descriptor.Text([]byte(text))); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if got := ui.Hidden(descriptor.Text([]byte(`{"a":["\u200b",{"\u200b":1}]}`))); got != 2 {
		t.Errorf("in JSON: %d", got)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"a":[1,"x\n",{"b":null}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, line := range descriptor.Lines(text) {
			if ui.Safe(line) != line {
				t.Errorf("%q is not safe", line)
			}
		}
	})
}
