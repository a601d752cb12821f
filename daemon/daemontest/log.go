package daemontest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// Entries are the entries on the disk, oldest first: of the given kinds, or all.
// Whatever was answered is among them, but for the entry of a key for a run that was open
// already: see Settle.
func (d *Daemon) Entries(kinds ...string) []verify.Entry {
	d.t.Helper()
	var found []verify.Entry
	for line := range bytes.Lines(d.RawLog()) {
		if line[len(line)-1] != '\n' {
			break // being written
		}
		e, err := verify.ParseLine(line)
		if err != nil {
			d.t.Fatalf("a line of the log: %v\n%s", err, line)
		}
		if len(kinds) == 0 || slices.Contains(kinds, e.Kind) {
			found = append(found, e)
		}
	}
	return found
}

// Since are the entries after a sequence number.
func (d *Daemon) Since(seq uint64, kinds ...string) []verify.Entry {
	d.t.Helper()
	return slices.DeleteFunc(d.Entries(kinds...), func(e verify.Entry) bool { return e.Seq <= seq })
}

// Seq is the sequence number of the newest entry that was answered.
func (d *Daemon) Seq() uint64 {
	d.t.Helper()
	return d.Status().GetAuditSeq()
}

// Settle waits until all that has a place in the log is durable, also what nobody
// waits for, and returns the sequence number of the newest entry: what is behind it
// was done later. It leaves an operator.read of its own.
func (d *Daemon) Settle() uint64 {
	d.t.Helper()
	ctx, cancel := d.context()
	defer cancel()
	// That the log is read is durable before it is, and so is what has an earlier place.
	stream, err := d.Operator().ReadAudit(ctx, &operatorv1.ReadAuditRequest{Last: 1})
	d.must("reading the log", err)
	batch, err := stream.Recv()
	d.must("reading the log", err)
	newest, err := verify.ParseLine(batch.GetLines()[0])
	d.must("reading a line", err)
	return newest.Seq
}

// RawLog is the log's bytes, of all segments.
func (d *Daemon) RawLog() []byte {
	d.t.Helper()
	names, err := filepath.Glob(filepath.Join(place.AuditDir(d.Home), "*.jsonl"))
	if err != nil {
		d.t.Fatal(err)
	}
	slices.Sort(names)
	var all []byte
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			d.t.Fatal(err)
		}
		all = append(all, raw...)
	}
	return all
}

// Await waits until the log holds an entry after a sequence number that match
// accepts. A nil match accepts any.
func (d *Daemon) Await(after uint64, match func(verify.Entry) bool) verify.Entry {
	d.t.Helper()
	for _, e := range d.Since(after) {
		if match == nil || match(e) {
			return e
		}
	}
	// The stream has an entry of its own, which must not pass for what is awaited.
	own := func(e verify.Entry) bool { return e.Kind == "operator.read" && e.Action == "read-audit" }
	ctx, cancel := d.context()
	defer cancel()
	stream, err := d.Operator().ReadAudit(ctx, &operatorv1.ReadAuditRequest{FromSeq: after + 1, Follow: true})
	d.must("following the log", err)
	for {
		batch, err := stream.Recv()
		d.must("following the log", err)
		for _, line := range batch.GetLines() {
			e, err := verify.ParseLine(line)
			d.must("reading a line", err)
			if !own(e) && (match == nil || match(e)) {
				return e
			}
		}
	}
}

// Verify looks at what a stopped daemon left: log and vault must be whole. The
// vault can only be looked at when its key is in a file.
func (d *Daemon) Verify() {
	d.t.Helper()
	if d.genesis == "" {
		return // there never was a log
	}
	report, err := verify.Dir(context.Background(), place.AuditDir(d.Home), verify.Options{Genesis: d.genesis, AllSignatures: true})
	if err != nil {
		d.t.Errorf("verifying the log: %v", err)
	} else if code := report.ExitCode(); code != 0 {
		d.t.Errorf("verifying the log: exit %d: %+v", code, report)
	}
	if d.options.KeySource == "file" {
		VerifyVault(d.t, d.Home)
	}
}

// VerifyVault fails the test unless the vault of a stopped daemon is whole,
// every content included.
func VerifyVault(t testing.TB, home string) {
	t.Helper()
	err := func() error {
		v, err := vault.OpenLocked(vault.Config{File: place.VaultFile(home), ReadOnly: true})
		if err != nil {
			return err
		}
		defer v.Close()
		if err := v.UnlockWith(context.Background(), keysource.File(place.KeyFile(home))); err != nil {
			return err
		}
		return v.Verify(true, nil)
	}()
	if err != nil {
		t.Errorf("verifying the vault: %v", err)
	}
}

// Copy copies files and folders of a home, to be put back with Restore.
func Copy(t testing.TB, home string, names ...string) map[string][]byte {
	t.Helper()
	kept := map[string][]byte{}
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(home, name), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			raw, err := os.ReadFile(path)
			kept[path] = raw
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	return kept
}

// Restore puts files back as they were when Copy looked.
func Restore(t testing.TB, kept map[string][]byte) {
	t.Helper()
	for path, raw := range kept {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// genesisOnce learns whose log this is, when the daemon started locked.
func (d *Daemon) genesisOnce() {
	if d.genesis == "" {
		d.noteGenesis()
	}
}

// Fingerprint is the log's genesis as the daemon told it.
func (d *Daemon) Fingerprint() string { return d.genesis }
