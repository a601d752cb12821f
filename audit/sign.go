package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// The last entry of every commit is signed:
//
//	sig = base64(Ed25519(key of the segment, lp("sb/audit/sig/v1", vault, segment, seq, SHA-256(body))))
//
//	body     the line up to, and without, the comma before "sig"
//	vault    as it stands in the line; segment: 4 bytes; seq: 8 bytes; both big-endian
//	lp(…)    number of fields (4 bytes), then each as length (4 bytes) and bytes, big-endian
//
// The line's prev ties every earlier entry to it, so one signature vouches for
// all before it in its segment.
const signatureLabel = "sb/audit/sig/v1"

// keyPrefix begins the keyId of segment.opened and key.handover.
const keyPrefix = "ed25519:"

func signedMessage(vault string, segment uint32, seq uint64, body []byte) []byte {
	sum := sha256.Sum256(body)
	b := make([]byte, 0, 128)
	b = binary.BigEndian.AppendUint32(b, 5)
	b = appendField(b, signatureLabel)
	b = appendField(b, vault)
	b = binary.BigEndian.AppendUint32(b, 4)
	b = binary.BigEndian.AppendUint32(b, segment)
	b = binary.BigEndian.AppendUint32(b, 8)
	b = binary.BigEndian.AppendUint64(b, seq)
	b = binary.BigEndian.AppendUint32(b, sha256.Size)
	return append(b, sum[:]...)
}

func appendField(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func keyID(public ed25519.PublicKey) string {
	return keyPrefix + base64.StdEncoding.EncodeToString(public)
}

// parseKeyID returns nil for anything but the one encoding of a key.
func parseKeyID(id string) ed25519.PublicKey {
	text, found := strings.CutPrefix(id, keyPrefix)
	if !found {
		return nil
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != ed25519.PublicKeySize || keyID(raw) != id {
		return nil
	}
	return raw
}

// verifySignature judges the signature of a line taken apart by cutLine.
func verifySignature(public ed25519.PublicKey, vault string, segment uint32, seq uint64, body, sig []byte) bool {
	var raw [ed25519.SignatureSize + 2]byte
	n, err := base64.StdEncoding.Strict().Decode(raw[:], sig)
	if err != nil || n != ed25519.SignatureSize {
		return false
	}
	return ed25519.Verify(public, signedMessage(vault, segment, seq, body), raw[:n])
}
