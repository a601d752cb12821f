package links_test

import (
	"os"
	"path/filepath"
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
