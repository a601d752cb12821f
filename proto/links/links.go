// Package links says where a path leads, for rules about the arguments of tools: the
// daemon judges by it, and sbctl tries rules out by it, so that both say the same.
//
// It looks at the file system as it is now, through the eyes of this process. It does
// not keep a path from leading elsewhere a moment later.
package links

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of a path, as the kernel has them: who asks chooses what it is.
const (
	maxLinks = 40   // it may lead over so many
	maxPath  = 4096 // bytes
)

// Resolve resolves the links of an absolute path as far as it exists; what does
// not exist is left as it is, and a link to what does not exist is followed: it is
// where something would be made. What cannot be looked into is an error, and so is
// what the kernel would not follow.
func Resolve(path string) (string, error) { return resolve(path, os.Lstat) }

// resolve looks at each place once: agents choose the path.
func resolve(path string, look func(string) (fs.FileInfo, error)) (string, error) {
	if len(path) > maxPath {
		return "", errLong
	}
	left, at, links := strings.Split(path, "/"), "/", 0
	missing := 0  // parts at the end of at that are not there
	file := false // at is there, and no folder
	for len(left) > 0 {
		name := left[0]
		left = left[1:]
		switch {
		case file:
			return "", errFile
		case name == "", name == ".":
			continue
		case name == "..":
			at, missing = filepath.Dir(at), max(missing-1, 0)
			continue
		}
		next := filepath.Join(at, name)
		if missing > 0 {
			at, missing = next, missing+1
			continue
		}
		if isOwn(next) {
			return "", errOwn
		}
		info, err := look(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			at, missing = next, 1
			continue
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			at, file = next, !info.IsDir()
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", errLinks
		}
		left = append(strings.Split(target, "/"), left...) // from where the link lies, not from what is left of the text
		if filepath.IsAbs(target) {
			at = "/"
		}
	}
	return at, nil
}

// isOwn reports whether a place is something else to each process that opens it, as
// /proc/self/cwd is: here it says nothing about the server.
func isOwn(at string) bool { return at == "/proc" || at == "/dev/fd" }

var (
	errFile  = errors.New("the path leads through a file")
	errOwn   = errors.New("the path means something else to each process")
	errLinks = errors.New("the path leads over too many links")
	errLong  = errors.New("the path is too long")
)
