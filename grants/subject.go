package grants

import (
	"errors"
	"fmt"
	"time"
)

// Subject is a configured identity that asks.
type Subject struct {
	Name     string    `json:"name"`
	Disabled bool      `json:"disabled,omitempty"`
	MinTier  Tier      `json:"minTier,omitempty"` // none: cooperative
	UID      *uint32   `json:"uid,omitempty"`     // the uid that is this subject and nothing else; nil: none
	Created  time.Time `json:"created,omitzero"`
	Owner    string    `json:"owner,omitempty"` // owner of the document that declared it; empty: no document did
}

// Validate returns an error that names the field that is wrong.
func (s *Subject) Validate() error {
	if err := CheckName(s.Name); err != nil {
		return fmt.Errorf("name of the subject: %w", err)
	}
	if s.MinTier != 0 && !s.MinTier.isMinimum() {
		return fmt.Errorf("minimum tier: %w", errMinTier)
	}
	if s.UID != nil {
		if err := CheckUID(*s.UID); err != nil {
			return err
		}
	}
	return checkStored(s.Owner, s.Created)
}

// noUID is what the kernel says where it has no uid to tell.
const noUID = 1<<32 - 1

// CheckUID returns an error unless a subject may have this uid. That it is neither
// the daemon's own nor an operator's, the daemon makes sure of.
func CheckUID(uid uint32) error {
	switch uid {
	case 0:
		return errors.New("uid 0 is root, who can read everything: no subject has it")
	case noUID:
		return errors.New("uid 4294967295 is nobody's")
	}
	return nil
}

// checkStored checks what subjects and grants have in common.
func checkStored(owner string, created time.Time) error {
	if owner != "" {
		if err := CheckName(owner); err != nil {
			return fmt.Errorf("owner: %w", err)
		}
	}
	return checkTime("created", created)
}

// checkTime refuses what JSON and RFC 3339 cannot write: years of five digits.
func checkTime(field string, t time.Time) error {
	if y := t.UTC().Year(); y < 1 || y > 9999 {
		return errors.New(field + ": the year must have four digits")
	}
	return nil
}
