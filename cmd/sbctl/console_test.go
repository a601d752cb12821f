package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/shellwords"
)

// What is quoted for a shell is the same word in the console: a fix that why
// shows can be pasted into either.
func TestQuotedWordsSurvive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		typed := rapid.SliceOfN(rapid.StringMatching(`[ -~äé\t]{0,12}`), 1, 6).Draw(t, "words")
		var quoted []string
		for _, word := range typed {
			quoted = append(quoted, shellQuote(word))
		}
		got, err := shellwords.Split(strings.Join(quoted, " "), "/home/me")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(typed, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	})
}

func TestCompleteLine(t *testing.T) {
	known := func(typed []string) (found []complete.Candidate) {
		for _, word := range []string{"subject", "subscribe", "secret", "grüße", "grün"} {
			if strings.HasPrefix(word, typed[len(typed)-1]) {
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
