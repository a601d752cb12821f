package vault_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// build makes a vault, lets fill change it once per function, and closes it.
func build(t testing.TB, fill ...func(*vault.Tx) error) vault.Config {
	t.Helper()
	cfg := vaulttest.Config(t)
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, fn := range fill {
		mutate(t, v, fn)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func open(t testing.TB, cfg vault.Config) *vault.Vault {
	t.Helper()
	v, err := vault.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func mutate(t testing.TB, v *vault.Vault, fn func(*vault.Tx) error) {
	t.Helper()
	if err := v.Mutate(&vaulttest.Journal{}, fn); err != nil {
		t.Fatal(err)
	}
}

func put(name, kind, content string) func(*vault.Tx) error {
	return func(tx *vault.Tx) error {
		_, err := tx.PutContent(name, kind, []byte(content))
		return err
	}
}

func row(bucket, name, value string) func(*vault.Tx) error {
	return func(tx *vault.Tx) error { return tx.Put(bucket, name, []byte(value)) }
}

func read(t testing.TB, v *vault.Vault, name string, n uint32) (content string, err error) {
	t.Helper()
	err = v.View(func(tx *vault.Tx) error {
		p, _, err := tx.Content(name, n)
		content = string(p)
		return err
	})
	return content, err
}

// tamper changes stored values behind the vault's back, with the tools of anyone who can write to the file.
func tamper(t testing.TB, cfg vault.Config, fn func(tx *bolt.Tx)) {
	t.Helper()
	db, err := bolt.Open(cfg.File, 0o600, &bolt.Options{Timeout: time.Second, NoSync: true, NoGrowSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bolt.Tx) error { fn(tx); return nil }); err != nil {
		t.Fatal(err)
	}
}

func stored(tx *bolt.Tx, bucket, name string) []byte {
	return bytes.Clone(tx.Bucket([]byte(bucket)).Get([]byte(name)))
}

func store(t testing.TB, tx *bolt.Tx, bucket, name string, value []byte) {
	t.Helper()
	if err := tx.Bucket([]byte(bucket)).Put([]byte(name), value); err != nil {
		t.Fatal(err)
	}
}

func slurp(t testing.TB, path string) []byte {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func spit(t testing.TB, path string, p []byte) {
	t.Helper()
	if err := os.WriteFile(path, p, 0o600); err != nil {
		t.Fatal(err)
	}
}

// oneLine fails for an error that would not fit `sbd: CODE: one line`.
func oneLine(t testing.TB, err error) {
	t.Helper()
	if s := err.Error(); strings.ContainsAny(s, "\n\r") || len(s) > 400 {
		t.Errorf("not one short line: %q", s)
	}
}
