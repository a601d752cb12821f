package rules

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// where is a rule that is right.
func where(t testing.TB, text string) *Where {
	t.Helper()
	w, err := ParseWhere([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return w
}

// covers reports whether an answer by a rule to one call holds for another: what the
// daemon does, but for its key.
func covers(t interface {
	Helper()
	Fatalf(string, ...any)
}, w *Where, shown, other string) bool {
	t.Helper()
	a, err := ParseArgs([]byte(shown))
	if err != nil {
		t.Fatalf("%s: %v", shown, err)
	}
	if why := w.Stands(a, nil); why != "" {
		t.Fatalf("%s does not match what was shown, %s: %s", w, shown, why)
	}
	b, err := ParseArgs([]byte(other))
	if err != nil {
		return false // it is refused before anybody is asked
	}
	was, _ := w.Rest(a)
	is, ok := w.Rest(b)
	return ok && bytes.Equal(was, is) && w.Stands(b, nil) == ""
}

func TestWhere(t *testing.T) {
	for name, tc := range map[string]struct {
		where, shown string
		yes, no      []string
	}{
		"a prefix": {
			`{"path":{"prefix":"/data/"}}`, `{"path":"/data/a","mode":"r"}`,
			[]string{`{"path":"/data/a","mode":"r"}`, `{"path":"/data/b","mode":"r"}`, ` { "path" : "/data/\u0062" , "mode":"\u0072"}`},
			[]string{
				`{"path":"/etc/a","mode":"r"}`, `{"path":"/data/a","mode":"w"}`, `{"path":"/data/a"}`, `{"mode":"r"}`, `{}`,
				`{"path":"/data/a","mode":"r","x":1}`, `{"path":"/data/a","mode":"r","Path":"/etc/passwd"}`, `{"Path":"/data/a","mode":"r"}`,
				`{"path":"/data/a","mode":"r","PATH":"/data/a"}`, `{"mode":"r","path":"/data/a"}`, `{"path":["/data/a"],"mode":"r"}`,
				`{"path":{"/data/":1},"mode":"r"}`, `{"path":"/data/a","path":"/data/b","mode":"r"}`, `{"p\u0061th":"/etc/a","mode":"r"}`,
				`{"path":"/data/a","Mode":"r"}`, `{"path":"/data/a","mode":"R"}`, `{"path":"/data/a","mode":"r","":1}`, `{"path":"/data/a","mode":["r"]}`, `{"path":null,"mode":"r"}`,
			},
		},
		"a path": {
			`{"path":{"path":"/data/"}}`, `{"path":"/data/a"}`, []string{`{"path":"/data/x/y"}`, `{"path":"/data"}`},
			[]string{`{"path":"/data/../etc/passwd"}`, `{"path":"/database"}`, `{"path":"~/data"}`, `{"path":"data"}`, `{"path":"file:///data/a"}`},
		},
		"a place within": {
			`{"/to/0/name":{"oneOf":["ann","bob"]}}`, `{"to":[{"name":"ann","n":1}],"n":2}`,
			[]string{`{"to":[{"name":"bob","n":1}],"n":2}`},
			[]string{
				`{"to":[{"name":"eve","n":1}],"n":2}`, `{"to":[{"name":"bob","n":2}],"n":2}`, `{"to":[{"name":"bob","n":1}],"n":1}`,
				`{"to":[{"name":"bob","n":1},{"name":"eve"}],"n":2}`, `{"to":[{"name":"bob","n":1},1],"n":2}`, `{"to":{"0":{"name":"bob","n":1}},"n":2}`,
				`{"to":[{"name":"bob","Name":"eve","n":1}],"n":2}`, `{"to":[{"name":"bob","n":1}],"n":2,"to/0/name":"ann"}`,
				`{"to":[{"name":"bob","n":1}],"n":2,"/to/0/name":"ann"}`, `{"To":[{"name":"bob","n":1}],"n":2}`,
			},
		},
		"a name with slashes": {
			`{"/a~1b~0":"^x"}`, `{"a/b~":"x","a":{"b~":"x"}}`, []string{`{"a/b~":"xy","a":{"b~":"x"}}`}, []string{`{"a/b~":"x","a":{"b~":"xy"}}`},
		},
		"numbers": {
			`{"n":{"oneOf":[1,2.50]}}`, `{"n":1,"m":1}`, []string{`{"n":2.5,"m":1}`, `{"n":1.0,"m":1}`, `{"n":25e-1,"m":1}`},
			[]string{
				`{"n":3,"m":1}`, `{"n":"1","m":1}`, `{"n":1,"m":1.0}`, `{"n":1,"m":1e0}`, `{"n":1,"m":"1"}`, `{"n":1,"m":true}`,
				`{"n":1.00000000000000000001,"m":1}`, `{"n":1,"m":1.00000000000000000001}`,
			},
		},
		"lists": {
			`{"a":"x"}`, `{"a":"x","l":[1,23],"m":[]}`, []string{`{"a":"xx","l":[1,23],"m":[]}`},
			[]string{`{"a":"x","l":[12,3],"m":[]}`, `{"a":"x","l":[123],"m":[]}`, `{"a":"x","l":[1,23,[]],"m":[]}`, `{"a":"x","l":[1,23],"m":{}}`},
		},
		"what is long": {
			`{"text":".*"}`, `{"text":"a"}`, []string{`{"text":""}`}, []string{`{"text":"` + strings.Repeat("x", maxValue+1) + `"}`},
		},
		"two of them": {
			`{"a":"^[a-c]$","b":{"exact":"x"}}`, `{"a":"a","b":"x","c":0}`, []string{`{"a":"c","b":"x","c":0}`},
			[]string{`{"a":"d","b":"x","c":0}`, `{"a":"a","b":"y","c":0}`, `{"b":"x","a":"c","c":0}`},
		},
		"a host": {
			`{"url":{"host":["*.example.com"]}}`, `{"url":"https://a.example.com/x"}`, []string{`{"url":"http://b.example.com"}`},
			[]string{`{"url":"https://example.org/?.example.com"}`, `{"url":"https://u@b.example.com"}`, `{"url":"https://example.org\\.example.com"}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := where(t, tc.where)
			for _, args := range append(tc.yes, tc.shown) {
				if !covers(t, w, tc.shown, args) {
					t.Errorf("%s is not covered", args)
				}
			}
			for _, args := range tc.no {
				if covers(t, w, tc.shown, args) {
					t.Errorf("%s is covered", args)
				}
			}
			again := where(t, string(w.Canonical()))
			if !bytes.Equal(again.Canonical(), w.Canonical()) || again.String() != w.String() {
				t.Errorf("%s comes back as %s", w.Canonical(), again.Canonical())
			}
		})
	}
}

func TestWhereRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": ``, "an empty object": `{}`, "a list": `["a"]`, "twice the same": `{"a":"x","a":"y"}`, "twice the same, escaped": `{"a":"x","\u0061":"y"}`,
		"two matchers": `{"a":{"exact":"x","prefix":"y"}}`, "no matcher": `{"a":{}}`, "an unknown one": `{"a":{"glob":"*"}}`, "in another case": `{"a":{"Exact":"x"}}`,
		"a number": `{"a":1}`, "null": `{"a":null}`, "exact null": `{"a":{"exact":null}}`, "a list for exact": `{"a":{"exact":["x"]}}`,
		"a text for oneOf": `{"a":{"oneOf":"x"}}`, "an empty oneOf": `{"a":{"oneOf":[]}}`, "nested": `{"a":{"oneOf":[["x"]]}}`,
		"no pattern": `{"a":""}`, "a bad pattern": `{"a":"("}`, "an empty prefix": `{"a":{"prefix":""}}`, "a path that goes up": `{"a":{"path":"/x/../y"}}`,
		"no name": `{"":"x"}`, "a bad pointer": `{"/a~2":"x"}`, "a part of another": `{"/a":"x","/a/b":"y"}`, "the same in two spellings": `{"a":"x","/a":"y"}`,
		"a regex that is no text": `{"a":{"regex":5}}`, "bytes": "{\"a\":\"\xff\"}", "more": `{"a":"x"}{}`,
	} {
		if w, err := ParseWhere([]byte(text)); err == nil {
			t.Errorf("%s: %s is taken as %s", name, text, w)
		}
	}
}

// What some readers would take for the argument that the rule names must not be there
// beside it, also where a person was shown both.
func TestWhereInAnotherCase(t *testing.T) {
	for args, want := range map[string]bool{
		`{"path":"/data/a"}`: true, `{"path":"/data/a","Path":"/etc"}`: false, `{"path":"/data/a","\u0070ATH":1}`: false, `{"path":"/data/a","p":{"Path":1}}`: true,
		`{"path":"/etc"}`: false, `{"Path":"/data/a"}`: false, `{}`: false,
	} {
		parsed, err := ParseArgs([]byte(args))
		if err != nil {
			t.Fatal(err)
		}
		if why := where(t, `{"path":{"prefix":"/data/"}}`).Stands(parsed, nil); (why == "") != want {
			t.Errorf("%s: it stands: %v (%s), want %v", args, why == "", why, want)
		}
	}
}

// However a call is made from the one that was shown: where anything differs but what
// the rule names, the answer does not cover it; where nothing does and the rule
// matches, it does.
func TestWhereCoversNothingElse(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "A", "b", "a/b", "", "~", "path", "Path", "0", "\u017f", "s", "K", "\u212a"})
	var value func(depth int) *rapid.Generator[drawn]
	value = func(depth int) *rapid.Generator[drawn] {
		return rapid.Custom(func(t *rapid.T) drawn {
			kinds := `"0t`
			if depth > 0 {
				kinds = `"0t{[`
			}
			v := drawn{kind: rapid.SampledFrom([]byte(kinds)).Draw(t, "kind")}
			switch v.kind {
			case '"':
				v.text = word.Draw(t, "text")
			case '0':
				v.text = rapid.SampledFrom([]string{"0", "-0", "1", "1.0", "1e0", "10", "9007199254740993", "9007199254740992"}).Draw(t, "number")
			case 't':
				v.text = rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "word")
			default:
				for range rapid.IntRange(0, 3).Draw(t, "n") {
					name := word.Draw(t, "name")
					if v.kind == '{' && slices.Contains(v.names, name) {
						continue
					}
					if v.kind == '{' {
						v.names = append(v.names, name)
					}
					v.items = append(v.items, value(depth-1).Draw(t, "item"))
				}
			}
			return v
		})
	}
	covered, changed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		root := value(2).Filter(func(v drawn) bool { return v.kind == '{' && len(v.items) > 0 }).Draw(t, "shown")
		shown := string(valueOf(root).append(nil))
		args, err := ParseArgs([]byte(shown))
		if err != nil {
			t.Fatal(err)
		}
		// One place is named, by the pointer to it, and may be anything of its kind.
		at, pointer := args.root, ""
		for {
			i := rapid.IntRange(0, len(at.items)-1).Draw(t, "step")
			if at.kind == '{' {
				pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(at.names[i])
			} else {
				pointer += "/" + string(rune('0'+i))
			}
			if at = &at.items[i]; len(at.items) == 0 || rapid.Bool().Draw(t, "stop") {
				break
			}
		}
		w, err := ParseWhere(append(append([]byte(`{`), appendString(nil, pointer)...), `:".*"}`...))
		if err != nil {
			t.Fatal(err)
		}
		if w.Stands(args, nil) != "" { // it is there in another case, too
			return
		}
		other := value(2).Filter(func(v drawn) bool { return v.kind == '{' }).Draw(t, "other")
		if rapid.Bool().Draw(t, "near") { // the same but for one value
			other = root
			edit(t, &other, value(1), word)
		}
		second, err := ParseArgs(valueOf(other).append(nil))
		if err != nil {
			t.Fatal(err)
		}
		// What the answer may cover is said here in another way: put what was shown back
		// in the named place, and it is the same call.
		want := false
		if v := second.at(w.arguments[0].steps); v != nil && v.kind == at.kind {
			before := *v
			*v = *at
			want = string(second.Append(nil)) == string(args.Append(nil))
			*v = before
		}
		got := covers(t, w, shown, string(second.Append(nil)))
		if got && !want {
			t.Fatalf("an answer to %s where %s covers %s", shown, w, second.Append(nil))
		}
		if !got && want {
			t.Fatalf("an answer to %s where %s does not cover %s", shown, w, second.Append(nil))
		}
		if changed++; got {
			covered++
		}
	})
	if covered == 0 || covered == changed {
		t.Errorf("%d of %d are covered: the test shows nothing", covered, changed)
	}
}

// drawn is a value that is drawn.
type drawn struct {
	kind  byte
	text  string
	names []string
	items []drawn
}

func valueOf(v drawn) *value {
	out := &value{kind: v.kind, text: v.text, names: v.names}
	for _, item := range v.items {
		out.items = append(out.items, *valueOf(item))
	}
	return out
}

// edit changes one thing somewhere in v: a value, a name, the order, what there is.
func edit(t *rapid.T, v *drawn, other *rapid.Generator[drawn], word *rapid.Generator[string]) {
	v.items, v.names = slices.Clone(v.items), slices.Clone(v.names)
	i := rapid.IntRange(0, len(v.items)-1).Draw(t, "which")
	if len(v.items[i].items) > 0 && rapid.Bool().Draw(t, "deeper") {
		edit(t, &v.items[i], other, word)
		return
	}
	switch rapid.SampledFrom([]string{"value", "value", "name", "drop", "swap"}).Draw(t, "edit") {
	case "value":
		v.items[i] = other.Draw(t, "instead")
	case "name":
		if name := word.Draw(t, "name"); v.kind == '{' && !slices.Contains(v.names, name) {
			v.names[i] = name
		}
	case "drop":
		v.items = slices.Delete(v.items, i, i+1)
		if v.kind == '{' {
			v.names = slices.Delete(v.names, i, i+1)
		}
	case "swap":
		v.items[0], v.items[i] = v.items[i], v.items[0]
		if v.kind == '{' {
			v.names[0], v.names[i] = v.names[i], v.names[0]
		}
	}
}
