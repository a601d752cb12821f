package memory

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParseQuery(t *testing.T) {
	tests := []struct{ query, want string }{
		{"vault", `"vault"`},
		{"  Vault\tKEYS\n", `"vault" "keys"`},
		{"vault vault VAULT", `"vault"`},
		{`"data key"`, `"data key"`},
		{`"Data  Key" vault`, `"data key" "vault"`},
		{`rotate"data key"vault`, `"rotate" "data key" "vault"`},
		{`"one"`, `"one"`},
		{"rot*", `"rot*"`},
		{"rot* rot", `"rot*" "rot"`},
		{`"data ke*"`, `"data ke*"`},
		{"what is - really - X?", `"what" "is" "really" "x"`},
		{"well-known/path", `"well" "known" "path"`},
		{"well-kno*", `"well" "kno*"`},
		{"daemon.state user_id", `"daemon state" "user id"`},
		{"daemon.st*", `"daemon st*"`},
		{"don't", `"don't"`},
		{"数", `"数"`},
		{"数据", `"数 据"`},
		{"数据库", `"数 据" "据 库"`},
		{`"数据库"`, `"数 据 库"`},
		{"数据*", `"数 据*"`},
		{"iPhone数据6", `"iphone" "数 据" "6"`},
		{"データの保存", `"データ" "の 保" "保 存"`},
		{"ที่นี่", `"ที่ นี่"`},
		{"🚀 Straße", `"🚀" "strasse"`},
		{"\u212a", `"k"`},
	}
	for _, test := range tests {
		q, err := ParseQuery(test.query)
		if err != nil || q.String() != test.want {
			t.Errorf("%q is read as %s (%v), not %s", test.query, q, err, test.want)
		}
	}
}

func TestParseQueryRefuses(t *testing.T) {
	many := strings.Builder{}
	for i := range MaxTerms {
		fmt.Fprintf(&many, " x%d", i)
	}
	if _, err := ParseQuery(many.String()); err != nil {
		t.Errorf("%d terms: %v", MaxTerms, err)
	}
	if _, err := ParseQuery(strings.Repeat("x ", MaxQuery/2)); err != nil {
		t.Errorf("%d bytes: %v", MaxQuery, err)
	}
	tests := []struct{ query, want string }{
		{"", "no word in it"},
		{" \t ", "no word in it"},
		{"... ?!", "no word in it"},
		{`"open`, "not closed"},
		{`a "b" "`, "not closed"},
		{`a ""`, "no word in a phrase"},
		{`"-" a`, "no word in a phrase"},
		{"*", "a * stands"},
		{"*a", "a * stands"},
		{"a*b", "a * stands"},
		{"a**", "a * stands"},
		{"a *", "a * stands"},
		{"a-*", "a * stands"},
		{`"a"*`, "a * stands"},
		{`"a* b"`, "a * stands"},
		{`"a *"`, "a * stands"},
		{"a\x00", "control character"},
		{"a\x7f", "control character"},
		{"a\xff", "not UTF-8"},
		{many.String() + " one", "33 terms, of at most 32"},
		{strings.Repeat("x", MaxQuery+1), "longer than 1024 bytes"},
	}
	for _, test := range tests {
		q, err := ParseQuery(test.query)
		if !errors.Is(err, ErrQuery) || !strings.Contains(err.Error(), test.want) || len(q.terms) > 0 {
			t.Errorf("%q: %v (%s), not %q", test.query, err, q, test.want)
		}
	}
}

// What a query is understood as is read as the same, and finds what it names.
func FuzzParseQuery(f *testing.F) {
	for _, seed := range []string{"a", `"a b" c*`, "数据库 x", "a-b.c_d's*", `"`, "*", "👩‍💻 🇩🇪*", "\u00ad\u0301a\u200d🚀", strings.Repeat("é", 512)} {
		f.Add(seed)
	}
	ix := newIndex(f)
	f.Fuzz(func(t *testing.T, query string) {
		q, err := ParseQuery(query)
		if err != nil {
			if !errors.Is(err, ErrQuery) || len(q.terms) != 0 {
				t.Fatalf("%q: %v", query, err)
			}
			return
		}
		if len(q.terms) == 0 || len(q.terms) > MaxTerms {
			t.Fatalf("%q has %d terms", query, len(q.terms))
		}
		if text := q.String(); len(text) <= MaxQuery {
			again, err := ParseQuery(text)
			if err != nil || again.String() != text {
				t.Fatalf("%+q is understood as %+q, and that as %+q (%v)", query, text, again.String(), err)
			}
		}
		ix.Search(q, Scope{Tenants: []string{"t"}})

		alone := newIndex(t)
		if err := alone.Add(Entry{ID: "e", Tenant: "t", Kind: "note", Text: query}); err != nil {
			t.Fatal(err)
		}
		if r := alone.Search(q, Scope{Tenants: []string{"t"}}); r.Total != 1 {
			t.Fatalf("%+q does not find itself as %+q", query, q)
		}
	})
}
