package audit

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"
)

// The key that the newest segment names is in the file, before and after a
// rotation, and nobody without the sealing key is told.
func TestKeyIDs(t *testing.T) {
	config := testConfig(t)
	seal := bytes.Clone(config.SealKey)
	l := start(t, config, nil)
	for _, rotate := range []bool{false, true} {
		if rotate {
			if err := l.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		named := ""
		for _, e := range entries(t, l) {
			if e.Kind == SegmentOpened {
				named = e.KeyID
			}
		}
		ids, err := KeyIDs(config.KeyFile, config.VaultID, seal)
		if err != nil || !slices.Contains(ids, named) {
			t.Errorf("the log names %s, the file holds %v, %v", named, ids, err)
		}
	}
	stop(t, l)
	before, err := os.ReadFile(config.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() ([]string, error){
		"another seal":  func() ([]string, error) { return KeyIDs(config.KeyFile, config.VaultID, make([]byte, 32)) },
		"another vault": func() ([]string, error) { return KeyIDs(config.KeyFile, "ffffffffffffffffffffffffffffffff", seal) },
		"no file":       func() ([]string, error) { return KeyIDs(config.KeyFile+"x", config.VaultID, seal) },
	} {
		if ids, err := read(); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
	if after, err := os.ReadFile(config.KeyFile); err != nil || !bytes.Equal(after, before) {
		t.Errorf("reading changed the file, %v", err)
	}
	if err := os.Chmod(config.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := KeyIDs(config.KeyFile, config.VaultID, seal); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a file that others read: %v", err)
	}
}
