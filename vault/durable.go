package vault

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// syncDir makes the names in a directory durable: files created, renamed and removed in it before the call.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}
	return nil
}

// syncFile makes the bytes of a file durable, whoever wrote them.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("syncing %s: %w", path, err)
	}
	return nil
}

// exists reports whether anything is at path, a dangling link included.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// removeIfThere removes a file; that it is not there is fine.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// renameChecked is renameNew for one process at a time.
func renameChecked(from, to string) error {
	found, err := exists(to)
	if err != nil {
		return err
	}
	if found {
		return ErrExists
	}
	return os.Rename(from, to)
}
