package vault_test

import (
	"errors"
	"os"
	"slices"

	"pgregory.net/rapid"

	"subjectbroker/vault"
	"subjectbroker/vault/vaulttest"
)

// changeKeys is a step of the machine that changes keys or slots. It may be killed, or refused, at each moment of its mutation.
func (m *machine) changeKeys(op string) func(*rapid.T) {
	return func(t *rapid.T) {
		moment := rapid.SampledFrom([]string{"never", "never", "at intent", "at applied"}).Draw(t, "moment")
		var image []byte
		take := func(at string) error {
			if at != moment {
				return nil
			}
			var err error
			if image, err = os.ReadFile(m.cfg.File); err != nil {
				return err
			}
			return errCrash
		}
		j := &vaulttest.Journal{
			OnIntent:  func(uint64, [32]byte) error { return take("at intent") },
			OnApplied: func(uint64, [32]byte) error { return take("at applied") },
		}
		next := m.model.clone()
		stillOpen, err := m.changeKey(t, op, j, next)
		if image == nil {
			want(t, err, stillOpen)
			if len(j.Calls()) > 0 {
				m.committed(next)
			}
			return
		}
		want(t, err, errCrash)
		if moment == "at applied" {
			want(t, err, vault.ErrNotRecorded)
			m.committed(next)
		}
		if rapid.Bool().Draw(t, "killed") {
			want(t, m.v.Close(), nil)
			if err := os.WriteFile(m.cfg.File, image, 0o600); err != nil {
				t.Fatal(err)
			}
			m.open(t)
		}
	}
}

// changeKey makes one change and tells what it should say if nothing comes in between.
func (m *machine) changeKey(t *rapid.T, op string, j vault.Journal, next *model) (expect, got error) {
	ctx := m.tb.Context()
	sources := []vault.KeySource{m.keys["file"], m.keys["keychain"]}
	switch op {
	case "rotate":
		next.terms++
		_, err := m.v.Rotate(j)
		return nil, err
	case "rewrap":
		_, old := m.v.Terms()
		done, left, err := m.v.Rewrap(j, rapid.IntRange(1, 5).Draw(t, "limit"))
		if _, now := m.v.Terms(); err == nil && left == 0 && len(now) != 0 || (len(old) == 0) != (done == 0 && err == nil) {
			t.Fatalf("rewrapped %d, %d left, old terms %v, then %v, %v", done, left, old, now, err)
		}
		return nil, err
	case "rekey":
		return nil, m.v.Rekey(ctx, j, sources)
	case "add":
		kind := rapid.SampledFrom([]string{"file", "keychain", "passphrase", "recovery"}).Draw(t, "kind")
		there := slices.Contains(m.model.slots, kind)
		if !there {
			next.slots = append(next.slots, kind)
		}
		var err error
		switch kind {
		case "passphrase":
			_, err = m.v.AddPassphrase(j, vault.Secret(phrase))
		case "recovery":
			var replaced bool
			if _, replaced, err = m.v.AddRecovery(ctx, j, publicOf(seed('r')), sources); err == nil && replaced != there {
				t.Fatalf("replaced: %v", replaced)
			}
			return nil, err
		default:
			_, err = m.v.AddSlot(ctx, j, m.keys[kind])
		}
		if there {
			return vault.ErrSlotExists, err
		}
		return nil, err
	case "remove":
		kind := rapid.SampledFrom([]string{"file", "keychain", "passphrase", "recovery"}).Draw(t, "kind")
		i := slices.Index(m.model.slots, kind)
		err := m.v.RemoveSlot(ctx, j, kind, sources)
		switch {
		case i < 0:
			return vault.ErrNoSlot, err
		case len(m.model.slots) == 1:
			return vault.ErrLastSlot, err
		}
		next.slots = slices.Delete(next.slots, i, i+1)
		return nil, err
	}
	return nil, errors.New("no such change")
}
