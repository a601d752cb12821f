package grants

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// KeyHash is the SHA-256 of an agent key: what is kept of it. As text it is 64
// lower-case hexadecimal digits.
type KeyHash [32]byte

var errKeyHash = errors.New("a hash is 64 lower-case hexadecimal digits")

// MarshalText returns the hash as text.
func (h KeyHash) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h[:])), nil }

// UnmarshalText reads what [KeyHash.MarshalText] writes.
func (h *KeyHash) UnmarshalText(text []byte) error {
	if len(text) != 2*len(h) {
		return errKeyHash
	}
	if _, err := hex.Decode(h[:], text); err != nil {
		return errKeyHash
	}
	return nil
}

// MaxKeyTenants is the largest number of tenants that an agent key may reach.
const MaxKeyTenants = 64

// AgentKey is what is known of a key that was minted for a subject: never the key.
// Whoever presents the key is that subject, as it was created then, at the tier
// [Keyed].
type AgentKey struct {
	ID   string  `json:"id"` // as [NewID] makes them
	Hash KeyHash `json:"hash"`
	Name string  `json:"name,omitempty"` // that the operator gave it; empty: none

	Subject        string    `json:"subject"`
	SubjectCreated time.Time `json:"subjectCreated"` // a later subject of the same name is another one

	// Tenants are those that it may reach, as far as the subject's grants do; none: no
	// memory at all. Order does not matter.
	Tenants []string `json:"tenants,omitempty"`

	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"` // zero: it was not

	Expires     time.Time     `json:"expires,omitzero"`      // wall clock; zero: no end. At Expires it has ended
	BootID      string        `json:"bootId,omitempty"`      // the boot in which the end was set; empty: only the wall clock ends it
	BootExpires time.Duration `json:"bootExpires,omitempty"` // its end in time since that boot

	From string `json:"from,omitempty"` // key that it was rotated from
	To   string `json:"to,omitempty"`   // key that it was rotated into
}

// Validate returns an error that names the field that is wrong.
func (k *AgentKey) Validate() error {
	if err := checkID(k.ID); err != nil {
		return err
	}
	if k.Hash == (KeyHash{}) {
		return errors.New("a key has a hash")
	}
	if k.Name != "" {
		if err := CheckName(k.Name); err != nil {
			return fmt.Errorf("name of the key: %w", err)
		}
	}
	if err := CheckName(k.Subject); err != nil {
		return fmt.Errorf("name of the subject: %w", err)
	}
	if err := CheckKeyTenants(k.Tenants); err != nil {
		return err
	}
	for _, other := range []string{k.From, k.To} {
		if other == "" {
			continue
		}
		if err := checkID(other); err != nil {
			return err
		}
	}
	switch {
	case k.Created.IsZero():
		return errors.New("created is missing")
	case k.SubjectCreated.IsZero():
		return errors.New("the time at which the subject was created is missing")
	case k.Expires.IsZero() && (k.BootID != "" || k.BootExpires != 0), (k.BootID == "") != (k.BootExpires == 0):
		return errors.New("an end on the boot clock needs a boot id, a time since boot, and an end on the wall clock")
	}
	return errors.Join(
		checkTime("created", k.Created), checkTime("revoked", k.Revoked), checkTime("expires", k.Expires), checkTime("created", k.SubjectCreated),
	)
}

// CheckKeyTenants returns an error unless a key may reach these tenants: at most
// [MaxKeyTenants] names, none of them twice.
func CheckKeyTenants(tenants []string) error {
	if len(tenants) > MaxKeyTenants {
		return fmt.Errorf("tenants: at most %d", MaxKeyTenants)
	}
	for i, name := range tenants {
		if err := CheckName(name); err != nil {
			return fmt.Errorf("tenants: %w", err)
		}
		if slices.Contains(tenants[:i], name) {
			return fmt.Errorf("tenants: %s is there twice", name)
		}
	}
	return nil
}

// Expired reports whether the time of the key is over, by the clocks of r, as that
// of a grant is: either clock ends it, and while the wall clock cannot be trusted
// every key with an end has ended.
func (k *AgentKey) Expired(r *Request) bool {
	timed := Grant{Effect: Allow, Until: k.Expires, BootID: k.BootID, BootUntil: k.BootExpires}
	return timed.ended(r)
}

// canonical is the form in which k is stored.
func (k *AgentKey) canonical() AgentKey {
	c := *k
	c.Tenants = slices.Sorted(slices.Values(k.Tenants))
	c.Created, c.Revoked, c.Expires, c.SubjectCreated = k.Created.UTC(), k.Revoked.UTC(), k.Expires.UTC(), k.SubjectCreated.UTC()
	return c
}

type agentKeyRow struct {
	V int `json:"v"`
	AgentKey
}

// EncodeAgentKey returns the row that [DecodeAgentKey] reads. The same key gives the
// same bytes, whatever the order of its tenants.
func EncodeAgentKey(k AgentKey) ([]byte, error) {
	if err := k.Validate(); err != nil {
		return nil, fmt.Errorf("encoding agent key: %w", err)
	}
	return json.Marshal(agentKeyRow{rowVersion, k.canonical()})
}

// DecodeAgentKey reads a row of [EncodeAgentKey] and nothing else: what would not
// be written byte for byte the same is refused.
func DecodeAgentKey(row []byte) (AgentKey, error) {
	var decoded agentKeyRow
	return decodeRow("agent key", row, &decoded, &decoded.AgentKey, EncodeAgentKey)
}
