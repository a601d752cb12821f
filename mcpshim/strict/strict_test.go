package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestCheckValue(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want error
	}{
		{`{}`, nil},
		{` [1, -0.5e+3, true, false, null, "a\u00e9\n\/"] `, nil},
		{`{"a":{"a":1},"b":[{"a":1},{"a":2}]}`, nil},
		{``, ErrSyntax},
		{`01`, ErrSyntax},
		{`1.`, ErrSyntax},
		{`-`, ErrSyntax},
		{`1e`, ErrSyntax},
		{`.5`, ErrSyntax},
		{`+1`, ErrSyntax},
		{`nul`, ErrSyntax},
		{`NaN`, ErrSyntax},
		{`'a'`, ErrSyntax},
		{`"a`, ErrSyntax},
		{"\"a\tb\"", ErrSyntax},
		{`"\x41"`, ErrSyntax},
		{`"\u12g4"`, ErrSyntax},
		{`"\u12"`, ErrSyntax},
		{`{"a":1,}`, ErrSyntax},
		{`{"a" 1}`, ErrSyntax},
		{`{a:1}`, ErrSyntax},
		{`[1,]`, ErrSyntax},
		{`[1`, ErrSyntax},
		{`{} {}`, ErrSyntax},
		{`{}x`, ErrSyntax},
		{"\xef\xbb\xbf{}", ErrSyntax},
		{`{"a":1,"a":2}`, ErrDuplicate},
		{`{"a":1,"\u0061":2}`, ErrDuplicate},
		{`{"x":[{"k":1,"k":1}]}`, ErrDuplicate},
		{`{"a":1,"A":2}`, nil},
		{strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth), nil},
		{strings.Repeat("[", MaxDepth+1) + strings.Repeat("]", MaxDepth+1), ErrDepth},
		{strings.Repeat(`{"a":`, MaxDepth+1) + `1` + strings.Repeat("}", MaxDepth+1), ErrDepth},
		{manyKeys(MaxMembers), nil},
		{manyKeys(MaxMembers + 1), ErrCrowded},
		{manyKeys(20)[:len(manyKeys(20))-1] + `,"k7":0}`, ErrDuplicate},
	} {
		if err := CheckValue([]byte(tc.in)); !errors.Is(err, tc.want) {
			t.Errorf("%.80q: got %v, want %v", tc.in, err, tc.want)
		}
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestParseObject(t *testing.T) {
	got, err := ParseObject([]byte(` { "id" : 1.50 , "a\u00e9" : { "x" : [ ] } } `))
	if err != nil {
		t.Fatal(err)
	}
	want := []Member{{"id", []byte("1.50")}, {"aé", []byte(`{ "x" : [ ] }`)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// FuzzCheckValue compares with encoding/json: what we accept it accepts too,
// and what we refuse as syntax it refuses.
func FuzzCheckValue(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5e3,"x\u00e9",null,true]}`, `{"a":1,"a":2}`, `[[[`, `"\ud83d\ude00"`, `{"\ud800":1,"\udc00":2}`, "\xff", `-0`, `1e999`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !utf8.Valid(data) {
			return // refused before
		}
		err := CheckValue(data)
		valid := json.Valid(data)
		switch {
		case err == nil && !valid:
			t.Fatalf("accepted %q, which is not JSON", data)
		case errors.Is(err, ErrSyntax) && valid:
			t.Fatalf("refused %q, which is JSON", data)
		}
		members, err := ParseObject(data)
		if err != nil {
			return
		}
		var plain map[string]json.RawMessage
		if err := json.Unmarshal(data, &plain); err != nil {
			t.Fatalf("json: %v", err)
		}
		if len(plain) != len(members) {
			t.Fatalf("%q: %d members, json has %d", data, len(members), len(plain))
		}
		for _, m := range members {
			if !bytes.Equal(plain[m.Key], m.Raw) {
				t.Fatalf("%q: key %q is %q, json says %q", data, m.Key, m.Raw, plain[m.Key])
			}
		}
	})
}
