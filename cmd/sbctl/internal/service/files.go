package service

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// textFile is a file that install writes and uninstall removes.
type textFile struct {
	path, text string
}

// writeAll writes what differs and returns the paths it wrote. Each file is
// replaced at once: temporary file, fsync, rename, fsync of the directory.
func writeAll(files []textFile) ([]string, error) {
	var written []string
	for _, f := range files {
		have, err := os.ReadFile(f.path)
		if err == nil && bytes.Equal(have, []byte(f.text)) {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return written, fmt.Errorf("writing a unit: %w", err)
		}
		if err := replace(f.path, f.text); err != nil {
			return written, fmt.Errorf("writing a unit: %w", err)
		}
		written = append(written, f.path)
	}
	return written, nil
}

func replace(path, text string) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		temp.Close()
		if err != nil {
			os.Remove(temp.Name())
		}
	}()
	if _, err := temp.WriteString(text); err != nil {
		return err
	}
	// Units are configuration: readable, so that a manager of another uid can be asked to look.
	if err := temp.Chmod(0o644); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	return handle.Sync()
}

// removeAll removes the files that are there and returns their paths.
func removeAll(files []textFile) ([]string, error) {
	var removed []string
	for _, f := range files {
		err := os.Remove(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return removed, fmt.Errorf("removing a unit: %w", err)
		}
		removed = append(removed, f.path)
	}
	return removed, nil
}

// read is the text of a file, "" if there is none.
func read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading a unit: %w", err)
	}
	return string(text), nil
}
