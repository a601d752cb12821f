package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"subjectbroker/grants/policy"
)

const launchExamples = "../../examples/launch"

// What is shown of launches is read by the programs that it is for.
func TestLaunchExamples(t *testing.T) {
	if handed, err := readEnvFile(filepath.Join(launchExamples, "app.env")); err != nil || len(handed) != 3 {
		t.Errorf("app.env: %v, %v", handed, err)
	}
	text, err := os.ReadFile(filepath.Join(launchExamples, "coder.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	document, err := policy.Parse(text, policy.Env{})
	if err != nil || document.Profiles["coder"].Subject != "coder" {
		t.Errorf("coder.yaml: %v, %v", document, err)
	}
	commands := 0
	for _, name := range []string{"README.md", "coder"} {
		text, err := os.ReadFile(filepath.Join(launchExamples, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range regexp.MustCompile("(?:^|[`\n ])sbctl ([^`\n]+)").FindAllSubmatch(text, -1) {
			commands++
			words, _, _ := strings.Cut(string(found[1]), " -- ")
			args := append(strings.Fields(words), "--help")
			if code := run(context.Background(), args, strings.NewReader(""), io.Discard, os.Stderr); code != 0 {
				t.Errorf("%s shows sbctl %s", name, words)
			}
		}
	}
	if commands < 10 {
		t.Errorf("only %d commands were found", commands)
	}
}
