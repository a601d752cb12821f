package cmd_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"subjectbroker/grants/policy"
)

// What the documentation shows must work: people paste it.

// TestShippedPolicy parses the document that is shipped; package grants/policy
// tests those of its reference.
func TestShippedPolicy(t *testing.T) {
	if _, err := policy.Parse(read(t, "../examples/policy.yaml"), policy.Env{}); err != nil {
		t.Error(err)
	}
}

// TestPromisesAreTested looks for every test that docs/security.md names.
func TestPromisesAreTested(t *testing.T) {
	promises := string(read(t, "../docs/security.md"))
	packages := regexp.MustCompile("`([a-z/-]+)` ((?:`(?:Test|Fuzz)[A-Za-z]+`(?:, )?)+)")
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`")
	tests := 0
	for _, found := range packages.FindAllStringSubmatch(promises, -1) {
		var source []byte
		files, _ := filepath.Glob(filepath.Join("..", found[1], "*_test.go"))
		for _, file := range files {
			source = append(source, read(t, file)...)
		}
		for _, test := range named.FindAllStringSubmatch(found[2], -1) {
			tests++
			if !bytes.Contains(source, []byte("\nfunc "+test[1]+"(")) {
				t.Errorf("docs/security.md names %s in %s, which is not there", test[1], found[1])
			}
		}
	}
	scripts := regexp.MustCompile("`(cmd/[a-z-]+/testdata/[a-z/]+\\.txtar)`")
	for _, script := range scripts.FindAllStringSubmatch(promises, -1) {
		read(t, filepath.Join("..", script[1]))
	}
	if tests < 50 {
		t.Errorf("only %d tests were found", tests)
	}
}

// TestDocumentedCommands asks sbctl for help on every command that is shown.
func TestDocumentedCommands(t *testing.T) {
	sbctl := filepath.Join(t.TempDir(), "sbctl")
	command(t, runtime.GOOS, "go", "build", "-o", sbctl, "./cmd/sbctl")
	shown := regexp.MustCompile(`\bsbctl((?: [a-z][a-z-]+){1,2})`)
	seen := map[string]bool{}
	for _, file := range []string{"../README.md", "../docs/operating.md", "../docs/policy.md", "../docs/security.md", "../examples/README.md"} {
		for _, found := range shown.FindAllStringSubmatch(code(string(read(t, file))), -1) {
			words := strings.Fields(found[1])
			if seen[found[1]] {
				continue
			}
			seen[found[1]] = true
			cmd := exec.CommandContext(t.Context(), sbctl, append(words, "--help")...)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s shows sbctl%s: %v\n%s", file, found[1], err, out)
			}
		}
	}
	if len(seen) < 30 {
		t.Errorf("only %d commands were found in the documents", len(seen))
	}
}

// TestDocumentedFormats compares the drawings of the vault's format with those
// beside the code.
func TestDocumentedFormats(t *testing.T) {
	squeeze := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	drawn := squeeze(strings.ReplaceAll(string(read(t, "../vault/doc.go")), "\n//", "\n"))
	lines := 0
	for line := range strings.Lines(string(read(t, "../docs/formats.md"))) {
		if !strings.HasPrefix(line, "    ") {
			continue
		}
		lines++
		if !strings.Contains(drawn, squeeze(line)) {
			t.Errorf("docs/formats.md draws what vault/doc.go does not:\n%s", line)
		}
	}
	if lines < 10 {
		t.Errorf("only %d lines were compared", lines)
	}
}

// code is what stands in a Markdown text as code: indented, or between backticks.
func code(text string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "    ") {
			found = append(found, line)
			continue
		}
		for i, part := range strings.Split(line, "`") {
			if i%2 == 1 {
				found = append(found, part)
			}
		}
	}
	return strings.Join(found, "\n")
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
