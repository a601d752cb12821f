package copies_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/cmd/sbctl/internal/agents/copies"
	"subjectbroker/cmd/sbctl/internal/content"
)

const secret = "hunter22-\"quoted\"/and long"

func TestFind(t *testing.T) {
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) string {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := put("src/.env", "A=sb://A")
	avoid := filepath.Join(home, ".aws")
	want := []string{
		put(".bash_history", "export A='"+secret+"'\n"),
		put(".claude/projects/x/1.jsonl", `{"text": "hunter22-\"quoted\"/and long"}`), // as JSON writes it
		put("elsewhere/config.json", "x "+secret),
		put("elsewhere/config.json.bak", secret),
		put("src/.env.old", secret),
		put("src/.env~", secret),
	}
	put(".zsh_history", "nothing here")
	put("src/other", secret)        // not a place that is looked at
	put(".aws/credentials", secret) // the broker's home, say
	put("src/.git/HEAD", "")
	if err := syscall.Mkfifo(filepath.Join(home, ".netrc"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := copies.Config{File: file, UserHome: home, Files: []string{filepath.Join(home, "elsewhere/config.json"), filepath.Join(home, "missing")}, Avoid: avoid}
	got := copies.Find(t.Context(), []content.Bytes{content.Bytes(secret)}, cfg)
	if diff := cmp.Diff(copies.Found{Files: want, Git: filepath.Join(home, "src")}, got); diff != "" {
		t.Error(diff)
	}
	// What is not avoided is found, and so is the file itself while it has the value.
	cfg.Avoid = ""
	put("src/.env", "A="+secret)
	got = copies.Find(t.Context(), []content.Bytes{content.Bytes(secret)}, cfg)
	if n := len(got.Files); n != len(want)+2 {
		t.Errorf("found %d: %v", n, got.Files)
	}
}

func TestFindSaysWhatItDidNotLookAt(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, ".env")
	if err := os.WriteFile(file, []byte("A="+secret), 0o600); err != nil {
		t.Fatal(err)
	}
	// An interrupt ends it.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	values := []content.Bytes{content.Bytes(secret)}
	if got := copies.Find(over, values, copies.Config{File: file, UserHome: home}); !got.Partial || len(got.Files) > 0 {
		t.Errorf("interrupted: %+v", got)
	}
	if got := copies.Find(t.Context(), values, copies.Config{File: file, UserHome: home}); got.Partial || len(got.Files) != 1 {
		t.Errorf("not interrupted: %+v", got)
	}
	if err := os.WriteFile(file, []byte("A=short"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := copies.Find(t.Context(), []content.Bytes{content.Bytes("short")}, copies.Config{File: file, UserHome: home})
	if !got.Partial || len(got.Files) > 0 {
		t.Errorf("a value too short to look for: %+v", got)
	}
	// A file too large to look at, without using the disk up.
	big := filepath.Join(home, ".bash_history")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 1<<30); err != nil {
		t.Fatal(err)
	}
	got = copies.Find(t.Context(), []content.Bytes{content.Bytes(strings.Repeat("x", 20))}, copies.Config{File: file, UserHome: home})
	if !got.Partial {
		t.Error("a file too large to look at is not said")
	}
}
