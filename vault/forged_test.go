package vault_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// Everything in meta is readable and writable for anyone: what it claims is refused, or compared with the keyring.
func TestForgedMeta(t *testing.T) {
	set := func(name, value string) func(*testing.T, *bolt.Tx) {
		return func(t *testing.T, tx *bolt.Tx) { store(t, tx, "meta", name, []byte(value)) }
	}
	unset := func(name string) func(*testing.T, *bolt.Tx) {
		return func(t *testing.T, tx *bolt.Tx) {
			if err := tx.Bucket([]byte("meta")).Delete([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*testing.T, *bolt.Tx)
		want   error // nil: it changes nothing
	}{
		"newer format":          {set("format", "2"), vault.ErrSchema},
		"much newer format":     {set("format", "4294967295"), vault.ErrSchema},
		"format 0":              {set("format", "0"), vault.ErrDamaged},
		"leading zero":          {set("format", "01"), vault.ErrDamaged},
		"sign":                  {set("format", "+1"), vault.ErrDamaged},
		"line end":              {set("format", "1\n"), vault.ErrDamaged},
		"overflow to 1":         {set("format", "4294967297"), vault.ErrDamaged},
		"long format":           {set("format", strings.Repeat("1", 1<<16)), vault.ErrDamaged},
		"empty format":          {set("format", ""), vault.ErrDamaged},
		"no format":             {unset("format"), vault.ErrDamaged},
		"another vault's ID":    {set("vaultID", strings.Repeat("0a", 16)), vault.ErrWrongKey},
		"ID in capitals":        {set("vaultID", strings.Repeat("0A", 16)), vault.ErrDamaged},
		"short ID":              {set("vaultID", "0a"), vault.ErrDamaged},
		"ID with a line end":    {set("vaultID", strings.Repeat("0a", 16)+"\n"), vault.ErrDamaged},
		"empty ID":              {set("vaultID", ""), vault.ErrDamaged},
		"no ID":                 {unset("vaultID"), vault.ErrDamaged},
		"another row":           {set("schema", "9"), nil},
		"no meta":               {func(_ *testing.T, tx *bolt.Tx) { _ = tx.DeleteBucket([]byte("meta")) }, vault.ErrDamaged},
		"a bucket inside":       {func(_ *testing.T, tx *bolt.Tx) { _, _ = tx.Bucket([]byte("meta")).CreateBucket([]byte("x")) }, vault.ErrDamaged},
		"slots in its place":    {func(t *testing.T, tx *bolt.Tx) { store(t, tx, "meta", "vaultID", stored(tx, "slots", "1.file")) }, vault.ErrDamaged},
		"no slots":              {func(_ *testing.T, tx *bolt.Tx) { _ = tx.DeleteBucket([]byte("slots")) }, vault.ErrDamaged},
		"a slot of no kind":     {func(t *testing.T, tx *bolt.Tx) { store(t, tx, "slots", "2.magic", []byte("s1:magic:")) }, vault.ErrDamaged},
		"no keyring":            {func(_ *testing.T, tx *bolt.Tx) { _ = tx.DeleteBucket([]byte("keyring")) }, vault.ErrDamaged},
		"no state":              {func(_ *testing.T, tx *bolt.Tx) { _ = tx.DeleteBucket([]byte("state")) }, vault.ErrDamaged},
		"a second keyring":      {func(t *testing.T, tx *bolt.Tx) { store(t, tx, "keyring", "keyring2", stored(tx, "keyring", "keyring")) }, vault.ErrIntegrity},
		"a sequence of buckets": {func(_ *testing.T, tx *bolt.Tx) { _ = tx.Bucket([]byte("meta")).SetSequence(1 << 60) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := build(t, put("a", vault.KindText, "x"), row("grants", "g", "allow"))
			tamper(t, cfg, func(tx *bolt.Tx) { test.change(t, tx) })
			cfg.Keys = anyKey{cfg.Keys.(*vaulttest.Keys)} // a key file does not look at the ID
			before := slurp(t, cfg.File)
			v, err := vault.Open(t.Context(), cfg)
			if !errors.Is(err, test.want) {
				t.Fatalf("opens with %v, want %v", err, test.want)
			}
			if err != nil {
				oneLine(t, err)
			} else {
				if got, err := read(t, v, "a", 0); err != nil || got != "x" {
					t.Errorf("read %q, %v", got, err)
				}
				if err := v.Verify(true, nil); err != nil {
					t.Error(err)
				}
				v.Close()
			}
			if !bytes.Equal(before, slurp(t, cfg.File)) {
				t.Error("opening changed the file")
			}
		})
	}
}

// The pages of an older moment are still in the file, and its meta page can be made to count again: that is a rollback, which
// the vault shows to whoever remembers, and never a mixture.
func TestOlderMetaPage(t *testing.T) {
	s := newSpecimen(t, 5)
	spit(t, s.cfg.File, s.whole)
	v := open(t, s.cfg)
	newest := v.State().Generation
	mutate(t, v, row("grants", "revoked", "allow"))
	mutate(t, v, func(tx *vault.Tx) error { return tx.Delete("grants", "revoked") })
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	image := slurp(t, s.cfg.File)
	older := 0
	for page := range 2 {
		changed := bytes.Clone(image)
		clear(changed[page*s.pageSize:][:s.pageSize])
		spit(t, s.cfg.File, changed)
		v, err := vault.Open(t.Context(), s.cfg)
		if err != nil {
			if !damage(err) {
				t.Error(err)
			}
			continue
		}
		if err := v.Verify(true, nil); err != nil {
			t.Error(err)
		}
		if got := v.State(); got.Generation == newest+1 && got.Checkpoint.Seq == newest+1 {
			older++
			err := v.View(func(tx *vault.Tx) error { _, err := tx.Get("grants", "revoked"); return err })
			if err != nil {
				t.Errorf("the older moment is not whole: %v", err)
			}
		} else if got.Generation != newest+2 {
			t.Errorf("generation %d, checkpoint %d", got.Generation, got.Checkpoint.Seq)
		}
		v.Close()
	}
	if older != 1 {
		t.Errorf("%d older moments", older)
	}
	// A process that has seen the newer one says so itself.
	spit(t, s.cfg.File, image)
	v = open(t, s.cfg)
	for page := range 2 {
		changed := bytes.Clone(image)
		clear(changed[page*s.pageSize:][:s.pageSize])
		spit(t, s.cfg.File, changed)
		if err := v.Reopen(); err != nil && !errors.Is(err, vault.ErrRollback) {
			t.Errorf("page %d: %v", page, err)
		} else if err != nil {
			older--
		}
	}
	if older != 0 {
		t.Error("Reopen did not notice the rollback")
	}
}
