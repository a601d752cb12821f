// Package homefiles tells the files that the broker keeps in its home from
// everything else that lies there, and removes them. It protects what somebody
// else put there: a name that the broker does not use is left, and named.
//
// It never leaves the home: no link is followed, neither when it looks nor when
// it removes. It does not overwrite what it removes; keys are the daemon's to
// forget, before.
package homefiles

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// File is one path in the home.
type File struct {
	// Name is relative to the home, with slashes.
	Name string
	// Dir says that it is a directory.
	Dir bool
	// Known says that the broker keeps it there.
	Known bool
	// Bytes is its size; 0 for a directory.
	Bytes int64
}

// The names that the broker uses. What an interrupted step leaves has the name
// of what it was to become, and one more word.
const (
	words   = `(\.([a-z0-9-]+|before-[0-9]{8}T[0-9]{6}Z))*`
	segment = `[0-9]{8}(\.[a-z]+(-[0-9]+)?)+(\.[0-9]+)?`
	aside   = `aside-[0-9]{8}T[0-9]{6}Z(\.part)?`
)

var (
	knownFile = regexp.MustCompile(`^(?:` + strings.Join([]string{
		`vault\.db` + words,
		`secret\.key` + words,
		`audit\.key` + words,
		`config\.yaml`, `lock`,
		`run/(broker/broker|operator/operator)\.sock`,
		`audit/` + segment, `audit/selftest\.tmp`,
		`audit/` + aside + `/` + segment,
		`restoring/vault\.db` + words, `restoring/audit/` + segment,
		`restored/audit/` + segment,
		`restored/audit/` + aside + `/` + segment,
		`scratch-[^/]*/.*`,
	}, `|`) + `)$`)
	knownDir = regexp.MustCompile(`^(?:` + strings.Join([]string{
		`run`, `run/broker`, `run/operator`,
		`audit`, `audit/` + aside,
		`restoring`, `restoring/audit`,
		`restored`, `restored/audit`, `restored/audit/` + aside,
		`scratch-[^/]*(/.*)?`,
	}, `|`) + `)$`)
)

// evidence are names that no other program uses: a directory without any of
// them is no home, and nothing in it is known, not even a config.yaml. Remove
// takes the last of them last, so that it can be interrupted and repeated.
var evidence = regexp.MustCompile(`^(?:vault\.db(\.new)?|audit\.key|audit/[0-9]{8}\.(jsonl|pruned))$`)

// ErrNoDir is returned for a home that is something else than a directory.
var ErrNoDir = errors.New("the home is no directory")

// Scan lists everything below home, a directory before what is in it. A link is
// no file of the broker's, whatever its name. A home that does not exist holds
// nothing. Directories that cannot be read are an error.
func Scan(home string) ([]File, error) {
	info, err := os.Lstat(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, ErrNoDir
	}
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var files []File
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		f := File{Name: name, Dir: entry.IsDir(), Known: known(name, info.Mode())}
		if !f.Dir {
			f.Bytes = info.Size()
		}
		files = append(files, f)
		if f.Dir && !f.Known {
			return fs.SkipDir // all of it is somebody else's
		}
		return nil
	})
	if !slices.ContainsFunc(files, func(f File) bool { return f.Known && evidence.MatchString(f.Name) }) {
		for i := range files {
			files[i].Known = false
		}
	}
	return files, err
}

func known(name string, mode fs.FileMode) bool {
	switch {
	case mode.IsDir():
		return knownDir.MatchString(name)
	case mode.Type() == fs.ModeSocket:
		return path.Ext(name) == ".sock" && knownFile.MatchString(name)
	case mode.IsRegular():
		return path.Ext(name) != ".sock" && knownFile.MatchString(name)
	}
	return false
}

// Remove removes those of files that are known, what is in a directory before
// the directory, and then home if nothing is left in it. A directory that still
// holds something, or on which something is mounted, stays. It goes on after an
// error, and returns the paths that are gone, relative to home.
func Remove(home string, files []File) (gone []string, err error) {
	root, err := os.OpenRoot(home)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	for _, f := range slices.Backward(files) {
		if !f.Known {
			continue
		}
		switch errRemove := root.Remove(filepath.FromSlash(f.Name)); {
		case errRemove == nil:
			gone = append(gone, f.Name)
		case f.Dir && stays(errRemove), errors.Is(errRemove, fs.ErrNotExist):
		default:
			err = errors.Join(err, errRemove)
		}
	}
	if errRemove := os.Remove(home); errRemove == nil {
		gone = append(gone, ".")
	} else if !stays(errRemove) {
		err = errors.Join(err, errRemove)
	}
	slices.Reverse(gone)
	return gone, err
}

// stays says whether a directory could not be removed for what is in or on it.
func stays(err error) bool {
	for _, reason := range []error{syscall.ENOTEMPTY, syscall.EEXIST, syscall.EBUSY} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
