package agents

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// largestFile bounds what is read, in bytes.
const largestFile = 64 << 20

// File is a file of the operator's that holds secrets, as it was found.
type File struct{ *file }

// OpenFile reads a regular file; links are followed. With replaceable it must
// be one that Replace can put another in the place of: the caller's own, and of
// one name.
//
// Errors: fs.ErrNotExist, ErrInvalid when it is too large, ErrUnsafe, or what
// the file system says.
func OpenFile(path string, replaceable bool) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("finding %s: %w", path, err)
	}
	check := checkRegular
	if replaceable {
		check = checkOwn
	}
	f, err := openChecked(path, check)
	if err == nil && f.before == nil {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// Path is where the file really is, links followed.
func (f *File) Path() string { return f.path }

// Text is what was read.
func (f *File) Text() []byte { return f.before }

// Mode is the file's, as it was found.
func (f *File) Mode() fs.FileMode { return f.found.Mode().Perm() }

// Replace puts text in the file's place, with the same owner, group and mode:
// at every instant the name holds the old or the new text whole, on the disk
// too once it returns. No copy of the old one is kept. ErrConcurred: somebody
// else wrote the file meanwhile, and nothing was changed.
func (f *File) Replace(text []byte) error { return f.write(text, f.Mode()) }

// Replaceable says whether Replace could write, as far as that can be tried
// without doing it.
func (f *File) Replaceable() error {
	temp, err := f.temp(filepath.Dir(f.path))
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	temp.Close()
	os.Remove(temp.Name())
	return f.unchanged()
}

// Wipe overwrites what was read.
func (f *File) Wipe() { clear(f.before) }

// file is a configuration as it was found. Links are followed: many people keep
// their configuration in a repository and link to it, and replacing the link
// would take it out of there.
type file struct {
	path   string
	before []byte // nil: there is none
	found  fs.FileInfo
}

// openFile reads the file at path, if there is one. It must be a regular file
// of the caller's own with one name: replacing one that belongs to somebody
// else would change its owner, and one of two names would split it.
func openFile(path string) (*file, error) { return openChecked(path, checkOwn) }

func openChecked(path string, check func(path string, info fs.FileInfo) error) (*file, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		if info, lerr := os.Lstat(path); lerr == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("%w: %s is a link to a file that does not exist", ErrUnsafe, path)
		}
		return &file{path: path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	// Without blocking: what was a file a moment ago may be a pipe now.
	handle, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", real, err)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", real, err)
	}
	if err := check(real, info); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(handle, largestFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", real, err)
	}
	if len(text) > largestFile {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrInvalid, real, largestFile)
	}
	if text == nil {
		text = []byte{}
	}
	return &file{path: real, before: text, found: info}, nil
}

func checkRegular(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is not a regular file", ErrUnsafe, path)
	}
	return nil
}

func checkOwn(path string, info fs.FileInfo) error {
	if err := checkRegular(path, info); err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%w: %s: its owner cannot be told", ErrUnsafe, path)
	}
	if int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s belongs to uid %d, not to you (uid %d)", ErrUnsafe, path, stat.Uid, os.Geteuid())
	}
	if stat.Nlink != 1 {
		return fmt.Errorf("%w: %s has %d names (hard links)", ErrUnsafe, path, stat.Nlink)
	}
	return nil
}

// unchanged refuses a file that somebody wrote since it was read; agents write
// theirs at any time. The window that is left is a rename wide.
func (f *file) unchanged() error {
	now, err := os.Lstat(f.path)
	switch {
	case f.before == nil && errors.Is(err, fs.ErrNotExist):
		return nil
	case f.before == nil && err == nil:
		return fmt.Errorf("%w: %s appeared; try again", ErrConcurred, f.path)
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrConcurred, f.path, err)
	case !os.SameFile(now, f.found) || now.Size() != f.found.Size() || !now.ModTime().Equal(f.found.ModTime()):
		return fmt.Errorf("%w: %s; try again", ErrConcurred, f.path)
	}
	return nil
}

// write replaces the file by text: temporary file, fsync, rename, fsync of the
// directory. At every instant the name holds the old or the new text whole. The
// mode stays; a new file gets newMode, and missing directories one to match.
func (f *file) write(text []byte, newMode fs.FileMode) (err error) {
	dir := filepath.Dir(f.path)
	mode := newMode
	if f.found != nil {
		mode = f.found.Mode().Perm()
	} else if err := os.MkdirAll(dir, dirMode(newMode)); err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	temp, err := f.temp(dir)
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	defer func() {
		temp.Close()
		if err != nil {
			os.Remove(temp.Name())
		}
	}()
	if err := fill(temp, text, mode); err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	if err := f.unchanged(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), f.path); err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	return syncDir(dir)
}

// dirMode lets those search a directory who may read the file made in it.
func dirMode(file fs.FileMode) fs.FileMode {
	readers := file & 0o044
	return 0o700 | readers | readers>>2
}

// temp makes the file that is to take the place of f, empty.
func (f *file) temp(dir string) (*os.File, error) {
	temp, err := os.CreateTemp(dir, "."+filepath.Base(f.path)+".*")
	if err != nil {
		return nil, err
	}
	if err := f.keepGroup(temp); err != nil {
		temp.Close()
		os.Remove(temp.Name())
		return nil, fmt.Errorf("its group cannot be kept: %w", err)
	}
	return temp, nil
}

// keepGroup gives temp the group of the file it replaces; its owner it has.
func (f *file) keepGroup(temp *os.File) error {
	if f.found == nil {
		return nil
	}
	old, ok := f.found.Sys().(*syscall.Stat_t)
	info, err := temp.Stat()
	if err != nil || !ok {
		return err
	}
	if now, ok := info.Sys().(*syscall.Stat_t); ok && now.Gid == old.Gid {
		return nil
	}
	return temp.Chown(-1, int(old.Gid))
}

func fill(temp *os.File, text []byte, mode fs.FileMode) error {
	if _, err := temp.Write(text); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	return temp.Sync()
}

// remove deletes the file.
func (f *file) remove() error {
	if err := f.unchanged(); err != nil {
		return err
	}
	if err := os.Remove(f.path); err != nil {
		return fmt.Errorf("removing %s: %w", f.path, err)
	}
	return syncDir(filepath.Dir(f.path))
}

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	defer handle.Close()
	if err := handle.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}
