package daemon

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// copyDurably copies a file to a path where none is, 0600, as writeDurably does.
func copyDurably(from, to string) error {
	source, err := openPlain(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return writeDurably(to, 0o600, source)
}

// writeDurably puts a file with exactly mode in place of what is at a path. It is
// whole and survives a power cut, or what was there stays: it is written under a
// temporary name, synced, renamed, and the folder is synced.
func writeDurably(to string, mode fs.FileMode, content io.Reader) error {
	temporary := to + ".part"
	if err := os.Remove(temporary); err != nil && !os.IsNotExist(err) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|openPlainFlags, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Chmod(mode) // whatever the umask
	}
	if err == nil {
		err = file.Sync()
	}
	if errClose := file.Close(); err == nil {
		err = errClose
	}
	if err == nil {
		err = os.Rename(temporary, to)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return err
	}
	return syncFolder(filepath.Dir(to))
}

// syncFolder makes names in a folder durable.
func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
