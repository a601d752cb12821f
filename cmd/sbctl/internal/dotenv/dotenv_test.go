package dotenv_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents/textedit"
	"subjectbroker/cmd/sbctl/internal/dotenv"
)

// pairs are the variables of a file, each as NAME=VALUE.
func pairs(t *testing.T, src string) []string {
	t.Helper()
	vars, err := dotenv.Parse([]byte(src))
	if err != nil {
		t.Fatalf("%q: %v", src, err)
	}
	got := []string{}
	for _, v := range vars {
		got = append(got, v.Name+"="+string([]byte(v.Value)))
	}
	return got
}

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, src string
		want      []string
	}{
		{"nothing", "", []string{}},
		{"blank lines and comments", "\n  \t\n# A=1\n   # B=2\r\n", []string{}},
		{"bare", "A=1\nB_2=two words  \n_c=x", []string{"A=1", "B_2=two words", "_c=x"}},
		{"blanks around the sign", "A = 1\n\tB\t=\t2\n", []string{"A=1", "B=2"}},
		{"export", "export A=1\nexport\tB='x'\nexport=3\n", []string{"A=1", "B=x", "export=3"}},
		{"a variable called export", "export = 3\nexport A=1", []string{"export=3", "A=1"}},
		{"comment after a value", "A=1 # one\nB='2' # two\nC=\"3\"\t#three\n", []string{"A=1", "B=2", "C=3"}},
		{"number sign in a value", "A=x#y\nB='# no comment'\n", []string{"A=x#y", "B=# no comment"}},
		{"empty values", "A=\nB=''\nC=\"\"\nD=   \n", []string{"A=", "B=", "C=", "D="}},
		{"single quotes take everything", `A='a\n$X ${Y} "b" \'`, []string{`A=a\n$X ${Y} "b" \`}},
		{"escapes in double quotes", "A=\"\\n\\r\\t\\\"\\\\\\$\\`'\"", []string{"A=\n\r\t\"\\$`'"}},
		{"quotes inside a bare value", "A=it's \"so\"\n", []string{`A=it's "so"`}},
		{"equals signs in a value", "A=b=c==\n", []string{"A=b=c=="}},
		{"over several lines", "A=\"-----BEGIN\nMII#E\n\n-----END\"\nB='x\n# y\nC=1'\nD=1\n", []string{"A=-----BEGIN\nMII#E\n\n-----END", "B=x\n# y\nC=1", "D=1"}},
		{"CRLF", "A=1\r\nB='x\r\ny'\r\n\r\nC=2 # c\r\n", []string{"A=1", "B=x\r\ny", "C=2"}},
		{"byte order mark", "\ufeffA=1", []string{"A=1"}},
		{"a sign for itself", "A=pa$$w0rd$1\nB=\"$ $1\"\n", []string{"A=pa$$w0rd$1", "B=$ $1"}},
		{"UTF-8", "A=grüße\n", []string{"A=grüße"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, pairs(t, test.src)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Every refusal names the line, and quotes nothing of the file.
func TestRefuses(t *testing.T) {
	for _, test := range []struct {
		src  string
		line int
		want string
	}{
		{"A=1\nhunter2secret\n", 2, "there is no \"=\""},
		{"A=1\nhunter2secret/+==\n", 2, "there is no \"=\""},
		{"-hunter2secret=1\n", 1, "expected NAME=VALUE"},
		{"2A=hunter2secret\n", 1, "expected NAME=VALUE"},
		{"A.B=hunter2secret\n", 1, "there is no \"=\""},
		{"export A\n", 1, "there is no \"=\""},
		{"export export A=hunter2secret\n", 1, "there is no \"=\""},
		{"=hunter2secret\n", 1, "expected NAME=VALUE"},
		{"A=1\n\nA=hunter2secret\n", 3, "A is given twice, first in line 1"},
		{"A='hunter2secret\nB=1\n", 1, "the value of A does not end"},
		{"X=1\nA=\"hunter2secret\n\n", 2, "the value of A does not end"},
		{"A='hunter2secret'x\n", 1, "after the closing quote"},
		{"A='hunter2secret'#x\n", 1, "after the closing quote"},
		{"A='it\\'hunter2secret'\n", 1, "after the closing quote"},
		{"A=\"x\nhunter2secret\" B=1\n", 2, "after the closing quote"},
		{"A=\"hunter2secret\\q\"\n", 1, "unknown escape"},
		{"A=\"hunter2secret\\", 1, "unknown escape"},
		{"A=${hunter2secret}\n", 1, `has "${" or "$("`},
		{"A=x$(hunter2secret)\n", 1, `has "${" or "$("`},
		{"A=\"${hunter2secret}\"\n", 1, `has "${" or "$("`},
		{"A=`hunter2secret`\n", 1, "begins with '`'"},
		{"A=#hunter2secret\n", 1, "begins with '#'"},
		{"A= # hunter2secret\n", 1, "begins with \"#\""},
		{"A=hunter2\rsecret\n", 1, "carriage return"},
		{"A=1\nB=hunter2secret\x00\n", 2, "NUL"},
		{"A=1\nB=hunter2secret\xff\n", 2, "UTF-8"},
		{"A=" + strings.Repeat("x", dotenv.MaxSize), 1, "larger than"},
	} {
		_, err := dotenv.Parse([]byte(test.src))
		fault, ok := errors.AsType[*dotenv.SyntaxError](err)
		short := test.src[:min(len(test.src), 40)]
		if !ok {
			t.Errorf("%q: %v", short, err)
			continue
		}
		if fault.Line != test.line || !strings.Contains(fault.Msg, test.want) {
			t.Errorf("%q: %v, want line %d: …%s…", short, err, test.line, test.want)
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error quotes the file: %v", short, err)
		}
	}
}

func TestAmbiguousValuesAreSaid(t *testing.T) {
	for src, want := range map[string]string{
		"A=x#y":     `has a "#" without quotes`,
		"A=$HOME/x": `has a "$" before a name`,
		`A="$HOME"`: `has a "$" before a name`,
		`A=C:\x`:    "has a backslash",
		`A='$X#\y'`: "",
		`A="x#\\"`:  "",
		"A=pa$$1":   "",
	} {
		vars, err := dotenv.Parse([]byte(src))
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		if got := vars[0].Ambiguous; !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", src, got, want)
		}
	}
}

// A value may be printed by mistake, and shows nothing.
func TestValuesAreRedacted(t *testing.T) {
	vars, err := dotenv.Parse([]byte("A=hunter2"))
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v", vars, vars[0].Value); strings.Contains(text, "hunter2") {
		t.Error(text)
	}
	dotenv.Wipe(vars)
	if !bytes.Equal(vars[0].Value, make([]byte, 7)) {
		t.Error("a wiped value is still there")
	}
}

// What stands between Start and End can be replaced, and nothing else moves.
func TestValuesCanBeReplaced(t *testing.T) {
	const src = "# top\nexport A = 'x\ny' # one\r\nB=\nC=z z  # two\n"
	vars, err := dotenv.Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	var edits []textedit.Edit
	for _, v := range vars {
		edits = append(edits, textedit.Edit{At: v.Start, Delete: v.End - v.Start, Insert: "sb://" + v.Name})
	}
	const want = "# top\nexport A = sb://A # one\r\nB=sb://B\nC=sb://C  # two\n"
	if diff := cmp.Diff(want, string(textedit.Apply([]byte(src), edits...))); diff != "" {
		t.Error(diff)
	}
}

// Whatever is read can be written in single quotes, or says why not, and is
// read back as the same; no input panics, and none is quoted by an error.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"A=1", "export A='x\ny' # c\r\nB=\"\\n\"", "A", "A=\"", "\ufeffA= b # c", "A=${x}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		vars, err := dotenv.Parse(src)
		if err != nil {
			if _, ok := errors.AsType[*dotenv.SyntaxError](err); !ok {
				t.Fatalf("an error of another kind: %v", err)
			}
			return
		}
		var again bytes.Buffer
		for _, v := range vars {
			if v.Start > v.End || v.End > len(src) {
				t.Fatalf("%s stands at %d to %d of %d", v.Name, v.Start, v.End, len(src))
			}
			if bytes.IndexByte(v.Value, '\'') >= 0 {
				return
			}
			fmt.Fprintf(&again, "%s='%s'\n", v.Name, []byte(v.Value))
		}
		back, err := dotenv.Parse(again.Bytes())
		if err != nil || len(back) != len(vars) {
			t.Fatalf("%q: %v", again.Bytes(), err)
		}
		for i := range back {
			if back[i].Name != vars[i].Name || !bytes.Equal(back[i].Value, vars[i].Value) {
				t.Fatalf("%q came back as %q", []byte(vars[i].Value), []byte(back[i].Value))
			}
		}
	})
}
