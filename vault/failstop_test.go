package vault

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

// memoryKey is a key source for one vault.
type memoryKey struct{ key []byte }

func (k *memoryKey) Kind() string { return "file" }
func (k *memoryKey) Load(context.Context, string) ([]byte, error) {
	return append([]byte(nil), k.key...), nil
}
func (k *memoryKey) Store(_ context.Context, _ string, key []byte) error {
	k.key = append([]byte(nil), key...)
	return nil
}
func (k *memoryKey) Remove(context.Context, string) error { return nil }

type quietJournal struct{}

func (quietJournal) Intent(gen uint64, _ [32]byte) (Checkpoint, error) {
	return Checkpoint{Segment: 1, Seq: gen}, nil
}
func (quietJournal) Applied(uint64, [32]byte) error { return nil }

// faultyStore fails the next commit: before anything is written, or after all of it is, as bbolt does when the sync of its meta
// page fails.
type faultyStore struct {
	rowStore
	fault string
}

var errDisk = errors.New("input/output error")

func (s *faultyStore) begin(write bool) (rowTx, error) {
	tx, err := s.rowStore.begin(write)
	if err != nil || !write {
		return tx, err
	}
	return &faultyTx{rowTx: tx, store: s}, nil
}

type faultyTx struct {
	rowTx
	store *faultyStore
}

func (t *faultyTx) put(bucket, name string, value []byte) error {
	if t.store.fault == "at the state row" && bucket == bucketState {
		return errDisk
	}
	return t.rowTx.put(bucket, name, value)
}

func (t *faultyTx) commit() error {
	switch t.store.fault {
	case "before the commit":
		t.rowTx.rollback()
		return errDisk
	case "after the commit":
		return errors.Join(t.rowTx.commit(), errDisk)
	}
	return t.rowTx.commit()
}

// P23: after a failed commit nothing is served until the file was reopened and verified; then all or nothing of the
// mutation is there.
func TestFailStop(t *testing.T) {
	for fault, committed := range map[string]bool{"at the state row": false, "before the commit": false, "after the commit": true} {
		t.Run(fault, func(t *testing.T) {
			v, err := Create(t.Context(), Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: &memoryKey{}})
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			put := func(content string) error {
				return v.Mutate(quietJournal{}, func(tx *Tx) error {
					_, err := tx.PutContent("a", KindText, []byte(content))
					return err
				})
			}
			if err := put("old"); err != nil {
				t.Fatal(err)
			}
			before := v.State()
			v.store = &faultyStore{rowStore: v.store, fault: fault}
			if err := put("new"); !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
				t.Fatalf("the mutation says %v", err)
			}
			if got := v.State(); got.Generation != before.Generation || got.Digest != before.Digest {
				t.Errorf("the state moved to %d", got.Generation)
			}
			for name, err := range map[string]error{
				"View":            v.View(func(*Tx) error { return nil }),
				"Mutate":          put("newer"),
				"WriteCheckpoint": v.WriteCheckpoint(Marks{}),
				"Verify":          v.Verify(false, nil),
				"CheckFile":       v.CheckFile(),
				"AuditSealKey":    second(v.AuditSealKey()),
			} {
				if !errors.Is(err, ErrFailed) {
					t.Errorf("%s says %v", name, err)
				}
			}
			if err := v.Reopen(); err != nil {
				t.Fatal(err)
			}
			want, generation := "old", before.Generation
			if committed {
				want, generation = "new", generation+1
			}
			if got := v.State().Generation; got != generation {
				t.Errorf("generation is %d, want %d", got, generation)
			}
			err = v.View(func(tx *Tx) error {
				got, _, err := tx.Content("a", 0)
				if string(got) != want {
					t.Errorf("content is %q, want %q", string(got), want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			if err := put("newest"); err != nil {
				t.Error(err)
			}
			if err := v.Verify(true, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func second(_ Secret, err error) error { return err }

// A checkpoint that cannot be written stops the vault as well: the same file, the same doubt.
func TestFailStopOfCheckpoint(t *testing.T) {
	v, err := Create(t.Context(), Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: &memoryKey{}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.store = &faultyStore{rowStore: v.store, fault: "before the commit"}
	if err := v.WriteCheckpoint(Marks{BootID: "b"}); !errors.Is(err, ErrFailed) {
		t.Fatalf("says %v", err)
	}
	if err := v.Reopen(); err != nil {
		t.Fatal(err)
	}
	if got := v.State().BootID; got != "" {
		t.Errorf("boot ID is %q", got)
	}
}

// A locked vault forgets every key, and what is derived from them. That nothing is left elsewhere is TestMemory's.
func TestLockWipes(t *testing.T) {
	v, err := Create(t.Context(), Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: &memoryKey{}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	k := v.keys
	lock := v.keys.mem
	for name, key := range map[string][]byte{
		"root": k.root, "set": k.ring.set, "publish": k.ring.publish, "audit": k.ring.auditSeal, "backup": k.ring.backup,
		"correlation": k.ring.correlation, "data": k.ring.data[0].key,
		"root state": k.rootPRF.inner, "set state": k.set.outer, "publish state": k.publish.inner, "data state": k.data[1].inner,
	} {
		if !lock.holds(key) {
			t.Errorf("the %s key lies elsewhere", name)
		}
	}
	v.Lock()
	if lock.mem != nil || v.keys != nil {
		t.Error("the memory is still there")
	}
}

// holds tells whether a slice lies in this memory.
func (m *keyMemory) holds(p []byte) bool {
	for i := range m.mem {
		if &m.mem[i] == &p[0] {
			return true
		}
	}
	return false
}
