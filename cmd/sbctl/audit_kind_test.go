package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every kind that the daemon and the log write can be asked for and is in the
// documentation, and no other.
func TestEntryKinds(t *testing.T) {
	var written []string
	named := regexp.MustCompile(`\bKind += "([a-z_.]+)"`)
	for _, file := range []string{"../../daemon/words.go", "../../daemon/approvals.go", "../../audit/kind.go"} {
		found := named.FindAllStringSubmatch(text(t, file), -1)
		if len(found) == 0 {
			t.Errorf("%s names no kinds", file)
		}
		for _, kind := range found {
			written = append(written, kind[1])
		}
	}
	slices.Sort(written)
	if diff := cmp.Diff(written, entryKinds); diff != "" {
		t.Errorf("written, and to be asked for: %s", diff)
	}
	if diff := cmp.Diff(written, documentedKinds(t)); diff != "" {
		t.Errorf("written, and in docs/audit-format.md: %s", diff)
	}
}

// documentedKinds are those of docs/audit-format.md, sorted: what stands alone, in
// one sentence, and then a line for each family.
func documentedKinds(t *testing.T) []string {
	t.Helper()
	_, rest, _ := strings.Cut(text(t, "../../docs/audit-format.md"), "**Kinds.** Alone: ")
	alone, rest, _ := strings.Cut(rest, ". As ")
	_, rest, _ = strings.Cut(rest, "This build writes those that stand alone, ")
	_, table, found := strings.Cut(rest, "and:\n\n")
	if !found {
		t.Fatal("docs/audit-format.md has no list of kinds")
	}
	var kinds []string
	kinds = append(kinds, strings.Fields(strings.ReplaceAll(alone, "`", " "))...)
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "    ") {
			break
		}
		for _, word := range words[1:] {
			if kind := words[0] + word; !slices.Contains(kinds, kind) { // what stands alone may be of a family, too
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	return kinds
}

func text(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
