package memory

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func query(tb testing.TB, text string) Query {
	tb.Helper()
	q, err := ParseQuery(text)
	if err != nil {
		tb.Fatalf("%s: %v", text, err)
	}
	return q
}

func TestExcerpt(t *testing.T) {
	const text = "The vault holds rows. Each row is sealed under a data key of its own term. " +
		"When the term ends, rows are sealed anew in the background. A data key never leaves memory. " +
		"The log says who asked for what, and when. Backups hold sealed rows."
	tests := []struct {
		name, text, query string
		n                 int
		want              string
	}{
		{"all of it", "short text", "text", 10, "short text"},
		{"nothing fits", text, "nowhere", 30, "The vault holds rows…"},
		{"one word", text, "background", 60, "…sealed anew in the background. A data key never…"},
		{"the most different", text, "data memory key", 50, "…A data key never leaves memory. The…"},
		{"a phrase", text, `"data key never"`, 40, "…A data key never leaves…"},
		{"a beginning", text, "backu*", 40, "…and when. Backups hold sealed…"},
		{"at the end", text, "backups", 60, "…asked for what, and when. Backups hold sealed rows."},
		{"what was folded", "xxx yyy zzz STRASSE und E\u0301TE\u0301 aaa bbb ccc", "straße été", 30, "…STRASSE und E\u0301TE\u0301…"},
		{"no spaces", strings.Repeat("语", 50) + "数据库" + strings.Repeat("言", 50), "数据库", 30, "…语语数据库言言…"},
		{"a picture is whole", strings.Repeat("👩‍💻 ", 10) + "end", "end", 30, "…👩‍💻 end"},
		{"one long word", strings.Repeat("x", 100) + " y", "zzz", 20, "xxxxxxxxxxxxxx…"},
		{"no word", strings.Repeat("- ", 50), "zzz", 20, "- - - - - - -…"},
		{"no room", text, "vault", 6, ""},
		{"less than none", text, "vault", -1, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Excerpt(test.text, query(t, test.query), test.n)
			if got != test.want {
				t.Errorf("%q\nis not\n%q", got, test.want)
			}
		})
	}
	if got := Excerpt(text, Query{}, 30); got != "The vault holds rows…" {
		t.Errorf("without a query: %q", got)
	}
}

func FuzzExcerpt(f *testing.F) {
	f.Add("some text that is longer than what is wanted of it", "longer wanted", 20)
	f.Add(strings.Repeat("数据库", 30)+"👩‍💻é", `数据 "e* "`, 40)
	f.Add("a.b_c "+strings.Repeat("x", 300), "x* a.b", 9)
	f.Fuzz(func(t *testing.T, text, written string, n int) {
		q, err := ParseQuery(written)
		if err != nil {
			q = Query{}
		}
		n %= 1000
		got := Excerpt(text, q, n)
		if len(got) > max(n, 0) {
			t.Fatalf("%d bytes of at most %d: %+q", len(got), n, got)
		}
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Fatalf("%+q is not UTF-8", got)
		}
		inner := got
		if len(text) > n {
			inner = strings.TrimSuffix(strings.TrimPrefix(got, leftOut), leftOut)
		}
		if !strings.Contains(text, strings.Trim(inner, leftOut)) {
			t.Fatalf("%+q is not in %+q", got, text)
		}
	})
}
