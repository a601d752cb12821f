package vault

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
)

// Labels of what wraps a backup's file key.
const (
	stanzasLabel     = "sb/stanzas/v1"
	stanzaWrapLabel  = "sb/stanza/wrap/v1"
	stanzaCheckLabel = "sb/stanza/check/v1"
)

// Recipients returns the kinds of slot that a person opens, which are those that can open a backup: passphrase, recovery.
// It never waits.
func (v *Vault) Recipients() []string {
	kinds := []string{}
	for _, slot := range v.Slots() {
		if !keyed(slot.Kind) {
			kinds = append(kinds, slot.Kind)
		}
	}
	return kinds
}

// WrapFileKey wraps the 32-byte key of a backup for this vault, and seals it to every passphrase and recovery slot. The
// result says whose it is and needs nothing else to be opened.
//
// Errors: ErrLocked; ErrNoSlot when no person could open it; ErrInvalid.
func (v *Vault) WrapFileKey(key []byte) ([]byte, error) {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.open(); err != nil {
		return nil, err
	}
	ring := v.keys.ring
	switch {
	case len(key) != keySize:
		return nil, fmt.Errorf("%w: a file key has %d bytes", ErrInvalid, keySize)
	case len(ring.recipients) == 0:
		return nil, fmt.Errorf("%w that a person opens", ErrNoSlot)
	}
	wrap, check := stanzaKeys(ring)
	defer clear(wrap[:])
	b := newLP(nil, 4+len(ring.recipients)).text(stanzasLabel).text(v.id).bytes(check[:]).bytes(sealKey(key, &wrap))
	for i := range ring.recipients {
		to := &ring.recipients[i]
		sealed, err := to.seal(key, stanzaPurpose(v.id, to.kind))
		if err != nil {
			return nil, err
		}
		list, mark := b.nest(sealedFields)
		b = sealed.appendTo(list).endNest(mark)
	}
	sum := sha256.Sum256(b)
	return append(sum[:], b...), nil
}

// UnwrapFileKey undoes WrapFileKey with the vault's own key. The caller wipes the result.
//
// Errors: ErrLocked; ErrWrongKey for what another vault wrapped; ErrIntegrity.
func (v *Vault) UnwrapFileKey(stanzas []byte) ([]byte, error) {
	v.life.RLock()
	defer v.life.RUnlock()
	if err := v.open(); err != nil {
		return nil, err
	}
	s, err := parseStanzas(stanzas)
	if err != nil {
		return nil, err
	}
	if v.keys.ring.backup == nil || s.vaultID != v.id {
		return nil, fmt.Errorf("%w: it was made by another vault", ErrWrongKey)
	}
	wrap, check := stanzaKeys(v.keys.ring)
	defer clear(wrap[:])
	if subtle.ConstantTimeCompare(check[:], s.check) != 1 {
		return nil, fmt.Errorf("%w: it was made by another vault", ErrWrongKey)
	}
	return openKey(s.box, &wrap)
}

// UnwrapFileKeyWith undoes WrapFileKey with what a person has: a source of Passphrase or Recovery. The caller wipes the result.
//
// Errors: ErrNoSlot if there was no slot of that kind; ErrWrongKey; ErrIntegrity.
func UnwrapFileKeyWith(stanzas []byte, src KeySource) ([]byte, error) {
	s, err := parseStanzas(stanzas)
	if err != nil {
		return nil, err
	}
	for _, one := range s.sealed {
		if one.how.kind != src.Kind() {
			continue
		}
		secret, err := src.Load(context.Background(), s.vaultID)
		if err != nil {
			return nil, err
		}
		defer clear(secret)
		return one.open(secret, stanzaPurpose(s.vaultID, one.how.kind))
	}
	return nil, fmt.Errorf("%w of kind %q", ErrNoSlot, src.Kind())
}

// stanzaPurpose is what a file key is sealed for.
func stanzaPurpose(vaultID, kind string) purpose {
	return purpose{use: "stanza", vaultID: vaultID, name: kind}
}

// stanzaKeys derives what wraps file keys for the vault itself, and what proves whose they are.
func stanzaKeys(ring *keyring) (wrap, check [32]byte) {
	p := newPRF(ring.backup)
	defer p.wipe()
	s := newScratch()
	s.expand(&wrap, p, newLP(nil, 2).text(stanzaWrapLabel).text(ring.vaultID))
	s.expand(&check, p, newLP(nil, 2).text(stanzaCheckLabel).text(ring.vaultID))
	return wrap, check
}

type stanzas struct {
	vaultID    string
	check, box []byte
	sealed     []sealedKey
}

func parseStanzas(p []byte) (*stanzas, error) {
	bad := fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	// As for slots: the sum tells damage from a mistyped secret, and nothing else.
	if len(p) < sha256.Size || sha256.Sum256(p[sha256.Size:]) != [sha256.Size]byte(p) {
		return nil, bad
	}
	r := readLP(p[sha256.Size:])
	r.label(stanzasLabel)
	s := &stanzas{vaultID: r.text(), check: r.fixed(checkSize), box: r.fixed(sealedSize)}
	last := ""
	for r.more() {
		one, err := readSealed(r.nested())
		if err != nil || one.how.kind <= last {
			return nil, bad
		}
		last = one.how.kind
		s.sealed = append(s.sealed, one)
	}
	if r.done() != nil || !validVaultID(s.vaultID) {
		return nil, bad
	}
	return s, nil
}
