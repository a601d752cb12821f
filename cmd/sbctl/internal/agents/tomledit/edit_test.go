package tomledit_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/agents/tomledit"
)

var (
	path   = []string{"mcp_servers", "me"}
	fields = []tomledit.Field{{Key: "command", Value: `/bin/"x"`}, {Key: "args", Value: []string{"-a", "é"}}}
)

func insert(t *testing.T, src string) string {
	t.Helper()
	doc, err := tomledit.Parse([]byte(src))
	if err != nil {
		t.Fatalf("parsing %q: %v", src, err)
	}
	edit, err := tomledit.Insert([]byte(src), doc, path, fields)
	if err != nil {
		t.Fatalf("inserting into %q: %v", src, err)
	}
	return string(textedit.Apply([]byte(src), edit))
}

func remove(t *testing.T, src string) (string, bool) {
	t.Helper()
	doc, err := tomledit.Parse([]byte(src))
	if err != nil {
		t.Fatalf("parsing %q: %v", src, err)
	}
	edits, empty := tomledit.Remove([]byte(src), doc, path)
	return string(textedit.Apply([]byte(src), edits...)), empty
}

const section = "[mcp_servers.me]\ncommand = \"/bin/\\\"x\\\"\"\nargs = [\"-a\", \"é\"]\n"

func TestInsertAppendsOneTable(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{"a = 1\n", "a = 1\n\n" + section},
		{"a = 1", "a = 1\n\n" + section[:len(section)-1]},
		{"", section[:len(section)-1]},
		{"a = 1\r\n", "a = 1\r\n\r\n[mcp_servers.me]\r\ncommand = \"/bin/\\\"x\\\"\"\r\nargs = [\"-a\", \"é\"]\r\n"},
	} {
		if diff := cmp.Diff(test.want, insert(t, test.src)); diff != "" {
			t.Errorf("%q: %s", test.src, diff)
		}
	}
	if got := string(tomledit.New(path, fields)); got != section {
		t.Errorf("a new file: %q", got)
	}
}

// awkward are documents that adding and removing must give back to the byte.
var awkward = []string{
	"", "\n", "\n\n", "a = 1", "a = 1\n", "a = 1\n\n", "a = 1\r\n", "# note", "# note\n", "\ufeff", "\ufeffa = 1\n",
	"[mcp_servers.b]\ncommand = 'x'\n\n# the end\n", "[mcp_servers]\nb = { command = \"x\" }\n", "mcp_servers.b.command = \"x\"\n",
	"[[x]]\na = 1\n[[x]]\nb = [1,\n 2, # two\n]\n", "[a.b]\n[a]\nc = 1979-05-27 07:32:00Z\n", "s = \"\"\"\n[mcp_servers.me]\n\"\"\"\"\"\nt = '''\n# '''",
}

func TestRemoveRestoresEveryByte(t *testing.T) {
	for _, src := range awkward {
		got, gone := remove(t, insert(t, src))
		if got != src || gone {
			t.Errorf("%q became %q (file gone: %v) by way of %q", src, got, gone, insert(t, src))
		}
	}
	if got, gone := remove(t, section); got != "" || !gone {
		t.Errorf("a file that held nothing else: left %q, gone %v", got, gone)
	}
}

func TestRemoveAmongOthers(t *testing.T) {
	for _, test := range []struct{ name, src, want string }{
		{"between", "a = 1\n\n[mcp_servers.me]\nb = 1 # mine\n\n# theirs\n[c]\n", "a = 1\n\n# theirs\n[c]\n"},
		{"with tables below", "[x]\n\n[mcp_servers.me]\nb = 1\n\n[mcp_servers.me.env]\nT = 'x'\n\n[y]\n[mcp_servers.me.tools.z]\n", "[x]\n\n[y]\n"},
		{"no last break", "[mcp_servers.me]\nb = 1\n\n[mcp_servers.me.env]\nT = 'x'", ""},
		{"another's name starts alike", "[mcp_servers.meander]\nb = 1\n", "[mcp_servers.meander]\nb = 1\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, _ := remove(t, test.src)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSetChangesOnlyItsKeys(t *testing.T) {
	src := []byte("[mcp_servers.me] # mine\nargs = [\"-old\"] # kept\ntimeout = 5\n[z]\n")
	want := "[mcp_servers.me] # mine\ncommand = \"/bin/\\\"x\\\"\"\nargs = [\"-a\", \"é\"] # kept\ntimeout = 5\n[z]\n"
	doc, err := tomledit.Parse(src)
	if err != nil {
		t.Fatal(err)
	}
	got := textedit.Apply(src, tomledit.Set(src, doc, path, fields)...)
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if doc, err = tomledit.Parse(got); err != nil {
		t.Fatal(err)
	}
	if edits := tomledit.Set(got, doc, path, fields); len(edits) != 0 {
		t.Errorf("a second time: %+v", edits)
	}
}

func TestInsertRefusesClosedForms(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{"\nmcp_servers = { b = { command = 'x' } }\n", `line 2: "mcp_servers" is written as a value, to which no table can be added`},
		{"[[mcp_servers]]\n", `line 1: "mcp_servers" is an array of tables`},
	} {
		doc, err := tomledit.Parse([]byte(test.src))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tomledit.Insert([]byte(test.src), doc, path, fields); err == nil || err.Error() != test.want {
			t.Errorf("%q: %v, want %s", test.src, err, test.want)
		}
	}
}

func TestLeaves(t *testing.T) {
	src := "mcp_servers.a.command = 'x'\n[mcp_servers.b]\ncommand = \"\\u0079\"\nenv = { T.u = 'z' }\n[[l]]\n[mcp_servers2]\nq = 1\n"
	doc, err := tomledit.Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	type leaf struct {
		Path  []string
		Text  string
		Plain bool
	}
	var got []leaf
	for _, l := range doc.Leaves([]string{"mcp_servers"}) {
		got = append(got, leaf{l.Path, l.Value.Text, l.Plain})
	}
	want := []leaf{
		{[]string{"mcp_servers", "a", "command"}, "x", false},
		{[]string{"mcp_servers", "b", "command"}, "y", true},
		{[]string{"mcp_servers", "b", "env", "T", "u"}, "z", false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseStrings(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{`'a\n'`, `a\n`}, {`"a\n\t\u00e9\U0001F600\\\""`, "a\n\té😀\\\""}, {"\"\"\"\na \\\n   b\"\"\"", "a b"}, {`""""a"""""`, `"a""`}, {"'''''a'''", "''a"}, {`""`, ""}, {`"""a"""""`, `a""`},
	} {
		doc, err := tomledit.Parse([]byte("k = " + test.src))
		if err != nil {
			t.Errorf("%s: %v", test.src, err)
			continue
		}
		if got := doc.Tables[0].Pairs[0].Value.Text; got != test.want {
			t.Errorf("%s: %q, want %q", test.src, got, test.want)
		}
	}
}

func TestRefusesMalformed(t *testing.T) {
	for _, test := range []struct{ src, want string }{
		{"a = 1\na = 2", `line 2: "a" is defined twice`},
		{"[a]\n[b]\n[a]", `line 3: "a" is defined twice`},
		{"a = 1\n[a.b]", `line 2: "a" already has a value`},
		{"[a.b]\n[a]\nb.c = 1", `line 3: "b.c" is defined twice`},
		{"a = {b = 1, b = 2}", `line 1: "b" is defined twice`},
		{"[a\nb", `line 1: expected "]" after a table's name, found the end of the line`},
		{"a", `line 1: expected '=' after a key, found the end of the file`},
		{"a = ", "line 1: expected a value, found the end of the file"},
		{"a = yes", "line 1: expected a value, found a bare word or a malformed number"},
		{"a = 01", "line 1: expected a value, found a bare word or a malformed number"},
		{"\na = 'x\n'", "line 2: a string does not end on its line"},
		{"a = \"\"\"x", "line 1: a string does not end"},
		{`a = "\q"`, "line 1: a string with an invalid escape"},
		{"a = [1 2]", "line 1: expected ',' or ']', found '2'"},
		{"a = 1 b = 2", "line 1: expected the end of the line, found 'b'"},
		{"= 1", "line 1: expected a key, found '='"},
		{"a = '\xff'", "line 1: not valid UTF-8"},
		{"a = 1 # \x01", "line 1: a control character inside a comment"},
	} {
		_, err := tomledit.Parse([]byte(test.src))
		if err == nil || err.Error() != test.want {
			t.Errorf("%q: %v, want %s", test.src, err, test.want)
		}
	}
}

// FuzzRoundTrip: whatever the document, adding the table leaves all other
// values as they were, and removing it gives back the same bytes.
func FuzzRoundTrip(f *testing.F) {
	for _, src := range awkward {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		doc, err := tomledit.Parse(src)
		if err != nil || len(doc.Leaves(path)) > 0 {
			return
		}
		for _, table := range doc.Tables {
			if len(table.Path) >= len(path) && slices.Equal(table.Path[:len(path)], path) {
				return
			}
		}
		edit, err := tomledit.Insert(src, doc, path, fields)
		if err != nil {
			return
		}
		added := textedit.Apply(src, edit)
		after, err := tomledit.Parse(added)
		if err != nil {
			t.Fatalf("%q became %q: %v", src, added, err)
		}
		before, now := doc.Leaves(nil), after.Leaves(nil)
		if len(now) != len(before)+len(fields) || now[len(before)].Value.Text != fields[0].Value {
			t.Fatalf("%q became %q: the table is not there", src, added)
		}
		for i, leaf := range before {
			if diff := cmp.Diff(leaf, now[i]); diff != "" {
				t.Fatalf("%q became %q: %s", src, added, diff)
			}
		}
		edits, gone := tomledit.Remove(added, after, path)
		if got := textedit.Apply(added, edits...); gone || !bytes.Equal(got, src) {
			t.Fatalf("%q became %q and then %q (gone: %v)", src, added, got, gone)
		}
	})
}
