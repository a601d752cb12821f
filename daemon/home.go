package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// openHome makes the home where it is absent and refuses one that another uid
// could change: contract §2. Missing parents are made 0700.
func openHome(home string) error {
	if err := os.MkdirAll(filepath.Dir(home), 0o700); err != nil {
		return fault(wire.HomeUnsafe, "making the home's parent: %w", err)
	}
	if err := os.Mkdir(home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fault(wire.HomeUnsafe, "making the home: %w", err)
	}
	return checkHome(home)
}

// checkHome is openHome for a home that must exist already.
func checkHome(home string) error {
	if err := checkDir(home, 0o700); err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	if err := checkParents(home); err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	return nil
}

// checkDir wants dir to be a directory of ours with exactly mode, not a link.
func checkDir(dir string, mode fs.FileMode) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	switch stat := info.Sys().(*syscall.Stat_t); {
	case info.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link", dir)
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not to uid %d", dir, stat.Uid, os.Geteuid())
	case info.Mode().Perm() != mode:
		return fmt.Errorf("%s has mode %04o, not %04o: chmod %o %s", dir, info.Mode().Perm(), mode, mode, dir)
	}
	return nil
}

// checkFile wants a regular file of ours with exactly mode and one name.
func checkFile(path string, mode fs.FileMode) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	switch stat := info.Sys().(*syscall.Stat_t); {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not to uid %d", path, stat.Uid, os.Geteuid())
	case info.Mode().Perm() != mode:
		return fmt.Errorf("%s has mode %04o, not %04o", path, info.Mode().Perm(), mode)
	case stat.Nlink != 1:
		return fmt.Errorf("%s has %d names", path, stat.Nlink)
	}
	return nil
}

// checkParents refuses a path one of whose parents somebody else may write:
// whoever can rename a parent can put another directory in its place. Sticky
// directories are fine, because only the owner may rename there.
func checkParents(path string) error {
	resolved, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	for dir := resolved; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("%s can be written by others (mode %04o)", dir, info.Mode().Perm())
		}
		if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to uid %d, who could replace what is in it", dir, stat.Uid)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

const openPlainFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

// openPlain opens a regular file for reading, without following a link in its
// last component and without waiting for anybody at the other end of a FIFO.
func openPlain(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|openPlainFlags, 0)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// named lists what lies in a folder under names that begin and end so, by name;
// nothing when there is no folder. The folder's own name is no pattern, as it is
// for filepath.Glob.
func named(dir, prefix, suffix string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var paths []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, prefix) && strings.HasSuffix(name, suffix) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	return paths, err
}

// lockHome takes the home's lock without waiting and writes our pid into it:
// clients compare it with the pid that answers. The lock is held until the file
// is closed; the file stays.
func lockHome(home string) (*os.File, error) {
	path := place.LockFile(home)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fault(wire.HomeUnsafe, "opening %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	// What it holds is overwritten: it must not be somebody else's, too.
	if err == nil && info.Sys().(*syscall.Stat_t).Nlink > 1 {
		err = fmt.Errorf("%s is a file that has another name, too", path)
	}
	if err != nil {
		return nil, errors.Join(fault(wire.HomeUnsafe, "%w", err), file.Close())
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 16)
		n, _ := file.ReadAt(holder, 0)
		_ = file.Close()
		if pid, err := strconv.Atoi(strings.TrimSpace(string(holder[:n]))); err == nil {
			return nil, fault(wire.AlreadyRunning, "another sbd (pid %d) holds %s", pid, home)
		}
		return nil, fault(wire.AlreadyRunning, "another sbd holds %s", home)
	}
	if err := writePID(file); err != nil {
		return nil, errors.Join(fault(wire.HomeUnsafe, "writing %s: %w", path, err), file.Close())
	}
	return file, nil
}

func writePID(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// sameFile reports whether path still names the open file: a lock on a file
// that was removed guards nothing.
func sameFile(file *os.File, path string) bool {
	open, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}
