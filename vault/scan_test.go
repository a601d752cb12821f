package vault_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// storedValue is what a sealed row looks like, wherever in a file it lies.
var storedValue = regexp.MustCompile(`v1:[0-9]+:[A-Za-z0-9+/]+=*`)

// scan decrypts whatever is still in the vault's file, in use or not, as one of rows,
// and returns what was found of each, once.
func scan(t *testing.T, v *vault.Vault, path, bucket string, rows ...string) (found []string) {
	t.Helper()
	for _, value := range storedValue.FindAll(slurp(t, path), -1) {
		for _, name := range rows {
			// What follows a value on its page may look like more of it.
			for end := len(value); end > 60 && end > len(value)-20; end-- {
				if plain, err := v.OpenStored(bucket, name, value[:end]); err == nil {
					found = append(found, name+": "+string(plain))
					break
				}
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// What was replaced or deleted can be decrypted out of the vault's file by whoever has
// the keys, under any term that it was ever sealed with, until Compact: then nothing of
// it can.
func TestNothingDecryptsAfterCompact(t *testing.T) {
	cfg := homeConfig(t.TempDir())
	v, err := vault.Create(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	entry := func(name, text string) func(*vault.Tx) error {
		return row("knowledge", name, text+strings.Repeat(".", 300))
	}
	mutate(t, v, func(tx *vault.Tx) error {
		for i := range 30 {
			if err := entry(fmt.Sprint("kept", i), "kept")(tx); err != nil {
				return err
			}
		}
		return errors.Join(entry("forgotten", "marker one")(tx), entry("removed", "marker two")(tx))
	})
	if _, err := v.Rotate(&vaulttest.Journal{}); err != nil {
		t.Fatal(err)
	}
	for left := 1; left > 0; {
		if _, left, err = v.Rewrap(&vaulttest.Journal{}, 5); err != nil {
			t.Fatal(err)
		}
	}
	mutate(t, v, func(tx *vault.Tx) error {
		return errors.Join(entry("forgotten", "tombstone")(tx), tx.Delete("knowledge", "removed"))
	})
	all := func() string {
		return strings.Join(scan(t, v, cfg.File, "knowledge", "kept0", "forgotten", "removed"), "\n")
	}
	before := all()
	for _, want := range []string{"forgotten: marker one", "removed: marker two", "forgotten: tombstone", "kept0: kept"} {
		if !strings.Contains(before, want) {
			t.Errorf("before: there is no %q, so that its absence proves nothing:\n%s", want, before)
		}
	}
	if _, err := v.Compact(); err != nil {
		t.Fatal(err)
	}
	after := all()
	if strings.Contains(after, "marker") || !strings.Contains(after, "forgotten: tombstone") || !strings.Contains(after, "kept0: kept") {
		t.Errorf("after:\n%s", after)
	}
}
