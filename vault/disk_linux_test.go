package vault_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// tmpfs mounts a small file system, which takes root, and leaves the suite out without it.
func tmpfs(t *testing.T, suite, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Skipf("suite left out: %s: mounting: %v", suite, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A full disk stops the vault at the last good state, and when there is room again it goes on without a restart.
func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "full disk", "1m")
	cfg := vault.Config{File: filepath.Join(dir, "vault.db"), Keys: &vaulttest.Keys{}}
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	filler := filepath.Join(dir, "filler")
	spit(t, filler, make([]byte, 300<<10))
	good := 0
	for ; err == nil && good < 100; good++ {
		err = v.Mutate(&vaulttest.Journal{}, put("a", vault.KindText, strings.Repeat("x", 50000)))
	}
	if !errors.Is(err, vault.ErrFailed) {
		t.Fatalf("after %d versions: %v", good, err)
	}
	oneLine(t, err)
	good--
	if err := v.Reopen(); err != nil {
		t.Fatal(err)
	}
	if got := v.State().Generation; got != uint64(good) {
		t.Errorf("generation %d instead of %d", got, good)
	}
	if got, err := read(t, v, "a", 0); err != nil || len(got) != 50000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	mutate(t, v, put("a", vault.KindText, strings.Repeat("y", 50000)))
}

// No room for a first start: no vault, and the next try works.
func TestFirstStartOnAFullDisk(t *testing.T) {
	dir := tmpfs(t, "full disk", "64k")
	filler := filepath.Join(dir, "filler")
	spit(t, filler, make([]byte, 40<<10))
	if _, err := vault.Create(t.Context(), homeConfig(dir)); err == nil {
		t.Fatal("made a vault without room for it")
	} else {
		oneLine(t, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if names := listing(t, dir); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
	checkStart(t, dir, false)
}
