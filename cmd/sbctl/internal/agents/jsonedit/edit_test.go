package jsonedit_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents/jsonedit"
	"subjectbroker/cmd/sbctl/internal/agents/textedit"
)

var (
	loose  = jsonedit.Dialect{Comments: true, TrailingCommas: true}
	path   = []string{"servers"}
	fields = []jsonedit.Field{{Key: "command", Value: "/bin/x"}, {Key: "args", Value: []string{"-a", "é<&>"}}}
)

func insert(t *testing.T, src string) string {
	t.Helper()
	root, err := jsonedit.Parse([]byte(src), loose)
	if err != nil {
		t.Fatalf("parsing %q: %v", src, err)
	}
	edit, err := jsonedit.Insert([]byte(src), &root, path, "me", fields)
	if err != nil {
		t.Fatalf("inserting into %q: %v", src, err)
	}
	return string(textedit.Apply([]byte(src), edit))
}

func remove(t *testing.T, src string) (string, bool) {
	t.Helper()
	root, err := jsonedit.Parse([]byte(src), loose)
	if err != nil {
		t.Fatalf("parsing %q: %v", src, err)
	}
	edit, empty, err := jsonedit.Remove([]byte(src), &root, path, "me")
	if err != nil {
		t.Fatalf("removing from %q: %v", src, err)
	}
	return string(textedit.Apply([]byte(src), edit)), empty
}

func TestInsertKeepsLayout(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"empty root", "{}\n",
			"{\"servers\": {\n    \"me\": {\n      \"command\": \"/bin/x\",\n      \"args\": [\"-a\", \"é<&>\"]\n    }\n  }}\n"},
		{"no container", "{\n  \"a\": 1\n}\n",
			"{\n  \"a\": 1,\n  \"servers\": {\n    \"me\": {\n      \"command\": \"/bin/x\",\n      \"args\": [\"-a\", \"é<&>\"]\n    }\n  }\n}\n"},
		{"empty container", "{\n\t\"servers\": {}\n}",
			"{\n\t\"servers\": {\"me\": {\n\t\t\t\"command\": \"/bin/x\",\n\t\t\t\"args\": [\"-a\", \"é<&>\"]\n\t\t}}\n}"},
		{"one line", `{"a":1,"servers":{"b":{}}}`,
			`{"a":1,"servers":{"b":{},"me":{"command":"/bin/x","args":["-a","é<&>"]}}}`},
		{"one line, no container", `{"a":1}`,
			`{"a":1,"servers":{ "me":{"command":"/bin/x","args":["-a","é<&>"]} }}`},
		{"carriage returns", "{\r\n    \"a\": 1\r\n}\r\n",
			"{\r\n    \"a\": 1,\r\n    \"servers\": {\r\n        \"me\": {\r\n            \"command\": \"/bin/x\",\r\n            \"args\": [\"-a\", \"é<&>\"]\r\n        }\r\n    }\r\n}\r\n"},
		{"remark and trailing comma", "{\n  \"servers\": {\n    \"b\": {}, // mine\n  },\n}\n",
			"{\n  \"servers\": {\n    \"b\": {}, // mine\n    \"me\": {\n      \"command\": \"/bin/x\",\n      \"args\": [\"-a\", \"é<&>\"]\n    },\n  },\n}\n"},
		{"remark without comma", "{\n  \"servers\": {\n    \"b\": {} // mine\n  }\n}\n",
			"{\n  \"servers\": {\n    \"b\": {}, // mine\n    \"me\": {\n      \"command\": \"/bin/x\",\n      \"args\": [\"-a\", \"é<&>\"]\n    }\n  }\n}\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, insert(t, test.src)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// awkward are documents that adding and removing must give back to the byte.
var awkward = []string{
	"{}", "{}\n", "{ }", "{\n}", "{\n\n}\n", "\ufeff{}", "{ // note\n}", "{// note\n  \n}", "{/* a */}",
	`{"servers":{}}`, `{"servers":{ }}`, "{\n  \"servers\": {}\n}\n", "{\n  \"servers\": {\n  }\n}\n", "{\"servers\": {// x\n}}",
	`{"a":1}`, `{ "a": 1 }`, "{\"a\":1\n}", "{\n  \"a\": 1,\n}", "{\n  \"a\": 1 // x\n}", "{\n  \"a\": 1, // x  \n}", "{ \"a\": 1, \"b\": 2 // x\n}",
	"{\n  \"a\": 1 /* x */\n}", "{\n  \"a\": 1 /* x\n y */\n}", "{\n  \"a\": 1 /* x */ ,\n}", "{\n  \"a\": 1\n\n\n}", "{\r\n\t\"a\": 1\r\n}\r\n",
	"{\n  \"servers\": {\n    \"b\": {}\n  },\n  \"z\": [1, 2,],\n}", "{\"servers\": {\"b\": {}, /* c */}}", "{\n\"servers\":{\"b\":\"//\"}}",
	"{\n  \"a\": \"// no\",\n\n  \"b\": 2 /* x */ // y\n}",
}

func TestRemoveRestoresEveryByte(t *testing.T) {
	for _, src := range awkward {
		got, gone := remove(t, insert(t, src))
		if got != src || gone {
			t.Errorf("%q became %q (file gone: %v) by way of %q", src, got, gone, insert(t, src))
		}
	}
	if got, gone := remove(t, string(jsonedit.New(path, "me", fields))); got != "" || !gone {
		t.Errorf("a file that held nothing else: left %q, gone %v", got, gone)
	}
}

func TestRemoveAmongOthers(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"first", "{\"servers\": {\n  \"me\": {},\n  \"b\": 1\n}}", "{\"servers\": {\n  \"b\": 1\n}}"},
		{"middle", `{"servers":{"a":1,"me":{},"b":1}}`, `{"servers":{"a":1,"b":1}}`},
		{"last after a comment", "{\"servers\": {\"a\": 1, // why\n  \"me\": {}\n}}", "{\"servers\": {\"a\": 1 // why\n}}"},
		{"first with a comment before the comma", `{"servers":{"me":{} /* c */, "b":1}}`, `{"servers":{ /* c */ "b":1}}`},
		{"absent", `{"servers":{"a":1}}`, `{"servers":{"a":1}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, _ := remove(t, test.src)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if _, err := jsonedit.Parse([]byte(got), loose); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSetChangesOnlyItsFields(t *testing.T) {
	src := []byte("{\"servers\": {\n  \"me\": {\n    \"args\": [\"-old\"], // kept\n    \"timeout\": 5\n  }\n}}")
	want := "{\"servers\": {\n  \"me\": {\n    \"args\": [\"-a\", \"é<&>\"], // kept\n    \"timeout\": 5,\n    \"command\": \"/bin/x\"\n  }\n}}"
	root, err := jsonedit.Parse(src, loose)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := jsonedit.Find(src, &root, path, "me")
	if err != nil {
		t.Fatal(err)
	}
	edit, err := jsonedit.Set(src, &root, entry, 2, fields)
	if err != nil {
		t.Fatal(err)
	}
	got := textedit.Apply(src, edit)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if root, err = jsonedit.Parse(got, loose); err != nil {
		t.Fatal(err)
	}
	if entry, err = jsonedit.Find(got, &root, path, "me"); err != nil {
		t.Fatal(err)
	}
	if edit, err = jsonedit.Set(got, &root, entry, 2, fields); err != nil || edit.Delete != 0 || edit.Insert != "" {
		t.Errorf("a second time: %+v, %v", edit, err)
	}
}

func TestRefusesMalformed(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{"", "line 1: the file is empty, expected an object"},
		{"\n[]", "line 2: expected an object"},
		{"{\n\"a\": 1,\n}", "line 3: a comma before '}'"},
		{"{\n// x\n}", "line 2: comments are not allowed in this file"},
		{"{\"a\" 1}", "line 1: expected ':' after a key, found '1'"},
		{"{\"a\": 01}", "line 1: expected a value, found a bare word or a malformed number"},
		{"{\"a\": tru}", "line 1: expected a value, found a bare word or a malformed number"},
		{"{\"a\": \"\n\"}", "line 1: a control character inside a string"},
		{"{\"a\": \"x}", "line 1: a string does not end"},
		{"{\"a\": \"\\x\"}", "line 1: a string with an invalid escape"},
		{"{\"a\": [1 2]}", "line 1: expected ',' or ']', found '2'"},
		{"{\"a\": 1", "line 1: expected ',' or '}', found the end of the file"},
		{"{}\n{}", "line 2: text after the end of the document"},
		{"{\"a\": \"\xff\"}", "line 1: not valid UTF-8"},
	} {
		_, err := jsonedit.Parse([]byte(test.src), jsonedit.Dialect{})
		if err == nil || err.Error() != test.want {
			t.Errorf("%q: %v, want %s", test.src, err, test.want)
		}
	}
	src := []byte("{\"servers\": {},\n\"servers\": {}}")
	root, err := jsonedit.Parse(src, jsonedit.Dialect{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jsonedit.Insert(src, &root, path, "me", fields); err == nil || err.Error() != `line 2: "servers" is given twice` {
		t.Errorf("a container given twice: %v", err)
	}
}

// FuzzParse holds the scanner to encoding/json where both apply.
func FuzzParse(f *testing.F) {
	for _, src := range awkward {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		root, err := jsonedit.Parse(src, jsonedit.Dialect{})
		body := bytes.TrimPrefix(src, []byte("\ufeff"))
		var object map[string]json.RawMessage
		decoded := json.Unmarshal(body, &object) == nil && object != nil
		if err == nil && !decoded {
			t.Fatalf("%q passes here and not in encoding/json", src)
		}
		if err != nil {
			return
		}
		for _, m := range root.Members {
			if _, ok := object[m.Key]; !ok {
				t.Fatalf("%q: key %q is not in %v", src, m.Key, object)
			}
		}
	})
}

// FuzzRoundTrip: whatever the document, adding the entry leaves all other
// members as they were, and removing it gives back the same bytes.
func FuzzRoundTrip(f *testing.F) {
	for _, src := range awkward {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		root, err := jsonedit.Parse(src, loose)
		if err != nil {
			return
		}
		edit, err := jsonedit.Insert(src, &root, path, "me", fields)
		if err != nil {
			return
		}
		if found, err := jsonedit.Find(src, &root, path, "me"); err != nil || found != nil {
			return
		}
		added := textedit.Apply(src, edit)
		after, err := jsonedit.Parse(added, loose)
		if err != nil {
			t.Fatalf("%q became %q: %v", src, added, err)
		}
		entry, err := jsonedit.Find(added, &after, path, "me")
		if err != nil || entry == nil {
			t.Fatalf("%q became %q: the entry is not there (%v)", src, added, err)
		}
		if command := entry.Value.Member("command"); command == nil || command.Value.Text != "/bin/x" {
			t.Fatalf("%q became %q: the entry is not what was written", src, added)
		}
		for i, m := range root.Members {
			if m.Key == path[0] {
				continue
			}
			if got := after.Members[i].Value; !bytes.Equal(src[m.Value.Start:m.Value.End], added[got.Start:got.End]) {
				t.Fatalf("%q became %q: member %q changed", src, added, m.Key)
			}
		}
		back, gone, err := jsonedit.Remove(added, &after, path, "me")
		if err != nil || gone {
			t.Fatalf("%q became %q: gone %v, %v", src, added, gone, err)
		}
		// A carriage return alone ends no line of ours: such a file stays valid,
		// but blanks around its members may move.
		if bytes.Count(src, []byte("\r")) != bytes.Count(src, []byte("\r\n")) {
			return
		}
		if got := textedit.Apply(added, back); !bytes.Equal(got, src) {
			t.Fatalf("%q became %q and then %q", src, added, got)
		}
	})
}
