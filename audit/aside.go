package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A log that is set aside stays in its folder, which may be a mount of its own:
//
//	aside-YYYYMMDDTHHMMSSZ/       the files of an older log, as they were
//	aside-YYYYMMDDTHHMMSSZ.part/  the same, while they are being moved; Open refuses to start beside it
const (
	asidePrefix = "aside-"
	asideTime   = "20060102T150405Z"
	partSuffix  = ".part"
)

// SetAside moves every file of the log in dir into a new folder aside-… inside
// dir and returns the path of that folder, which package audit/verify can read;
// an empty path when there is no log. No log may be open there. When it returns
// nil the move survives a power cut; when it was interrupted, it is taken up
// again by the next call, and until then Open refuses with ErrDamaged.
func SetAside(dir string, now time.Time) (path string, err error) {
	path, err = setAsideLog(dir, now)
	if err != nil {
		return "", fmt.Errorf("setting the audit log aside: %w", err)
	}
	return path, nil
}

func setAsideLog(dir string, now time.Time) (string, error) {
	if err := checkFolder(dir); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	part, err := asidePart(dir)
	if err != nil {
		return "", err
	}
	files, err := logFiles(dir)
	if err != nil || part == "" && len(files) == 0 {
		return "", err
	}
	if part == "" {
		part, err = makePart(dir, now)
	} else {
		err = checkFolder(part) // not a link: the log stays where it is
	}
	if err != nil {
		return "", err
	}
	// The oldest first: without segment 1 no rest can pass for a log.
	for _, name := range files {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(part, name)); err != nil {
			return "", err
		}
	}
	for _, folder := range []string{part, dir} {
		if err := syncFolder(folder); err != nil {
			return "", err
		}
	}
	done := strings.TrimSuffix(part, partSuffix)
	if err := os.Rename(part, done); err != nil {
		return "", err
	}
	return done, syncFolder(dir)
}

// makePart makes the folder to move into, under a name that is not taken.
func makePart(dir string, now time.Time) (string, error) {
	for ; ; now = now.Add(time.Second) {
		path := filepath.Join(dir, asidePrefix+now.UTC().Format(asideTime))
		if _, err := os.Lstat(path); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		path += partSuffix
		if err := os.Mkdir(path, 0o700); err != nil {
			return "", err
		}
		return path, syncFolder(dir)
	}
}

// asidePart returns the folder of a move that was interrupted; empty when there
// is none.
func asidePart(dir string) (string, error) {
	names, err := os.ReadDir(dir)
	for _, name := range names {
		if strings.HasPrefix(name.Name(), asidePrefix) && strings.HasSuffix(name.Name(), partSuffix) {
			return filepath.Join(dir, name.Name()), nil
		}
	}
	return "", err
}

// logFiles returns the names of whatever belongs to the log, ascending.
func logFiles(dir string) ([]string, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		if _, _, ok := cutName(name.Name()); ok {
			files = append(files, name.Name())
		}
	}
	slices.Sort(files)
	return files, nil
}
