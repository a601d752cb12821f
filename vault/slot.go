package vault

import (
	"bytes"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"

	"golang.org/x/crypto/nacl/secretbox"
)

const (
	slotPrefix    = "s1:"
	slotCheckSize = 32
	slotSize      = slotCheckSize + boxOverhead + keySize
)

// slotName names the n-th slot. The kind stands in the name, so that it can be told while the vault is locked.
func slotName(n uint32, kind string) string { return fmt.Sprintf("%d.%s", n, kind) }

func parseSlotName(name string) (n uint32, kind string, err error) {
	digits, kind, ok := strings.Cut(name, ".")
	n, valid := parseDecimal([]byte(digits))
	if !ok || !valid || n == 0 || !validKeyKind(kind) {
		return 0, "", fmt.Errorf("slot %q: %w", name, errEncoding)
	}
	return n, kind, nil
}

// validKeyKind knows the kinds there are and will be, so that a damaged name is not taken for a new kind.
func validKeyKind(kind string) bool {
	switch kind {
	case "keychain", "file", "passphrase", "recovery":
		return true
	}
	return false
}

// slotKeys derives what wraps the root key in one slot, and what proves that it is this slot's key.
func slotKeys(slotKey []byte, vaultID, name string) (wrap, check [32]byte) {
	p := newPRF(slotKey)
	defer p.wipe()
	s := newScratch()
	s.expand(&wrap, p, newLP(nil, 3).text("sb/slot/wrap/v1").text(vaultID).text(name))
	s.expand(&check, p, newLP(nil, 3).text("sb/slot/check/v1").text(vaultID).text(name))
	return wrap, check
}

// wrapRoot makes the value of a slot.
func wrapRoot(root, slotKey []byte, vaultID, name, kind string) []byte {
	wrap, check := slotKeys(slotKey, vaultID, name)
	defer clear(wrap[:])
	var nonce [nonceSize]byte
	rand.Read(nonce[:]) // never fails: the program ends instead
	payload := append(check[:], nonce[:]...)
	payload = secretbox.Seal(payload, root, &nonce, &wrap)
	return appendSlot(nil, kind, payload)
}

func appendSlot(dst []byte, kind string, payload []byte) []byte {
	dst = append(dst, slotPrefix...)
	dst = append(dst, kind...)
	dst = append(dst, ':')
	return base64.StdEncoding.AppendEncode(dst, payload)
}

// parseSlot returns the payload of a slot's value: check ‖ nonce ‖ secretbox.
func parseSlot(value []byte, kind string) ([]byte, error) {
	rest, ok := bytes.CutPrefix(value, []byte(slotPrefix+kind+":"))
	if !ok {
		return nil, errEncoding
	}
	payload, err := decodeBase64(rest, nil)
	if err != nil || len(payload) != slotSize {
		return nil, errEncoding
	}
	return payload, nil
}

// unwrapRoot opens a slot: ErrWrongKey for a key that is not this slot's, ErrIntegrity for a slot that was tampered with.
func unwrapRoot(value, slotKey []byte, vaultID, name, kind string) ([]byte, error) {
	payload, err := parseSlot(value, kind)
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w: %w", name, ErrIntegrity, err)
	}
	if len(slotKey) != keySize {
		return nil, fmt.Errorf("slot %s: %w: it has %d bytes instead of %d", name, ErrWrongKey, len(slotKey), keySize)
	}
	wrap, check := slotKeys(slotKey, vaultID, name)
	defer clear(wrap[:])
	if subtle.ConstantTimeCompare(check[:], payload[:slotCheckSize]) != 1 {
		return nil, fmt.Errorf("slot %s: %w", name, ErrWrongKey)
	}
	box := payload[slotCheckSize:]
	root, ok := secretbox.Open(nil, box[nonceSize:], (*[nonceSize]byte)(box), &wrap)
	if !ok {
		return nil, fmt.Errorf("slot %s: %w: it does not open", name, ErrIntegrity)
	}
	return root, nil
}
