// Package recovery makes and reads recovery codes: what a person writes down so
// that a vault still opens when every other key is lost.
//
// A code is 160 random bits, written as eight groups of five characters of
// Crockford's base32 (0-9 and A-Z without I, L, O, U):
//
//	XXXXC-XXXXC-XXXXC-XXXXC-XXXXC-XXXXC-XXXXC-XXXXC
//
// X are 20 bits, most significant first. C is the check character of its group:
// over GF(32) with x⁵+x²+1, where a character is its value,
//
//	C = 2·X₁ + 4·X₂ + 8·X₃ + 16·X₄ + position      position: 1 for the first group … 8
//
// so that one wrong character, two characters of a group that changed places,
// and groups that changed places are found in every case, and the group is
// named. Everything else passes with a chance of 1 in 32 for each group.
//
// From the code come, by HKDF-SHA256, a 32-byte seed, and from the seed, as an
// X25519 private key, the public key that a vault's root key is sealed to. Only
// the public key leaves the program that makes a code; the seed leaves the one
// that uses it. Both programs of the operator read codes with this package, the
// daemon never sees one.
//
// It protects against slips of a hand, and its types against being printed by
// accident. It does not keep the code from whoever reads the terminal.
package recovery

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

const (
	groups     = 8                 // in a code
	perGroup   = 5                 // characters in a group, the last one checks
	characters = groups * perGroup // in a code
	size       = groups * 20 / 8   // bytes of entropy
	label      = "sb/recovery/v1"  // of HKDF
	seedSize   = 32                // bytes
	alphabet   = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

// ErrMistyped is what every error of Parse is.
var ErrMistyped = errors.New("not a recovery code")

// Code is a recovery code. The zero Code is none. Copies share their bytes, so
// Wipe wipes them all. Every way of formatting it says [redacted].
type Code struct {
	entropy *[size]byte // behind a pointer, because %p prints what a struct holds
}

// New makes a code from the operating system's randomness.
func New() Code {
	entropy := new([size]byte)
	_, _ = rand.Read(entropy[:]) // never fails: the program ends instead
	return Code{entropy}
}

// Parse reads a code as a person types it: in either case, with spaces, line
// ends and dashes anywhere or nowhere, O for 0, I and L for 1. Its errors are
// ErrMistyped, name the groups that are wrong, and repeat nothing of the text.
func Parse[T ~string | ~[]byte](text T) (Code, error) {
	values := make([]byte, 0, characters)
	defer func() { clear(values[:cap(values)]) }()
	count := 0
	for i := range len(text) {
		char := text[i]
		if char == ' ' || char == '-' || char == '\t' || char == '\r' || char == '\n' {
			continue
		}
		value, ok := valueOf(char)
		if !ok {
			return Code{}, fmt.Errorf("%w: group %d has a character that no code has", ErrMistyped, count/perGroup+1)
		}
		if count++; count <= characters {
			values = append(values, value)
		}
	}
	var wrong []string
	for group := range count / perGroup {
		if group < groups && check(values[group*perGroup:], group) != values[group*perGroup+perGroup-1] {
			wrong = append(wrong, fmt.Sprint(group+1))
		}
	}
	if count != characters {
		err := fmt.Errorf("%w: it has %d characters, a code has %d", ErrMistyped, count, characters)
		if len(wrong) > 0 {
			err = fmt.Errorf("%w; the first group that is wrong is %s", err, wrong[0])
		}
		return Code{}, err
	}
	if len(wrong) > 0 {
		return Code{}, fmt.Errorf("%w: mistyped, or not in its place: group %s", ErrMistyped, strings.Join(wrong, ", "))
	}
	return Code{pack(values)}, nil
}

// pack makes the entropy out of the values of a code's characters.
func pack(values []byte) *[size]byte {
	entropy := new([size]byte)
	var bits, count, at uint
	for i, value := range values {
		if i%perGroup == perGroup-1 {
			continue // the check
		}
		bits, count = bits<<5|uint(value), count+5
		if count >= 8 {
			count -= 8
			entropy[at] = byte(bits >> count)
			at++
		}
	}
	return entropy
}

// Text is the code as it is written down, with dashes between the groups; empty
// for the zero Code. A string cannot be wiped: show it and let it go.
func (c Code) Text() string {
	if c.entropy == nil {
		return ""
	}
	var text strings.Builder
	for group := range groups {
		values := unpack(c.entropy, group)
		if group > 0 {
			text.WriteByte('-')
		}
		for _, value := range values {
			text.WriteByte(alphabet[value])
		}
		text.WriteByte(alphabet[check(values[:], group)])
	}
	return text.String()
}

// unpack is the values of the four data characters of a group, counted from 0.
func unpack(entropy *[size]byte, group int) [perGroup - 1]byte {
	var values [perGroup - 1]byte
	for i := range values {
		for bit := range 5 {
			at := group*20 + i*5 + bit
			values[i] = values[i]<<1 | entropy[at/8]>>(7-at%8)&1
		}
	}
	return values
}

// Seed is the 32-byte secret that opens the vault; nil for the zero Code. The
// caller wipes it.
func (c Code) Seed() []byte {
	if c.entropy == nil {
		return nil
	}
	seed, err := hkdf.Key(sha256.New, c.entropy[:], nil, label, seedSize)
	if err != nil {
		panic(err) // the length is constant and allowed
	}
	return seed
}

// PublicKey is the X25519 public key of the code, 32 bytes; nil for the zero Code.
func (c Code) PublicKey() []byte {
	seed := c.Seed()
	if seed == nil {
		return nil
	}
	defer clear(seed)
	private, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		panic(err) // any 32 bytes are a key
	}
	return private.PublicKey().Bytes()
}

// Wipe overwrites the code with zeros, also in its copies.
func (c Code) Wipe() {
	if c.entropy != nil {
		clear(c.entropy[:])
	}
}

// check is the value of the check character of the group at position group,
// counted from 0, whose data are the first four values.
func check(values []byte, group int) byte {
	sum := byte(group + 1)
	for i := range perGroup - 1 {
		sum ^= times(values[i], i+1)
	}
	return sum
}

// times is value·xⁿ in GF(32).
func times(value byte, n int) byte {
	for range n {
		value <<= 1
		if value&0x20 != 0 {
			value ^= 0x25
		}
	}
	return value
}

// valueOf is what a typed character stands for.
func valueOf(char byte) (byte, bool) {
	if char >= 'a' && char <= 'z' {
		char -= 'a' - 'A'
	}
	switch char {
	case 'O':
		char = '0'
	case 'I', 'L':
		char = '1'
	}
	at := strings.IndexByte(alphabet, char)
	if at < 0 {
		return 0, false
	}
	return byte(at), true
}
