package vault

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// Forms of a slot's value: under a key that is kept elsewhere, or sealed to a person's public key.
const (
	keyedPrefix  = "s1:"
	sealedPrefix = "s2:"

	keyedSize = checkSize + sealedSize
)

// Slot is one way to the root key.
type Slot struct {
	Name string // as it is stored: N.KIND
	Kind string // keychain, file, passphrase or recovery; there is at most one of each
	N    uint32 // slots are tried in the order of their numbers
}

// slotRow is a slot as it is stored.
type slotRow struct {
	Slot
	value []byte
}

// keyed reports whether slots of a kind have a key that is kept somewhere.
func keyed(kind string) bool { return kind == kindKeychain || kind == kindFile }

func newSlot(n uint32, kind string) Slot {
	return Slot{Name: fmt.Sprintf("%d.%s", n, kind), Kind: kind, N: n}
}

// parseSlotName reads a slot's name. The kind stands in it, so that it can be told while the vault is locked.
func parseSlotName(name string) (Slot, error) {
	digits, kind, ok := strings.Cut(name, ".")
	n, valid := parseDecimal([]byte(digits))
	if !ok || !valid || n == 0 || !validKeyKind(kind) {
		return Slot{}, fmt.Errorf("slot %q: %w", name, errEncoding)
	}
	return Slot{Name: name, Kind: kind, N: n}, nil
}

// validKeyKind knows the kinds there are, so that a damaged name is not taken for a new kind.
func validKeyKind(kind string) bool {
	return keyed(kind) || kind == kindPassphrase || kind == kindRecovery
}

// readSlots returns all slots in their order.
func readSlots(tx rowTx) ([]slotRow, error) {
	var slots []slotRow
	var b batch
	for after := ""; ; after = b.names[len(b.names)-1] {
		if err := tx.scan(bucketSlots, after, &b); err != nil {
			return nil, err
		}
		if len(b.names) == 0 {
			break
		}
		for i, name := range b.names {
			slot, err := parseSlotName(name)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
			}
			slots = append(slots, slotRow{Slot: slot, value: bytes.Clone(b.value(i))})
		}
	}
	if len(slots) == 0 {
		return nil, fmt.Errorf("%w: no key slot", ErrDamaged)
	}
	slices.SortStableFunc(slots, func(a, b slotRow) int { return cmp.Compare(a.N, b.N) })
	return slots, nil
}

// open returns the root key, which the caller wipes. secret is what the slot's source gave.
//
// Errors: ErrWrongKey for a secret that is not this slot's, ErrIntegrity for a slot that was tampered with.
func (s slotRow) open(secret []byte, vaultID string) ([]byte, error) {
	open := s.openSealed
	if keyed(s.Kind) {
		open = s.openKeyed
	}
	root, err := open(secret, vaultID)
	if err != nil {
		return nil, fmt.Errorf("slot %s: %w", s.Name, err)
	}
	return root, nil
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

// keyedValue makes the value of a slot whose key is kept elsewhere.
func keyedValue(slot Slot, root, slotKey []byte, vaultID string) []byte {
	wrap, check := slotKeys(slotKey, vaultID, slot.Name)
	defer clear(wrap[:])
	return appendSlot(nil, keyedPrefix, slot.Kind, append(check[:], sealKey(root, &wrap)...))
}

func (s slotRow) openKeyed(slotKey []byte, vaultID string) ([]byte, error) {
	payload, err := parseSlot(s.value, keyedPrefix, s.Kind)
	if err != nil || len(payload) != keyedSize {
		return nil, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	if len(slotKey) != keySize {
		return nil, fmt.Errorf("%w: it has %d bytes instead of %d", ErrWrongKey, len(slotKey), keySize)
	}
	wrap, check := slotKeys(slotKey, vaultID, s.Name)
	defer clear(wrap[:])
	// secretbox does not commit to its key; this does.
	if subtle.ConstantTimeCompare(check[:], payload[:checkSize]) != 1 {
		return nil, ErrWrongKey
	}
	return openKey(payload[checkSize:], &wrap)
}

// purpose is what a root key is sealed for in a slot.
func (s Slot) purpose(vaultID string) purpose {
	return purpose{use: "slot", vaultID: vaultID, name: s.Name}
}

// sealedValue makes the value of a slot that a person opens.
func sealedValue(slot Slot, root []byte, to *recipient, vaultID string) ([]byte, error) {
	sealed, err := to.seal(root, slot.purpose(vaultID))
	if err != nil {
		return nil, err
	}
	body := sealed.appendTo(newLP(nil, sealedFields))
	sum := slotSum(vaultID, slot.Name, body)
	return appendSlot(nil, sealedPrefix, slot.Kind, append(sum[:], body...)), nil
}

func (s slotRow) openSealed(secret []byte, vaultID string) ([]byte, error) {
	sealed, err := s.parseSealed(vaultID)
	if err != nil {
		return nil, err
	}
	return sealed.open(secret, s.purpose(vaultID))
}

func (s slotRow) parseSealed(vaultID string) (sealedKey, error) {
	payload, err := parseSlot(s.value, sealedPrefix, s.Kind)
	if err != nil || len(payload) < sha256.Size {
		return sealedKey{}, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	body := payload[sha256.Size:]
	// No key is in this sum: it tells a damaged slot from a mistyped secret, not from a forged slot.
	if slotSum(vaultID, s.Name, body) != [sha256.Size]byte(payload) {
		return sealedKey{}, fmt.Errorf("%w: it is damaged", ErrIntegrity)
	}
	sealed, err := readSealed(readLP(body))
	if err != nil || sealed.how.kind != s.Kind {
		return sealedKey{}, fmt.Errorf("%w: %w", ErrIntegrity, errEncoding)
	}
	return sealed, nil
}

func slotSum(vaultID, name string, body []byte) [sha256.Size]byte {
	return sha256.Sum256(newLP(nil, 4).text("sb/slot/sum/v1").text(vaultID).text(name).bytes(body))
}

func appendSlot(dst []byte, prefix, kind string, payload []byte) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, kind...)
	dst = append(dst, ':')
	return base64.StdEncoding.AppendEncode(dst, payload)
}

// parseSlot returns the payload of a slot's value.
func parseSlot(value []byte, prefix, kind string) ([]byte, error) {
	rest, ok := bytes.CutPrefix(value, []byte(prefix+kind+":"))
	if !ok {
		return nil, errEncoding
	}
	return decodeBase64(rest, nil)
}
