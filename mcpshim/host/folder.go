package host

import (
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// folderPrefix is how the folders begin that servers start in.
const folderPrefix = "subject-broker-server-"

// staleAfter is the age from which a folder that nobody holds is a killed host's.
const staleAfter = time.Minute

// folder is an empty folder that is removed at the end. As long as this process
// lives it holds a lock on it: what a killed one left behind can be told and is
// removed by the next.
type folder struct {
	path string
	lock *os.File
}

func newFolder() (*folder, error) {
	sweep(os.TempDir(), os.Geteuid(), time.Now())
	path, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path: path}
	if f.lock, err = hold(path); err != nil {
		os.RemoveAll(path)
		return nil, err
	}
	return f, nil
}

// hold locks a folder for as long as the file is open.
func hold(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// remove may be called on nil.
func (f *folder) remove() {
	if f == nil {
		return
	}
	os.RemoveAll(f.path)
	f.lock.Close()
}

// sweep removes the folders of an account's hosts that were killed.
func sweep(dir string, uid int, now time.Time) {
	paths, err := filepath.Glob(filepath.Join(dir, folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < staleAfter || owner(info) != uid {
			continue
		}
		lock, err := hold(path)
		if err != nil {
			continue
		}
		os.RemoveAll(path)
		lock.Close()
	}
}

// owner is the uid that a file belongs to, -1 where nobody can say.
func owner(info os.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}
