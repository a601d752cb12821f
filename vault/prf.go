package vault

import (
	"crypto/sha256"
	"encoding"
	"hash"
)

const keySize = 32

// prf is HMAC-SHA256 under one key with both padded blocks hashed beforehand: two of the four compressions of a short
// message are saved, which is what makes 10⁵ row keys cheap. It also is HKDF-Expand-SHA256 for outputs of one block:
// T(1) = HMAC(key, info ‖ 0x01).
//
// The states are kept in memory of our own, not in crypto/hmac, so that they can be wiped.
type prf struct {
	inner, outer []byte
}

// prfStates is the size of both states.
const (
	prfState  = 108 // as crypto/sha256 saves it
	prfStates = 2 * prfState
)

// newPRF makes a prf for a moment; the caller wipes it. One that stays belongs in key memory: see makePRF.
func newPRF(key []byte) *prf { return makePRF(make([]byte, prfStates), key) }

// makePRF makes a prf whose states lie in mem, which has prfStates bytes.
func makePRF(mem, key []byte) *prf {
	if len(key) > sha256.BlockSize {
		panic("vault: prf key is longer than a block")
	}
	var pad [sha256.BlockSize]byte
	defer clear(pad[:])
	h := sha256.New()
	defer h.Reset()
	state := func(mem []byte, mask byte) []byte {
		for i := range pad {
			pad[i] = mask
			if i < len(key) {
				pad[i] ^= key[i]
			}
		}
		h.Reset()
		h.Write(pad[:])
		s, err := h.(encoding.BinaryAppender).AppendBinary(mem[:0])
		if err != nil || len(s) != prfState {
			panic("vault: sha256 state cannot be saved")
		}
		return s
	}
	return &prf{inner: state(mem[:prfState:prfState], 0x36), outer: state(mem[prfState:prfStates:prfStates], 0x5c)}
}

func (p *prf) wipe() {
	clear(p.inner)
	clear(p.outer)
}

// scratch is what one goroutine needs to compute with prfs and rows. It holds derived keys for the length of one call.
type scratch struct {
	h     hash.Hash
	state encoding.BinaryUnmarshaler
	lp    []byte
	sum   [sha256.Size]byte
	key   [keySize]byte
	buf   []byte
}

func newScratch() *scratch {
	h := sha256.New()
	return &scratch{h: h, state: h.(encoding.BinaryUnmarshaler)}
}

func (s *scratch) load(state []byte) {
	if err := s.state.UnmarshalBinary(state); err != nil {
		panic("vault: sha256 state cannot be loaded: " + err.Error())
	}
}

// mac writes HMAC(p, msg) to out.
func (s *scratch) mac(out *[32]byte, p *prf, msg []byte) {
	s.load(p.inner)
	s.h.Write(msg)
	inner := s.h.Sum(s.sum[:0])
	s.load(p.outer)
	s.h.Write(inner)
	s.h.Sum(out[:0])
	clear(s.sum[:])
	s.h.Reset()
}

// expand writes HKDF-Expand-SHA256(p, info, 32) to out. It may append to info's spare capacity.
func (s *scratch) expand(out *[32]byte, p *prf, info []byte) {
	s.mac(out, p, append(info, 1))
}

// rowKey derives the key that seals one row, and nothing else, under one term.
func (s *scratch) rowKey(p *prf, vaultID, bucket, name string, term uint32) *[keySize]byte {
	s.lp = newLP(s.lp[:0], 5).text("sb/row/v1").text(vaultID).text(bucket).text(name).u32(term)
	s.expand(&s.key, p, s.lp)
	return &s.key
}

// leaf is what one stored row adds to the accumulator.
func (s *scratch) leaf(p *prf, vaultID, bucket, name string, stored []byte) [32]byte {
	sum := sha256.Sum256(stored)
	s.lp = newLP(s.lp[:0], 5).text("sb/leaf/v1").text(vaultID).text(bucket).text(name).bytes(sum[:])
	var out [32]byte
	s.mac(&out, p, s.lp)
	return out
}

// digest is what entries of the log publish of the vault's state. It never gives acc away: knowing acc would let a thief of
// the set key, or a lucky guess, prepare rows that cancel out.
func (s *scratch) digest(p *prf, generation, count uint64, a acc) [32]byte {
	sum := a.bytes()
	s.lp = newLP(s.lp[:0], 3).u64(generation).u64(count).bytes(sum[:])
	var out [32]byte
	s.mac(&out, p, s.lp)
	return out
}
