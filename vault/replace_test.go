package vault_test

import (
	"errors"
	"testing"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// A vault whose slot key is lost gets another one from who has the passphrase;
// the lost one opens nothing any more.
func TestReplaceKeySlots(t *testing.T) {
	cfg := build(t, put("a", vault.KindText, "x"))
	vault.CheapPassphrases(&cfg)
	v := open(t, cfg)
	j, lost := &vaulttest.Journal{}, cfg.Keys
	found := &vaulttest.Keys{}
	if _, err := v.ReplaceKeySlots(t.Context(), j, found); !errors.Is(err, vault.ErrLastSlot) || len(j.Calls()) != 0 {
		t.Fatalf("without a person's slot: %v, journal %v", err, j.Calls())
	}
	passphrase := vault.Secret("correct horse")
	if _, err := v.AddPassphrase(j, passphrase); err != nil {
		t.Fatal(err)
	}
	v.Lock()
	if err := v.UnlockWith(t.Context(), vault.Passphrase(passphrase)); err != nil {
		t.Fatal(err)
	}
	slot, err := v.ReplaceKeySlots(t.Context(), j, found)
	if err != nil || slot.Kind != "file" {
		t.Fatalf("made %+v, %v", slot, err)
	}
	if n := len(v.Slots()); n != 2 {
		t.Errorf("%d slots, want the person's and the new one", n)
	}
	for name, tc := range map[string]struct {
		source vault.KeySource
		want   error
	}{
		"the lost key": {lost, vault.ErrWrongKey},
		"the new key":  {found, nil},
		"the person":   {vault.Passphrase(passphrase), nil},
	} {
		v.Lock()
		if err := v.UnlockWith(t.Context(), tc.source); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if err := v.UnlockWith(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	vaulttest.Check(t, v)
	if content, err := read(t, v, "a", 1); content != "x" || err != nil {
		t.Errorf("reads %q, %v", content, err)
	}
}
