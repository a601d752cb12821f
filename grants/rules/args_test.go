package rules

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	deep := strings.Repeat(`{"a":`, maxDepth-1) + "{}" + strings.Repeat("}", maxDepth-1)
	for in, want := range map[string]string{
		"":                              "{}",
		"{}":                            "{}",
		" {\t\r\n} ":                    "{}",
		`{"a":1}`:                       `{"a":1}`,
		`{ "a" : [ 1 , -0.5e+10 ] }`:    `{"a":[1,-0.5e+10]}`,
		`{"b":true,"a":null,"c":false}`: `{"b":true,"a":null,"c":false}`,
		`{"a":"\u00e9\n\ud83d\ude00"}`:  `{"a":"é\n😀"}`,
		`{"a":"\u0000\u001f\/\"\\"}`:    `{"a":"\u0000\u001f/\"\\"}`,
		`{"a":12345678901234567890.10}`: `{"a":12345678901234567890.10}`,
		`{"":{"":[]}}`:                  `{"":{"":[]}}`,
		deep:                            deep,
	} {
		args, err := ParseArgs([]byte(in))
		if err != nil {
			t.Errorf("%.60s: %v", in, err)
			continue
		}
		if got := string(args.Append(nil)); got != want {
			t.Errorf("%.60s: %.60s, want %.60s", in, got, want)
		}
	}
}

func TestParseArgsRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"a list":                      `[1]`,
		"a string":                    `"a"`,
		"nothing but space":           "  ",
		"two objects":                 `{}{}`,
		"something after":             `{} x`,
		"cut off":                     `{"a":1`,
		"cut off in an escape":        "{\"a\\",
		"cut off in a string":         `{"a`,
		"a comma too many":            `{"a":1,}`,
		"a comma too many in a list":  `{"a":[1,]}`,
		"a name twice":                `{"a":1,"a":2}`,
		"a name twice by an escape":   `{"a":1,"\u0061":2}`,
		"a name twice further in":     `{"x":[{"a":1,"a":1}]}`,
		"half a pair":                 `{"a":"\ud800"}`,
		"the other half":              `{"a":"\udc00"}`,
		"half a pair and a character": `{"a":"\ud800\u0041"}`,
		"an escape that is none":      `{"a":"\x"}`,
		"an escape of three digits":   `{"a":"\u00e"}`,
		"a newline in a string":       "{\"a\":\"\n\"}",
		"invalid UTF-8":               "{\"a\":\"\xff\"}",
		"a number with a zero":        `{"a":01}`,
		"a number with a plus":        `{"a":+1}`,
		"a number without an end":     `{"a":1.}`,
		"an exponent without digits":  `{"a":1e}`,
		"a hexadecimal number":        `{"a":0x1}`,
		"NaN":                         `{"a":NaN}`,
		"a word":                      `{"a":truth}`,
		"a name without quotes":       `{a:1}`,
		"a comment":                   `{/**/}`,
		"a byte order mark":           "\ufeff{}",
		"too deep":                    strings.Repeat(`{"a":`, maxDepth) + "{}" + strings.Repeat("}", maxDepth),
		"too deep and never closed":   `{"a":` + strings.Repeat("[", 1<<20),
		"too many values":             `{"a":[` + strings.Repeat("0,", maxParts) + `0]}`,
		"too large":                   `{"a":"` + strings.Repeat("x", MaxArgs) + `"}`,
	} {
		if _, err := ParseArgs([]byte(in)); err == nil {
			t.Errorf("%s was taken", name)
		} else if len(err.Error()) > 200 {
			t.Errorf("%s: the error repeats it: %v", name, err)
		}
	}
}

// What parses is what encoding/json makes of it, and re-encodes to the same value.
func FuzzParseArgs(f *testing.F) {
	for _, seed := range []string{"{}", `{"a":[1,{"b":"\ud83d\ude00"}],"c":null}`, `{"a":1,"a":2}`, `{"a":-0.5e9}`, "{\"\xff\":1}", `{"a":"\ud800"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		args, err := ParseArgs(data)
		if err != nil {
			return
		}
		out := args.Append(nil)
		again, err := ParseArgs(out)
		if err != nil || !bytes.Equal(again.Append(nil), out) {
			t.Fatalf("%q is written as %q, which is read as another (%v)", data, out, err)
		}
		if len(data) == 0 {
			return
		}
		if decode(t, data) == nil || !reflect.DeepEqual(decode(t, data), decode(t, out)) {
			t.Fatalf("%q and %q are not the same value", data, out)
		}
	})
}

func decode(t *testing.T, data []byte) map[string]any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var v map[string]any
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%q is no JSON: %v", data, err)
	}
	return v
}

func TestPointers(t *testing.T) {
	args, err := ParseArgs([]byte(`{"a":{"b":[10,{"c/d":"x","~":"t"}]},"/a/b":"plain","":"empty"}`))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"/a/b/0":      "10",
		"/a/b/1/c~1d": "x",
		"/a/b/1/~0":   "t",
		"/a/b":        `[10,{"c/d":"x","~":"t"}]`,
		"/~1a~1b":     "plain",
		"/":           "empty",
		"a":           `{"b":[10,{"c/d":"x","~":"t"}]}`,
		"/a/b/2":      "",
		"/a/b/-":      "",
		"/a/b/00":     "",
		"/a/b/0/x":    "",
		"b":           "",
	} {
		steps, ok := splitKey(key)
		if !ok {
			t.Errorf("%s is refused", key)
		}
		got := ""
		if v := args.at(steps); v != nil {
			got = v.matched()
		}
		if got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"", "/~", "/~2", "/a~"} {
		if _, ok := splitKey(key); ok {
			t.Errorf("%q was taken", key)
		}
	}
}
