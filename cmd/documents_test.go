package cmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"subjectbroker/grants/policy"
	"subjectbroker/proto/wire"
)

// What the documentation shows must work: people paste it.

// TestShippedPolicy parses the documents that are shipped; package grants/policy
// tests those of its reference.
func TestShippedPolicy(t *testing.T) {
	for _, file := range []string{"../examples/policy.yaml", "../examples/tools/policy.yaml"} {
		if _, err := policy.Parse(read(t, file), policy.Env{}); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestPromisesAreTested looks for every promise in docs/security.md, and for
// everything that stands there as its proof.
func TestPromisesAreTested(t *testing.T) {
	var wanted []string
	for _, part := range [][2]int{{1, 13}, {20, 29}, {40, 47}, {60, 67}} {
		for n := part[0]; n <= part[1]; n++ {
			wanted = append(wanted, fmt.Sprintf("P%d", n))
		}
	}
	row := regexp.MustCompile(`(?m)^\| (P[0-9]+) \|([^|]*)\|([^|]*)\|$`)
	var promised []string
	for _, found := range row.FindAllStringSubmatch(string(read(t, "../docs/security.md")), -1) {
		promised = append(promised, found[1])
		if proofs(t, found[1], found[3]) == 0 && !strings.Contains(found[3], "not provided yet") {
			t.Errorf("docs/security.md: %s has no test, and is not said to be not provided yet", found[1])
		}
	}
	if !slices.Equal(promised, wanted) {
		t.Errorf("docs/security.md promises %v, want each of %v once, in this order", promised, wanted)
	}
}

// proofs counts what stands between backticks as the proof of a promise: tests,
// behind their package, and files. Each must be there.
func proofs(t *testing.T, promise, text string) (count int) {
	var pkg string
	var tests []byte
	for _, name := range spans(text) {
		path := filepath.Join("..", name)
		info, err := os.Stat(path)
		switch {
		case err == nil && info.IsDir():
			pkg, tests = name, nil
			files, _ := filepath.Glob(filepath.Join(path, "*_test.go"))
			for _, file := range files {
				tests = append(tests, read(t, file)...)
			}
		case err == nil:
			count++
		case bytes.Contains(tests, []byte("\nfunc "+name+"(")):
			count++
		default:
			t.Errorf("docs/security.md: %s names %s, which is neither in %q nor a file", promise, name, pkg)
		}
	}
	return count
}

// TestDocumentedCommands lets the programs read the commands and configurations
// that are shown. Of a command help is asked for at its end, which is given only
// when the words and flags before it are known.
func TestDocumentedCommands(t *testing.T) {
	bin := t.TempDir()
	command(t, runtime.GOOS, "go", "build", "-o", bin, "./cmd/sbd", "./cmd/sb-mcp", "./cmd/sbctl")
	seen := map[string]bool{}
	for _, file := range documents(t) {
		for _, words := range commands(string(read(t, file))) {
			line := strings.Join(words, " ")
			if seen[line] {
				continue
			}
			seen[line] = true
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, words[0]), append(words[1:], "--help")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s shows %q: %v\n%s", file, line, err, out)
			}
		}
	}
	if len(seen) < 80 {
		t.Errorf("only %d commands were found in the documents", len(seen))
	}
	for _, file := range []string{"../examples/tools/hosted.json", "../examples/tools/wrapped.json"} {
		var config struct {
			Servers map[string]struct {
				Args []string `json:"args"`
			} `json:"mcpServers"`
		}
		if err := json.Unmarshal(read(t, file), &config); err != nil || len(config.Servers) == 0 {
			t.Errorf("%s: %d servers, %v", file, len(config.Servers), err)
		}
		for name, server := range config.Servers {
			args := server.Args
			if end := slices.Index(args, "--"); end >= 0 { // what follows is not ours
				args = args[:end]
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "sb-mcp"), append(slices.Clone(args), "--help")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s starts %s with %q: %v\n%s", file, name, server.Args, err, out)
			}
		}
	}
	configs := regexp.MustCompile("(?s)```yaml\n# config.yaml\n(.*?)```").FindAllSubmatch(read(t, "../docs/operating.md"), -1)
	for _, config := range configs {
		home := filepath.Join(t.TempDir(), "home")
		if err := errors.Join(os.Mkdir(home, 0o700), os.WriteFile(filepath.Join(home, "config.yaml"), config[1], 0o600)); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), filepath.Join(bin, "sbd"), "check", "--home", home).CombinedOutput()
		if !bytes.Contains(out, []byte(wire.VaultMissing)) { // the next thing that is looked at
			t.Errorf("sbd check, with\n%s\nsays\n%s", config[1], out)
		}
	}
	if len(configs) == 0 {
		t.Error("docs/operating.md shows no config.yaml")
	}
}

// shown is a command of ours up to where the shell or the text goes on.
var shown = regexp.MustCompile(`(?:^|[ (/])(sbctl|sbd|sb-mcp)((?: [^ ]+)+)`)

// commands are those of our programs that stand in a text as code, with their
// words. Of what may be left out or chosen, the first form is taken.
func commands(text string) [][]string {
	var found [][]string
	for _, fragment := range code(text) {
		for _, match := range shown.FindAllStringSubmatch(fragment, -1) {
			words := []string{match[1]}
			for _, word := range strings.Fields(match[2]) {
				if strings.HasPrefix(word, "https://") && !strings.HasPrefix(words[len(words)-1], "--") {
					break // an address, as of a server: no option may stand behind it
				}
				if word == "--" || strings.HasPrefix(word, "─") || strings.ContainsAny(word[:1], "|>&;#<…(") { // what follows is not ours
					break
				}
				word, last := strings.CutSuffix(word, ";")
				word, _, _ = strings.Cut(strings.Trim(word, `[]"'…,`), "|")
				if word = strings.TrimSuffix(word, "…"); word == "N" {
					word = "1"
				}
				if word != "" {
					words = append(words, word)
				}
				if last {
					break
				}
			}
			if len(words) > 1 {
				found = append(found, words)
			}
		}
	}
	return found
}

// TestDocumentedTargets looks for the targets of make that are shown.
func TestDocumentedTargets(t *testing.T) {
	makefile := read(t, "../Makefile")
	shown := regexp.MustCompile(`(?:^|[ (])make ([a-z][a-z-]*)`)
	for _, file := range documents(t) {
		for _, fragment := range code(string(read(t, file))) {
			for _, target := range shown.FindAllStringSubmatch(fragment, -1) {
				if !regexp.MustCompile(`(?m)^` + target[1] + `:`).Match(makefile) {
					t.Errorf("%s shows make %s, which is not in the Makefile", file, target[1])
				}
			}
		}
	}
}

// TestDocumentedLinks follows the links from one file of ours to another.
func TestDocumentedLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	for _, file := range documents(t) {
		for _, target := range link.FindAllStringSubmatch(string(read(t, file)), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), target[1])); err != nil {
				t.Errorf("%s links to %s: %v", file, target[1], err)
			}
		}
	}
}

// TestDocumentedFormats compares the drawings in docs/formats.md with those
// beside the code.
func TestDocumentedFormats(t *testing.T) {
	squeeze := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	var drawn string
	for _, file := range []string{"../vault/doc.go", "../vault/backup/doc.go", "../proto/recovery/recovery.go"} {
		drawn += squeeze(strings.ReplaceAll(string(read(t, file)), "\n//", "\n"))
	}
	lines := 0
	for line := range strings.Lines(string(read(t, "../docs/formats.md"))) {
		if !strings.HasPrefix(line, "    ") {
			continue
		}
		lines++
		if !strings.Contains(drawn, squeeze(line)) {
			t.Errorf("docs/formats.md draws what no comment beside the code does:\n%s", line)
		}
	}
	if lines < 40 {
		t.Errorf("only %d lines were compared", lines)
	}
}

// documents are the texts for people; the decisions are not among them, because
// they also speak of what was not chosen.
func documents(t *testing.T) []string {
	t.Helper()
	files := []string{"../README.md"}
	for _, pattern := range []string{"../docs/*.md", "../examples/*.md", "../examples/tools/*.md", "../packaging/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	return slices.DeleteFunc(files, func(file string) bool { return filepath.Base(file) == "decisions.md" })
}

// code is what stands in a Markdown text as code: indented, fenced, or between
// backticks. Behind two blanks in an indented or fenced line stands a remark.
func code(text string) []string {
	var found []string
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "    "):
			line, _, _ = strings.Cut(strings.TrimSpace(line), "  ")
			found = append(found, line)
		default:
			found = append(found, spans(line)...)
		}
	}
	return found
}

// spans is what stands between backticks.
func spans(line string) []string {
	var found []string
	for i, part := range strings.Split(line, "`") {
		if i%2 == 1 {
			found = append(found, part)
		}
	}
	return found
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
