package vault_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

func TestAccept(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "x"), row("grants", "g", "one"))
	v := open(t, cfg)
	vaulttest.Check(t, v)
	old := vault.Marks{
		Checkpoint: vault.Checkpoint{Segment: 9, Seq: 900}, Uses: map[string]uint64{"g": 3}, BootID: "old", HighWater: time.Unix(2000, 0).UTC(),
	}
	if err := v.WriteCheckpoint(old); err != nil {
		t.Fatal(err)
	}
	marks := vault.Marks{Checkpoint: vault.Checkpoint{Segment: 1, Seq: 1}, Uses: map[string]uint64{"h": 5}, BootID: "new", HighWater: time.Unix(1000, 0).UTC()}
	mark := func(tx *vault.Tx) error { return tx.Put("daemon", "restored", []byte("accepted")) }

	t.Run("a generation that does not rise", func(t *testing.T) {
		for _, generation := range []uint64{0, 1, 2} {
			j, ran := &vaulttest.Journal{}, false
			err := v.Accept(j, generation, marks, func(*vault.Tx) error { ran = true; return nil })
			if !errors.Is(err, vault.ErrInvalid) || ran || len(j.Calls()) != 0 {
				t.Errorf("generation %d: %v, ran %v, journal %v", generation, err, ran, j.Calls())
			}
		}
	})
	t.Run("refused by the log", func(t *testing.T) {
		before, no := v.State(), errors.New("no")
		err := v.Accept(&vaulttest.Journal{OnIntent: func(uint64, [32]byte) error { return no }}, 70, marks, mark)
		if !errors.Is(err, no) {
			t.Fatalf("says %v", err)
		}
		if diff := cmp.Diff(before, v.State()); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
	})

	j := &vaulttest.Journal{}
	if err := v.Accept(j, 70, marks, mark); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"intent 70", "applied 70"}, j.Calls()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	check := func(v *vault.Vault) {
		t.Helper()
		got := v.State()
		want := vault.State{
			Generation: 70, Count: got.Count, Digest: got.Digest, UsesAt: marks.Checkpoint, Uses: marks.Uses, BootID: "new", HighWater: marks.HighWater,
			Checkpoint: vault.Checkpoint{Segment: 1, Seq: 70, Hash: got.Digest}, // what the journal answered
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	}
	check(v)
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, cfg)
	check(v)
	mutate(t, v, row("grants", "g", "two"))
	if got := v.State().Generation; got != 71 {
		t.Errorf("the next generation is %d", got)
	}
}
