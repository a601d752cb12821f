package audit

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// file is what the log needs of a segment. Tests put failing disks behind it.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync returns once all data written so far is on the disk.
	Sync() error
	// Reserve sets blocks aside beyond the end without changing the size;
	// errors.ErrUnsupported where the file system cannot.
	Reserve(offset, length int64) error
	// Reserved returns how many bytes of blocks stand behind the end.
	Reserved() int64
	// Inspect looks at the path, not the descriptor: is it still this file,
	// single-linked, ours and private? It returns its size. Safe for concurrent
	// use, also after Close.
	Inspect() (size int64, err error)
}

// folder is where segments live.
type folder interface {
	// Create makes a new empty file, and fails if the name is taken.
	Create(name string) (file, error)
	// Open opens an existing file; without following a link, without waiting.
	Open(name string) (file, error)
	// View is Open for reading only; what writes fails on the file.
	View(name string) (file, error)
	// Publish renames f to name and syncs the folder: afterwards the name and
	// all that was synced in f survive a power cut, or nothing is visible.
	Publish(f file, name string) error
	// Remove removes name and syncs the folder. A name that is not there is no
	// error.
	Remove(name string) error
	// Probe writes, syncs, reads back and removes a file of its own.
	Probe() error
	// Free returns how many bytes can still be written.
	Free() (int64, error)
}

// swapped says how a log file stopped being the one that was opened.
type swapped string

func (s swapped) Error() string { return string(s) }

// osFolder is the real folder.
type osFolder string

func (dir osFolder) Create(name string) (file, error) {
	return dir.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (dir osFolder) Open(name string) (file, error) { return dir.open(name, os.O_RDWR) }

func (dir osFolder) View(name string) (file, error) { return dir.open(name, os.O_RDONLY) }

func (dir osFolder) open(name string, flags int) (*osFile, error) {
	path := filepath.Join(string(dir), name)
	// O_NONBLOCK: a FIFO in place of the log must not hang us.
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EISDIR):
		return nil, fmt.Errorf("%w: %s is no regular file", ErrUnsafe, path)
	case err != nil:
		return nil, err
	}
	opened := &osFile{File: f, path: path}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("looking at %s: %w", path, err)
	}
	opened.id = idOf(&st)
	if st.Nlink == 0 { // removed in the moment between, as pruning does under a reader
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	}
	if err := judge(&st); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: %s: %w", ErrUnsafe, path, err)
	}
	return opened, nil
}

func (dir osFolder) Publish(f file, name string) error {
	opened, ok := f.(*osFile)
	if !ok {
		return errors.New("publishing a file of another folder")
	}
	path := filepath.Join(string(dir), name)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("publishing %s: something is in its place", path)
	}
	if err := os.Rename(opened.path, path); err != nil {
		return err
	}
	opened.path = path
	if err := syncFolder(string(dir)); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func (dir osFolder) Remove(name string) error {
	if err := os.Remove(filepath.Join(string(dir), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncFolder(string(dir))
}

// probeName is the file that Probe makes; a crash may leave it behind.
const probeName = "selftest.tmp"

func (dir osFolder) Probe() error {
	path := filepath.Join(string(dir), probeName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := dir.open(probeName, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	err = f.probe()
	return errors.Join(err, f.Close(), os.Remove(path))
}

func (f *osFile) probe() error {
	var want, got [blockSize]byte
	_, _ = rand.Read(want[:]) // never fails
	if _, err := f.WriteAt(want[:], 0); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := f.ReadAt(got[:], 0); err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	if got != want {
		return errors.New("the disk gives back something else than was written")
	}
	return nil
}

func (dir osFolder) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(string(dir), &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// osFile is an open segment. Its path changes only in Publish, before anybody
// else knows of it.
type osFile struct {
	*os.File
	path string
	id   fileID
}

// fileID tells one file from another for as long as it is held open.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} } //nolint:unconvert // int32 on darwin

func (f *osFile) Inspect() (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(f.path, &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return 0, swapped("file was removed or renamed")
		}
		return 0, err
	}
	if idOf(&st) != f.id {
		return 0, swapped("file was replaced")
	}
	return st.Size, judge(&st)
}

func (f *osFile) Reserved() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return 0
	}
	const unit = 512 // of st_blocks, whatever the file system's own
	return max(0, st.Blocks*unit-roundUp(st.Size))
}

// judge accepts only a private file of ours that nobody else has a name for.
func judge(st *unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return swapped("file is no regular file")
	case st.Nlink == 0:
		return swapped("file was removed or renamed")
	case st.Nlink != 1:
		return swapped("file has another link")
	case int(st.Uid) != os.Geteuid():
		return swapped(fmt.Sprintf("file belongs to uid %d", st.Uid))
	case st.Mode&0o7777 != 0o600:
		return swapped(fmt.Sprintf("mode of the file is %04o, not 0600", st.Mode&0o7777))
	}
	return nil
}

// checkFolder accepts only a private folder of ours that is no link.
func checkFolder(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%w: %s is no folder", ErrUnsafe, dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to uid %d", ErrUnsafe, dir, st.Uid)
	case st.Mode&0o777 != 0o700:
		return fmt.Errorf("%w: mode of %s is %04o, not 0700", ErrUnsafe, dir, st.Mode&0o777)
	}
	return nil
}

// syncFolder makes created, renamed and removed names survive a power cut.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
