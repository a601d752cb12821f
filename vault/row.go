package vault

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"

	"golang.org/x/crypto/nacl/secretbox"
)

const (
	rowPrefix = "v1:"
	nonceSize = 24
	// boxOverhead is what sealing adds to a plaintext before base64.
	boxOverhead = nonceSize + secretbox.Overhead
	// rootTerm marks rows sealed by the root key.
	rootTerm = 0
)

// sealedRow is a parsed stored value.
type sealedRow struct {
	term uint32
	box  []byte // nonce ‖ secretbox
}

// appendRow encodes a row: the only form parseRow accepts.
func appendRow(dst []byte, term uint32, box []byte) []byte {
	dst = append(dst, rowPrefix...)
	dst = strconv.AppendUint(dst, uint64(term), 10)
	dst = append(dst, ':')
	return base64.StdEncoding.AppendEncode(dst, box)
}

// parseRow decodes a stored value into box, reusing its memory. There is one encoding of a row: base64 as the standard
// library decodes it takes line breaks anywhere and, unless strict, stray bits at the end, so the length is computed and
// the rest left to strict decoding.
func parseRow(stored, box []byte) (sealedRow, error) {
	rest, ok := bytes.CutPrefix(stored, []byte(rowPrefix))
	if !ok {
		return sealedRow{}, errEncoding
	}
	digits, text, ok := bytes.Cut(rest, []byte(":"))
	if !ok {
		return sealedRow{}, errEncoding
	}
	term, ok := parseDecimal(digits)
	if !ok {
		return sealedRow{}, errEncoding
	}
	box, err := decodeBase64(text, box)
	if err != nil || len(box) < boxOverhead {
		return sealedRow{}, errEncoding
	}
	return sealedRow{term: term, box: box}, nil
}

// parseDecimal reads a u32 in decimal without sign, leading zeros or anything else strconv would be kind about.
func parseDecimal(p []byte) (uint32, bool) {
	if len(p) == 0 || len(p) > 10 || (p[0] == '0' && len(p) > 1) {
		return 0, false
	}
	var n uint64
	for _, c := range p {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return uint32(n), n <= math.MaxUint32
}

// decodeBase64 decodes text into dst's memory and refuses whatever would not re-encode to text.
func decodeBase64(text, dst []byte) ([]byte, error) {
	// Strict decoding refuses stray bits. What it lets through are CR and LF, which shift nothing but the length: with
	// them the text is longer than the encoding of what it decodes to.
	dst, err := base64.StdEncoding.Strict().AppendDecode(dst[:0], text)
	if err != nil || base64.StdEncoding.EncodedLen(len(dst)) != len(text) {
		return nil, errEncoding
	}
	return dst, nil
}

// plainLen is the length of the plaintext in a stored value of n bytes, as far as the length alone can tell: the
// padding makes it up to two bytes too high.
func plainLen(n int) int {
	text := n - len(rowPrefix) - len("1:")
	return max(0, text/4*3-boxOverhead)
}

// seal encrypts plaintext for one row. The result is fresh memory.
func (k *keyset) seal(s *scratch, bucket, name string, term uint32, plaintext []byte) ([]byte, error) {
	p, ok := k.prf(term)
	if !ok {
		return nil, fmt.Errorf("sealing %s/%s: no data key for term %d", bucket, name, term)
	}
	var nonce [nonceSize]byte
	rand.Read(nonce[:]) // never fails: the program ends instead
	key := s.rowKey(p, k.ring.vaultID, bucket, name, term)
	s.buf = append(slices.Grow(s.buf[:0], len(plaintext)+boxOverhead), nonce[:]...)
	s.buf = secretbox.Seal(s.buf, plaintext, &nonce, key)
	clear(key[:])
	return appendRow(make([]byte, 0, len(rowPrefix)+11+base64.StdEncoding.EncodedLen(len(s.buf))), term, s.buf), nil
}

// open decrypts one row, appending to dst. It names the row but nothing of its content when it refuses.
func (k *keyset) open(s *scratch, dst []byte, bucket, name string, stored []byte) ([]byte, error) {
	row, err := parseRow(stored, s.buf)
	if err != nil {
		return nil, fmt.Errorf("row %s/%s: %w: %w", bucket, name, ErrIntegrity, err)
	}
	s.buf = row.box
	p, ok := k.prf(row.term)
	// The root key seals the keyring and nothing else; any other row that claims it was forged by name.
	if !ok || (row.term == rootTerm) != (bucket == bucketKeyring) {
		return nil, fmt.Errorf("row %s/%s: %w: no data key for term %d", bucket, name, ErrIntegrity, row.term)
	}
	key := s.rowKey(p, k.ring.vaultID, bucket, name, row.term)
	dst, ok = secretbox.Open(dst, row.box[nonceSize:], (*[nonceSize]byte)(row.box), key)
	clear(key[:])
	if !ok {
		return nil, fmt.Errorf("row %s/%s: %w: it does not open", bucket, name, ErrIntegrity)
	}
	return dst, nil
}
