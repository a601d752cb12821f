package vault

import (
	"errors"
	"path/filepath"
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
					cfg := Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: src, cost: cost{1, 8 << 10, 1}}
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

// When keys cannot be put into memory nothing is changed.
func TestNoMemoryForKeys(t *testing.T) {
	if _, err := newKeyMemory(1 << 60); err == nil {
		t.Error("got an exbibyte")
	}
}
