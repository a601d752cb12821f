package ui_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/cmd/sbctl/internal/ui"
)

type item struct {
	Name string `json:"name"`
}

func list() ui.List {
	return ui.List{
		Head: []string{"NAME", "NOTE"}, IDs: []string{"a", "bb"}, Items: []item{{"a"}, {"bb"}},
		Rows: [][]string{{"a", "ü"}, {"bb", "x\x1b[31m\ny"}},
	}
}

// A table that is wider than the terminal is folded; for a pipe a line stays a line.
func TestFold(t *testing.T) {
	found := ui.List{Head: []string{"PROBE", "RESULT", "FOUND", "FIX"}, Rows: [][]string{
		{"operator", "warn", "no passphrase is set: any process of your uid can do what sbctl can", "sbctl operator set-passphrase"}, {"vault", "ok", "unlocked", ""},
	}}
	reached := ui.List{Head: []string{"SERVER", "REACHED BY", "TOOLS"}, Rows: [][]string{{"a", "/opt/a/b/c/d/e/f/g/h --root /srv/documents", "3"}, {"b", "x", ""}}}
	const whole = `
SERVER  REACHED BY                                  TOOLS
a       /opt/a/b/c/d/e/f/g/h --root /srv/documents  3
b       x
`
	for _, test := range []struct {
		name    string
		columns int
		list    ui.List
		want    string
	}{
		{"a command stays whole, below", 60, found, `
PROBE     RESULT  FOUND  FIX
operator  warn    no passphrase is set: any process of your
                  uid can do what sbctl can
                    sbctl operator set-passphrase
vault     ok      unlocked
`},
		{"what is behind stays beside it", 45, reached, `
SERVER  REACHED BY                      TOOLS
a       /opt/a/b/c/d/e/f/g/h --root     3
        /srv/documents
b       x
`},
		{"it fits", 200, reached, whole},
		{"no terminal", 0, reached, whole},
		{"too narrow to fold", 20, reached, whole},
	} {
		var out bytes.Buffer
		if err := (&ui.Printer{Out: &out, Columns: test.columns}).List(test.list); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), out.String()); diff != "" {
			t.Errorf("%s: %s", test.name, diff)
		}
	}
}

func TestList(t *testing.T) {
	for _, test := range []struct {
		name    string
		printer ui.Printer
		list    ui.List
		want    string
	}{
		{"table", ui.Printer{}, list(), "NAME  NOTE\na     ü\nbb    x\\x1b[31m\\ny\n"},
		{"json", ui.Printer{Format: ui.JSON}, list(), `{"schema":1,"items":[{"name":"a"},{"name":"bb"}]}` + "\n"},
		{"quiet", ui.Printer{Quiet: true}, list(), "a\nbb\n"},
		{"quiet wins", ui.Printer{Quiet: true, Format: ui.JSON}, list(), "a\nbb\n"},
		{"empty table", ui.Printer{}, ui.List{Head: []string{"NAME"}}, ""},
		{"empty json", ui.Printer{Format: ui.JSON}, ui.List{Items: []item(nil)}, `{"schema":1,"items":[]}` + "\n"},
		{"nothing json", ui.Printer{Format: ui.JSON}, ui.List{}, `{"schema":1,"items":[]}` + "\n"},
	} {
		var out bytes.Buffer
		test.printer.Out = &out
		if err := test.printer.List(test.list); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, out.String()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", test.name, diff)
		}
	}
}

func TestObject(t *testing.T) {
	object := ui.Object{ID: "a", Fields: []ui.Field{{Name: "name", Value: "a"}, {Name: "none"}, {Name: "longer", Value: "b"}}, Value: item{"a"}}
	for _, test := range []struct {
		printer ui.Printer
		want    string
	}{
		{ui.Printer{}, "name:    a\nlonger:  b\n"},
		{ui.Printer{Format: ui.JSON}, "{\"name\":\"a\"}\n"},
		{ui.Printer{Format: ui.JSON, Wide: true}, "{\n  \"name\": \"a\"\n}\n"},
		{ui.Printer{Quiet: true}, "a\n"},
	} {
		var out bytes.Buffer
		test.printer.Out = &out
		if err := test.printer.Object(object); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, out.String()); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}

// Nothing that is printed makes a terminal do anything.
func TestSafe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(
			rapid.String(),
			rapid.StringOf(rapid.SampledFrom([]rune{0x1b, '\n', '\r', 0x7f, 0x9b, 0x202e, 0x200b, 0xfeff, 'a', 'ü', '世', 0x1f600})),
			rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		).Draw(t, "text")
		safe := ui.Safe(text)
		for _, r := range safe {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q keeps %U", safe, r)
			}
		}
		var out bytes.Buffer
		if err := (&ui.Printer{Out: &out, Format: ui.JSON}).Object(ui.Object{Value: item{text}}); err != nil {
			t.Fatal(err)
		}
		for _, r := range strings.TrimSuffix(out.String(), "\n") {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q keeps %U", out.String(), r)
			}
		}
		var back item
		if err := json.Unmarshal(out.Bytes(), &back); err != nil {
			t.Fatal(err)
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); back.Name != want && !strings.Contains(want, "\ufffd") {
			t.Fatalf("%q comes back as %q", text, back.Name)
		}
	})
}

func TestSafeText(t *testing.T) {
	if got := ui.SafeText("a\tb\n\x1b[2Jc"); got != "a\tb\n\\x1b[2Jc" {
		t.Errorf("got %q", got)
	}
}

func TestTimes(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	p := ui.Printer{Now: func() time.Time { return now }, Zone: time.UTC}
	for _, test := range []struct {
		distance time.Duration
		want     string
	}{
		{0, "2026-01-01 12:00:00 (in 0s)"},
		{-45 * time.Second, "2026-01-01 11:59:15 (45s ago)"},
		{59*time.Second + 600*time.Millisecond, "2026-01-01 12:00:59 (in 1m)"},
		{90 * time.Minute, "2026-01-01 13:30:00 (in 1h30m)"},
		{2*time.Hour - time.Millisecond, "2026-01-01 13:59:59 (in 2h)"},
		{-49 * time.Hour, "2025-12-30 11:00:00 (2d1h ago)"},
		{24*time.Hour - time.Second, "2026-01-02 11:59:59 (in 1d)"},
	} {
		if got := p.When(now.Add(test.distance).UnixMilli()); got != test.want {
			t.Errorf("%s: %s, want %s", test.distance, got, test.want)
		}
	}
	if got := p.When(0); got != "-" {
		t.Errorf("never is %s", got)
	}
	if got := ui.Stamp(now.UnixMilli() + 7); got != "2026-01-01T12:00:00.007Z" {
		t.Errorf("stamp %s", got)
	}
	if got := ui.Stamp(0); got != "" {
		t.Errorf("no stamp is %q", got)
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 1536 << 10: "1.5 MiB"} {
		if got := ui.Size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}
