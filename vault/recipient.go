package vault

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"runtime/debug"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/nacl/secretbox"
)

// Kinds of slot. The first two have a key that is kept somewhere, the others one that a person brings.
const (
	kindKeychain   = "keychain"
	kindFile       = "file"
	kindPassphrase = "passphrase"
	kindRecovery   = "recovery"
)

const (
	publicSize = 32
	saltSize   = 16
	sealedSize = boxOverhead + keySize // nonce ‖ secretbox of a key
)

// cost is what guessing one passphrase takes.
type cost struct {
	passes  uint32
	memory  uint32 // KiB
	threads uint32
}

// newCost is the second choice of RFC 9106, §4: half a second of one core of 2020.
var newCost = cost{passes: 3, memory: 64 << 10, threads: 4}

// sane bounds what a slot may ask of us: it is read before anything vouches for it.
func (c cost) sane() bool {
	return c.passes >= 1 && c.passes <= 16 && c.threads >= 1 && c.threads <= 16 && c.memory >= 1<<10 && c.memory <= 256<<10
}

// derivation is how a person's secret becomes a private key of X25519: from a passphrase by Argon2id; the 32-byte seed that a
// recovery code stands for is one.
type derivation struct {
	kind string
	salt []byte // empty for recovery
	cost cost   // zero for recovery
}

const derivationFields = 5

func (d *derivation) size() int { return 4 + len(d.kind) + 4 + len(d.salt) + 3*8 }

// appendTo appends the fields of a list that the caller has begun.
func (d *derivation) appendTo(b lp) lp {
	return b.text(d.kind).bytes(d.salt).u32(d.cost.passes).u32(d.cost.memory).u32(d.cost.threads)
}

// readDerivation reads what appendTo wrote. Whatever it does not accept is a fault of r.
func readDerivation(r *lpReader) derivation {
	d := derivation{
		kind: r.text(),
		salt: bytes.Clone(r.bytes()),
		cost: cost{passes: r.u32(), memory: r.u32(), threads: r.u32()},
	}
	ok := false
	switch d.kind {
	case kindPassphrase:
		ok = len(d.salt) == saltSize && d.cost.sane()
	case kindRecovery:
		ok = len(d.salt) == 0 && d.cost == cost{}
	}
	if !ok {
		r.bad = true
	}
	return d
}

func (d *derivation) equal(o *derivation) bool {
	return d.kind == o.kind && d.cost == o.cost && bytes.Equal(d.salt, o.salt)
}

// private makes the private key of a secret, whether it is the right one or not. ErrWrongKey for what is no secret.
func (d *derivation) private(secret []byte) (*ecdh.PrivateKey, error) {
	if d.kind == kindPassphrase {
		key := argon2.IDKey(secret, d.salt, d.cost.passes, d.cost.memory, uint8(d.cost.threads), keySize)
		defer clear(key)
		// The key can be computed from the memory it was made in, which the library leaves as it is.
		defer debug.FreeOSMemory()
		return ecdh.X25519().NewPrivateKey(key)
	}
	private, err := ecdh.X25519().NewPrivateKey(secret)
	if err != nil {
		return nil, ErrWrongKey
	}
	return private, nil
}

// recipient is a person's way to a key. Anything can be sealed to the public key without asking for the secret. It is public in
// name only: it never leaves the keyring, so that whatever is sealed to it was sealed by somebody who had the keyring.
type recipient struct {
	derivation
	public []byte
}

const recipientFields = derivationFields + 1

func (r *recipient) size() int { return 4 + r.derivation.size() + 4 + publicSize }

// appendTo appends the fields of a list that the caller has begun.
func (r *recipient) appendTo(b lp) lp { return r.derivation.appendTo(b).bytes(r.public) }

func readRecipient(list *lpReader) (recipient, error) {
	r := recipient{derivation: readDerivation(list)}
	r.public = bytes.Clone(list.fixed(publicSize))
	return r, list.done()
}

// newPassphrase makes the recipient a passphrase stands for. It takes its time.
func newPassphrase(passphrase []byte, c cost) (recipient, error) {
	if len(passphrase) == 0 {
		return recipient{}, fmt.Errorf("%w: an empty passphrase", ErrInvalid)
	}
	r := recipient{derivation: derivation{kind: kindPassphrase, salt: make([]byte, saltSize), cost: c}}
	rand.Read(r.salt) // never fails: the program ends instead
	private, err := r.private(passphrase)
	if err != nil {
		return recipient{}, err
	}
	r.public = private.PublicKey().Bytes()
	return r, nil
}

// newRecovery makes the recipient of a recovery code from its public key.
func newRecovery(public []byte) (recipient, error) {
	r := recipient{derivation: derivation{kind: kindRecovery}, public: bytes.Clone(public)}
	// A point of low order would give everybody the same secret.
	if _, _, err := r.agree(); err != nil {
		return recipient{}, fmt.Errorf("%w: public key of a recovery code", ErrInvalid)
	}
	return r, nil
}

// agree makes a key pair for one use and what it has in common with the recipient's.
func (r *recipient) agree() (ephemeral, shared []byte, err error) {
	public, err := ecdh.X25519().NewPublicKey(r.public)
	if err != nil {
		return nil, nil, err
	}
	once, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if shared, err = once.ECDH(public); err != nil {
		return nil, nil, err
	}
	return once.PublicKey().Bytes(), shared, nil
}

// sealKey returns nonce ‖ secretbox.
func sealKey(key []byte, wrap *[keySize]byte) []byte {
	var nonce [nonceSize]byte
	rand.Read(nonce[:]) // never fails: the program ends instead
	return secretbox.Seal(nonce[:], key, &nonce, wrap)
}

// openKey undoes sealKey: ErrIntegrity.
func openKey(box []byte, wrap *[keySize]byte) ([]byte, error) {
	if len(box) != sealedSize {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	key, ok := secretbox.Open(nil, box[nonceSize:], (*[nonceSize]byte)(box), wrap)
	if !ok {
		return nil, fmt.Errorf("%w: it does not open", ErrIntegrity)
	}
	return key, nil
}
