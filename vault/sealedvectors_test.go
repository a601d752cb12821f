package vault

import (
	"bytes"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"testing"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/nacl/secretbox"
)

// sealedVector is a slot that a person opens.
type sealedVector struct {
	Name             string   `json:"name"`
	Secret           hexBytes `json:"secret"` // the passphrase, or the seed of the recovery code
	Salt             hexBytes `json:"salt"`
	Passes           uint32   `json:"passes"`
	Memory           uint32   `json:"memoryKiB"`
	Threads          uint32   `json:"threads"`
	Private          hexBytes `json:"private"`
	Public           hexBytes `json:"public"`
	EphemeralPrivate hexBytes `json:"ephemeralPrivate"`
	Ephemeral        hexBytes `json:"ephemeral"`
	Shared           hexBytes `json:"shared"`
	Check            hexBytes `json:"check"`
	WrapKey          hexBytes `json:"wrapKey"`
	Nonce            hexBytes `json:"nonce"`
	RootKey          hexBytes `json:"rootKey"`
	Stored           string   `json:"stored"`
}

// stanzaVector is a file key wrapped for the vectors' vault and its two recipients.
type stanzaVector struct {
	FileKey hexBytes `json:"fileKey"`
	WrapKey hexBytes `json:"wrapKey"`
	Check   hexBytes `json:"check"`
	Nonce   hexBytes `json:"nonce"`
	Stanzas hexBytes `json:"stanzas"`
}

func (v sealedVector) kind() string {
	slot, err := parseSlotName(v.Name)
	if err != nil {
		panic(err)
	}
	return slot.Kind
}

func (v sealedVector) recipient() recipient {
	return recipient{derivation{v.kind(), v.Salt, cost{v.Passes, v.Memory, v.Threads}}, v.Public}
}

// must is for libraries that cannot fail on what they are given here.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// sealedVectors are nobody's to change.
var sealedVectors = sync.OnceValue(makeSealedVectors)

// makeSealedVectors uses the libraries' Argon2, X25519, HKDF and secretbox.
func makeSealedVectors() []sealedVector {
	phrase := sealedVector{
		Name: "2.passphrase", Secret: []byte("correct horse battery staple"),
		Salt: pattern(0xa0, 16), Passes: 1, Memory: 8 << 10, Threads: 2,
	}
	phrase.Private = argon2.IDKey(phrase.Secret, phrase.Salt, 1, 8<<10, 2, 32)
	code := sealedVector{Name: "3.recovery", Secret: pattern(0xb0, 32), Salt: hexBytes{}}
	code.Private = code.Secret
	vectors := []sealedVector{phrase, code}
	for i := range vectors {
		v := &vectors[i]
		private := must(ecdh.X25519().NewPrivateKey(v.Private))
		once := must(ecdh.X25519().NewPrivateKey(pattern(byte(0xc0+i), 32)))
		v.Public, v.EphemeralPrivate, v.Ephemeral = private.PublicKey().Bytes(), once.Bytes(), once.PublicKey().Bytes()
		v.Shared = must(once.ECDH(private.PublicKey()))
		v.Nonce, v.RootKey = pattern(byte(0x20+i), 24), pattern(0x70, 32)
		var sealed sealedKey
		v.Check, v.WrapKey, sealed = v.seal("slot", v.Name, v.Nonce, v.RootKey)
		body := sealed.appendTo(newLP(nil, 4))
		sum := sha256.Sum256(newLP(nil, 4).text("sb/slot/sum/v1").text(vectorID).text(v.Name).bytes(body))
		v.Stored = "s2:" + v.kind() + ":" + base64.StdEncoding.EncodeToString(append(sum[:], body...))
	}
	return vectors
}

func (v sealedVector) seal(use, name string, nonce, key []byte) (check, wrap []byte, sealed sealedKey) {
	info := newLP(nil, 6).text("sb/seal/v1").text(use).text(vectorID).text(name).bytes(v.Ephemeral).bytes(v.Public)
	wrap = must(hkdf.Key(sha256.New, v.Shared, nil, string(info), 32))
	info = newLP(nil, 4).text("sb/seal/check/v1").text(use).text(vectorID).text(name)
	check = must(hkdf.Expand(sha256.New, v.Public, string(info), 32))
	box := secretbox.Seal(bytes.Clone(nonce), key, (*[24]byte)(nonce), (*[32]byte)(wrap))
	return check, wrap, sealedKey{how: v.recipient().derivation, check: [32]byte(check), ephemeral: v.Ephemeral, box: box}
}

func makeStanzas(t *testing.T) stanzaVector {
	t.Helper()
	s := stanzaVector{FileKey: pattern(0xd0, 32), Nonce: pattern(0x30, 24)}
	for label, key := range map[string]*hexBytes{"sb/stanza/wrap/v1": &s.WrapKey, "sb/stanza/check/v1": &s.Check} {
		*key = must(hkdf.Expand(sha256.New, pattern(0x48, 32), string(newLP(nil, 2).text(label).text(vectorID)), 32))
	}
	b := newLP(nil, 6).text("sb/stanzas/v1").text(vectorID).bytes(s.Check)
	b = b.bytes(secretbox.Seal(bytes.Clone(s.Nonce), s.FileKey, (*[24]byte)(s.Nonce), (*[32]byte)(s.WrapKey)))
	for _, v := range sealedVectors() {
		_, _, sealed := v.seal("stanza", v.kind(), v.Nonce, s.FileKey)
		b = b.bytes(sealed.appendTo(newLP(nil, 4)))
	}
	sum := sha256.Sum256(b)
	s.Stanzas = append(sum[:], b...)
	return s
}

func checkSealedVectors(t *testing.T, v vectors) {
	t.Helper()
	for _, want := range v.Sealed {
		slot := slotRow{must(parseSlotName(want.Name)), []byte(want.Stored)}
		root, err := slot.open(want.Secret, v.VaultID)
		if err != nil || !bytes.Equal(root, want.RootKey) {
			t.Errorf("slot %s opens to %x, %v, want %x", want.Name, root, err, want.RootKey)
		}
		key, err := UnwrapFileKeyWith(v.Stanzas.Stanzas, secretSource{want.kind(), Secret(want.Secret)})
		if err != nil || !bytes.Equal(key, v.Stanzas.FileKey) {
			t.Errorf("the stanza of %s opens to %x, %v, want %x", want.Name, key, err, v.Stanzas.FileKey)
		}
	}
	owner := &Vault{id: v.VaultID, keys: vectorKeys()}
	if key, err := owner.UnwrapFileKey(v.Stanzas.Stanzas); err != nil || !bytes.Equal(key, v.Stanzas.FileKey) {
		t.Errorf("the vault's own stanza opens to %x, %v, want %x", key, err, v.Stanzas.FileKey)
	}
}
