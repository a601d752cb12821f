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
	return c.passes >= 1 && c.passes <= 16 && c.threads >= 1 && c.threads <= 16 && c.memory >= 8<<10 && c.memory <= 256<<10
}

// recipient is a person's way to a key: an X25519 public key, which anything can be sealed to without asking for the secret
// behind it. For a passphrase the private key is Argon2id of it; for a recovery code it is the seed the code stands for.
type recipient struct {
	kind   string
	salt   []byte // empty for recovery
	cost   cost   // zero for recovery
	public []byte
}

const recipientFields = 6

func (r *recipient) size() int {
	return 4 + 4 + len(r.kind) + 4 + len(r.salt) + 3*8 + 4 + publicSize
}

// appendTo appends the fields of a list that the caller has begun.
func (r *recipient) appendTo(b lp) lp {
	return b.text(r.kind).bytes(r.salt).u32(r.cost.passes).u32(r.cost.memory).u32(r.cost.threads).bytes(r.public)
}

// readRecipient returns nil for a list that is not what appendTo writes. The result has memory of its own.
func readRecipient(list *lpReader) *recipient {
	r := &recipient{
		kind: list.text(),
		salt: bytes.Clone(list.bytes()),
		cost: cost{passes: list.u32(), memory: list.u32(), threads: list.u32()},
	}
	r.public = bytes.Clone(list.fixed(publicSize))
	if list.done() != nil {
		return nil
	}
	switch r.kind {
	case kindPassphrase:
		if len(r.salt) != saltSize || !r.cost.sane() {
			return nil
		}
	case kindRecovery:
		if len(r.salt) != 0 || r.cost != (cost{}) {
			return nil
		}
	default:
		return nil
	}
	return r
}

func (r *recipient) equal(o *recipient) bool {
	return r.kind == o.kind && r.cost == o.cost && bytes.Equal(r.salt, o.salt) && bytes.Equal(r.public, o.public)
}

// newPassphrase makes the recipient a passphrase stands for. It takes its time.
func newPassphrase(passphrase []byte) (recipient, error) {
	if len(passphrase) == 0 {
		return recipient{}, fmt.Errorf("%w: an empty passphrase", ErrInvalid)
	}
	r := recipient{kind: kindPassphrase, salt: make([]byte, saltSize), cost: newCost}
	rand.Read(r.salt) // never fails: the program ends instead
	private, err := r.derive(passphrase)
	if err != nil {
		return recipient{}, err
	}
	r.public = private.PublicKey().Bytes()
	return r, nil
}

// newRecovery makes the recipient of a recovery code from its public key.
func newRecovery(public []byte) (recipient, error) {
	r := recipient{kind: kindRecovery, public: bytes.Clone(public)}
	// A point of low order would give everybody the same secret.
	if _, _, err := r.agree(); err != nil {
		return recipient{}, fmt.Errorf("%w: public key of a recovery code", ErrInvalid)
	}
	return r, nil
}

// derive makes the private key of a secret, whether it is this recipient's or not.
func (r *recipient) derive(secret []byte) (*ecdh.PrivateKey, error) {
	if r.kind == kindPassphrase {
		key := argon2.IDKey(secret, r.salt, r.cost.passes, r.cost.memory, uint8(r.cost.threads), keySize)
		defer clear(key)
		// The key can be computed from the memory it was made in, which the library leaves as it is.
		defer debug.FreeOSMemory()
		return ecdh.X25519().NewPrivateKey(key)
	}
	return ecdh.X25519().NewPrivateKey(secret)
}

// private returns the private key: ErrWrongKey for a secret that is not this recipient's.
func (r *recipient) private(secret []byte) (*ecdh.PrivateKey, error) {
	private, err := r.derive(secret)
	if err != nil || !bytes.Equal(private.PublicKey().Bytes(), r.public) {
		return nil, ErrWrongKey
	}
	return private, nil
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

// sealedKey is a key that was sealed to a recipient.
type sealedKey struct {
	ephemeral []byte
	box       []byte // nonce ‖ secretbox
}

// seal seals a key of keySize. label, vaultID and name say what for: nothing else opens it.
func (r *recipient) seal(key []byte, label, vaultID, name string) (sealedKey, error) {
	ephemeral, shared, err := r.agree()
	if err != nil {
		return sealedKey{}, err
	}
	wrap := wrapKey(shared, label, vaultID, name, ephemeral, r.public)
	defer clear(wrap[:])
	return sealedKey{ephemeral: ephemeral, box: sealKey(key, wrap)}, nil
}

// open undoes seal: ErrWrongKey for a secret that is not the recipient's, ErrIntegrity.
func (r *recipient) open(sealed sealedKey, secret []byte, label, vaultID, name string) ([]byte, error) {
	private, err := r.private(secret)
	if err != nil {
		return nil, err
	}
	ephemeral, err := ecdh.X25519().NewPublicKey(sealed.ephemeral)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	shared, err := private.ECDH(ephemeral)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	wrap := wrapKey(shared, label, vaultID, name, sealed.ephemeral, r.public)
	defer clear(wrap[:])
	return openKey(sealed.box, wrap)
}

// wrapKey is HKDF-SHA256 without salt. It takes over shared.
func wrapKey(shared []byte, label, vaultID, name string, ephemeral, public []byte) *[keySize]byte {
	defer clear(shared)
	s := newScratch()
	var extracted, wrap [keySize]byte
	defer clear(extracted[:])
	none := newPRF(nil)
	defer none.wipe()
	s.mac(&extracted, none, shared)
	p := newPRF(extracted[:])
	defer p.wipe()
	s.expand(&wrap, p, newLP(nil, 5).text(label).text(vaultID).text(name).bytes(ephemeral).bytes(public))
	return &wrap
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
