package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/backup"
)

// backupRow remembers that a backup was made, to tell later which ones still
// hold what was purged, or open with a slot that was removed. It is stored before
// the backup is made, so that the backup knows of itself, and again when all of
// it was handed out: only then there are a size and a head.
type backupRow struct {
	ID      string   `json:"id"`
	Name    string   `json:"name,omitempty"` // what the operator called it
	Created int64    `json:"created"`        // Unix milliseconds
	Vault   uint64   `json:"generation"`     // that it holds
	Rows    uint64   `json:"rows,omitempty"`
	Seq     uint64   `json:"seq,omitempty"` // newest entry of the log
	Head    string   `json:"head,omitempty"`
	Genesis string   `json:"genesis,omitempty"`
	Audit   bool     `json:"audit"`
	Slots   []string `json:"slots"` // kinds that open it
	Size    uint64   `json:"size,omitempty"`
}

// put stores the row.
func (b backupRow) put(tx *vault.Tx) error {
	row, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return tx.Put(bucketBackups, b.ID, row)
}

func (b backupRow) message(vaultID string) *operatorv1.BackupInfo {
	return &operatorv1.BackupInfo{
		Id: b.ID, Name: b.Name, Created: b.Created, VaultId: vaultID, Generation: b.Vault, Rows: b.Rows, Seq: b.Seq, Head: b.Head,
		Genesis: b.Genesis, Audit: b.Audit, Slots: b.Slots, Size: b.Size,
	}
}

// backups lists the backups that were made since a time, newest first.
func (d *Daemon) backups(since time.Time) ([]*operatorv1.BackupInfo, error) {
	var rows []backupRow
	err := d.vault.View(func(tx *vault.Tx) error {
		return tx.Each(bucketBackups, func(id string, value []byte) error {
			var b backupRow
			if err := json.Unmarshal(value, &b); err != nil || b.ID != id {
				return fmt.Errorf("%w: backup row %s: %v", vault.ErrIntegrity, id, err)
			}
			if b.Created >= millis(since) {
				rows = append(rows, b)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b backupRow) int { return cmp.Compare(b.Vault, a.Vault) })
	infos := make([]*operatorv1.BackupInfo, 0, len(rows))
	for _, b := range rows {
		infos = append(infos, b.message(d.vault.ID()))
	}
	return infos, nil
}

// scratchPrefix names directories in the home that hold a copy of the vault, all
// of it sealed, while a backup is made or verified.
const scratchPrefix = "scratch-"

// sweepScratch removes what a daemon that was killed left of a backup. A link is
// none of that: what it leads to is somebody else's, and it stays.
func sweepScratch(home string) error {
	entries, err := os.ReadDir(home)
	for _, entry := range entries {
		if entry.IsDir() && strings.HasPrefix(entry.Name(), scratchPrefix) {
			err = errors.Join(err, destroyScratch(filepath.Join(home, entry.Name())))
		}
	}
	return err
}

// destroyScratch removes a directory and first overwrites the copy of the vault
// in it, so that what is purged later is not still to be found where it lay.
func destroyScratch(dir string) error {
	_, err := vault.Destroy(filepath.Join(dir, backup.VaultPart))
	return errors.Join(err, os.RemoveAll(dir))
}

// maxScratch is how many backups may be made and verified at once: each holds a
// copy of the vault, for as long as its client takes.
const maxScratch = 4

// scratch makes a directory in the home for one copy, and returns what removes it.
func (d *Daemon) scratch() (dir string, done func(), err error) {
	if d.scratches.Add(1) > maxScratch {
		d.scratches.Add(-1)
		return "", nil, &wire.Error{Reason: wire.RateLimited, Message: "as many backups as may be are being made or verified: wait for one of them"}
	}
	if dir, err = os.MkdirTemp(d.home, scratchPrefix); err != nil {
		d.scratches.Add(-1)
		return "", nil, diskWords("making room in "+d.home, err)
	}
	return dir, func() {
		if err := destroyScratch(dir); err != nil {
			d.logger.Warn("removing a copy of the vault", "error", err)
		}
		d.scratches.Add(-1)
	}, nil
}
