package backup

import (
	"fmt"
	"path"
	"strings"
)

const (
	manifestPart  = "manifest.json"
	manifestLimit = 64 << 10
	// sizeLimit keeps sums of sizes far from an overflow.
	sizeLimit = 1 << 50

	auditPrefix = "audit/"
)

// VaultPart is the name of the vault's part, which every backup has.
const VaultPart = "vault.db"

// Part is one file in a backup.
type Part struct {
	// Name is "vault.db", "audit/NNNNNNNN.jsonl" or "audit/NNNNNNNN.pruned".
	Name string
	// Size is in bytes.
	Size int64
}

// sequence knows which part may come next.
type sequence struct {
	audit   bool // the manifest promises the log
	vault   bool
	segment string // of the last part of the log
}

func (s *sequence) next(p Part) error {
	if p.Size < 0 || p.Size > sizeLimit {
		return fmt.Errorf("%w: a part of %d bytes", ErrInvalid, p.Size)
	}
	if !s.vault {
		if p.Name != VaultPart {
			return fmt.Errorf("%w: %s has to come first", ErrInvalid, VaultPart)
		}
		s.vault = true
		return nil
	}
	segment, ok := segmentOf(p.Name)
	if !ok || !s.audit {
		return fmt.Errorf("%w: a part named %q", ErrInvalid, p.Name)
	}
	if segment <= s.segment {
		return fmt.Errorf("%w: segment %s after segment %s", ErrInvalid, segment, s.segment)
	}
	s.segment = segment
	return nil
}

// end reports whether a backup may end here.
func (s *sequence) end() error {
	switch {
	case !s.vault:
		return fmt.Errorf("%w: there is no %s", ErrInvalid, VaultPart)
	case s.audit && s.segment == "":
		return fmt.Errorf("%w: the log is missing", ErrInvalid)
	}
	return nil
}

// segmentOf returns the eight digits of a file of the log; they sort as their numbers do.
func segmentOf(name string) (string, bool) {
	file, ok := strings.CutPrefix(name, auditPrefix)
	ext := path.Ext(file)
	if !ok || (ext != ".jsonl" && ext != ".pruned") {
		return "", false
	}
	digits := strings.TrimSuffix(file, ext)
	return digits, madeOf(digits, 8, 8, "0123456789") && digits != "00000000"
}
