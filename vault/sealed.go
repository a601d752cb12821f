package vault

import (
	"crypto/ecdh"
	"crypto/subtle"
	"fmt"
)

const (
	checkSize = 32
	// sealedFields is how many fields a sealedKey has in a list.
	sealedFields = 4
)

// purpose is what a key is sealed for, and where. It is bound to the result: nothing else opens that.
type purpose struct {
	use     string // slot, stanza
	vaultID string
	name    string
}

// sealedKey is a key that was sealed to a recipient, with everything but the secret that opening takes.
type sealedKey struct {
	how       derivation
	check     [checkSize]byte // tells the recipient's secret from another
	ephemeral []byte
	box       []byte // nonce ‖ secretbox
}

// seal seals a key of keySize.
func (r *recipient) seal(key []byte, p purpose) (sealedKey, error) {
	ephemeral, shared, err := r.agree()
	if err != nil {
		return sealedKey{}, err
	}
	wrap := sealKeys(shared, p, ephemeral, r.public)
	defer clear(wrap[:])
	return sealedKey{how: r.derivation, check: r.check(p), ephemeral: ephemeral, box: sealKey(key, wrap)}, nil
}

// check is what only somebody who knows the public key can compute.
func (r *recipient) check(p purpose) (check [checkSize]byte) {
	known := newPRF(r.public)
	defer known.wipe()
	newScratch().expand(&check, known, newLP(nil, 4).text("sb/seal/check/v1").text(p.use).text(p.vaultID).text(p.name))
	return check
}

// open undoes seal: ErrWrongKey for a secret that is not the recipient's, ErrIntegrity.
func (s *sealedKey) open(secret []byte, p purpose) ([]byte, error) {
	private, err := s.how.private(secret)
	if err != nil {
		return nil, err
	}
	to := recipient{derivation: s.how, public: private.PublicKey().Bytes()}
	if check := to.check(p); subtle.ConstantTimeCompare(check[:], s.check[:]) != 1 {
		return nil, ErrWrongKey
	}
	ephemeral, err := ecdh.X25519().NewPublicKey(s.ephemeral)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	shared, err := private.ECDH(ephemeral)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	wrap := sealKeys(shared, p, s.ephemeral, to.public)
	defer clear(wrap[:])
	return openKey(s.box, wrap)
}

// sealKeys is HKDF-SHA256 without salt. It takes over shared.
func sealKeys(shared []byte, p purpose, ephemeral, public []byte) *[keySize]byte {
	defer clear(shared)
	s := newScratch()
	var extracted, wrap [keySize]byte
	defer clear(extracted[:])
	none := newPRF(nil)
	s.mac(&extracted, none, shared)
	k := newPRF(extracted[:])
	defer k.wipe()
	s.expand(&wrap, k, newLP(nil, 6).text("sb/seal/v1").text(p.use).text(p.vaultID).text(p.name).bytes(ephemeral).bytes(public))
	return &wrap
}

// appendTo appends the fields of a list that the caller has begun.
func (s *sealedKey) appendTo(b lp) lp {
	b, mark := b.nest(derivationFields)
	return s.how.appendTo(b).endNest(mark).bytes(s.check[:]).bytes(s.ephemeral).bytes(s.box)
}

func readSealed(list *lpReader) (sealedKey, error) {
	how := list.nested()
	s := sealedKey{how: readDerivation(how), check: list.hash(), ephemeral: list.fixed(publicSize), box: list.fixed(sealedSize)}
	if how.done() != nil {
		return sealedKey{}, errEncoding
	}
	return s, list.done()
}
