package vault_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

func TestFileKeys(t *testing.T) {
	_, v, sources := everySlot(t)
	passphrase, code := person()
	key := bytes.Repeat([]byte{7}, 32)
	stanzas, err := v.WrapFileKey(key)
	if err != nil {
		t.Fatal(err)
	}
	opened := func(got []byte, err error) bool { return err == nil && bytes.Equal(got, key) }
	if got, err := v.UnwrapFileKey(stanzas); !opened(got, err) {
		t.Errorf("the vault: %x, %v", got, err)
	}
	for _, src := range []vault.KeySource{passphrase, code} {
		if got, err := vault.UnwrapFileKeyWith(stanzas, src); !opened(got, err) {
			t.Errorf("%s: %x, %v", src.Kind(), got, err)
		}
	}
	// Rekeys, rotations and lost slots change nothing about backups that were made before.
	if err := errors.Join(
		v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "passphrase", sources),
		second(v.Rotate(&vaulttest.Journal{})),
		v.RemoveSlot(t.Context(), &vaulttest.Journal{}, "recovery", sources),
	); err != nil {
		t.Fatal(err)
	}
	if got, err := v.UnwrapFileKey(stanzas); !opened(got, err) {
		t.Errorf("the vault, later: %x, %v", got, err)
	}
	if got, err := vault.UnwrapFileKeyWith(stanzas, code); !opened(got, err) {
		t.Errorf("the code, later: %x, %v", got, err)
	}
	if _, err := v.WrapFileKey(key); !errors.Is(err, vault.ErrNoSlot) {
		t.Errorf("wrapping a key for nobody: %v", err)
	}
	if diff := cmp.Diff([]string{}, v.Recipients()); diff != "" {
		t.Errorf("recipients (-want +got):\n%s", diff)
	}
}

func TestFileKeysThatDoNotOpen(t *testing.T) {
	_, v, _ := everySlot(t)
	_, other, _ := everySlot(t)
	if diff := cmp.Diff([]string{"passphrase", "recovery"}, v.Recipients()); diff != "" {
		t.Errorf("recipients (-want +got):\n%s", diff)
	}
	passphrase, code := person()
	stanzas, err := v.WrapFileKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		open func() ([]byte, error)
		want error
	}{
		"another vault": {func() ([]byte, error) { return other.UnwrapFileKey(stanzas) }, vault.ErrWrongKey},
		"a wrong code": {func() ([]byte, error) {
			return vault.UnwrapFileKeyWith(stanzas, vault.Recovery(seed('s')))
		}, vault.ErrWrongKey},
		"a wrong passphrase": {func() ([]byte, error) {
			return vault.UnwrapFileKeyWith(stanzas, vault.Passphrase(vault.Secret("x")))
		}, vault.ErrWrongKey},
		"a key file": {func() ([]byte, error) { return vault.UnwrapFileKeyWith(stanzas, fixedKey(seed('x'))) }, vault.ErrNoSlot},
		"nothing":    {func() ([]byte, error) { return vault.UnwrapFileKeyWith(nil, code) }, vault.ErrIntegrity},
		"more": {func() ([]byte, error) {
			return vault.UnwrapFileKeyWith(append(bytes.Clone(stanzas), 0), passphrase)
		}, vault.ErrIntegrity},
		"a short key": {func() ([]byte, error) { return v.WrapFileKey(make([]byte, 31)) }, vault.ErrInvalid},
	} {
		if got, err := test.open(); got != nil || !errors.Is(err, test.want) {
			t.Errorf("%s: %x, %v, want %v", name, got, err, test.want)
		} else {
			oneLine(t, err)
		}
	}
	for i := range stanzas {
		changed := bytes.Clone(stanzas)
		changed[i] ^= 1
		if _, err := v.UnwrapFileKey(changed); !errors.Is(err, vault.ErrIntegrity) {
			t.Fatalf("with byte %d changed: %v", i, err)
		}
		if _, err := vault.UnwrapFileKeyWith(changed, code); !errors.Is(err, vault.ErrIntegrity) {
			t.Fatalf("with byte %d changed, by the code: %v", i, err)
		}
	}
}
