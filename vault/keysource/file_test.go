package keysource_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

const id = "000102030405060708090a0b0c0d0e0f"

func someKey(fill byte) []byte { return bytes.Repeat([]byte{fill}, 32) }

// bounded fails the whole test binary when fn hangs.
func bounded(t *testing.T, what string) {
	t.Helper()
	timer := time.AfterFunc(3*time.Minute, func() { panic("hangs: " + what) })
	t.Cleanup(func() { timer.Stop() })
}

// P10: each rule of the key file, named in one line, nothing repaired, nothing hangs.
func TestKeyFileRules(t *testing.T) {
	for name, test := range map[string]struct {
		make func(path string) error
		rule string
		root bool // needs root to set up
	}{
		"symbolic link": {make: func(path string) error {
			return errors.Join(os.WriteFile(path+".real", someKey(1), 0o600), os.Symlink(path+".real", path))
		}, rule: "symbolic link"},
		"dangling link": {make: func(path string) error { return os.Symlink("/nowhere", path) }, rule: "symbolic link"},
		"hard link": {make: func(path string) error {
			return errors.Join(os.WriteFile(path, someKey(1), 0o600), os.Link(path, path+".link"))
		}, rule: "more than one link"},
		"directory":    {make: func(path string) error { return os.Mkdir(path, 0o600) }, rule: "not a regular file"},
		"pipe":         {make: func(path string) error { return syscall.Mkfifo(path, 0o600) }, rule: "not a regular file"},
		"device":       {make: func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) }, rule: "not a regular file", root: true},
		"another's":    {make: func(path string) error { return errors.Join(write(path, 32, 0o600), os.Chown(path, 12345, -1)) }, rule: "belongs to uid 12345", root: true},
		"group reads":  {make: func(path string) error { return write(path, 32, 0o640) }, rule: "mode 0640"},
		"others read":  {make: func(path string) error { return write(path, 32, 0o604) }, rule: "mode 0604"},
		"read-only":    {make: func(path string) error { return write(path, 32, 0o400) }, rule: "mode 0400"},
		"executable":   {make: func(path string) error { return write(path, 32, 0o700) }, rule: "mode 0700"},
		"set-uid":      {make: func(path string) error { return write(path, 32, 0o600|os.ModeSetuid) }, rule: "mode 4600"},
		"empty":        {make: func(path string) error { return write(path, 0, 0o600) }, rule: "0 bytes"},
		"one too few":  {make: func(path string) error { return write(path, 31, 0o600) }, rule: "31 bytes"},
		"one too many": {make: func(path string) error { return write(path, 33, 0o600) }, rule: "33 bytes"},
		"hex":          {make: func(path string) error { return write(path, 64, 0o600) }, rule: "64 bytes"},
		"huge":         {make: func(path string) error { return errors.Join(write(path, 0, 0o600), os.Truncate(path, 1<<40)) }, rule: "bytes instead of 32"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.root && os.Geteuid() != 0 {
				t.Skip("suite left out: foreign owner: needs root to give files away")
			}
			bounded(t, name)
			path := filepath.Join(t.TempDir(), "secret.key")
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			source := keysource.File(path)
			key, err := source.Load(t.Context(), id)
			if !errors.Is(err, vault.ErrKeyFileUnsafe) || key != nil {
				t.Fatalf("loads %d bytes, %v", len(key), err)
			}
			if s := err.Error(); !strings.Contains(s, test.rule) || strings.Contains(s, "\n") {
				t.Errorf("%q does not name the rule %q in one line", s, test.rule)
			}
			if err := source.Store(t.Context(), id, someKey(2)); !errors.Is(err, vault.ErrKeyFileUnsafe) {
				t.Errorf("stores with %v", err)
			}
			after, err := os.Lstat(path)
			if err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() {
				t.Errorf("was %v, is %v, %v", before.Mode(), after.Mode(), err)
			}
		})
	}
}

func write(path string, size int, mode os.FileMode) error {
	return errors.Join(os.WriteFile(path, make([]byte, size), 0o600), os.Chmod(path, mode))
}

func TestKeyFileBehindALink(t *testing.T) {
	dir := t.TempDir()
	home, link := filepath.Join(dir, "home"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Symlink(home, link), write(filepath.Join(home, "secret.key"), 32, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := keysource.File(filepath.Join(link, "secret.key")).Load(t.Context(), id); !errors.Is(err, vault.ErrKeyFileUnsafe) {
		t.Errorf("loads with %v", err)
	}
	if _, err := keysource.File(filepath.Join(home, "secret.key")).Load(t.Context(), id); err != nil {
		t.Errorf("the same without a link: %v", err)
	}
}

func TestKeyFileLife(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	source := keysource.File(path)
	committer := source.(vault.Committer)
	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
		t.Fatalf("nothing there: %v", err)
	}
	if err := source.Remove(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
		t.Fatalf("removing nothing: %v", err)
	}
	if err := source.Store(t.Context(), id, someKey(1)[:31]); !errors.Is(err, vault.ErrInvalid) {
		t.Fatalf("a short key: %v", err)
	}
	// The umask of whoever starts us must neither open the file nor spoil it.
	old := syscall.Umask(0o277)
	err := source.Store(t.Context(), id, someKey(1))
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	for _, stage := range []string{"provisional", "committed", "committed again"} {
		if stage != "provisional" {
			if err := committer.Commit(t.Context(), id); err != nil {
				t.Fatalf("%s: %v", stage, err)
			}
		}
		if key, err := source.Load(t.Context(), id); err != nil || !bytes.Equal(key, someKey(1)) {
			t.Fatalf("%s: %x, %v", stage, key, err)
		}
		if err := source.Store(t.Context(), id, someKey(1)); err != nil {
			t.Errorf("%s: storing the same: %v", stage, err)
		}
		if err := source.Store(t.Context(), id, someKey(2)); !errors.Is(err, vault.ErrKeyExists) {
			t.Errorf("%s: storing another: %v", stage, err)
		}
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Lstat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the provisional file is still there: %v", err)
	}
	if err := source.Remove(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := source.Load(t.Context(), id); !errors.Is(err, vault.ErrKeyUnavailable) {
		t.Errorf("after Remove: %v", err)
	}
}

// A key that could not be removed is told, whatever became of what lies beside it.
func TestKeyFileThatStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	if err := os.MkdirAll(filepath.Join(path, "held"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", someKey(1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := keysource.File(path).Remove(t.Context(), id); err == nil || errors.Is(err, vault.ErrKeyUnavailable) {
		t.Errorf("what could not be removed: %v", err)
	}
}

// A key that is removed is overwritten where it lay. What is no key file is
// somebody else's, and only loses its name.
func TestKeyFileIsOverwritten(t *testing.T) {
	for name, want := range map[string][]byte{"key": make([]byte, 32), "linked": someKey(1)} {
		dir := t.TempDir()
		path := filepath.Join(dir, "secret.key")
		if err := os.WriteFile(path, someKey(1), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "linked" {
			if err := os.Link(path, filepath.Join(dir, "other")); err != nil {
				t.Fatal(err)
			}
		}
		held, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := keysource.File(path).Remove(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if left, err := io.ReadAll(held); err != nil || !bytes.Equal(left, want) {
			t.Errorf("%s: %x is left, %v", name, left, err)
		}
	}
}
