package vault_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

func TestSnapshot(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	cfg := p.cfg
	cfg.File = filepath.Join(t.TempDir(), "copy")
	state, err := v.Snapshot(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v.State(), state); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	if info, err := os.Lstat(cfg.File); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// What was deleted does not travel.
	travels := &purged{dir: filepath.Dir(cfg.File), deleted: p.deleted}
	if left := travels.found(t); len(left) != 0 {
		t.Errorf("in the copy: %v", left)
	}
	if diff := cmp.Diff([]string{"copy"}, listing(t, travels.dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The vault goes on, the copy stays.
	mutate(t, v, put("later", vault.KindText, "x"))
	mutate(t, v, func(tx *vault.Tx) error { return tx.Remove("kept00") })
	copied := &purged{cfg: cfg, state: state}
	copied.check(t)
}

// A copy shows one moment, whatever is changed meanwhile.
func TestSnapshotWhileChanging(t *testing.T) {
	cfg := vaulttest.Config(t)
	step := make(chan struct{})
	vault.OnStep(&cfg, func(at string) {
		if at == "copy made" || at == "copied" {
			step <- struct{}{}
			<-step
		}
	})
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	// Each mutation writes its number to all of them.
	change := func(n int) {
		mutate(t, v, func(tx *vault.Tx) error {
			for i := range 50 {
				if err := errors.Join(row("numbers", fmt.Sprint(i), fmt.Sprint(n))(tx), put(fmt.Sprintf("r%d", i), vault.KindText, fmt.Sprint(n))(tx)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	change(1)
	want := v.State()
	copied := cfg
	copied.File = filepath.Join(t.TempDir(), "copy")
	done := make(chan error)
	go func() {
		state, err := v.Snapshot(copied.File)
		if diff := cmp.Diff(want, state); diff != "" && err == nil {
			err = fmt.Errorf("state (-want +got):\n%s", diff)
		}
		done <- err
	}()
	for n := range 2 {
		<-step
		change(n + 2)
		step <- struct{}{}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	vault.OnStep(&copied, func(string) {})
	c := open(t, copied)
	if err := c.Verify(true, nil); err != nil {
		t.Error(err)
	}
	for i := range 50 {
		if got, err := read(t, c, fmt.Sprintf("r%d", i), 0); err != nil || got != "1" {
			t.Errorf("r%d is of change %s, %v", i, got, err)
		}
	}
}

func TestSnapshotRefused(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	spit(t, there, []byte("precious"))
	if err := os.Symlink(there, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"there": fs.ErrExist, "link": fs.ErrExist, "no/directory": fs.ErrNotExist} {
		if _, err := v.Snapshot(filepath.Join(dir, name)); !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		} else {
			oneLine(t, err)
		}
	}
	if got := slurp(t, there); string(got) != "precious" {
		t.Errorf("now holds %q", got)
	}
	v.Lock()
	if _, err := v.Snapshot(filepath.Join(dir, "new")); !errors.Is(err, vault.ErrLocked) {
		t.Errorf("locked: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Snapshot(filepath.Join(dir, "new")); !errors.Is(err, vault.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	// Reading needs no right to write.
	readOnly := p.cfg
	readOnly.ReadOnly = true
	v = open(t, readOnly)
	before := slurp(t, p.cfg.File)
	if _, err := v.Snapshot(filepath.Join(dir, "new")); err != nil {
		t.Errorf("read-only: %v", err)
	}
	if !bytes.Equal(before, slurp(t, p.cfg.File)) {
		t.Error("the vault was changed")
	}
	if diff := cmp.Diff([]string{"link", "new", "there"}, listing(t, dir)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// Damaged contents are copied as they are: what can be saved is saved, and the copy tells what the vault tells.
func TestSnapshotOfDamagedContents(t *testing.T) {
	p := newPurged(t)
	tamper(t, p.cfg, func(tx *bolt.Tx) {
		store(t, tx, "contents", "kept01/1", stored(tx, "contents", "kept02/1"))
	})
	v := open(t, p.cfg)
	cfg := p.cfg
	cfg.File = filepath.Join(t.TempDir(), "copy")
	if _, err := v.Snapshot(cfg.File); err != nil {
		t.Fatal(err)
	}
	c := open(t, cfg)
	if err := c.Verify(true, nil); !errors.Is(err, vault.ErrIntegrity) {
		t.Errorf("verifies with %v", err)
	}
	if got, err := read(t, c, "kept02", 0); err != nil || got != "content of 2" {
		t.Errorf("%q, %v", got, err)
	}
}

// A copy that has served leaves nothing where it lay.
func TestDestroy(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	dir := t.TempDir()
	path := filepath.Join(dir, "copy")
	if _, err := v.Snapshot(path); err != nil {
		t.Fatal(err)
	}
	// Its bytes are looked for through a second descriptor.
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := vault.Destroy(path); err != nil {
		t.Fatal(err)
	}
	whole, err := io.ReadAll(f)
	if err != nil || len(whole) == 0 || bytes.Count(whole, []byte{0}) != len(whole) {
		t.Errorf("not overwritten: %d bytes, %v", len(whole), err)
	}
	if _, err := vault.Destroy(path); err != nil {
		t.Errorf("once more: %v", err)
	}
	if names := listing(t, dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	p.compare(t, v)
}
