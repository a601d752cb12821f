package textedit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

func plain(s string) string { return s }

func TestDiff(t *testing.T) {
	src := "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
	for _, test := range []struct {
		name, src string
		edits     []textedit.Edit
		want      string
	}{
		{"nothing", src, []textedit.Edit{{At: 3}}, ""},
		{"new file", "", []textedit.Edit{{Insert: "a\nb\n"}}, "@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"within a line", src, []textedit.Edit{{At: 8, Delete: 1, Insert: "five"}}, "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
		{"whole lines", src, []textedit.Edit{{At: 8, Insert: "a\n"}}, "@@ -2,6 +2,7 @@\n 2\n 3\n 4\n+a\n 5\n 6\n 7\n"},
		{"removed lines", src, []textedit.Edit{{At: 8, Delete: 4}}, "@@ -2,8 +2,6 @@\n 2\n 3\n 4\n-5\n-6\n 7\n 8\n 9\n"},
		{"two hunks", src + "10\n", []textedit.Edit{{At: 0, Delete: 2}, {At: 18, Delete: 3, Insert: "ten"}},
			"@@ -1,4 +1,3 @@\n-1\n 2\n 3\n 4\n@@ -7,4 +6,4 @@\n 7\n 8\n 9\n-10\n+ten\n\\ No newline at end of file\n"},
		{"no last line break", "a", []textedit.Edit{{At: 1, Insert: "\n\nb"}}, "@@ -1,1 +1,3 @@\n-a\n\\ No newline at end of file\n+a\n+\n+b\n\\ No newline at end of file\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := test.want
			if want != "" {
				want = "--- f\n+++ f\n" + want
			}
			if diff := cmp.Diff(want, textedit.Diff("f", "f", []byte(test.src), plain, test.edits...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDiffMasksWhatIsNotOurs(t *testing.T) {
	src := "theirs\nTHEIRS=1;\n" + strings.Repeat("x", 500) + "\n"
	got := textedit.Diff("f", "f", []byte(src), strings.ToUpper, textedit.Edit{At: 15, Insert: "our own\nours "})
	want := "--- f\n+++ f\n@@ -1,3 +1,4 @@\n THEIRS\n-THEIRS=1;\n+THEIRS=1our own\n+ours ;\n " +
		strings.Repeat("X", 40) + "…" + strings.Repeat("X", 40) + "\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := textedit.Diff("f", "f", []byte("a\x1b[31m\n"), plain, textedit.Edit{Insert: "b\n"}); strings.Contains(got, "\x1b") {
		t.Errorf("a terminal's control sequence gets through: %q", got)
	}
}

// TestDiffApplies: what the diff says is what the edits do.
func TestDiffApplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"a\n", "b\n", "\n", "c c\n"})
		src := strings.Join(rapid.SliceOfN(line, 0, 30).Draw(t, "lines"), "") + rapid.SampledFrom([]string{"", "end"}).Draw(t, "end")
		var edits []textedit.Edit
		for at := 0; at <= len(src) && len(edits) < 4; {
			at += rapid.IntRange(0, 20).Draw(t, "skip")
			if at > len(src) {
				break
			}
			e := textedit.Edit{At: at, Delete: rapid.IntRange(0, min(6, len(src)-at)).Draw(t, "delete"), Insert: rapid.StringMatching(`([ab]?\n?){0,4}`).Draw(t, "insert")}
			edits = append(edits, e)
			at += e.Delete + 1
		}
		diff := textedit.Diff("f", "f", []byte(src), plain, edits...)
		got, err := patch(src, diff)
		if want := string(textedit.Apply([]byte(src), edits...)); err != nil || got != want {
			t.Fatalf("%q with %+v gives %q, the diff gives %q (%v):\n%s", src, edits, want, got, err, diff)
		}
	})
}

// patch applies a unified diff, strictly.
func patch(src, diff string) (string, error) {
	if diff == "" {
		return src, nil
	}
	old := strings.SplitAfter(src, "\n")
	if old[len(old)-1] == "" {
		old = old[:len(old)-1]
	}
	var out []string
	at := 0
	rows := strings.Split(strings.TrimSuffix(diff, "\n"), "\n")[2:]
	for i := 0; i < len(rows); i++ {
		row := rows[i]
		if strings.HasPrefix(row, "@@") {
			var from, fromLen, to, toLen int
			if _, err := fmt.Sscanf(row, "@@ -%d,%d +%d,%d @@", &from, &fromLen, &to, &toLen); err != nil {
				return "", err
			}
			if fromLen > 0 {
				from--
			}
			out = append(out, old[at:from]...)
			at = from
			if toLen > 0 {
				to--
			}
			if to != len(out) {
				return "", fmt.Errorf("%s: %d lines written so far", row, len(out))
			}
			continue
		}
		text := row[1:] + "\n"
		if i+1 < len(rows) && strings.HasPrefix(rows[i+1], `\`) {
			text = row[1:]
		}
		switch row[0] {
		case ' ', '-':
			if at >= len(old) || old[at] != text {
				return "", fmt.Errorf("line %d is not %q", at+1, text)
			}
			at++
			if row[0] == ' ' {
				out = append(out, text)
			}
		case '+':
			out = append(out, text)
		}
	}
	return strings.Join(append(out, old[at:]...), ""), nil
}
