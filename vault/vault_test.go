package vault_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/regfile"
	"subjectbroker/vault/vaulttest"
)

func TestMutateOrder(t *testing.T) {
	v := vaulttest.New(t)
	j := &vaulttest.Journal{}
	var calls []string
	j.OnIntent = func(gen uint64, digest [32]byte) error {
		// Nobody sees what is not committed, and State answers in here.
		if got := v.State(); got.Generation != gen-1 || got.Digest == digest {
			t.Errorf("at the intent of %d the state is of %d", gen, got.Generation)
		}
		calls = append(calls, "intent")
		return nil
	}
	j.OnApplied = func(gen uint64, digest [32]byte) error {
		if got := v.State(); got.Generation != gen || got.Digest != digest {
			t.Errorf("at applied of %d the state is of %d", gen, got.Generation)
		}
		calls = append(calls, "applied")
		return nil
	}
	if err := v.Mutate(j, func(tx *vault.Tx) error { calls = append(calls, "fn"); return row("grants", "g", "x")(tx) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"fn", "intent", "applied"}, calls); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if got := v.State(); got.Checkpoint.Seq != 1 || got.Checkpoint.Segment != 1 {
		t.Errorf("checkpoint %+v", got.Checkpoint)
	}
}

func TestMutateThatFails(t *testing.T) {
	errNo := errors.New("no")
	v := vaulttest.New(t)
	vaulttest.Put(t, v, "a", vault.KindText, "old")
	before := v.State()
	change := put("a", vault.KindText, "new")
	j := &vaulttest.Journal{}

	err := v.Mutate(j, func(tx *vault.Tx) error { return errors.Join(change(tx), errNo) })
	if !errors.Is(err, errNo) || len(j.Calls()) != 0 {
		t.Errorf("fn fails: %v, journal %v", err, j.Calls())
	}
	j.OnIntent = func(uint64, [32]byte) error { return errNo }
	if err := v.Mutate(j, change); !errors.Is(err, errNo) {
		t.Errorf("intent fails: %v", err)
	}
	if diff := cmp.Diff(before, v.State()); diff != "" {
		t.Errorf("state moved (-want +got):\n%s", diff)
	}
	if got, err := read(t, v, "a", 0); err != nil || got != "old" {
		t.Errorf("content is %q, %v", got, err)
	}
	if diff := cmp.Diff([]string{"intent 2"}, j.Calls()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}

	func() {
		defer func() { _ = recover() }()
		_ = v.Mutate(j, func(*vault.Tx) error { panic("a handler's mistake") })
	}()
	func() {
		defer func() { _ = recover() }()
		_ = v.View(func(*vault.Tx) error { panic("a handler's mistake") })
	}()

	j = &vaulttest.Journal{OnApplied: func(uint64, [32]byte) error { return errNo }}
	if err := v.Mutate(j, change); !errors.Is(err, errNo) || !errors.Is(err, vault.ErrNotRecorded) {
		t.Errorf("applied fails: %v", err)
	}
	if got, err := read(t, v, "a", 0); err != nil || got != "new" {
		t.Errorf("content is %q, %v", got, err)
	}
	if err := v.Mutate(nil, change); !errors.Is(err, vault.ErrInvalid) {
		t.Errorf("no journal: %v", err)
	}
}

func TestCheckpointDoesNotWait(t *testing.T) {
	v := vaulttest.New(t)
	j := &vaulttest.Journal{OnIntent: func(uint64, [32]byte) error {
		if err := v.WriteCheckpoint(vault.Marks{}); !errors.Is(err, vault.ErrBusy) {
			t.Errorf("during a mutation: %v", err)
		}
		return nil
	}}
	if err := v.Mutate(j, row("grants", "g", "x")); err != nil {
		t.Fatal(err)
	}
	// A mark from before the mutation: the newest position stays, the counters are as of theirs.
	marks := vault.Marks{Checkpoint: vault.Checkpoint{Segment: 1}, Uses: map[string]uint64{"g": 3}, BootID: "b"}
	if err := v.WriteCheckpoint(marks); err != nil {
		t.Fatal(err)
	}
	marks.Uses["g"] = 99 // the vault keeps its own copy
	got := v.State()
	if got.Checkpoint.Seq != 1 || got.UsesAt != marks.Checkpoint || got.Uses["g"] != 3 {
		t.Errorf("state %+v", got)
	}
	got.Uses["g"] = 98
	if v.State().Uses["g"] != 3 {
		t.Error("State gives its own map away")
	}
}

func TestGenericRows(t *testing.T) {
	v := vaulttest.New(t)
	for name, err := range map[string]error{
		"empty name":     v.Mutate(&vaulttest.Journal{}, row("grants", "", "x")),
		"empty bucket":   v.Mutate(&vaulttest.Journal{}, row("", "g", "x")),
		"long name":      v.Mutate(&vaulttest.Journal{}, row("grants", strings.Repeat("x", 1025), "x")),
		"meta":           v.Mutate(&vaulttest.Journal{}, row("meta", "format", "2")),
		"slots":          v.Mutate(&vaulttest.Journal{}, row("slots", "2.file", "x")),
		"keyring":        v.Mutate(&vaulttest.Journal{}, row("keyring", "keyring", "x")),
		"state":          v.Mutate(&vaulttest.Journal{}, row("state", "state", "x")),
		"resources":      v.Mutate(&vaulttest.Journal{}, row("resources", "a", "x")),
		"contents":       v.Mutate(&vaulttest.Journal{}, row("contents", "a/1", "x")),
		"overlong value": v.Mutate(&vaulttest.Journal{}, row("docs", "d", string(make([]byte, 17<<20)))),
	} {
		if !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mutate(t, v, func(tx *vault.Tx) error {
		// A batch is 1024 rows; more than that, with changes in between, in order.
		for i := range 2500 {
			if err := row("many", resource(i), "x")(tx); err != nil {
				return err
			}
		}
		return nil
	})
	// Some goes on in another transaction, whatever was written meanwhile.
	pieces, seen, after := 0, 0, ""
	for {
		var last string
		if err := v.View(func(tx *vault.Tx) (err error) {
			last, err = tx.Some("many", after, func(name string, value []byte) error {
				if name != resource(seen) || string(value) != "x" {
					t.Fatalf("row %d is %s", seen, name)
				}
				seen++
				return nil
			})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if last == "" {
			break
		}
		pieces, after = pieces+1, last
		mutate(t, v, row("few", "one", strings.Repeat("y", pieces)))
	}
	if seen != 2500 || pieces != 3 {
		t.Errorf("%d rows in %d pieces", seen, pieces)
	}
	mutate(t, v, func(tx *vault.Tx) error {
		seen := 0
		err := tx.Each("many", func(name string, _ []byte) error {
			if name != resource(seen) {
				t.Fatalf("row %d is %s", seen, name)
			}
			seen++
			if seen == 1 {
				return nil
			}
			return tx.Delete("many", name)
		})
		if seen != 2500 {
			t.Errorf("saw %d rows", seen)
		}
		return err
	})
	mutate(t, v, func(tx *vault.Tx) error {
		stop := errors.New("stop")
		if err := tx.Each("many", func(string, []byte) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("Each says %v", err)
		}
		if last, err := tx.Some("many", "", func(string, []byte) error { return stop }); !errors.Is(err, stop) || last != "" {
			t.Errorf("Some says %q, %v", last, err)
		}
		if last, err := tx.Some("nothing here", "", func(string, []byte) error { return stop }); err != nil || last != "" {
			t.Errorf("Some of an empty bucket says %q, %v", last, err)
		}
		if err := tx.Each("nothing here", func(string, []byte) error { return stop }); err != nil {
			t.Errorf("Each of an empty bucket says %v", err)
		}
		_, err := tx.Get("nothing here", "x")
		if !errors.Is(err, vault.ErrNotFound) {
			t.Errorf("Get says %v", err)
		}
		return nil
	})
	var kept *vault.Tx
	if err := v.View(func(tx *vault.Tx) error {
		kept = tx
		if err := tx.Put("grants", "g", nil); !errors.Is(err, vault.ErrReadOnly) {
			t.Errorf("Put in a View says %v", err)
		}
		_, err := tx.PutContent("a", vault.KindText, nil)
		if !errors.Is(err, vault.ErrReadOnly) {
			t.Errorf("PutContent in a View says %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Get("grants", "g"); !errors.Is(err, vault.ErrTxDone) {
		t.Errorf("a Tx after its end says %v", err)
	}
}

func TestContentRules(t *testing.T) {
	cfg := vaulttest.Config(t)
	cfg.MaxContent = 100
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	try := func(fn func(*vault.Tx) error) error { return v.Mutate(&vaulttest.Journal{}, fn) }
	for _, test := range []struct {
		doing string
		fn    func(*vault.Tx) error
		want  error
	}{
		{"a first version", put("a", vault.KindText, "one"), nil},
		{"a second version", put("a", vault.KindText, "two"), nil},
		{"nothing as content", put("empty", vault.KindBinary, ""), nil},
		{"exactly the limit", put("full", vault.KindText, strings.Repeat("x", 100)), nil},
		{"one over the limit", put("over", vault.KindText, strings.Repeat("x", 101)), vault.ErrTooLarge},
		{"another kind", put("a", vault.KindSecret, "three"), vault.ErrKindChanged},
		{"no kind", put("b", "", "x"), vault.ErrInvalid},
		{"the kind of files", put("b", vault.KindFile, "x"), vault.ErrInvalid},
		{"a bad name", put("b/c", vault.KindText, "x"), vault.ErrInvalid},
		{"a name with a newline", put("b\n", vault.KindText, "x"), vault.ErrInvalid},
		{"a long name", put(strings.Repeat("n", 128), vault.KindText, "x"), nil},
		{"too long a name", put(strings.Repeat("n", 129), vault.KindText, "x"), vault.ErrInvalid},
		{"no name", put("", vault.KindText, "x"), vault.ErrInvalid},
		{"back to 1", func(tx *vault.Tx) error { _, err := tx.Revert("a", 1); return err }, nil},
		{"back to 9", func(tx *vault.Tx) error { _, err := tx.Revert("a", 9); return err }, vault.ErrNoContent},
		{"back to 0", func(tx *vault.Tx) error { _, err := tx.Revert("a", 0); return err }, vault.ErrNoContent},
		{"back nowhere", func(tx *vault.Tx) error { _, err := tx.Revert("z", 1); return err }, vault.ErrNotFound},
		{"a declaration", func(tx *vault.Tx) error { _, err := tx.Declare("later", vault.KindSecret); return err }, nil},
		{"another declaration", func(tx *vault.Tx) error { _, err := tx.Declare("later", vault.KindText); return err }, nil},
		{"a declaration of a", func(tx *vault.Tx) error { _, err := tx.Declare("a", vault.KindSecret); return err }, vault.ErrKindChanged},
		{"a file", func(tx *vault.Tx) error {
			return tx.PutRecord(vault.Record{Name: "f", Type: vault.TypeFile, Kind: vault.KindFile, File: &regfile.Pin{Path: "/x"}})
		}, nil},
		{"content of a file", put("f", vault.KindText, "x"), vault.ErrKindChanged},
		{"a file as sealed", func(tx *vault.Tx) error {
			return tx.PutRecord(vault.Record{Name: "f", Type: vault.TypeSealed, Kind: vault.KindText})
		}, vault.ErrKindChanged},
		{"a file without pin", func(tx *vault.Tx) error {
			return tx.PutRecord(vault.Record{Name: "g", Type: vault.TypeFile, Kind: vault.KindFile})
		}, vault.ErrInvalid},
		{"removal", func(tx *vault.Tx) error { return tx.Remove("empty") }, nil},
		{"another removal", func(tx *vault.Tx) error { return tx.Remove("empty") }, vault.ErrNotFound},
	} {
		if err := try(test.fn); !errors.Is(err, test.want) || (test.want == nil && err != nil) {
			t.Errorf("%s: %v, want %v", test.doing, err, test.want)
		}
	}
	for n, want := range []string{"one", "one", "two", "one"} { // version 0 is the newest
		if got, err := read(t, v, "a", uint32(n)); err != nil || got != want {
			t.Errorf("version %d of a is %q, %v, want %q", n, got, err, want)
		}
	}
	for name, want := range map[string]error{"later": vault.ErrNoContent, "f": vault.ErrNoContent, "nobody": vault.ErrNotFound, "b/c": vault.ErrInvalid} {
		if _, err := read(t, v, name, 0); !errors.Is(err, want) {
			t.Errorf("content of %s: %v, want %v", name, err, want)
		}
	}
	// The limit may have been lowered since.
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	cfg.MaxContent = 99
	v2 := open(t, cfg)
	if _, err := read(t, v2, "full", 0); !errors.Is(err, vault.ErrTooLarge) {
		t.Errorf("over a lowered limit: %v", err)
	}
	if err := v2.Verify(true, nil); err != nil {
		t.Errorf("verify minds the limit: %v", err)
	}
}

func TestRecordKeepsWhatItSays(t *testing.T) {
	now := time.Date(2026, 5, 4, 3, 2, 1, 987654321, time.UTC)
	cfg := vaulttest.Config(t)
	cfg.Now = func() time.Time { return now }
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	created := now
	vaulttest.Put(t, v, "a", vault.KindSecret, "x")
	now = now.Add(time.Hour)
	mutate(t, v, func(tx *vault.Tx) error {
		rec, err := tx.Record("a")
		rec.Note, rec.Domain, rec.Owner, rec.ByUID = "note\x00 with ünïcödé", "work", "me", 4294967295
		rec.Created, rec.Versions = time.Time{}, nil
		return errors.Join(err, tx.PutRecord(rec))
	})
	var got vault.Record
	if err := v.View(func(tx *vault.Tx) (err error) { got, err = tx.Record("a"); return err }); err != nil {
		t.Fatal(err)
	}
	newest, ok := got.Newest()
	want := vault.Record{
		Name: "a", Type: vault.TypeSealed, Kind: vault.KindSecret, Note: "note\x00 with ünïcödé", Domain: "work", Owner: "me", ByUID: 4294967295,
		Created: created, Updated: now, Versions: []vault.Version{{N: 1, Size: 1, At: created, Pin: newest.Pin}},
	}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// P1: content is never on disk in clear: not in the vault, its free pages, or anything beside it.
func TestNoContentInClear(t *testing.T) {
	cfg := vaulttest.Config(t)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	markers := []string{"MARKER-of-content", "MARKER-of-note", "MARKER-of-row"}
	for range 5 {
		vaulttest.Put(t, v, "a", vault.KindSecret, strings.Repeat(markers[0], 400))
		mutate(t, v, func(tx *vault.Tx) error {
			rec, err := tx.Record("a")
			rec.Note = markers[1]
			return errors.Join(err, tx.PutRecord(rec), tx.Put("grants", "g", []byte(markers[2])))
		})
	}
	mutate(t, v, func(tx *vault.Tx) error { return errors.Join(tx.Remove("a"), tx.Delete("grants", "g")) })
	seal, err := v.AuditSealKey()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	secrets := append([]string{string(seal), string(cfg.Keys.(*vaulttest.Keys).Only())}, markers...)
	err = filepath.WalkDir(filepath.Dir(cfg.File), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, secret := range secrets {
			if bytes.Contains(slurp(t, path), []byte(secret)) {
				t.Errorf("%q is in %s", secret, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// What may be read, and nothing else may.
	var buckets []string
	tamper(t, cfg, func(tx *bolt.Tx) {
		_ = tx.ForEach(func(name []byte, _ *bolt.Bucket) error { buckets = append(buckets, string(name)); return nil })
	})
	if diff := cmp.Diff([]string{"contents", "grants", "keyring", "meta", "resources", "slots", "state"}, buckets); diff != "" {
		t.Errorf("buckets (-want +got):\n%s", diff)
	}
}

func TestLockAndUnlock(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "x"))
	v, err := vault.OpenLocked(cfg)
	if err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	if !v.Locked() || v.KeyKind() != "file" || len(v.ID()) != 32 {
		t.Errorf("locked %v, kind %q, ID %q", v.Locked(), v.KeyKind(), v.ID())
	}
	if got := v.State(); got.Generation != 0 {
		t.Errorf("a locked vault knows generation %d", got.Generation)
	}
	for name, err := range map[string]error{
		"View":            v.View(func(*vault.Tx) error { return nil }),
		"Mutate":          v.Mutate(&vaulttest.Journal{}, func(*vault.Tx) error { return nil }),
		"WriteCheckpoint": v.WriteCheckpoint(vault.Marks{}),
		"Verify":          v.Verify(true, nil),
	} {
		if !errors.Is(err, vault.ErrLocked) {
			t.Errorf("%s says %v", name, err)
		}
	}
	if _, err := v.CorrelationKey(); !errors.Is(err, vault.ErrLocked) {
		t.Errorf("CorrelationKey says %v", err)
	}
	if err := v.CheckFile(); err != nil {
		t.Error(err)
	}
	if err := v.Reopen(); err != nil {
		t.Error(err)
	}
	keys := cfg.Keys.(*vaulttest.Keys)
	for _, want := range []error{vault.ErrKeyNotAnswering, vault.ErrKeyUnavailable} {
		keys.Fail(want)
		if err := v.Unlock(t.Context()); !errors.Is(err, want) || !v.Locked() {
			t.Errorf("with %v: %v", want, err)
		}
	}
	keys.Fail(nil)
	other := &vaulttest.Keys{}
	if err := other.Store(t.Context(), v.ID(), make([]byte, 32)); err != nil {
		t.Fatal(err)
	}
	before := slurp(t, cfg.File)
	if err := v.UnlockWith(t.Context(), other); !errors.Is(err, vault.ErrWrongKey) || !v.Locked() {
		t.Errorf("wrong key: %v", err)
	}
	if err := v.UnlockWith(t.Context(), kind{other, "keychain"}); !errors.Is(err, vault.ErrKeySource) {
		t.Errorf("wrong kind: %v", err)
	}
	if !bytes.Equal(before, slurp(t, cfg.File)) {
		t.Error("a wrong key changed the vault")
	}
	if err := v.Unlock(t.Context()); err != nil || v.Locked() {
		t.Fatalf("the right key: %v", err)
	}
	if got, err := read(t, v, "a", 0); err != nil || got != "x" {
		t.Errorf("content %q, %v", got, err)
	}
	v.Lock()
	if v.State().Generation != 1 {
		t.Error("the state went with the keys")
	}
}

type kind struct {
	vault.KeySource
	name string
}

func (k kind) Kind() string { return k.name }

// Eight who want in at once make one attempt, and share what came of it.
func TestOneUnlockAttempt(t *testing.T) {
	for _, outcome := range []error{nil, vault.ErrKeyNotAnswering} {
		cfg := build(t)
		slow := &slowKeys{KeySource: cfg.Keys, release: make(chan struct{}), err: outcome}
		cfg.Keys = slow
		v, err := vault.OpenLocked(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := v.Unlock(t.Context()); !errors.Is(err, outcome) {
					t.Errorf("Unlock says %v", err)
				}
			})
		}
		blocked(t, 7, "vault.(*Vault).unlock(", "sync.(*Mutex).Lock(")
		close(slow.release)
		wg.Wait()
		if n := slow.calls.Load(); n != 1 {
			t.Errorf("%d attempts", n)
		}
	}
}

// blocked waits until n goroutines are inside all of these functions.
func blocked(t *testing.T, n int, frames ...string) {
	t.Helper()
	stacks := make([]byte, 1<<20)
	for range 10000 {
		found := 0
		for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if !slices.ContainsFunc(frames, func(f string) bool { return !strings.Contains(stack, f) }) {
				found++
			}
		}
		if found >= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d goroutines never came to wait in %v", n, frames)
}

type slowKeys struct {
	vault.KeySource
	release chan struct{}
	err     error
	calls   atomic.Int32
}

func (k *slowKeys) Load(ctx context.Context, id string) ([]byte, error) {
	k.calls.Add(1)
	<-k.release
	if k.err != nil {
		return nil, k.err
	}
	return k.KeySource.Load(ctx, id)
}

// Lock, Close and Reopen among readers and writers: nobody waits for ever, nobody sees half a state.
func TestConcurrency(t *testing.T) {
	v := vaulttest.New(t)
	vaulttest.Put(t, v, "a", vault.KindText, "0")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(fn func() error, allowed ...error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := fn(); err != nil && !slices.ContainsFunc(allowed, func(e error) bool { return errors.Is(err, e) }) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		loop(func() error { return v.View(func(tx *vault.Tx) error { _, _, err := tx.Content("a", 0); return err }) }, vault.ErrLocked)
	}
	loop(func() error { return v.Mutate(&vaulttest.Journal{}, put("a", vault.KindText, "x")) }, vault.ErrLocked)
	loop(func() error { return v.WriteCheckpoint(vault.Marks{}) }, vault.ErrLocked, vault.ErrBusy)
	loop(func() error { return v.Verify(true, nil) }, vault.ErrLocked)
	loop(v.Reopen)
	loop(v.CheckFile)
	loop(func() error { v.State(); v.Locked(); v.ID(); v.KeyKind(); return nil })
	for range 20 {
		v.Lock()
		if err := v.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	close(stop)
	wg.Wait()
}

func TestVerifyProgress(t *testing.T) {
	v := vaulttest.New(t)
	mutate(t, v, func(tx *vault.Tx) error {
		for i := range 1500 {
			if err := put(resource(i), vault.KindText, "x")(tx); err != nil {
				return err
			}
		}
		return nil
	})
	last, lastTotal := 0, 0
	if err := v.Verify(true, func(done, total int) {
		if done < last || done > total {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		last, lastTotal = done, total
	}); err != nil {
		t.Fatal(err)
	}
	if want := 1500 + 1500 + 2; last != want || lastTotal != want {
		t.Errorf("ended with %d of %d, want %d", last, lastTotal, want)
	}
	// Lock does not wait for a long verification.
	var once sync.Once
	err := v.Verify(true, func(int, int) {
		once.Do(func() {
			go v.Lock()
			blocked(t, 1, "vault.(*Vault).Lock(", "sync.(*RWMutex).Lock(")
		})
	})
	if !errors.Is(err, vault.ErrLocked) {
		t.Errorf("locked under it, Verify says %v", err)
	}
}

func TestTwoAtOnce(t *testing.T) {
	cfg := build(t)
	v := open(t, cfg)
	start := time.Now()
	if _, err := vault.Open(t.Context(), cfg); !errors.Is(err, vault.ErrInUse) {
		t.Errorf("a second writer: %v", err)
	}
	if _, err := vault.OpenLocked(cfg); !errors.Is(err, vault.ErrInUse) {
		t.Errorf("a second writer, locked: %v", err)
	}
	reader := cfg
	reader.ReadOnly = true
	if _, err := vault.Open(t.Context(), reader); !errors.Is(err, vault.ErrInUse) {
		t.Errorf("a reader beside a writer: %v", err)
	}
	t.Logf("refused after %v", time.Since(start)/3)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, reader)
	open(t, reader)
}

func TestReplacedFile(t *testing.T) {
	for name, replace := range map[string]func(path string) error{
		"removed": os.Remove,
		"renamed": func(path string) error { return os.Rename(path, path+".old") },
		"another": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("x"), 0o600))
		},
		"a copy": func(path string) error {
			p, err := os.ReadFile(path)
			return errors.Join(err, os.Remove(path), os.WriteFile(path, p, 0o600))
		},
		"linked": func(path string) error { return os.Link(path, path+".old") },
		"symlink": func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := build(t)
			v := open(t, cfg)
			if err := v.CheckFile(); err != nil {
				t.Fatal(err)
			}
			if err := replace(cfg.File); err != nil {
				t.Fatal(err)
			}
			err := v.CheckFile()
			if !errors.Is(err, vault.ErrReplaced) {
				t.Errorf("CheckFile says %v", err)
			} else {
				oneLine(t, err)
			}
		})
	}
}

// Another vault in the place of this one is not taken for it, whatever its key.
func TestReopenFindsAnotherVault(t *testing.T) {
	cfg, other := build(t), build(t)
	v := open(t, cfg)
	spit(t, cfg.File, slurp(t, other.File))
	if err := v.Reopen(); !errors.Is(err, vault.ErrReplaced) {
		t.Errorf("Reopen says %v", err)
	}
}

// Within one process an older file is noticed without a log.
func TestReopenFindsOlderVault(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "old"))
	old := slurp(t, cfg.File)
	v := open(t, cfg)
	mutate(t, v, put("a", vault.KindText, "new"))
	spit(t, cfg.File, old)
	if err := v.Reopen(); !errors.Is(err, vault.ErrRollback) {
		t.Errorf("Reopen says %v", err)
	}
	if err := v.View(func(*vault.Tx) error { return nil }); !errors.Is(err, vault.ErrFailed) {
		t.Errorf("View says %v", err)
	}
}

// Checking changes no byte, nor a time.
func TestReadOnly(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "x"))
	before := slurp(t, cfg.File)
	info, err := os.Stat(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ReadOnly = true
	v := open(t, cfg)
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
	if err := v.Mutate(&vaulttest.Journal{}, put("a", vault.KindText, "y")); !errors.Is(err, vault.ErrReadOnly) {
		t.Errorf("Mutate says %v", err)
	}
	if err := v.WriteCheckpoint(vault.Marks{}); !errors.Is(err, vault.ErrReadOnly) {
		t.Errorf("WriteCheckpoint says %v", err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
	after, err := os.Stat(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(before, slurp(t, cfg.File)) || !after.ModTime().Equal(info.ModTime()) {
		t.Error("reading changed the file")
	}
	if _, err := vault.Create(t.Context(), cfg); !errors.Is(err, vault.ErrReadOnly) {
		t.Errorf("Create says %v", err)
	}
}

func TestConfig(t *testing.T) {
	good := vaulttest.Config(t)
	for name, change := range map[string]func(*vault.Config){
		"no file":       func(c *vault.Config) { c.File = "" },
		"relative file": func(c *vault.Config) { c.File = "vault.db" },
		"no keys":       func(c *vault.Config) { c.Keys = nil },
		"negative":      func(c *vault.Config) { c.MaxContent = -1 },
		"too much":      func(c *vault.Config) { c.MaxContent = vault.HardMaxContent + 1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := vault.Create(t.Context(), cfg); !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("%s: Create says %v", name, err)
		}
		if _, err := vault.Open(t.Context(), cfg); !errors.Is(err, vault.ErrInvalid) {
			t.Errorf("%s: Open says %v", name, err)
		}
	}
}

func TestNewerFormat(t *testing.T) {
	cfg := build(t)
	tamper(t, cfg, func(tx *bolt.Tx) { store(t, tx, "meta", "format", []byte("2")) })
	if _, err := vault.Open(t.Context(), cfg); !errors.Is(err, vault.ErrSchema) {
		t.Errorf("opens with %v", err)
	}
}
