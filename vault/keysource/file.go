package keysource

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"subjectbroker/vault"
)

const newSuffix = ".new"

// File is a key source that keeps one key in one file of 32 raw bytes, whatever vault it is for. The file and its directory
// must not be symbolic links, and the file must be regular, have one link, belong to this process's user and have mode 0600
// exactly: vault.ErrKeyFileUnsafe names the rule that is broken. Nothing about an existing file is ever repaired.
//
// A stored key is at first in PATH.new; Commit gives it its name. Load takes either.
func File(path string) vault.KeySource { return &fileSource{path: path} }

type fileSource struct {
	path string
}

var _ vault.Committer = (*fileSource)(nil)

func (s *fileSource) Kind() string { return KindFile }

func (s *fileSource) Load(_ context.Context, _ string) ([]byte, error) {
	key, err := readKey(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = readKey(s.path + newSuffix)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no file %s", vault.ErrKeyUnavailable, s.path)
	}
	return key, err
}

func (s *fileSource) Store(ctx context.Context, vaultID string, key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("%w: a key has %d bytes", vault.ErrInvalid, keySize)
	}
	old, err := s.Load(ctx, vaultID)
	switch {
	case err == nil:
		defer clear(old)
		if subtle.ConstantTimeCompare(old, key) == 1 {
			return nil
		}
		return fmt.Errorf("%w: %s", vault.ErrKeyExists, s.path)
	case !errors.Is(err, vault.ErrKeyUnavailable):
		return err
	}
	temp := s.path + newSuffix
	if err := writeKey(temp, key); err != nil {
		// A rest that cannot be removed either is no evidence of a vault, and the next first start tries again.
		_ = os.Remove(temp)
		return err
	}
	back, err := readKey(temp)
	if err != nil {
		return err
	}
	defer clear(back)
	if subtle.ConstantTimeCompare(back, key) != 1 {
		return fmt.Errorf("%s does not hold what was written to it", temp)
	}
	return nil
}

func (s *fileSource) Commit(context.Context, string) error {
	if _, err := os.Lstat(s.path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(s.path+newSuffix, s.path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(s.path))
}

func (s *fileSource) Remove(context.Context, string) error {
	removed := false
	for _, path := range []string{s.path, s.path + newSuffix} {
		overwriteErr := overwrite(path)
		switch err := os.Remove(path); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case overwriteErr != nil:
			return fmt.Errorf("%s was removed, but not overwritten: %w", path, overwriteErr)
		}
		removed = true
	}
	if !removed {
		return fmt.Errorf("%w: no file %s", vault.ErrKeyUnavailable, s.path)
	}
	return syncDir(filepath.Dir(s.path))
}

// overwrite writes zeros over a key, in place, as far as the medium lets it. What is no key file is left alone.
func overwrite(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerr // it is not there, or is none
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if brokenRule(&st) != "" {
		return nil
	}
	if _, err := f.WriteAt(make([]byte, keySize), 0); err != nil {
		return err
	}
	return f.Sync()
}

// writeKey makes a file of mode 0600 that must not exist, durable when it returns.
func writeKey(path string, key []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(key)
	if err == nil {
		// The umask may have taken bits of our own.
		err = f.Chmod(0o600)
	}
	if err == nil {
		err = f.Sync()
	}
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// readKey returns fs.ErrNotExist for a file that is not there, vault.ErrKeyFileUnsafe for one that breaks a rule.
func readKey(path string) ([]byte, error) {
	unsafe := func(rule string) error { return fmt.Errorf("%w: %s %s", vault.ErrKeyFileUnsafe, path, rule) }
	dir, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, unsafe("lies behind a symbolic link")
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	base := filepath.Base(path)
	// Looking before opening: opening a pipe or a device can wait, or do something.
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if rule := brokenRule(&st); rule != "" {
		return nil, unsafe(rule)
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, unsafe("is a symbolic link")
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// And again: it is this file that is read, not the one that was there a moment ago.
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if rule := brokenRule(&st); rule != "" {
		return nil, unsafe(rule)
	}
	key := make([]byte, keySize+1)
	n, err := io.ReadFull(f, key)
	switch {
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		clear(key)
		return nil, err
	case n != keySize:
		clear(key)
		return nil, unsafe("changed its size while it was being read")
	}
	return key[:keySize:keySize], nil
}

// brokenRule names the rule a key file breaks; empty if none.
func brokenRule(st *unix.Stat_t) string {
	switch mode := uint32(st.Mode); {
	case mode&unix.S_IFMT == unix.S_IFLNK:
		return "is a symbolic link"
	case mode&unix.S_IFMT != unix.S_IFREG:
		return "is not a regular file"
	case st.Nlink != 1:
		return "has more than one link"
	case int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to uid %d, not to uid %d", st.Uid, os.Geteuid())
	case mode&0o7777 != 0o600:
		return fmt.Sprintf("has mode %04o instead of 0600", mode&0o7777)
	case st.Size != keySize:
		return fmt.Sprintf("has %d bytes instead of %d", st.Size, keySize)
	}
	return ""
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
