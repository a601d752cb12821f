package vault

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
)

// Versions of everything inside the vault. The number lives in the keyring, where nobody can lower it.
const (
	schema    = 2
	oldSchema = 1 // without recipients and without a key for backups; see Migrate
)

const keyringLabel = "sb/keyring/v1"

// dataKey seals rows while its term is the newest, and opens them as long as there are any.
type dataKey struct {
	term uint32
	key  []byte
}

// keyring is what the root key protects: every other key, and whom the root key may be sealed to.
type keyring struct {
	vaultID     string
	schema      uint32
	set         []byte // keys the leaves
	publish     []byte // keys the published digest
	auditSeal   []byte // seals audit.key
	correlation []byte // keys the hashes that stand for malformed names in the log
	backup      []byte // wraps the file keys of backups; nil in oldSchema
	recipients  []recipient
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
		backup:      newKey(),
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

// keys are the pointers to the keys of their own, in the order of the encoding.
func (k *keyring) keys() []*[]byte {
	keys := []*[]byte{&k.set, &k.publish, &k.auditSeal, &k.correlation}
	if k.schema >= schema {
		keys = append(keys, &k.backup)
	}
	return keys
}

// size is the length of the encoding.
func (k *keyring) size() int {
	n := 4 + 4 + len(keyringLabel) + 4 + len(k.vaultID) + 4 + 4 + len(k.keys())*(4+keySize)
	if k.schema >= schema {
		n += 4 + 4
		for _, r := range k.recipients {
			n += 4 + r.size()
		}
	}
	return n + len(k.data)*(4+4+4+4+4+keySize)
}

// appendTo appends the encoding to dst.
func (k *keyring) appendTo(dst []byte) []byte {
	keys := k.keys()
	fields := 3 + len(keys) + len(k.data)
	if k.schema >= schema {
		fields++
	}
	b := newLP(dst, fields).text(keyringLabel).text(k.vaultID).u32(k.schema)
	for _, key := range keys {
		b = b.bytes(*key)
	}
	var mark, inner int
	if k.schema >= schema {
		b, mark = b.nest(len(k.recipients))
		for _, r := range k.recipients {
			b, inner = b.nest(recipientFields)
			b = r.appendTo(b).endNest(inner)
		}
		b = b.endNest(mark)
	}
	for _, d := range k.data {
		b, mark = b.nest(2)
		b = b.u32(d.term).bytes(d.key).endNest(mark)
	}
	return b
}

// decodeKeyring returns a keyring whose keys point into p.
func decodeKeyring(p []byte) (*keyring, error) {
	r := readLP(p)
	r.label(keyringLabel)
	k := &keyring{vaultID: r.text(), schema: r.u32()}
	// Whatever a newer schema adds behind this point, its number is found first.
	if !r.bad && k.schema > schema {
		return nil, fmt.Errorf("%w: the vault has schema %d, this program knows %d", ErrSchema, k.schema, schema)
	}
	for _, key := range k.keys() {
		*key = r.fixed(keySize)
	}
	if k.schema >= schema {
		list := r.nested()
		for list.more() {
			one, err := readRecipient(list.nested())
			if err != nil || (len(k.recipients) > 0 && one.kind <= k.recipients[len(k.recipients)-1].kind) {
				return nil, errEncoding
			}
			k.recipients = append(k.recipients, one)
		}
		if list.done() != nil {
			return nil, errEncoding
		}
	}
	var last uint32
	for r.more() {
		n := r.nested()
		d := dataKey{term: n.u32(), key: n.fixed(keySize)}
		if n.done() != nil || d.term <= last {
			return nil, errEncoding
		}
		last = d.term
		k.data = append(k.data, d)
	}
	if r.done() != nil || k.schema < oldSchema || len(k.data) == 0 || !validVaultID(k.vaultID) {
		return nil, errEncoding
	}
	return k, nil
}

// clone returns a keyring that can be changed without changing k; the keys themselves are shared.
func (k *keyring) clone() *keyring {
	c := *k
	c.recipients, c.data = slices.Clone(k.recipients), slices.Clone(k.data)
	return &c
}

func (k *keyring) recipient(kind string) *recipient {
	for i := range k.recipients {
		if k.recipients[i].kind == kind {
			return &k.recipients[i]
		}
	}
	return nil
}

// setRecipient adds a recipient or replaces the one of its kind.
func (k *keyring) setRecipient(r recipient) {
	k.dropRecipient(r.kind)
	i, _ := slices.BinarySearchFunc(k.recipients, r.kind, func(r recipient, kind string) int {
		if r.kind < kind {
			return -1
		}
		return 1
	})
	k.recipients = slices.Insert(k.recipients, i, r)
}

func (k *keyring) dropRecipient(kind string) {
	k.recipients = slices.DeleteFunc(k.recipients, func(r recipient) bool { return r.kind == kind })
}

// newest is the term that seals.
func (k *keyring) newest() uint32 { return k.data[len(k.data)-1].term }

// wipe is for keyrings outside of key memory.
func (k *keyring) wipe() {
	for _, key := range k.keys() {
		clear(*key)
	}
	for _, d := range k.data {
		clear(d.key)
	}
}
