package mcpshim

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
		{``, errSyntax},
		{`01`, errSyntax},
		{`1.`, errSyntax},
		{`-`, errSyntax},
		{`1e`, errSyntax},
		{`.5`, errSyntax},
		{`+1`, errSyntax},
		{`nul`, errSyntax},
		{`NaN`, errSyntax},
		{`'a'`, errSyntax},
		{`"a`, errSyntax},
		{"\"a\tb\"", errSyntax},
		{`"\x41"`, errSyntax},
		{`"\u12g4"`, errSyntax},
		{`"\u12"`, errSyntax},
		{`{"a":1,}`, errSyntax},
		{`{"a" 1}`, errSyntax},
		{`{a:1}`, errSyntax},
		{`[1,]`, errSyntax},
		{`[1`, errSyntax},
		{`{} {}`, errSyntax},
		{`{}x`, errSyntax},
		{"\xef\xbb\xbf{}", errSyntax},
		{`{"a":1,"a":2}`, errDuplicate},
		{`{"a":1,"\u0061":2}`, errDuplicate},
		{`{"x":[{"k":1,"k":1}]}`, errDuplicate},
		{`{"a":1,"A":2}`, nil},
		{strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth), nil},
		{strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1), errDepth},
		{strings.Repeat(`{"a":`, maxDepth+1) + `1` + strings.Repeat("}", maxDepth+1), errDepth},
		{manyKeys(maxMembers), nil},
		{manyKeys(maxMembers + 1), errCrowded},
		{manyKeys(20)[:len(manyKeys(20))-1] + `,"k7":0}`, errDuplicate},
	} {
		if err := checkValue([]byte(tc.in)); !errors.Is(err, tc.want) {
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
	got, err := parseObject([]byte(` { "id" : 1.50 , "a\u00e9" : { "x" : [ ] } } `))
	if err != nil {
		t.Fatal(err)
	}
	want := []member{{"id", []byte("1.50")}, {"aé", []byte(`{ "x" : [ ] }`)}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(member{})); diff != "" {
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
		err := checkValue(data)
		valid := json.Valid(data)
		switch {
		case err == nil && !valid:
			t.Fatalf("accepted %q, which is not JSON", data)
		case errors.Is(err, errSyntax) && valid:
			t.Fatalf("refused %q, which is JSON", data)
		}
		members, err := parseObject(data)
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
			if !bytes.Equal(plain[m.key], m.raw) {
				t.Fatalf("%q: key %q is %q, json says %q", data, m.key, m.raw, plain[m.key])
			}
		}
	})
}
