package vault_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// model is what a vault should hold.
type model struct {
	resources map[string]resourceModel
	rows      map[string]string
	slots     []string // kinds
	terms     uint32
	state     vault.State // Digest and Count left out
}

type resourceModel struct {
	kind     string
	note     string
	versions []string
	from     []uint32
}

func (m *model) clone() *model {
	c := *m
	c.resources, c.rows, c.slots = maps.Clone(m.resources), maps.Clone(m.rows), slices.Clone(m.slots)
	return &c
}

// machine drives a vault and its model through everything that can happen to a vault, crashes included.
type machine struct {
	tb    testing.TB
	dir   string
	cfg   vault.Config
	v     *vault.Vault
	now   time.Time
	model *model
	keys  map[string]vault.KeySource // by kind of slot
}

var (
	errCrash = errors.New("crash")
	names    = rapid.SampledFrom([]string{"a", "b", "b.c", "B"})
	kinds    = rapid.SampledFrom([]string{vault.KindText, vault.KindSecret, vault.KindBinary})
	texts    = rapid.StringN(0, 200, -1)
	rowNames = rapid.SampledFrom([]string{"x", "y", "a long name with a slash/in it", "\x00", "\xff\xfe"})
)

func (m *machine) start(t *rapid.T) {
	m.cfg = vault.Config{
		File: filepath.Join(m.dir, "vault.db"), Keys: &vaulttest.Keys{}, MaxContent: 500,
		Now: func() time.Time { return m.now },
	}
	vault.CheapPassphrases(&m.cfg)
	v, err := vault.Create(m.tb.Context(), m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.v = v
	passphrase, code := person()
	m.keys = map[string]vault.KeySource{
		"file": m.cfg.Keys, "keychain": &vaulttest.Keys{As: "keychain"}, "passphrase": passphrase, "recovery": code,
	}
	m.model = &model{resources: map[string]resourceModel{}, rows: map[string]string{}, slots: []string{"file"}, terms: 1}
	m.model.state.Uses = map[string]uint64{}
}

// change runs one step on the vault and on a copy of the model, which becomes the model if the vault commits.
func (m *machine) change(t *rapid.T, fn func(tx *vault.Tx, next *model)) {
	m.now = m.now.Add(time.Second)
	next := m.model.clone()
	j := &vaulttest.Journal{}
	err := m.v.Mutate(j, func(tx *vault.Tx) error {
		for range rapid.IntRange(1, 3).Draw(t, "steps") {
			fn(tx, next)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m.committed(next)
}

func (m *machine) committed(next *model) {
	next.state.Generation++
	next.state.Checkpoint = vault.Checkpoint{Segment: 1, Seq: next.state.Generation}
	m.model = next
}

func (m *machine) put(t *rapid.T, tx *vault.Tx, next *model) {
	name, kind, text := names.Draw(t, "name"), kinds.Draw(t, "kind"), texts.Draw(t, "content")
	old, there := next.resources[name]
	rec, err := tx.PutContent(name, kind, []byte(text))
	switch {
	case there && old.kind != kind && len(old.versions) > 0:
		want(t, err, vault.ErrKindChanged)
	case len(text) > 500:
		want(t, err, vault.ErrTooLarge)
	default:
		want(t, err, nil)
		old.kind, old.versions, old.from = kind, append(slices.Clip(old.versions), text), append(slices.Clip(old.from), 0)
		next.resources[name] = old
		if v, _ := rec.Newest(); int(v.N) != len(old.versions) {
			t.Fatalf("put made version %d of %d", v.N, len(old.versions))
		}
	}
}

func (m *machine) revert(t *rapid.T, tx *vault.Tx, next *model) {
	name, n := names.Draw(t, "name"), rapid.Uint32Range(0, 4).Draw(t, "version")
	old, there := next.resources[name]
	_, err := tx.Revert(name, n)
	switch {
	case !there:
		want(t, err, vault.ErrNotFound)
	case n == 0 || int(n) > len(old.versions):
		want(t, err, vault.ErrNoContent)
	default:
		want(t, err, nil)
		old.versions, old.from = append(slices.Clip(old.versions), old.versions[n-1]), append(slices.Clip(old.from), n)
		next.resources[name] = old
	}
}

func (m *machine) declare(t *rapid.T, tx *vault.Tx, next *model) {
	name, kind := names.Draw(t, "name"), kinds.Draw(t, "kind")
	old, there := next.resources[name]
	_, err := tx.Declare(name, kind)
	if there && old.kind != kind && len(old.versions) > 0 {
		want(t, err, vault.ErrKindChanged)
		return
	}
	want(t, err, nil)
	old.kind = kind
	next.resources[name] = old
}

func (m *machine) note(t *rapid.T, tx *vault.Tx, next *model) {
	name, note := names.Draw(t, "name"), texts.Draw(t, "note")
	rec, err := tx.Record(name)
	old, there := next.resources[name]
	if !there {
		want(t, err, vault.ErrNotFound)
		return
	}
	rec.Note = note
	rec.Versions = nil // whatever is said here about versions does not count
	want(t, tx.PutRecord(rec), nil)
	old.note = note
	next.resources[name] = old
}

func (m *machine) remove(t *rapid.T, tx *vault.Tx, next *model) {
	name := names.Draw(t, "name")
	_, there := next.resources[name]
	err := tx.Remove(name)
	if !there {
		want(t, err, vault.ErrNotFound)
		return
	}
	want(t, err, nil)
	delete(next.resources, name)
}

func (m *machine) row(t *rapid.T, tx *vault.Tx, next *model) {
	name := rowNames.Draw(t, "row")
	if rapid.Bool().Draw(t, "delete") {
		_, there := next.rows[name]
		err := tx.Delete("grants", name)
		if there {
			want(t, err, nil)
		} else {
			want(t, err, vault.ErrNotFound)
		}
		delete(next.rows, name)
		return
	}
	value := texts.Draw(t, "value")
	want(t, tx.Put("grants", name, []byte(value)), nil)
	next.rows[name] = value
}

func want(t *rapid.T, got, want error) {
	if !errors.Is(got, want) || (want == nil && got != nil) {
		t.Helper()
		t.Fatalf("got %v, want %v", got, want)
	}
}

// reopen makes sure that what memory says is what the file says.
func (m *machine) reopen(t *rapid.T) {
	if err := m.v.Close(); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

// open opens the file by one of the slots it should have.
func (m *machine) open(t *rapid.T) {
	var err error
	m.cfg.Keys = m.keys[rapid.SampledFrom(m.model.slots).Draw(t, "slot")]
	if m.v, err = vault.Open(m.tb.Context(), m.cfg); err != nil {
		t.Fatal(err)
	}
}

// crash opens a copy of the file as it is at one moment of a mutation, which is what a kill at that moment leaves, and goes
// on with it or with the survivor.
func (m *machine) crash(t *rapid.T) {
	moment := rapid.SampledFrom([]string{"in fn", "at intent", "at applied"}).Draw(t, "moment")
	var image []byte
	take := func(at string) error {
		if at != moment {
			return nil
		}
		var err error
		if image, err = os.ReadFile(m.cfg.File); err != nil {
			return err
		}
		return errCrash
	}
	next := m.model.clone()
	j := &vaulttest.Journal{
		OnIntent:  func(uint64, [32]byte) error { return take("at intent") },
		OnApplied: func(uint64, [32]byte) error { return take("at applied") },
	}
	err := m.v.Mutate(j, func(tx *vault.Tx) error {
		m.put(t, tx, next)
		m.row(t, tx, next)
		return take("in fn")
	})
	want(t, err, errCrash)
	if moment == "at applied" {
		want(t, err, vault.ErrNotRecorded)
		m.committed(next)
	}
	if rapid.Bool().Draw(t, "killed") {
		if err := m.v.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.cfg.File, image, 0o600); err != nil {
			t.Fatal(err)
		}
		m.open(t)
	}
}

func (m *machine) checkpoint(t *rapid.T) {
	m.now = m.now.Add(time.Second)
	marks := vault.Marks{
		Checkpoint: vault.Checkpoint{Segment: 1, Seq: rapid.Uint64Range(0, 100).Draw(t, "seq")},
		Uses:       rapid.MapOf(rapid.StringN(1, 10, -1), rapid.Uint64()).Draw(t, "uses"),
		Meters:     rapid.SampledFrom([][]byte{nil, []byte("counted"), []byte("counted more")}).Draw(t, "meters"),
		HighWater:  m.now, BootID: "boot",
	}
	want(t, m.v.WriteCheckpoint(marks), nil)
	s := &m.model.state
	s.UsesAt, s.Uses, s.Meters, s.HighWater, s.BootID = marks.Checkpoint, marks.Uses, marks.Meters, marks.HighWater, marks.BootID
	if marks.Checkpoint.Seq >= s.Checkpoint.Seq {
		s.Checkpoint = marks.Checkpoint
	}
}

func (m *machine) compact(t *rapid.T) {
	_, err := m.v.Compact()
	want(t, err, nil)
}

// restore goes on with a copy that was made before another change.
func (m *machine) restore(t *rapid.T) {
	copied := m.cfg.File + ".copied"
	state, err := m.v.Snapshot(copied)
	want(t, err, nil)
	if diff := cmp.Diff(m.v.State(), state); diff != "" {
		t.Fatalf("state of the copy (-want +got):\n%s", diff)
	}
	old := m.model.clone()
	m.change(t, func(tx *vault.Tx, next *model) { m.row(t, tx, next) })
	m.model = old
	want(t, m.v.Close(), nil)
	want(t, os.Rename(copied, m.cfg.File), nil)
	m.open(t)
}

func (m *machine) lock(t *rapid.T) {
	m.v.Lock()
	want(t, m.v.View(func(*vault.Tx) error { return nil }), vault.ErrLocked)
	want(t, m.v.UnlockWith(m.tb.Context(), m.keys[rapid.SampledFrom(m.model.slots).Draw(t, "slot")]), nil)
}

// check compares the whole vault with the whole model.
func (m *machine) check(t *rapid.T) {
	state := m.v.State()
	state.Digest, state.Count, state.Checkpoint.Hash = [32]byte{}, 0, [32]byte{}
	if diff := cmp.Diff(m.model.state, state); diff != "" {
		t.Fatalf("state (-want +got):\n%s", diff)
	}
	if got, want := m.v.State().Count, len(m.model.resources)+len(m.model.rows)+len(m.model.slots)+1; got != uint64(want) {
		t.Fatalf("%d rows instead of %d", got, want)
	}
	slots := []string{}
	for _, s := range m.v.Slots() {
		slots = append(slots, s.Kind)
	}
	if diff := cmp.Diff(m.model.slots, slots); diff != "" {
		t.Fatalf("slots (-want +got):\n%s", diff)
	}
	if newest, _ := m.v.Terms(); newest != m.model.terms {
		t.Fatalf("term %d instead of %d", newest, m.model.terms)
	}
	err := m.v.View(func(tx *vault.Tx) error {
		got := map[string]resourceModel{}
		last := ""
		err := tx.Records(func(rec vault.Record) error {
			if rec.Name <= last && last != "" {
				return fmt.Errorf("%s after %s", rec.Name, last)
			}
			last = rec.Name
			r := resourceModel{kind: rec.Kind, note: rec.Note}
			for _, v := range rec.Versions {
				content, _, err := tx.Content(rec.Name, v.N)
				if err != nil {
					return err
				}
				r.versions, r.from = append(r.versions, string(content)), append(r.from, v.RevertedFrom)
			}
			got[rec.Name] = r
			return nil
		})
		if diff := cmp.Diff(m.model.resources, got, cmp.AllowUnexported(resourceModel{})); diff != "" {
			t.Fatalf("resources (-want +got):\n%s", diff)
		}
		rows := map[string]string{}
		err = errors.Join(err, tx.Each("grants", func(name string, value []byte) error {
			rows[name] = string(value)
			return nil
		}))
		if diff := cmp.Diff(m.model.rows, rows); diff != "" {
			t.Fatalf("rows (-want +got):\n%s", diff)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.v.Verify(true, nil); err != nil {
		t.Fatal(err)
	}
}

func TestMachine(t *testing.T) {
	root := t.TempDir()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(root, fmt.Sprint(run))
		if err := os.Mkdir(dir, 0o700); err != nil {
			rt.Fatal(err)
		}
		m := &machine{tb: t, dir: dir, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		m.start(rt)
		defer func() {
			_ = m.v.Close()
			_ = os.RemoveAll(dir)
		}()
		mutation := func(step func(*rapid.T, *vault.Tx, *model)) func(*rapid.T) {
			return func(rt *rapid.T) {
				m.change(rt, func(tx *vault.Tx, next *model) { step(rt, tx, next) })
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put":        mutation(m.put),
			"put more":   mutation(m.put),
			"revert":     mutation(m.revert),
			"declare":    mutation(m.declare),
			"note":       mutation(m.note),
			"remove":     mutation(m.remove),
			"row":        mutation(m.row),
			"crash":      m.crash,
			"rotate":     m.changeKeys("rotate"),
			"rewrap":     m.changeKeys("rewrap"),
			"rekey":      m.changeKeys("rekey"),
			"add":        m.changeKeys("add"),
			"drop":       m.changeKeys("remove"),
			"checkpoint": m.checkpoint,
			"compact":    m.compact,
			"restore":    m.restore,
			"lock":       m.lock,
			"reopen":     m.reopen,
			"Reopen":     func(rt *rapid.T) { want(rt, m.v.Reopen(), nil) },
			"":           m.check,
		})
	})
}
