package daemon

import (
	"io"
	"os"
	"path/filepath"
)

// copyDurably copies a file to a path where none is, 0600. The copy is whole and
// survives a power cut, or is not there: it is written under a temporary name,
// synced, renamed, and the folder is synced.
func copyDurably(from, to string) error {
	source, err := openPlain(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return writeDurably(to, source)
}

// writeDurably is copyDurably for what comes from a reader.
func writeDurably(to string, content io.Reader) error {
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
