package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"subjectbroker/audit"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/backup"
	"subjectbroker/vault/keysource"
	"subjectbroker/vault/regfile"
)

// restoredDir is where the log of a restored backup stays readable, below the
// home.
const restoredDir = "restored"

// Restore makes a home from the backup in file, for `sbd restore`. The home must
// not be there yet, or be empty. Everything in the backup is verified before the
// vault gets its name; a key slot of this machine is made; and no daemon starts
// there before `sbd recover` has accepted what was restored. Interrupted, it
// starts over when it is run again. With dryRun everything is verified, and
// nothing is written to the home.
//
// What is wrong is a *Fault.
func Restore(ctx context.Context, o Offline, file string, dryRun bool) error {
	defer o.forgetSecret()
	return restoreFault(o.restore(ctx, file, dryRun))
}

// restoreFault knows what can be wrong with the file.
func restoreFault(err error) error {
	switch {
	case errors.Is(err, backup.ErrNotBackup):
		return &Fault{Code: wire.InvalidArgument, Err: err}
	case errors.Is(err, backup.ErrVersion):
		return &Fault{Code: wire.SchemaUnsupported, Err: err}
	case errors.Is(err, backup.ErrDamaged):
		return &Fault{Code: wire.IntegrityFailed, Err: err}
	}
	return offlineFault(err)
}

func (o *Offline) restore(ctx context.Context, file string, dryRun bool) error {
	from, err := os.Open(file)
	if err != nil {
		return fault(wire.InvalidArgument, "%w", err)
	}
	defer from.Close()
	if dryRun {
		if err := emptyHome(o.Home); err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "sb-restore-")
		if err != nil {
			return err
		}
		defer func() { _ = destroyScratch(dir) }()
		if _, err := o.unpack(ctx, from, dir); err != nil {
			return err
		}
		o.say("nothing was written: this was a dry run")
		return nil
	}
	lock, err := o.makeHome()
	if err != nil {
		return err
	}
	defer lock.Close()
	return o.restoreInto(ctx, from)
}

// makeHome makes and locks the home, and clears away what an interrupted restore
// has left there.
func (o *Offline) makeHome() (lock *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(o.Home), 0o700); err != nil {
		return nil, fault(wire.HomeUnsafe, "making the home's parent: %w", err)
	}
	if err := emptyHome(o.Home); err != nil {
		return nil, err
	}
	if err := os.Mkdir(o.Home, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fault(wire.HomeUnsafe, "making the home: %w", err)
	}
	if err := checkHome(o.Home); err != nil {
		return nil, err
	}
	if lock, err = lockHome(o.Home); err != nil {
		return nil, err
	}
	err = emptyHome(o.Home) // again: until now a daemon might have made a vault there
	if err == nil {
		err = o.beginRestoring()
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

// beginRestoring makes the folder that says that a restore is going on, empty.
// What lies beside it is of an earlier attempt: the home was empty before.
func (o *Offline) beginRestoring() error {
	marker := filepath.Join(o.Home, restoringMarker)
	_, err := os.Lstat(marker)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.Mkdir(marker, 0o700); err != nil {
			return err
		}
		return syncFolder(o.Home)
	case err != nil:
		return err
	}
	// What is in it goes: it must be the folder that a restore made, no link to another.
	if err := checkDir(marker, 0o700); err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	entries, err := os.ReadDir(o.Home)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); slices.Contains(restoredNames, name) {
			if err := os.RemoveAll(filepath.Join(o.Home, name)); err != nil {
				return err
			}
		}
	}
	inside, err := os.ReadDir(marker)
	for _, entry := range inside {
		err = errors.Join(err, os.RemoveAll(filepath.Join(marker, entry.Name())))
	}
	return errors.Join(err, syncFolder(marker), syncFolder(o.Home))
}

// restoredNames is what a restore writes into the home beside its marker.
var restoredNames = []string{backup.VaultPart, "secret.key", "secret.key.new", restoredDir}

// emptyHome refuses a home that holds anything but an interrupted restore, a
// lock, and an empty folder for the log, which may be a mount.
func emptyHome(home string) error {
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault(wire.HomeUnsafe, "%w", err)
	}
	restoring := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == restoringMarker })
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case name == filepath.Base(place.LockFile(home)), name == restoringMarker, restoring && slices.Contains(restoredNames, name):
			continue
		case name == filepath.Base(place.AuditDir(home)):
			inside, err := os.ReadDir(place.AuditDir(home))
			if err != nil {
				return fault(wire.HomeUnsafe, "%w", err)
			}
			if len(inside) == 0 || len(inside) == 1 && inside[0].Name() == "lost+found" {
				continue
			}
		}
		return fault(wire.InvalidArgument, "a backup is restored into an empty home, and %s holds %s: move it away, or name another --home", home, name)
	}
	return nil
}

// restoreInto does what is left, in the home that is locked and marked.
func (o *Offline) restoreInto(ctx context.Context, from *os.File) error {
	marker := filepath.Join(o.Home, restoringMarker)
	o.reached("marked")
	manifest, err := o.unpack(ctx, from, marker)
	if err != nil {
		return err
	}
	o.reached("unpacked")
	unpacked := filepath.Join(marker, backup.VaultPart)
	if err := o.prepareVault(ctx, unpacked, manifest); err != nil {
		return err
	}
	o.reached("prepared")
	if manifest.Audit {
		dir := filepath.Join(o.Home, restoredDir)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(marker, "audit"), filepath.Join(dir, "audit")); err != nil {
			return err
		}
		if err := errors.Join(syncFolder(marker), syncFolder(dir)); err != nil {
			return err
		}
	}
	if err := os.Rename(unpacked, place.VaultFile(o.Home)); err != nil {
		return err
	}
	if err := errors.Join(syncFolder(marker), syncFolder(o.Home)); err != nil {
		return err
	}
	o.reached("renamed")
	if err := os.RemoveAll(marker); err != nil {
		return err
	}
	if err := syncFolder(o.Home); err != nil {
		return err
	}
	o.reached("done")
	if manifest.Audit {
		o.say("kept: the old log, which can be verified with: sbctl audit verify %s --genesis %s", filepath.Join(o.Home, restoredDir, "audit"), manifest.Genesis)
	}
	o.say("restored: sbd starts in %s once you have accepted this with: sbd recover --home %s", o.Home, o.Home)
	return nil
}

// unpack writes the parts of a backup into dir, verifies all of them, and says
// what it is.
func (o *Offline) unpack(ctx context.Context, from *os.File, dir string) (backup.Manifest, error) {
	manifest, err := unpackBackup(from, dir, o.unwrapFileKey)
	if err != nil {
		return manifest, err
	}
	o.say("backup: %s, made %s, of vault %s", manifest.ID, stamp(manifest.Created), manifest.VaultID)
	o.say("vault: generation %d, %d rows", manifest.Generation, manifest.Rows)
	if manifest.Seq > 0 {
		o.say("log: was at entry %d, %s, genesis %s", manifest.Seq, manifest.Head, manifest.Genesis)
	}
	source, err := o.secretSource(o.Slot)
	if err != nil {
		return manifest, err
	}
	if err := o.inspectCopy(ctx, filepath.Join(dir, backup.VaultPart), manifest, source); err != nil {
		return manifest, err
	}
	if manifest.Audit {
		return manifest, o.inspectLog(ctx, filepath.Join(dir, "audit"), manifest)
	}
	o.say("log: it is not in this backup")
	return manifest, nil
}

// inspectLog verifies the unpacked log. As for contents: what was damaged before
// is told.
func (o *Offline) inspectLog(ctx context.Context, dir string, manifest backup.Manifest) error {
	switch entries, err := verifyCopiedLog(ctx, dir, manifest); {
	case errors.Is(err, backup.ErrDamaged):
		o.say("damaged: %v; it is kept as it is", err)
	case err != nil:
		return err
	default:
		o.say("verified: %d entries of the log", entries)
	}
	return nil
}

// unwrapFileKey opens the backup with what the person has. Without a word from
// the command line that is the recovery code, or else the passphrase, whichever
// the backup was made for.
func (o *Offline) unwrapFileKey(stanzas []byte) ([]byte, error) {
	kinds := []string{o.Slot}
	if o.Slot == "" {
		kinds = []string{slotRecovery, slotPassphrase}
	}
	var err error
	for _, kind := range kinds {
		if o.Slot == "" {
			// Which kinds there are can be found out without the secret.
			if _, err = vault.UnwrapFileKeyWith(stanzas, noSecret(kind)); errors.Is(err, vault.ErrNoSlot) {
				continue
			}
		}
		source, err := o.secretSource(kind)
		if err != nil {
			return nil, err
		}
		key, err := vault.UnwrapFileKeyWith(stanzas, source)
		if errors.Is(err, vault.ErrNoSlot) {
			return nil, fault(wire.KeyUnavailable, "the backup does not open with a %s: it was made when the vault had none", kind)
		}
		o.Slot = kind
		return key, err
	}
	return nil, err
}

// noSecret is a source that has nothing to say.
type noSecret string

var errNoSecret = errors.New("no secret")

// Kind implements vault.KeySource, as do the others.
func (s noSecret) Kind() string { return string(s) }

// Load has nothing.
func (noSecret) Load(context.Context, string) ([]byte, error) { return nil, errNoSecret }

// Store keeps nothing.
func (noSecret) Store(context.Context, string, []byte) error { return errNoSecret }

// Remove has nothing.
func (noSecret) Remove(context.Context, string) error { return errNoSecret }

// inspectCopy verifies the unpacked vault, and lists the registered files, whose
// pins are of another moment, or of another machine. A content that was damaged
// before the backup was made is told and does not hold up the rest.
func (o *Offline) inspectCopy(ctx context.Context, file string, manifest backup.Manifest, source vault.KeySource) error {
	v, err := openCopy(ctx, file, manifest, source)
	if err != nil {
		return err
	}
	defer v.Close()
	tell := o.progress("vault")
	damaged := v.Verify(true, func(done, total int) { tell(int64(done), int64(total)) })
	if damaged != nil {
		if err := v.Verify(false, nil); err != nil {
			return err
		}
	}
	inForce, err := load(v, map[string]uint64{})
	if err != nil {
		return err
	}
	memory, memoryErr := examineMemory(v, inForce.tenants, o.progress("memory"))
	if memoryErr != nil {
		o.say("damaged: %v; it is restored as it is, and the memory is not used", memoryErr)
	} else if memory.entries > 0 {
		o.say("memory: %d entries and %d that were forgotten; what was forgotten after this backup was made is in it", memory.entries, memory.forgotten)
	}
	contents := 0
	err = v.View(func(tx *vault.Tx) error {
		return tx.Records(func(r vault.Record) error {
			contents += len(r.Versions)
			if r.File == nil {
				return nil
			}
			content, _, err := regfile.Read(*r.File, vault.HardMaxContent)
			clear(content)
			if err != nil {
				o.say("to pin again: %s, %s: sbctl resource repin %s", r.Name, r.File.Path, r.Name)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	if damaged != nil {
		o.say("damaged: %v; it is restored as it is, every row is whole", damaged)
		return nil
	}
	o.say("verified: every row and %d contents", contents)
	return nil
}

// prepareVault gives the unpacked vault a key slot of this machine and the mark
// that it was restored.
func (o *Offline) prepareVault(ctx context.Context, file string, manifest backup.Manifest) error {
	v, err := vault.OpenLocked(vault.Config{File: file, Now: o.Now})
	if err != nil {
		return err
	}
	defer v.Close()
	source, err := o.secretSource(o.Slot)
	if err != nil {
		return err
	}
	if err := v.UnlockWith(ctx, source); err != nil {
		return err
	}
	kind, err := o.slotKind(ctx)
	if err != nil {
		return err
	}
	if err := o.machineSlot(ctx, v, kind, func(audit.Kind, string) vault.Journal { return unrecordedJournal{} }); err != nil {
		return err
	}
	row := restoredRow{Backup: manifest.ID, Created: millis(manifest.Created), Seq: manifest.Seq, Hash: manifest.Head}
	if err := v.Mutate(unrecordedJournal{}, row.put); err != nil {
		return err
	}
	return v.Close()
}

// slotKind is where the key of this machine shall be kept.
func (o *Offline) slotKind(ctx context.Context) (string, error) {
	switch o.KeySource {
	case keysource.KindFile, keysource.KindKeychain:
		return o.KeySource, nil
	}
	keychain := keysource.Keychain(o.keychild(), keysource.Timeout)
	source, _ := keysource.Auto(ctx, keychain, keysource.File(place.KeyFile(o.Home)))
	return source.Kind(), nil
}

// unrecordedJournal is for a vault that has no log: what is done to it is
// recorded when it is accepted.
type unrecordedJournal struct{}

// Intent implements vault.Journal.
func (unrecordedJournal) Intent(uint64, [32]byte) (vault.Checkpoint, error) {
	return vault.Checkpoint{}, nil
}

// Applied implements vault.Journal.
func (unrecordedJournal) Applied(uint64, [32]byte) error { return nil }
