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

// maxLinks is how many links to nothing a path may lead over.
const maxLinks = 40

// Resolve resolves the links of an absolute path as far as it exists; what does
// not exist is left as it is, and a link to what does not exist is followed: it is
// where something would be made. What cannot be looked into is an error.
func Resolve(path string) (string, error) {
	if isOwn(path) {
		return "", errOwn
	}
	rest, links := "", 0
	for {
		resolved, err := filepath.EvalSymlinks(path)
		if err == nil {
			return filepath.Join(resolved, rest), nil
		}
		parent, last := filepath.Split(strings.TrimRight(path, "/"))
		if last == "" || !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		target, err := os.Readlink(parent + last)
		switch links++; {
		case err == nil && links > maxLinks:
			return "", errLinks
		case err == nil && filepath.IsAbs(target):
			path = target
		case err == nil:
			path = parent + target // not cleaned: what it goes up from may be a link
		default:
			path, rest = parent, filepath.Join(last, rest)
		}
	}
}

// isOwn reports whether a path leads to or over what is something else to each
// process that opens it, as /proc/self/cwd is: here it says nothing about the server.
func isOwn(path string) bool {
	left, at, links := strings.Split(path, "/"), "/", 0
	for len(left) > 0 {
		name := left[0]
		left = left[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		at = filepath.Join(at, name)
		if at == "/proc" || at == "/dev/fd" {
			return true
		}
		target, err := os.Readlink(at)
		if err != nil {
			continue // it is no link
		}
		if links++; links > maxLinks {
			return true
		}
		left = append(strings.Split(target, "/"), left...)
		at = filepath.Dir(at)
		if filepath.IsAbs(target) {
			at = "/"
		}
	}
	return false
}

var errOwn = errors.New("the path means something else to each process")

var errLinks = errors.New("the path leads over too many links")
