package links_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/proto/links"
)

// Paths lead where the kernel would go, also to what does not exist yet.
func TestResolve(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(base, name) }
	for _, err := range []error{
		os.MkdirAll(at("data/sub"), 0o700), os.MkdirAll(at("etc/deep"), 0o700), os.WriteFile(at("etc/passwd"), nil, 0o600),
		os.Symlink("../etc", at("data/link")), os.Symlink("loop", at("data/loop")), os.Symlink(at("etc/deep"), at("data/deep")),
		os.Symlink(at("nowhere"), at("data/dangling")), os.Symlink("/proc/self/cwd", at("data/here")), os.Symlink("data/here", at("other")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"data/sub":               at("data/sub"),
		"data/sub/":              at("data/sub"),
		"data/new/file":          at("data/new/file"),
		"data/link/passwd":       at("etc/passwd"),
		"data/link/new":          at("etc/new"),
		"data/deep/../passwd":    at("etc/passwd"), // up from where the link leads
		"data/sub/../../etc/new": at("etc/new"),
		"data/loop":              "",
		"data/loop/x":            "",
		"etc/passwd/x":           "", // a file is no folder
		"data/here/x":            "", // somewhere else to each process
		"other/x":                "",
		"data/../other":          "",
	} {
		got, err := links.Resolve(base + "/" + name)
		if (err != nil) != (want == "") || got != want {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
}

// A path costs about as much as it is long, whatever it is made of: agents choose it.
// Each part that is there was looked at once more for each that is not.
func TestLongPaths(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	there := dir + strings.Repeat("/d/..", 300)
	for range 100 {
		path := there + strings.Repeat("/x", (4000-len(there))/2)
		got, err := links.Resolve(path)
		if want := filepath.Clean(path); err != nil || got != want {
			t.Fatalf("%v, %d bytes, want %d", err, len(got), len(want))
		}
	}
	if got, err := links.Resolve(dir + strings.Repeat("/d/..", 1000)); err == nil {
		t.Errorf("a path that no kernel follows is %q", got)
	}
}
