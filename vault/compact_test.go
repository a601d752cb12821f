package vault_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// purged is a home with a vault from which things were deleted, and their sealed bytes.
type purged struct {
	cfg     vault.Config
	dir     string
	state   vault.State
	deleted map[string][]byte // stored values by bucket/name
}

// newPurged fills a vault, deletes and replaces some of it, and checks that the sealed bytes are still in the file.
func newPurged(t testing.TB) *purged {
	t.Helper()
	dir := t.TempDir()
	return purgedIn(t, dir)
}

func purgedIn(t testing.TB, dir string) *purged {
	t.Helper()
	p := &purged{cfg: homeConfig(dir), dir: dir, deleted: map[string][]byte{}}
	v, err := vault.Create(t.Context(), p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	mutate(t, v, func(tx *vault.Tx) error {
		for i := range 40 {
			if err := put(fmt.Sprintf("kept%02d", i), vault.KindText, fmt.Sprintf("content of %d", i))(tx); err != nil {
				return err
			}
		}
		return errors.Join(row("grants", "old", "allow")(tx), row("grants", "kept", "allow")(tx), row("gone", "only", "row")(tx))
	})
	mutate(t, v, put("a", vault.KindSecret, strings.Repeat("first ", 50)))
	mutate(t, v, put("big", vault.KindBinary, strings.Repeat("deleted ", 5000))) // overflow pages
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	tamper(t, p.cfg, func(tx *bolt.Tx) {
		for _, place := range []string{"contents a/1", "resources a", "contents big/1", "resources big", "grants old", "grants kept", "gone only"} {
			bucket, name, _ := strings.Cut(place, " ")
			p.deleted[place] = stored(tx, bucket, name)
		}
	})
	v = open(t, p.cfg)
	mutate(t, v, func(tx *vault.Tx) error {
		return errors.Join(tx.Remove("a"), tx.Remove("big"), tx.Delete("grants", "old"), row("grants", "kept", "deny")(tx), tx.Delete("gone", "only"))
	})
	p.state = v.State()
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if len(p.found(t)) == 0 {
		t.Fatal("nothing deleted is left anywhere: this proves nothing")
	}
	return p
}

// found names the deleted rows of which a piece is in some file of the home.
func (p *purged) found(t testing.TB) (places []string) {
	t.Helper()
	const piece = 48
	err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		whole := slurp(t, path)
		for place, value := range p.deleted {
			for at := 0; at+piece <= len(value); at += piece {
				if bytes.Contains(whole, value[at:][:piece]) {
					places = append(places, place+" in "+filepath.Base(path))
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return places
}

// check opens the vault, compares it with what it was, and closes it.
func (p *purged) check(t testing.TB) {
	t.Helper()
	v, err := vault.Open(t.Context(), p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	p.compare(t, v)
}

func (p *purged) compare(t testing.TB, v *vault.Vault) {
	t.Helper()
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(p.state, v.State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	for i := range 40 {
		if got, err := read(t, v, fmt.Sprintf("kept%02d", i), 0); err != nil || got != fmt.Sprintf("content of %d", i) {
			t.Fatalf("resource %d: %q, %v", i, got, err)
		}
	}
	for _, name := range []string{"a", "big"} {
		if _, err := read(t, v, name, 0); !errors.Is(err, vault.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var wholeHome = []string{"secret.key", "vault.db"}

// P12 and the purge: the same vault in a new file, and nothing of what was deleted anywhere in the home.
func TestCompact(t *testing.T) {
	p := newPurged(t)
	before := len(slurp(t, p.cfg.File))
	v := open(t, p.cfg)
	if _, err := v.Compact(); err != nil {
		t.Fatal(err)
	}
	if left := p.found(t); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	if err := v.CheckFile(); err != nil {
		t.Error(err)
	}
	p.compare(t, v)
	if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
		t.Errorf("home (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(p.cfg.File); err != nil || info.Mode() != 0o600 || int(info.Size()) >= before {
		t.Errorf("mode %v, %d bytes of %d, %v", info.Mode(), info.Size(), before, err)
	}
	// It is the new file that is locked and written to.
	if _, err := vault.OpenLocked(p.cfg); !errors.Is(err, vault.ErrInUse) {
		t.Errorf("a second process opens it: %v", err)
	}
	mutate(t, v, put("new", vault.KindText, "x"))
	if _, err := v.Compact(); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, p.cfg)
	if got, err := read(t, v, "new", 0); err != nil || got != "x" {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestCompactRefused(t *testing.T) {
	p := newPurged(t)
	before := slurp(t, p.cfg.File)
	try := func(name string, v *vault.Vault, want error) {
		t.Helper()
		if overwritten, err := v.Compact(); !errors.Is(err, want) || overwritten {
			t.Errorf("%s: %v, %v", name, overwritten, err)
		} else {
			oneLine(t, err)
		}
	}
	readOnly := p.cfg
	readOnly.ReadOnly = true
	v := open(t, readOnly)
	try("read-only", v, vault.ErrReadOnly)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, p.cfg)
	v.Lock()
	try("locked", v, vault.ErrLocked)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	try("closed", v, vault.ErrClosed)
	if !bytes.Equal(before, slurp(t, p.cfg.File)) {
		t.Error("the file was changed")
	}

	// Another file in its place is nobody's to exchange or destroy.
	v = open(t, p.cfg)
	if err := os.Rename(p.cfg.File, p.cfg.File+".away"); err != nil {
		t.Fatal(err)
	}
	spit(t, p.cfg.File, []byte("foreign"))
	try("replaced", v, vault.ErrReplaced)
	if got := slurp(t, p.cfg.File); string(got) != "foreign" {
		t.Errorf("the foreign file now holds %q", got)
	}
	if !bytes.Equal(before, slurp(t, p.cfg.File+".away")) {
		t.Error("the vault's file was changed")
	}
}

// Rows that are not those of the state row are evidence, which is not written over.
func TestCompactOfATamperedVault(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	// Behind the back of a running process, past its lock.
	image := slurp(t, p.cfg.File)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	copied := p.cfg
	copied.File = filepath.Join(t.TempDir(), "vault.db")
	spit(t, copied.File, image)
	tamper(t, copied, func(tx *bolt.Tx) { store(t, tx, "grants", "kept", p.deleted["grants kept"]) })
	v = open(t, p.cfg)
	spit(t, p.cfg.File, slurp(t, copied.File))
	before := slurp(t, p.cfg.File)
	if _, err := v.Compact(); !errors.Is(err, vault.ErrIntegrity) && !errors.Is(err, vault.ErrDamaged) {
		t.Errorf("says %v", err)
	}
	if !bytes.Equal(before, slurp(t, p.cfg.File)) {
		t.Error("the file was changed")
	}
	if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
		t.Errorf("home (-want +got):\n%s", diff)
	}
}

// What an interruption left is destroyed by the next unlock that may write, and by nothing else.
func TestLeftOfCompact(t *testing.T) {
	p := newPurged(t)
	left := p.cfg.File + ".compact"
	// The worst case: the old file, whole.
	spit(t, left, slurp(t, p.cfg.File))
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Link(left, link); err != nil {
		t.Fatal(err)
	}
	images := func() [2]string { return [2]string{string(slurp(t, p.cfg.File)), string(slurp(t, left))} }
	before := images()
	unchanged := func(what string) {
		t.Helper()
		if diff := cmp.Diff([]string{"secret.key", "vault.db", "vault.db.compact"}, listing(t, p.dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
		if images() != before {
			t.Errorf("%s: a file was changed", what)
		}
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	readOnly := p.cfg
	readOnly.ReadOnly = true
	v := open(t, readOnly)
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	unchanged("read-only")
	v, err := vault.OpenLocked(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	unchanged("locked")
	wrong := &vaulttest.Keys{}
	if err := wrong.Store(t.Context(), v.ID(), make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	if err := v.UnlockWith(t.Context(), wrong); !errors.Is(err, vault.ErrWrongKey) {
		t.Fatalf("unlocks with %v", err)
	}
	unchanged("wrong key")
	if err := v.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
		t.Errorf("unlocked (-want +got):\n%s", diff)
	}
	if string(slurp(t, p.cfg.File)) != before[0] {
		t.Error("unlocking changed the vault")
	}
}

// What bears the name but was not made here is removed, and nothing behind it is touched.
func TestForeignCompactFile(t *testing.T) {
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for name, make := range map[string]func(path string) error{
		"symbolic link":   func(path string) error { return os.Symlink(elsewhere, path) },
		"hard link":       func(path string) error { return os.Link(elsewhere, path) },
		"empty directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPurged(t)
			spit(t, elsewhere, []byte("precious"))
			if err := make(p.cfg.File + ".compact"); err != nil {
				t.Fatal(err)
			}
			p.check(t)
			if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
				t.Errorf("home (-want +got):\n%s", diff)
			}
			if got := slurp(t, elsewhere); string(got) != "precious" {
				t.Errorf("elsewhere now holds %q", got)
			}
		})
	}
	t.Run("full directory", func(t *testing.T) {
		p := newPurged(t)
		if err := os.MkdirAll(p.cfg.File+".compact/x", 0o700); err != nil {
			t.Fatal(err)
		}
		// It opens all the same, and only what needs the name is refused.
		v := open(t, p.cfg)
		p.compare(t, v)
		if _, err := v.Compact(); err == nil {
			t.Error("compacts")
		}
		p.compare(t, v)
	})
}

// The copy that a migration keeps would give the deleted rows back.
func TestCompactDestroysKeptCopies(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	for _, suffix := range []string{".schema1", ".schema1.new"} {
		spit(t, p.cfg.File+suffix, slurp(t, p.cfg.File))
	}
	if _, err := v.Compact(); err != nil {
		t.Fatal(err)
	}
	if left := p.found(t); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
		t.Errorf("home (-want +got):\n%s", diff)
	}
}

// A vault that is gone is not made again while its other file is there.
func TestGoneButForItsCompactFile(t *testing.T) {
	dir := t.TempDir()
	spit(t, filepath.Join(dir, "vault.db.compact"), []byte("x"))
	if _, err := vault.Fresh(filepath.Join(dir, "vault.db")); !errors.Is(err, vault.ErrMissing) {
		t.Errorf("says %v", err)
	}
}

// Readers, checkpoints, mutations and snapshots go on while the file is exchanged under them.
func TestCompactWhileInUse(t *testing.T) {
	p := newPurged(t)
	v := open(t, p.cfg)
	vaulttest.Check(t, v)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(what string, work func(i int) error) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := work(i); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				time.Sleep(time.Millisecond) // for the others
			}
		})
	}
	for range 3 {
		loop("reading", func(i int) error {
			got, err := read(t, v, fmt.Sprintf("kept%02d", i%40), 0)
			if want := fmt.Sprintf("content of %d", i%40); err == nil && got != want {
				err = fmt.Errorf("%q instead of %q", got, want)
			}
			return err
		})
	}
	changes := 0
	loop("changing", func(i int) error {
		changes++
		return v.Mutate(&vaulttest.Journal{}, row("grants", fmt.Sprintf("g%d", i%7), fmt.Sprint(i)))
	})
	loop("checkpoints", func(i int) error {
		err := v.WriteCheckpoint(vault.Marks{Uses: map[string]uint64{"g": uint64(i)}})
		if errors.Is(err, vault.ErrBusy) {
			return nil
		}
		return err
	})
	loop("verifying", func(int) error { return v.Verify(true, nil) })
	loop("looking", func(int) error { return v.CheckFile() })
	copied := filepath.Join(t.TempDir(), "copy")
	loop("copying", func(int) error {
		_, err := v.Snapshot(copied)
		return errors.Join(err, os.Remove(copied))
	})
	for range 4 {
		if _, err := v.Compact(); err != nil {
			t.Error(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
	if got, want := v.State().Generation, p.state.Generation+uint64(changes); got != want {
		t.Errorf("generation %d instead of %d", got, want)
	}
	t.Logf("%d changes meanwhile", changes)
}

// A lock, a close and a Reopen in the middle of it leave a whole vault and no second file.
func TestCompactInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(v *vault.Vault) error{
		"lock":   func(v *vault.Vault) error { v.Lock(); return nil },
		"close":  func(v *vault.Vault) error { return v.Close() },
		"reopen": func(v *vault.Vault) error { return v.Reopen() },
	} {
		for _, step := range []string{"copy made", "copied", "copy compared"} {
			t.Run(name+" after "+step, func(t *testing.T) {
				p := newPurged(t)
				cfg, ready, done := p.cfg, make(chan struct{}), make(chan error)
				vault.OnStep(&cfg, func(at string) {
					if at == step {
						close(ready)
						// It waits for the reader that is Compact; that it has begun to is all that can be made sure.
						time.Sleep(20 * time.Millisecond)
					}
				})
				v, err := vault.Open(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					<-ready
					done <- interrupt(v)
				}()
				_, err = v.Compact()
				if interrupted := <-done; interrupted != nil {
					t.Error(interrupted)
				}
				for _, fine := range []error{nil, vault.ErrLocked, vault.ErrClosed, vault.ErrBusy} {
					if errors.Is(err, fine) {
						t.Logf("says %v", err)
						err = nil
					}
				}
				if err != nil {
					t.Error(err)
				}
				v.Close()
				if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
					t.Errorf("home (-want +got):\n%s", diff)
				}
				p.check(t)
			})
		}
	}
}
