package backup

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// Manifest says what a backup is of. Everything in it is bound to the file, but the caller compares it with what the parts say.
type Manifest struct {
	// ID names the backup: 1 to 64 of a–z, 0–9 and -.
	ID string `json:"id"`
	// Created is when, in UTC.
	Created time.Time `json:"created"`
	// VaultID is 32 lower-case hex digits.
	VaultID string `json:"vault"`
	// Schema is the number in the vault's keyring.
	Schema uint32 `json:"schema"`
	// Generation and Rows are the vault's at the moment of the copy.
	Generation uint64 `json:"generation"`
	Rows       uint64 `json:"rows"`
	// Seq and Head are number and SHA-256, in hex, of the newest entry of the log; 0 and "" if there was none.
	Seq  uint64 `json:"seq"`
	Head string `json:"head,omitempty"`
	// Genesis is the fingerprint of the log, in hex; "" if there was none.
	Genesis string `json:"genesis,omitempty"`
	// Audit says whether the log is in the backup.
	Audit bool `json:"audit"`
}

func (m *Manifest) check() error {
	switch {
	case !madeOf(m.ID, 1, 64, "abcdefghijklmnopqrstuvwxyz0123456789-"):
		return fmt.Errorf("%w: ID of the manifest", ErrInvalid)
	case m.Created.IsZero() || m.Created.Year() > 9999:
		return fmt.Errorf("%w: time of the manifest", ErrInvalid)
	case !madeOf(m.VaultID, 32, 32, hexDigits):
		return fmt.Errorf("%w: vault of the manifest", ErrInvalid)
	case m.Head != "" && !madeOf(m.Head, hex.EncodedLen(32), hex.EncodedLen(32), hexDigits):
		return fmt.Errorf("%w: head of the manifest", ErrInvalid)
	case (m.Seq == 0) != (m.Head == ""):
		return fmt.Errorf("%w: a manifest with half a head", ErrInvalid)
	case m.Genesis != "" && !madeOf(m.Genesis, hex.EncodedLen(32), hex.EncodedLen(32), hexDigits):
		return fmt.Errorf("%w: genesis of the manifest", ErrInvalid)
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// madeOf reports whether s has from min to max bytes, all of them in set.
func madeOf(s string, min, max int, set string) bool {
	for i := range len(s) {
		if bytes.IndexByte([]byte(set), s[i]) < 0 {
			return false
		}
	}
	return len(s) >= min && len(s) <= max
}

func (m Manifest) encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	m.Created = m.Created.UTC()
	return json.Marshal(m)
}

// decodeManifest takes what encode writes and nothing else: unknown, missing, doubled and misspelt keys do not re-encode.
func decodeManifest(p []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(p, &m); err != nil {
		return Manifest{}, err
	}
	again, err := m.encode()
	if err != nil {
		return Manifest{}, err
	}
	if !bytes.Equal(p, again) {
		return Manifest{}, fmt.Errorf("%w: the manifest is not written as it should be", ErrInvalid)
	}
	m.Created = m.Created.UTC()
	return m, nil
}
