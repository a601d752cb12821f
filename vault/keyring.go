package vault

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// schema is the version of everything inside the vault. It lives in the keyring, where nobody can lower it.
const schema = 1

const keyringLabel = "sb/keyring/v1"

// dataKey seals rows while its term is the newest, and opens them for ever.
type dataKey struct {
	term uint32
	key  []byte
}

// keyring is what the root key protects: every other key.
type keyring struct {
	vaultID     string
	schema      uint32
	set         []byte // keys the leaves
	publish     []byte // keys the published digest
	auditSeal   []byte // seals audit.key
	correlation []byte // keys the hashes that stand for malformed names in the log
	data        []dataKey
}

func newKeyring(vaultID string) *keyring {
	return &keyring{
		vaultID:     vaultID,
		schema:      schema,
		set:         newKey(),
		publish:     newKey(),
		auditSeal:   newKey(),
		correlation: newKey(),
		data:        []dataKey{{term: 1, key: newKey()}},
	}
}

func newKey() []byte {
	key := make([]byte, keySize)
	rand.Read(key) // never fails: the program ends instead
	return key
}

func newVaultID() string { return hex.EncodeToString(newKey()[:16]) }

func validVaultID(id string) bool {
	if len(id) != 32 {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func (k *keyring) encode() []byte {
	b := newLP(make([]byte, 0, 512), 7+len(k.data)).text(keyringLabel).text(k.vaultID).u32(k.schema)
	b = b.bytes(k.set).bytes(k.publish).bytes(k.auditSeal).bytes(k.correlation)
	for _, d := range k.data {
		var mark int
		b, mark = b.nest(2)
		b = b.u32(d.term).bytes(d.key).endNest(mark)
	}
	return b
}

// decodeKeyring copies the keys out of p, so that p can be wiped.
func decodeKeyring(p []byte) (*keyring, error) {
	r := readLP(p)
	r.label(keyringLabel)
	k := &keyring{vaultID: r.text(), schema: r.u32()}
	// Whatever a newer schema adds behind this point, its number is found first.
	if !r.bad && k.schema > schema {
		return nil, fmt.Errorf("%w: the vault has schema %d, this program knows %d", ErrSchema, k.schema, schema)
	}
	for _, key := range []*[]byte{&k.set, &k.publish, &k.auditSeal, &k.correlation} {
		*key = append([]byte(nil), r.fixed(keySize)...)
	}
	var last uint32
	for r.more() {
		n := r.nested()
		d := dataKey{term: n.u32(), key: append([]byte(nil), n.fixed(keySize)...)}
		if n.done() != nil || d.term <= last {
			k.wipe()
			return nil, errEncoding
		}
		last = d.term
		k.data = append(k.data, d)
	}
	if r.done() != nil || k.schema != schema || len(k.data) == 0 || !validVaultID(k.vaultID) {
		k.wipe()
		return nil, errEncoding
	}
	return k, nil
}

func (k *keyring) wipe() {
	for _, key := range [][]byte{k.set, k.publish, k.auditSeal, k.correlation} {
		clear(key)
	}
	for _, d := range k.data {
		clear(d.key)
	}
}

// keyset is an opened keyring ready for work. It is immutable until it is wiped, and safe for use by many goroutines.
type keyset struct {
	root    []byte
	ring    *keyring
	rootPRF *prf
	set     *prf
	publish *prf
	data    map[uint32]*prf
	newest  uint32
}

// newKeyset takes over root and ring.
func newKeyset(root []byte, ring *keyring) *keyset {
	k := &keyset{
		root:    root,
		ring:    ring,
		rootPRF: newPRF(root),
		set:     newPRF(ring.set),
		publish: newPRF(ring.publish),
		data:    make(map[uint32]*prf, len(ring.data)),
	}
	for _, d := range ring.data {
		k.data[d.term] = newPRF(d.key)
		k.newest = d.term
	}
	return k
}

func (k *keyset) prf(term uint32) (*prf, bool) {
	if term == rootTerm {
		return k.rootPRF, true
	}
	p, ok := k.data[term]
	return p, ok
}

func (k *keyset) wipe() {
	clear(k.root)
	k.ring.wipe()
	k.rootPRF.wipe()
	k.set.wipe()
	k.publish.wipe()
	for _, p := range k.data {
		p.wipe()
	}
}
