package manual_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/manual"
)

type put struct {
	Name string `arg:"" help:"Name of it."`
	From string `placeholder:"F" short:"f" help:"Where from."`
	Kind string `required:"" enum:"a,b" help:"Which kind."`
}

func (put) Help() string {
	return `.A line that troff would obey, and a back\slash.

Examples:
  prog put x --kind a`
}

type program struct {
	Home string   `placeholder:"DIR" help:"The home, described in so many words that the description has to go on in a second line."`
	Put  put      `cmd:"" help:"Put one"`
	Gone struct{} `cmd:"" hidden:"" help:"Hidden"`
}

func root(t *testing.T) *kong.Node {
	t.Helper()
	parser, err := kong.New(&program{}, kong.Name("prog"), kong.Description("Do things"), kong.NoDefaultHelp())
	if err != nil {
		t.Fatal(err)
	}
	return parser.Model.Node
}

func TestText(t *testing.T) {
	var text strings.Builder
	if err := manual.Text(&text, root(t).Children[0]); err != nil {
		t.Fatal(err)
	}
	want := `Usage: prog put NAME --kind a|b [flags]

Put one.

.A line that troff would obey, and a back\slash.

Examples:
  prog put x --kind a

Arguments:
  NAME                    Name of it.

Flags:
  -f, --from F            Where from.
      --kind a|b          Which kind.

Global flags:
      --home DIR          The home, described in so many words that the
                          description has to go on in a second line.
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestRoff(t *testing.T) {
	pages := manual.Pages(root(t))
	if len(pages) != 2 || pages[1].File() != "prog-put.1" {
		t.Fatalf("pages %v", pages)
	}
	for _, page := range pages {
		var text strings.Builder
		if err := page.Roff(&text); err != nil {
			t.Fatal(err)
		}
		if page.Name == "prog-put" {
			for _, want := range []string{`\&.A line`, `back\eslash`, ".nf\nprog put x \\-\\-kind a\n.fi"} {
				if !strings.Contains(text.String(), want) {
					t.Errorf("no %q in\n%s", want, text.String())
				}
			}
		}
		if _, err := exec.LookPath("groff"); err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), "groff", "-man", "-ww", "-z")
		cmd.Stdin = strings.NewReader(text.String())
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", page.Name, err, out)
		}
	}
}
