package daemon

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// rowRestored is in bucketDaemon from a restore to the recovery that accepts it:
// meanwhile no daemon starts.
const rowRestored = "restored"

// restoredRow says which backup a vault came from, and where the log was then.
type restoredRow struct {
	Backup  string `json:"backup"`
	Created int64  `json:"created"` // Unix milliseconds
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"` // of entry seq
}

func (r restoredRow) put(tx *vault.Tx) error {
	row, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return tx.Put(bucketDaemon, rowRestored, row)
}

// readRestored returns nil for a vault that was not restored, or was accepted.
func readRestored(v *vault.Vault) (*restoredRow, error) {
	var r *restoredRow
	err := v.View(func(tx *vault.Tx) error {
		row, err := tx.Get(bucketDaemon, rowRestored)
		if errors.Is(err, vault.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		r = &restoredRow{}
		if err := json.Unmarshal(row, r); err != nil {
			return fmt.Errorf("%w: row %s: %w", vault.ErrIntegrity, rowRestored, err)
		}
		return nil
	})
	return r, err
}

// refusal is what a start says of it.
func (r *restoredRow) refusal() error {
	f := fault(wire.RollbackDetected, "the vault was restored from the backup of %s and was not accepted yet: accept it with sbd recover", stamp(fromMillis(r.Created)))
	f.Hint = "sbd recover"
	return f
}

// origin is what the new log says of the old one.
func (r *restoredRow) origin() *audit.Origin {
	o := &audit.Origin{Cause: audit.Restored, Seq: r.Seq}
	if raw, err := hex.DecodeString(r.Hash); err == nil && len(raw) == len(o.Hash) {
		copy(o.Hash[:], raw)
	}
	if o.Hash == [32]byte{} {
		o.Seq = 0
	}
	return o
}

// stamp is a time for people.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 UTC") }

// suffixTime is a time in the name of a file that was set aside.
const suffixTime = "20060102T150405Z"
