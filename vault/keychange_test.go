package vault

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// P12, P23: after a change of keys whose commit failed the vault stops, and Reopen finds out which keys are the file's.
func TestFailStopOfKeyChanges(t *testing.T) {
	phrase := Secret("passphrase")
	src := &memoryKey{}
	for op, do := range map[string]func(v *Vault) error{
		"rotate": func(v *Vault) error { _, err := v.Rotate(quietJournal{}); return err },
		"rekey":  func(v *Vault) error { return v.Rekey(t.Context(), quietJournal{}, []KeySource{src}) },
		"remove": func(v *Vault) error {
			return v.RemoveSlot(t.Context(), quietJournal{}, kindPassphrase, []KeySource{src})
		},
		"drop": func(v *Vault) error { _, _, err := v.Rewrap(quietJournal{}, 100); return err },
	} {
		for fault, committed := range map[string]bool{"at the state row": false, "before the commit": false, "after the commit": true} {
			for _, locked := range []bool{false, true} {
				t.Run(op+" "+fault, func(t *testing.T) {
					cfg := Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: src, cost: cost{1, 1 << 10, 1}}
					v, err := Create(t.Context(), cfg)
					if err != nil {
						t.Fatal(err)
					}
					defer v.Close()
					put := func(tx *Tx) error { _, err := tx.PutContent("a", KindText, []byte("x")); return err }
					_, errPhrase := v.AddPassphrase(quietJournal{}, phrase)
					if err := errors.Join(errPhrase, v.Mutate(quietJournal{}, put)); err != nil {
						t.Fatal(err)
					}
					if op == "drop" {
						// One call before the last one.
						_, errRotate := v.Rotate(quietJournal{})
						_, _, errRewrap := v.Rewrap(quietJournal{}, 100)
						if err := errors.Join(errRotate, errRewrap); err != nil {
							t.Fatal(err)
						}
					}
					before := v.State().Generation
					v.store = &faultyStore{rowStore: v.store, fault: fault}
					if err := do(v); !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
						t.Fatalf("says %v", err)
					}
					if err := v.View(func(*Tx) error { return nil }); !errors.Is(err, ErrFailed) {
						t.Errorf("View says %v", err)
					}
					if locked {
						v.Lock()
					}
					if err := v.Reopen(); err != nil {
						t.Fatal(err)
					}
					if v.doubt != nil {
						t.Error("it is still in doubt")
					}
					if locked {
						if err := v.Unlock(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					if committed {
						before++
					}
					if got := v.State().Generation; got != before {
						t.Errorf("generation %d instead of %d", got, before)
					}
					if err := v.Verify(true, nil); err != nil {
						t.Error(err)
					}
					if op != "remove" || !committed {
						if err := do(v); err != nil {
							t.Error(err)
						}
					}
					if err := v.Mutate(quietJournal{}, put); err != nil {
						t.Error(err)
					}
					if err := v.TestSlot(t.Context(), src); err != nil {
						t.Error(err)
					}
					if err := v.TestSlot(t.Context(), Passphrase(phrase)); (err == nil) != (op != "remove") {
						t.Errorf("the passphrase: %v", err)
					}
				})
			}
		}
	}
}

// The older keys stay as long as one row needs them, whatever Rewrap believes it has done.
func TestTermsInUseStay(t *testing.T) {
	for _, bucket := range []string{bucketContents, bucketRecords, "grants"} {
		v, err := Create(t.Context(), Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: &memoryKey{}})
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		fill := func(tx *Tx) error {
			_, err := tx.PutContent("a", KindText, []byte("x"))
			return errors.Join(err, tx.Put("grants", "g", []byte("allow")))
		}
		if err := v.Mutate(quietJournal{}, fill); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Rotate(quietJournal{}); err != nil {
			t.Fatal(err)
		}
		// Everything is rewrapped but one bucket.
		err = v.Mutate(quietJournal{}, func(tx *Tx) error {
			all, err := tx.rewrappable()
			if err != nil {
				return err
			}
			p := &pass{keys: tx.keys, buckets: slices.DeleteFunc(all, func(b string) bool { return b == bucket })}
			_, err = p.work(tx, 100)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		v.pass = &pass{keys: v.keys}
		_, _, err = v.Rewrap(quietJournal{}, 100)
		if bucket == bucketRecords { // which came along with their contents
			if _, old := v.Terms(); err != nil || len(old) != 0 {
				t.Errorf("%s: old terms %v, %v", bucket, old, err)
			}
			continue
		}
		if _, old := v.Terms(); !errors.Is(err, ErrBusy) || len(old) != 1 {
			t.Errorf("%s: old terms %v, %v", bucket, old, err)
		}
		for range 3 {
			if _, _, err := v.Rewrap(quietJournal{}, 100); err != nil {
				t.Error(err)
			}
		}
		if _, old := v.Terms(); len(old) != 0 {
			t.Errorf("%s: in the end old terms %v", bucket, old)
		}
		if err := v.Verify(true, nil); err != nil {
			t.Error(err)
		}
	}
}

// When keys cannot be put into memory nothing is changed.
func TestNoMemoryForKeys(t *testing.T) {
	if _, err := newKeyMemory(1 << 60); err == nil {
		t.Error("got an exbibyte")
	}
}
