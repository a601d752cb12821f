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
	sweep(os.TempDir(), time.Now())
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

// sweep removes the folders of hosts that were killed. Those of other accounts
// cannot be opened.
func sweep(dir string, now time.Time) {
	paths, err := filepath.Glob(filepath.Join(dir, folderPrefix+"*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || now.Sub(info.ModTime()) < staleAfter || !own(info) {
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

func own(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
