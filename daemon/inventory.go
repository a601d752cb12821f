package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"
)

// fileFacts is what must not change while somebody only looks.
type fileFacts struct {
	mode  fs.FileMode
	size  int64
	mtime time.Time
	sum   [sha256.Size]byte // of a regular file's content
}

// inventory describes everything below a folder. Nothing but regular files is
// opened, and no link is followed.
func inventory(ctx context.Context, root string, progress func(done, total int64)) (map[string]fileFacts, error) {
	found := map[string]fileFacts{}
	var total int64
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found[name] = fileFacts{mode: info.Mode(), size: info.Size(), mtime: info.ModTime()}
		if info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var done int64
	for _, name := range slices.Sorted(maps.Keys(found)) {
		facts := found[name]
		if !facts.mode.IsRegular() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if facts.sum, err = sumFile(filepath.Join(root, name)); err != nil {
			return nil, err
		}
		found[name] = facts
		done += facts.size
		progress(done, total)
	}
	return found, nil
}

func sumFile(path string) (sum [sha256.Size]byte, err error) {
	file, err := openPlain(path)
	if err != nil {
		return sum, err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// regular counts the files of an inventory.
func regular(found map[string]fileFacts) (n int) {
	for _, facts := range found {
		if facts.mode.IsRegular() {
			n++
		}
	}
	return n
}

// firstChange names what differs between two inventories; empty when nothing
// does. Names come first: a folder is written whenever one of them changes.
func firstChange(before, after map[string]fileFacts) string {
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, there := after[name]; !there {
			return name + " is gone"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, there := before[name]; !there {
			return name + " is new"
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		switch was, is := before[name], after[name]; {
		case was.sum != is.sum || was.size != is.size:
			return name + " has another content"
		case was.mode != is.mode:
			return fmt.Sprintf("%s had mode %v and has %v", name, was.mode, is.mode)
		case !was.mtime.Equal(is.mtime):
			return name + " was written"
		}
	}
	return ""
}
