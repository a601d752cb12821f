package links

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// However a path is written, what is looked at is as much as it has parts: agents
// choose it. A search from the start for each part that is not there looks at a
// million.
func TestLongPaths(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	there := dir + strings.Repeat("/d/..", 300)
	path := there + strings.Repeat("/x", (4000-len(there))/2)
	looks := 0
	got, err := resolve(path, func(place string) (fs.FileInfo, error) {
		looks++
		return os.Lstat(place)
	})
	if want := filepath.Clean(path); err != nil || got != want {
		t.Errorf("%v, %d bytes, want %d", err, len(got), len(want))
	}
	if parts := strings.Count(path, "/"); looks > parts {
		t.Errorf("%d looks for %d parts", looks, parts)
	}
	if got, err := Resolve(dir + strings.Repeat("/d/..", 1000)); err == nil {
		t.Errorf("a path that no kernel follows is %q", got)
	}
}
