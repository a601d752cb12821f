package daemon

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/backup"
	"subjectbroker/vault/keysource"
)

// chunkWriter sends what is written in pieces of a message's size.
type chunkWriter struct {
	send func([]byte) error
	sent uint64
}

// chunkSize is how much of a backup one message carries, in bytes.
const chunkSize = 256 << 10

func (w *chunkWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		chunk := rest[:min(len(rest), chunkSize)]
		if err := w.send(bytes.Clone(chunk)); err != nil {
			return 0, err
		}
		rest = rest[len(chunk):]
	}
	w.sent += uint64(len(p))
	return len(p), nil
}

// Backup streams a sealed copy of the vault, and the log, as of one moment.
func (o operator) Backup(req *operatorv1.BackupRequest, stream grpc.ServerStreamingServer[operatorv1.BackupResponse]) error {
	d := o.d
	if err := checkNote(req.GetName()); err != nil {
		return err
	}
	dir, done, err := d.scratch()
	if err != nil {
		return err
	}
	defer done()
	d.copying.RLock() // no segment is pruned meanwhile
	defer d.copying.RUnlock()
	plan, row, err := o.snapshot(stream.Context(), dir, req)
	if err != nil {
		return diskWords("copying the vault within "+d.home, err)
	}
	var total uint64
	for _, p := range plan.Parts {
		total += uint64(p.Size)
	}
	if err := stream.Send(&operatorv1.BackupResponse{Total: total}); err != nil {
		return err
	}
	w := &chunkWriter{send: func(p []byte) error { return stream.Send(&operatorv1.BackupResponse{Chunk: p}) }}
	if err := backup.Write(w, plan); err != nil {
		return err
	}
	m := plan.Manifest
	row.Rows, row.Seq, row.Head, row.Genesis, row.Size = m.Rows, m.Seq, m.Head, m.Genesis, w.sent
	if err := d.mutate(stream.Context(), func(*state) (change, error) { return o.backedUp(stream.Context(), row), nil }); err != nil {
		return err
	}
	return stream.Send(&operatorv1.BackupResponse{Info: row.message(m.VaultID)})
}

// backedUp stores what is known of a backup.
func (o operator) backedUp(ctx context.Context, row backupRow) change {
	e := o.entry(ctx, kindVaultBackup)
	e.KeyID = row.ID
	if row.Size > 0 {
		size := int64(row.Size)
		e.Bytes = &size
	}
	return change{effects: []*audit.Entry{e}, write: row.put}
}

// snapshot copies the vault into dir and says what makes up a backup, and what
// the vault remembers of it. It is consistent: no mutation is between the vault and the head of
// the log.
func (o operator) snapshot(ctx context.Context, dir string, req *operatorv1.BackupRequest) (backup.Config, backupRow, error) {
	d, none := o.d, backup.Config{}
	d.changing.mu.Lock()
	defer d.changing.mu.Unlock()
	if err := d.needUnlocked(); err != nil {
		return none, backupRow{}, err
	}
	slots := d.vault.Recipients()
	if len(slots) == 0 {
		refusal := refuse("nobody could open this backup: the vault has neither a recovery code nor a passphrase")
		refusal.Hint = "sbctl key recovery new"
		return none, backupRow{}, refusal
	}
	d.checkpointLocked()
	row := backupRow{
		ID: grants.NewID(), Name: req.GetName(), Created: millis(d.clock.now()), Audit: !req.GetNoAudit(), Slots: slots,
		Vault: d.vault.State().Generation + 1,
	}
	err := d.mutateLocked(ctx, func(*state) (change, error) { return o.backedUp(ctx, row), nil })
	if err != nil {
		return none, backupRow{}, err
	}
	copied := filepath.Join(dir, backup.VaultPart)
	of, err := d.vault.Snapshot(copied)
	if err != nil {
		return none, backupRow{}, err
	}
	size, err := os.Stat(copied)
	if err != nil {
		return none, backupRow{}, err
	}
	files, head := d.log().Files()
	plan := backup.Config{
		Wrap: d.vault.WrapFileKey,
		Manifest: backup.Manifest{
			ID: row.ID, Created: fromMillis(row.Created), VaultID: d.vault.ID(), Schema: d.vault.Schema(), Generation: of.Generation, Rows: of.Count,
			Seq: head.Seq, Head: hex.EncodeToString(head.Hash[:]), Genesis: head.Genesis, Audit: row.Audit,
		},
		Parts: []backup.Source{{
			Part: backup.Part{Name: backup.VaultPart, Size: size.Size()},
			Open: func() (io.ReadCloser, error) { return os.Open(copied) },
		}},
	}
	if row.Audit {
		for _, f := range files {
			plan.Parts = append(plan.Parts, backup.Source{Part: backup.Part{Name: "audit/" + f.Name, Size: f.Size}, Open: f.Open})
		}
	}
	return plan, row, nil
}

func manifestMessage(m backup.Manifest) *operatorv1.BackupInfo {
	return &operatorv1.BackupInfo{
		Id: m.ID, Created: millis(m.Created), VaultId: m.VaultID, Generation: m.Generation, Rows: m.Rows,
		Seq: m.Seq, Head: m.Head, Genesis: m.Genesis, Audit: m.Audit,
	}
}

// VerifyBackup opens everything in a backup.
func (o operator) VerifyBackup(stream grpc.ClientStreamingServer[operatorv1.VerifyBackupRequest, operatorv1.VerifyBackupResponse]) error {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return err
	}
	dir, done, err := d.scratch()
	if err != nil {
		return err
	}
	defer done()
	received := &chunkReader{stream: stream}
	manifest, err := unpackBackup(received, dir, d.vault.UnwrapFileKey)
	if err == nil && manifest.VaultID != d.vault.ID() {
		err = fmt.Errorf("%w: it is of vault %s", errOtherBackup, manifest.VaultID)
	}
	if err != nil {
		return backupWords(diskWords("unpacking the backup within "+d.home, err))
	}
	response := &operatorv1.VerifyBackupResponse{Info: manifestMessage(manifest)}
	response.Info.Size = received.size
	known, err := d.backups(time.Time{})
	if err != nil {
		return err
	}
	for _, b := range known {
		if b.GetId() == manifest.ID {
			response.Info.Name, response.Info.Slots = b.GetName(), b.GetSlots()
		}
	}
	if manifest.Audit {
		if response.Entries, err = verifyCopiedLog(stream.Context(), filepath.Join(dir, "audit"), manifest); err != nil {
			return backupWords(err)
		}
	}
	keys := d.sources(keysource.Timeout)
	if response.Contents, err = verifyCopy(stream.Context(), filepath.Join(dir, "vault.db"), manifest, keys); err != nil {
		return backupWords(err)
	}
	return stream.SendAndClose(response)
}

// chunkReader reads what a client streams.
type chunkReader struct {
	stream grpc.ClientStreamingServer[operatorv1.VerifyBackupRequest, operatorv1.VerifyBackupResponse]
	rest   []byte
	size   uint64
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		message, err := r.stream.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = message.GetChunk()
		r.size += uint64(len(r.rest))
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// unpackBackup writes the parts of a backup into dir, which is empty.
func unpackBackup(from io.Reader, dir string, unwrap func([]byte) ([]byte, error)) (backup.Manifest, error) {
	if err := os.Mkdir(filepath.Join(dir, "audit"), 0o700); err != nil {
		return backup.Manifest{}, err
	}
	r, err := backup.Read(from, unwrap)
	if err != nil {
		return backup.Manifest{}, err
	}
	defer r.Close()
	for {
		part, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r.Manifest(), nil
		}
		if err != nil {
			return backup.Manifest{}, err
		}
		if err := writePart(filepath.Join(dir, filepath.FromSlash(part.Name)), r); err != nil {
			return backup.Manifest{}, err
		}
	}
}

func writePart(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, from); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// verifyCopy opens every row and content of a vault that was unpacked, with the
// first of keys that opens it, and counts the contents.
func verifyCopy(ctx context.Context, file string, manifest backup.Manifest, keys []vault.KeySource) (contents uint64, err error) {
	v, err := openCopy(ctx, file, manifest, keys...)
	switch {
	case err != nil && ofKey(err):
		return 0, errOlderKeys
	case err != nil:
		return 0, err
	}
	defer v.Close()
	if err := v.Verify(true, nil); err != nil {
		return 0, err
	}
	inForce, err := load(v, map[string]uint64{})
	if err != nil {
		return 0, err
	}
	if _, err := examineMemory(v, inForce.tenants, func(int64, int64) {}); err != nil {
		return 0, err
	}
	err = v.View(func(tx *vault.Tx) error {
		return tx.Records(func(r vault.Record) error { contents += uint64(len(r.Versions)); return nil })
	})
	return contents, err
}

// openCopy opens a vault that was unpacked with the first of keys that can. When
// none does, it says why the last one did not.
func openCopy(ctx context.Context, file string, manifest backup.Manifest, keys ...vault.KeySource) (*vault.Vault, error) {
	v, err := vault.OpenLocked(vault.Config{File: file, ReadOnly: true, MaxContent: vault.HardMaxContent})
	if err != nil {
		return nil, err
	}
	err = vault.ErrKeyUnavailable
	for _, key := range keys {
		if err = v.UnlockWith(ctx, key); err == nil || !ofKey(err) {
			break
		}
	}
	if err == nil && (v.ID() != manifest.VaultID || v.State().Generation != manifest.Generation) {
		err = fmt.Errorf("%w: the vault in it is not the one that it names", backup.ErrDamaged)
	}
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// ofKey reports that another key may open what this one does not.
func ofKey(err error) bool { return isKeyFault(err) || errors.Is(err, vault.ErrKeySource) }

// verifyCopiedLog verifies a log that was unpacked, up to the head that the
// manifest names.
func verifyCopiedLog(ctx context.Context, dir string, manifest backup.Manifest) (entries uint64, err error) {
	report, err := verify.Dir(ctx, dir, verify.Options{
		Genesis: manifest.Genesis, Expect: &verify.Point{Seq: manifest.Seq, Hash: manifest.Head},
	})
	switch {
	case err != nil:
		return 0, err
	case report.Fault != nil:
		return 0, fmt.Errorf("%w: its log: %w", backup.ErrDamaged, report.Fault)
	}
	return report.Entries, nil
}

// errOtherBackup: a backup of another vault was brought.
var errOtherBackup = errors.New("this is no backup of this vault")

// errOlderKeys: nothing is wrong with the backup as far as it could be opened.
var errOlderKeys = &wire.Error{
	Reason:  wire.KeyUnavailable,
	Message: "the file and the log in it are whole, but the vault in it has keys of another time: open it with the code or passphrase of that time",
	Hint:    "sbd restore FILE --dry-run",
}

// backupWords says what is wrong with a backup.
func backupWords(err error) error {
	for _, damage := range []error{backup.ErrDamaged, vault.ErrIntegrity, vault.ErrDamaged} {
		if errors.Is(err, damage) {
			return &wire.Error{Reason: wire.IntegrityFailed, Message: err.Error()}
		}
	}
	for _, other := range []error{backup.ErrNotBackup, backup.ErrVersion, errOtherBackup} {
		if errors.Is(err, other) {
			return refuse("%v", err)
		}
	}
	return keyWords(err)
}

// ListBackups lists what the vault remembers.
func (o operator) ListBackups(context.Context, *operatorv1.ListBackupsRequest) (*operatorv1.ListBackupsResponse, error) {
	backups, err := o.d.backups(time.Time{})
	if err != nil {
		return nil, err
	}
	return &operatorv1.ListBackupsResponse{Backups: backups}, nil
}
