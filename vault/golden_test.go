package vault_test

import (
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// fixedKey is a key source for the golden vault.
type fixedKey []byte

func (k fixedKey) Kind() string { return "file" }
func (k fixedKey) Load(context.Context, string) ([]byte, error) {
	return append([]byte(nil), k...), nil
}
func (k fixedKey) Store(context.Context, string, []byte) error { return errors.New("not here") }
func (k fixedKey) Remove(context.Context, string) error        { return errors.New("not here") }

const (
	goldenFile = "testdata/schema1.db"
	goldenKey  = "testdata/schema1.key.hex"
)

// A vault of format 1, written once, opens for ever.
func TestGoldenVault(t *testing.T) {
	want := map[string]string{"readme": "second", "secret.pem": "-----BEGIN", "leer": ""}
	if flag.Lookup("update").Value.String() == "true" {
		cfg := build(t,
			put("readme", vault.KindText, "first"), put("readme", vault.KindText, "second"),
			put("secret.pem", vault.KindSecret, "-----BEGIN"), put("leer", vault.KindBinary, ""),
			row("grants", "abcdefghjk", "{}"),
		)
		spit(t, goldenFile, slurp(t, cfg.File))
		spit(t, goldenKey, []byte(hex.EncodeToString(cfg.Keys.(*vaulttest.Keys).Only())+"\n"))
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(slurp(t, goldenKey))))
	if err != nil {
		t.Fatal(err)
	}
	cfg := vault.Config{File: filepath.Join(t.TempDir(), "vault.db"), Keys: fixedKey(key)}
	spit(t, cfg.File, slurp(t, goldenFile))
	v := open(t, cfg)
	if err := v.Verify(true, nil); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = v.View(func(tx *vault.Tx) error {
		return tx.Records(func(rec vault.Record) error {
			content, _, err := tx.Content(rec.Name, 0)
			got[rec.Name] = string(content)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := v.State(); got.Generation != 5 || got.Count != 6 {
		t.Errorf("generation %d with %d rows", got.Generation, got.Count)
	}
	mutate(t, v, put("readme", vault.KindText, "third"))
}
