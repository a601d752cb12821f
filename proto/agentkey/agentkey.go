// Package agentkey makes and checks agent keys: what a client of the HTTP gateway
// presents to say for whom it asks.
//
// A key is 57 bytes of ASCII:
//
//	ak_live_ RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR CCCCCC
//
// R are 256 random bits as a number in base 62, the most significant digit first,
// 43 digits, padded with zeros. C is the CRC-32 (IEEE) of everything before it, as
// six digits of the same kind. Digits are 0-9, A-Z, a-z, in this order. A scanner
// for secrets finds keys with
//
//	ak_live_[0-9A-Za-z]{49}
//
// The checksum is there so that a slip of a hand is told from a key that is not
// known, without asking anybody. It protects nothing: whoever makes up a key can
// make up its checksum.
//
// What is kept of a key is its SHA-256. With 256 random bits behind it that needs no
// salt and no stretching.
package agentkey

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash/crc32"
)

// Prefix is what every key starts with.
const Prefix = "ak_live_"

const (
	randomDigits = 43
	sumDigits    = 6
	body         = randomDigits + sumDigits // of a key that we made
	minBody      = 16                       // of what may be a key at all
	maxBody      = 128

	// Size is the size of a key in bytes.
	Size = len(Prefix) + body
	// MaxSize is the size of the longest text that is well-formed, in bytes.
	MaxSize = len(Prefix) + maxBody
)

const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// ErrMalformed is what [Check] returns for what no key can be. It repeats nothing.
var ErrMalformed = errors.New("not an agent key")

// Key is an agent key in the clear. Copies share their bytes, so Wipe wipes them
// all. Every way of formatting it says [redacted].
type Key []byte

// New makes a key from the operating system's randomness.
func New() Key {
	var random [sha256.Size]byte
	_, _ = rand.Read(random[:]) // never fails: the program ends instead
	defer clear(random[:])
	return write(random)
}

// write is the key of 256 bits.
func write(random [sha256.Size]byte) Key {
	key := make(Key, Size)
	copy(key, Prefix)
	// Long division, byte by byte, so that all of the number can be wiped.
	number := random
	defer clear(number[:])
	for i := len(Prefix) + randomDigits - 1; i >= len(Prefix); i-- {
		rest := 0
		for at, b := range number {
			rest = rest<<8 | int(b)
			number[at] = byte(rest / len(digits))
			rest %= len(digits)
		}
		key[i] = digits[rest]
	}
	writeSum(key)
	return key
}

// writeSum completes a key with its checksum.
func writeSum(key []byte) {
	end := len(key) - sumDigits
	sum := crc32.ChecksumIEEE(key[:end])
	for i := len(key) - 1; i >= end; i-- {
		key[i] = digits[sum%uint32(len(digits))]
		sum /= uint32(len(digits))
	}
}

// Check returns [ErrMalformed] unless key can be one: the prefix, then 16 to 128
// digits. Of our own length the number has to be one of 256 bits and the checksum
// right. Another length is well-formed, and nobody's.
func Check(key []byte) error {
	if len(key) < len(Prefix)+minBody || len(key) > MaxSize || string(key[:len(Prefix)]) != Prefix {
		return ErrMalformed
	}
	for _, c := range key[len(Prefix):] {
		if value(c) < 0 {
			return ErrMalformed
		}
	}
	if len(key) != Size {
		return nil
	}
	var want [Size]byte
	defer clear(want[:])
	copy(want[:], key)
	writeSum(want[:])
	if string(want[:]) != string(key) || string(key[len(Prefix):len(Prefix)+randomDigits]) > highest {
		return ErrMalformed
	}
	return nil
}

// highest is 2^256-1: digits rise as bytes do, so that texts compare as numbers.
const highest = "yhjskwdA6OZ1AL1YmHWZWm8LLG7HjnuCA2j5rOw8Xp1"

// value is the value of a digit; negative: it is none.
func value(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'A' <= c && c <= 'Z':
		return int(c-'A') + 10
	case 'a' <= c && c <= 'z':
		return int(c-'a') + 36
	}
	return -1
}

// Hash is what is kept of a key.
func Hash(key []byte) [sha256.Size]byte { return sha256.Sum256(key) }

// Wipe overwrites the key, as far as this copy of it goes.
func (k Key) Wipe() { clear(k) }
