package daemon

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// formatSubjectBroker is the policy file of SubjectBroker, as a format of Apply.
const formatSubjectBroker = "subject-broker"

// checkStorageRoot refuses a folder of an imported policy that others could
// reach, or that lies where an agent is started: it must be the operator's alone
// (mode 0700), under a path without symbolic links, and neither inside nor around
// the folder in which the command was given.
func checkStorageRoot(uid uint32, root, working string) error {
	if !filepath.IsAbs(root) || filepath.Clean(root) != root {
		return refuse("storageRoot must be an absolute, clean path")
	}
	if !filepath.IsAbs(working) {
		return refuse("the folder in which the command was given must be named by an absolute path")
	}
	info, err := os.Lstat(root)
	if err != nil {
		return refuse("storageRoot: %v", err)
	}
	if real, err := filepath.EvalSymlinks(root); err != nil || real != root {
		return refuse("storageRoot %s leads through a symbolic link", root)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return refuse("storageRoot %s is not a folder", root)
	case info.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0o700:
		return refuse("storageRoot %s has mode %04o, want 0700", root, info.Mode().Perm())
	case !ok || owner.Uid != uid:
		return refuse("storageRoot %s is not owned by the operator", root)
	}
	here, err := os.Stat(working)
	if err != nil {
		return refuse("the folder in which the command was given: %v", err)
	}
	if working, err = filepath.EvalSymlinks(working); err != nil {
		return refuse("the folder in which the command was given: %v", err)
	}
	switch {
	case above(root, here):
		return refuse("storageRoot %s lies in %s, where the command was given: an agent started there could read it", root, working)
	case above(working, info):
		return refuse("the command was given in %s, inside of storageRoot", working)
	}
	return nil
}

// above reports whether path is dir or lies below it, however dir is reached.
func above(path string, dir fs.FileInfo) bool {
	for {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, dir) {
			return true
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false
		}
		path = parent
	}
}
