package complete_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/complete"
)

type program struct {
	Output string `short:"o" enum:"table,json" default:"table"`
	Home   string
	Secret struct {
		Put struct {
			Name string   `arg:""`
			More []string `arg:"" optional:"" name:"cap"`
			Kind string   `enum:"text,secret" default:"text"`
			Who  string   `placeholder:"S"`
		} `cmd:"" help:"Store"`
		List struct{} `cmd:"" default:"1" help:"List"`
	} `cmd:"" aliases:"secrets" help:"Secrets"`
	Runs struct {
		Show struct {
			ID string `arg:""`
		} `cmd:"" default:"withargs"`
	} `cmd:""`
	Status struct{} `cmd:"" help:"Status"`
	Hidden struct{} `cmd:"" hidden:""`
}

func names(sort string, command, _ []string) []complete.Candidate {
	return []complete.Candidate{{Word: sort + ":" + strings.Join(command, "/")}}
}

func TestWords(t *testing.T) {
	parser, err := kong.New(&program{}, kong.Name("prog"), kong.NoDefaultHelp())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		line string
		want []string
	}{
		{"", []string{"secret", "runs", "status"}},
		{"s", []string{"secret", "status"}},
		{"secret ", []string{"put", "list"}},
		{"secrets p", []string{"put"}},
		{"--ho", []string{"--home"}},
		{"secret put --", []string{"--kind", "--who", "--output", "--home"}},
		{"secret put --kind ", []string{"text", "secret"}},
		{"secret put --kind s", []string{"secret"}},
		{"secret put --kind=s", []string{"--kind=secret"}},
		{"-o ", []string{"table", "json"}},
		{"-o json st", []string{"status"}},
		{"secret put n", []string{"name:secret/put"}},
		{"secret put x c", []string{"cap:secret/put"}},
		{"secret put x y z c", []string{"cap:secret/put"}},
		{"secret put --who ", []string{"s:secret/put"}},
		{"secret put x -- c", []string{"cap:secret/put"}},
		{"runs ", []string{"show", "id:runs"}},
		{"status ", nil},
		{"nonsense ", []string{"secret", "runs", "status"}},
	} {
		var got []string
		for _, candidate := range complete.Words(parser.Model.Node, strings.Split(test.line, " "), names) {
			got = append(got, candidate.Word)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q: (-want +got)\n%s", test.line, diff)
		}
	}
}

// Each shell that is here can read its script.
func TestScripts(t *testing.T) {
	for shell, check := range map[string][]string{"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"}} {
		var script strings.Builder
		if err := complete.Script(&script, shell, "sbctl"); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(script.String(), "PROGRAM") || !strings.Contains(script.String(), "sbctl "+complete.Verb) {
			t.Errorf("%s:\n%s", shell, script.String())
		}
		if _, err := exec.LookPath(check[0]); err != nil {
			continue
		}
		cmd := exec.CommandContext(t.Context(), check[0], append(check[1:], "/dev/stdin")...)
		cmd.Stdin = strings.NewReader(script.String())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	if err := complete.Script(&strings.Builder{}, "tcsh", "sbctl"); err == nil {
		t.Error("a script for tcsh")
	}
}

// bash really completes with the script.
func TestBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("suite left out: completion in bash: needs bash")
	}
	var script strings.Builder
	if err := complete.Script(&script, "bash", "prog"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ words, line, want string }{
		{"prog re", "prog re", "prog|__complete|--|re"},
		{"prog grant w read : x", "prog grant w read:x", "prog|__complete|--|grant|w|read:x"},
	} {
		fake := `prog() { local IFS="|"; printf '%s\n' "prog|$*"; }; compopt() { :; }; ` + script.String() + `
COMP_LINE="` + test.line + `"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(` + test.words + `); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_prog; printf '%s\n' "${COMPREPLY[@]}"`
		out, err := exec.CommandContext(t.Context(), bash, "-c", fake).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if got := strings.ReplaceAll(strings.TrimSpace(string(out)), `\`, ""); got != test.want {
			t.Errorf("%s: asked %s, want %s", test.line, got, test.want)
		}
	}
}

// What sbctl offers is no pattern of the files that lie about.
func TestBashIsNoGlob(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("suite left out: completion in bash: needs bash")
	}
	var script strings.Builder
	if err := complete.Script(&script, "bash", "prog"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"grant.txt", "x y"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fake := `prog() { printf '%s\n' 'grant.*' $'?\thelp of it' ' two  words '; }; compopt() { :; }; ` + script.String() + `
COMP_LINE="prog audit gra"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(prog audit gra); COMP_CWORD=2
_prog; printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.CommandContext(t.Context(), bash, "-c", fake)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if diff := cmp.Diff("grant.*\n?\n two  words \n", strings.ReplaceAll(string(out), `\`, "")); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
