package vault

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Destroy overwrites a copy of a vault with zeros in place and removes it, so that what is deleted from the vault later is not
// still to be found where the copy lay. It reports what Compact reports. That there is no such file is fine. What is not a
// regular file with one name is only removed.
func Destroy(path string) (overwritten bool, err error) {
	overwritten, err = destroy(path, func(string) {})
	if err != nil {
		return false, fmt.Errorf("destroying a copy of the vault: %w", err)
	}
	return overwritten, nil
}

func destroy(path string, step func(string)) (overwritten bool, err error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	}
	// Whatever a power cut brings back under another name, it must not be this file.
	if err := syncDir(filepath.Dir(path)); err != nil {
		return false, err
	}
	if singleRegular(info) != nil {
		// Not made here; what a link leads to is somebody else's.
		return false, os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return destroyOpen(path, f, step)
}

// destroyOpen overwrites a file and removes its name, if it still is this file's.
func destroyOpen(path string, f *os.File, step func(string)) (overwritten bool, err error) {
	overwritten, err = writesInPlace(f), zero(f)
	step("overwritten")
	is, statErr := f.Stat()
	named, lstatErr := os.Lstat(path)
	if statErr == nil && lstatErr == nil && os.SameFile(is, named) {
		// Better gone than left, also when it could not be overwritten.
		err = and(err, os.Remove(path))
		step("removed")
		err = and(err, syncDir(filepath.Dir(path)))
	}
	return overwritten && err == nil, err
}

// zero overwrites a file with zeros, and waits until they are on the disk. What is zero already stays as it is: it may be
// a hole, which would take room that a full disk has not.
func zero(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	const piece = 512 // no file system has smaller holes
	chunk, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); at < info.Size(); at += int64(len(chunk)) {
		n, err := f.ReadAt(chunk, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for from := 0; from < n; {
			to := from
			for to < n && !bytes.Equal(chunk[to:min(to+piece, n)], zeros[:min(piece, n-to)]) {
				to = min(to+piece, n)
			}
			if to == from {
				from += piece
				continue
			}
			if _, err := f.WriteAt(zeros[:to-from], at+int64(from)); err != nil {
				return err
			}
			from = to
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", f.Name(), err)
	}
	return nil
}
