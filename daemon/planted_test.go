package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

const precious = "somebody else's"

func planted(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(precious), 0o600); err != nil {
		t.Fatal(err)
	}
}

func untouched(t *testing.T, path string) {
	t.Helper()
	if content, err := os.ReadFile(path); err != nil || string(content) != precious {
		t.Errorf("%s now holds %q: %v", path, content, err)
	}
}

// What a link in the home leads to is never swept. The name of the home is
// no pattern.
func TestSweepFollowsNoLink(t *testing.T) {
	outside, home := t.TempDir(), filepath.Join(t.TempDir(), "[home]*")
	planted(t, filepath.Join(outside, "vault.db"))
	planted(t, filepath.Join(home, scratchPrefix+"1", "vault.db"))
	if err := os.Symlink(outside, filepath.Join(home, scratchPrefix+"2")); err != nil {
		t.Fatal(err)
	}
	if err := sweepScratch(home); err != nil {
		t.Error(err)
	}
	untouched(t, filepath.Join(outside, "vault.db"))
	if _, err := os.Lstat(filepath.Join(home, scratchPrefix+"1")); !os.IsNotExist(err) {
		t.Errorf("control: what was left of a backup is still there: %v", err)
	}
}

// The lock holds a pid, so it must have no second name outside of the home.
func TestLockIsNobodyElses(t *testing.T) {
	outside, home := filepath.Join(t.TempDir(), "file"), t.TempDir()
	planted(t, outside)
	if err := os.Link(outside, place.LockFile(home)); err != nil {
		t.Fatal(err)
	}
	lock, err := lockHome(home)
	if err == nil {
		_ = lock.Close()
	}
	if f := asFault(err); err == nil || f.Code != wire.HomeUnsafe {
		t.Errorf("locked a file with two names: %v", err)
	}
	untouched(t, outside)
}

// Nor is it one where copies that a purge does not reach are looked for.
func TestKeptVaultsInAnyHome(t *testing.T) {
	home := filepath.Join(t.TempDir(), "[home]*")
	for _, name := range []string{"vault.db", "vault.db.before-20260131T120000Z", "secret.key.before-20260131T120000Z"} {
		planted(t, filepath.Join(home, name))
	}
	if kept, err := keptVaults(home); err != nil || len(kept) != 1 || filepath.Base(kept[0]) != "vault.db.before-20260131T120000Z" {
		t.Errorf("kept %v, %v", kept, err)
	}
	if kept, err := keptVaults(filepath.Join(home, "none")); kept != nil || err != nil {
		t.Errorf("of no home: %v, %v", kept, err)
	}
}

// An interrupted restore is cleared away where it was made, and nowhere else.
func TestRestoreClearsNothingElse(t *testing.T) {
	outside, home := t.TempDir(), filepath.Join(t.TempDir(), "home")
	planted(t, filepath.Join(outside, "file"))
	planted(t, filepath.Join(home, "vault.db")) // of an interrupted attempt
	if err := os.Symlink(outside, filepath.Join(home, restoringMarker)); err != nil {
		t.Fatal(err)
	}
	o := &Offline{Config: Config{Home: home}}
	lock, err := o.makeHome()
	if err == nil {
		_ = lock.Close()
	}
	if f := asFault(err); err == nil || f.Code != wire.HomeUnsafe {
		t.Errorf("restores through a link: %v", err)
	}
	untouched(t, filepath.Join(outside, "file"))
	untouched(t, filepath.Join(home, "vault.db"))
}
