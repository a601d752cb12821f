package vault

import (
	"encoding/binary"
	"math/bits"
)

// acc is a sum of leaves modulo 2^256, most significant limb first. A sum and never an XOR: XORed leaves can be
// cancelled by choosing among old rows.
type acc [4]uint64

func (a acc) add(leaf [32]byte) acc {
	var carry uint64
	for i := 3; i >= 0; i-- {
		a[i], carry = bits.Add64(a[i], binary.BigEndian.Uint64(leaf[8*i:]), carry)
	}
	return a
}

func (a acc) sub(leaf [32]byte) acc {
	var borrow uint64
	for i := 3; i >= 0; i-- {
		a[i], borrow = bits.Sub64(a[i], binary.BigEndian.Uint64(leaf[8*i:]), borrow)
	}
	return a
}

func (a acc) bytes() (p [32]byte) {
	for i, limb := range a {
		binary.BigEndian.PutUint64(p[8*i:], limb)
	}
	return p
}

func accFrom(p [32]byte) (a acc) { return a.add(p) }
