package vault_test

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// fixedKey is a key source for the golden vaults.
type fixedKey []byte

func (k fixedKey) Kind() string { return "file" }
func (k fixedKey) Load(context.Context, string) ([]byte, error) {
	return append([]byte(nil), k...), nil
}
func (k fixedKey) Store(context.Context, string, []byte) error { return errors.New("not here") }
func (k fixedKey) Remove(context.Context, string) error        { return errors.New("not here") }

// Vaults that were written once and open for ever. The one of schema 1 was made by a program that knew no other.
const (
	schema1File = "testdata/schema1.db"
	schema2File = "testdata/schema2.db"
)

func schema1Key(t testing.TB) []byte { return goldenKey(t, "testdata/schema1.key.hex") }

func goldenKey(t testing.TB, file string) []byte {
	t.Helper()
	key, err := hex.DecodeString(strings.TrimSpace(string(slurp(t, file))))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

var goldenContents = map[string]string{"readme": "second", "secret.pem": "-----BEGIN", "leer": ""}

// checkGolden compares a golden vault with what was put into it.
func checkGolden(t *testing.T, v *vault.Vault) {
	t.Helper()
	if err := v.Verify(true, nil); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err := v.View(func(tx *vault.Tx) error {
		return tx.Records(func(rec vault.Record) error {
			content, _, err := tx.Content(rec.Name, 0)
			got[rec.Name] = string(content)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenContents, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A vault of schema 1 opens and works, and is migrated by one mutation, after a copy.
func TestGoldenSchema1(t *testing.T) {
	cfg := vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: fixedKey(schema1Key(t))}
	spit(t, cfg.File, slurp(t, schema1File))
	v := open(t, cfg)
	checkGolden(t, v)
	if got := v.State(); got.Generation != 5 || got.Count != 6 || v.Schema() != 1 {
		t.Errorf("generation %d with %d rows, schema %d", got.Generation, got.Count, v.Schema())
	}
	mutate(t, v, put("leer", vault.KindBinary, ""))
	if _, err := v.WrapFileKey(make([]byte, 32)); !errors.Is(err, vault.ErrNoSlot) {
		t.Errorf("wrapping a file key: %v", err)
	}

	refuse := &vaulttest.Journal{OnIntent: func(uint64, [32]byte) error { return errCrash }}
	if done, err := v.Migrate(refuse); done || !errors.Is(err, errCrash) || v.Schema() != 1 {
		t.Errorf("refused: %v, %v, schema %d", done, err, v.Schema())
	}
	before := slurp(t, cfg.File)
	j := &vaulttest.Journal{}
	if done, err := v.Migrate(j); !done || err != nil || v.Schema() != 2 {
		t.Fatalf("migrating: %v, %v, schema %d", done, err, v.Schema())
	}
	if diff := cmp.Diff([]string{"intent 7", "applied 7"}, j.Calls()); diff != "" {
		t.Errorf("journal (-want +got):\n%s", diff)
	}
	checkGolden(t, v)
	if done, err := v.Migrate(j); done || err != nil {
		t.Errorf("again: %v, %v", done, err)
	}
	if diff := cmp.Diff(string(before), string(slurp(t, cfg.File+".schema1"))); diff != "" {
		t.Error("the copy is not what the vault was")
	}
	if info, err := os.Stat(cfg.File + ".schema1"); err != nil || info.Mode() != 0o600 {
		t.Errorf("the copy has mode %v, %v", info.Mode(), err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	v = open(t, cfg)
	checkGolden(t, v)
	if v.Schema() != 2 {
		t.Errorf("opened again, schema %d", v.Schema())
	}
}

// Whatever changes the keys of a vault of schema 1 migrates it, after a copy.
func TestChangesMigrate(t *testing.T) {
	for name, do := range map[string]func(*vault.Vault, vault.Config) error{
		"Rotate": func(v *vault.Vault, _ vault.Config) error { return second(v.Rotate(&vaulttest.Journal{})) },
		"AddPassphrase": func(v *vault.Vault, _ vault.Config) error {
			return second(v.AddPassphrase(&vaulttest.Journal{}, vault.Secret(phrase)))
		},
		"Rekey": func(v *vault.Vault, cfg vault.Config) error {
			return v.Rekey(t.Context(), &vaulttest.Journal{}, []vault.KeySource{cfg.Keys})
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: fixedKey(schema1Key(t))}
			vault.CheapPassphrases(&cfg)
			spit(t, cfg.File, slurp(t, schema1File))
			v := open(t, cfg)
			if err := do(v, cfg); err != nil {
				t.Fatal(err)
			}
			if v.Schema() != 2 {
				t.Errorf("schema %d", v.Schema())
			}
			kept := open(t, vault.Config{File: cfg.File + ".schema1", Keys: cfg.Keys})
			checkGolden(t, kept)
			if kept.Schema() != 1 {
				t.Errorf("the copy has schema %d", kept.Schema())
			}
		})
	}
}

// Nothing is migrated where no copy can be made.
func TestNoCopyNoMigration(t *testing.T) {
	dir := t.TempDir()
	cfg := vault.Config{File: filepath.Join(dir, "vault.db"), Keys: fixedKey(schema1Key(t))}
	spit(t, cfg.File, slurp(t, schema1File))
	v := open(t, cfg)
	before := slurp(t, cfg.File)
	// A directory that is not empty can be neither replaced nor removed.
	if err := os.MkdirAll(filepath.Join(dir, "vault.db.schema1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	j := &vaulttest.Journal{}
	if done, err := v.Migrate(j); done || err == nil {
		t.Errorf("migrating: %v, %v", done, err)
	} else {
		oneLine(t, err)
	}
	if len(j.Calls()) != 0 || v.Schema() != 1 || string(before) != string(slurp(t, cfg.File)) {
		t.Errorf("something was changed: %v, schema %d", j.Calls(), v.Schema())
	}
	checkGolden(t, v)
}

// A vault of schema 2 with every slot and two terms.
func TestGoldenSchema2(t *testing.T) {
	const keyFile = "testdata/schema2.key.hex"
	if flag.Lookup("update").Value.String() == "true" {
		cfg := vaulttest.Config(t)
		vault.CheapPassphrases(&cfg)
		v, err := vault.Create(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		mutate(t, v, put("readme", vault.KindText, "first"))
		mutate(t, v, put("secret.pem", vault.KindSecret, "-----BEGIN"))
		prepare := prepareSlots(t.Context(), v, &vaulttest.Journal{}, []vault.KeySource{nil, &vaulttest.Keys{As: "keychain"}})
		if err := errors.Join(prepare, second(v.Rotate(&vaulttest.Journal{})), v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "keychain", []vault.KeySource{cfg.Keys})); err != nil {
			t.Fatal(err)
		}
		mutate(t, v, put("readme", vault.KindText, "second"))
		mutate(t, v, put("leer", vault.KindBinary, ""))
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		spit(t, schema2File, slurp(t, cfg.File))
		spit(t, keyFile, []byte(hex.EncodeToString(cfg.Keys.(*vaulttest.Keys).Only())+"\n"))
	}
	cfg := vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: fixedKey(goldenKey(t, keyFile))}
	spit(t, cfg.File, slurp(t, schema2File))
	v := open(t, cfg)
	checkGolden(t, v)
	passphrase, code := person()
	for _, src := range []vault.KeySource{passphrase, code} {
		v.Lock()
		if err := v.UnlockWith(t.Context(), src); err != nil {
			t.Errorf("%s: %v", src.Kind(), err)
		}
	}
	rewrapAll(t, v, 100)
	checkGolden(t, v)
}
