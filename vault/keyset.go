package vault

// keyset is an opened keyring ready for work. It is immutable until it is wiped, and safe for use by many goroutines. Every
// key, and every state made from one, lies in its memory.
type keyset struct {
	mem     *keyMemory
	root    []byte
	plain   []byte // the encoded keyring, which ring points into
	ring    *keyring
	rootPRF *prf
	set     *prf
	publish *prf
	data    map[uint32]*prf
	newest  uint32
}

// newKeyset copies root and ring, which stay the caller's to wipe.
func newKeyset(root []byte, ring *keyring) (*keyset, error) {
	size := ring.size()
	mem, err := newKeyMemory(keySize + size + (3+len(ring.data))*prfStates)
	if err != nil {
		return nil, err
	}
	k := &keyset{mem: mem, root: mem.take(keySize), plain: mem.take(size), data: make(map[uint32]*prf, len(ring.data))}
	copy(k.root, root)
	if n := len(ring.appendTo(k.plain[:0])); n != size {
		panic("vault: size of a keyring")
	}
	if k.ring, err = decodeKeyring(k.plain); err != nil {
		panic("vault: a keyring that cannot be read: " + err.Error())
	}
	k.rootPRF = makePRF(mem.take(prfStates), k.root)
	k.set = makePRF(mem.take(prfStates), k.ring.set)
	k.publish = makePRF(mem.take(prfStates), k.ring.publish)
	for _, d := range k.ring.data {
		k.data[d.term] = makePRF(mem.take(prfStates), d.key)
	}
	k.newest = k.ring.newest()
	return k, nil
}

func (k *keyset) prf(term uint32) (*prf, bool) {
	if term == rootTerm {
		return k.rootPRF, true
	}
	p, ok := k.data[term]
	return p, ok
}

// sealRing makes the value of the keyring row.
func (k *keyset) sealRing(s *scratch) ([]byte, error) {
	return k.seal(s, bucketKeyring, rowKeyring, rootTerm, k.plain)
}

// wipe forgets everything. Afterwards nothing may be used.
func (k *keyset) wipe() {
	k.mem.free()
	*k = keyset{mem: k.mem}
}
