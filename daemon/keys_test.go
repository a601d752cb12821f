package daemon_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// addRecovery gives the vault a recovery slot and returns its code.
func addRecovery(t *testing.T, d *daemontest.Daemon) recovery.Code {
	t.Helper()
	code := recovery.New()
	_, err := d.Operator().AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "recovery", Secret: code.PublicKey()})
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func kinds(slots []*operatorv1.KeySlot) []string {
	var kinds []string
	for _, s := range slots {
		kinds = append(kinds, s.GetKind())
	}
	return kinds
}

func keysOf(t *testing.T, d *daemontest.Daemon) *operatorv1.ShowKeysResponse {
	t.Helper()
	keys, err := d.Operator().ShowKeys(t.Context(), &operatorv1.ShowKeysRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(daemontest.Patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come true", what)
		}
	}
}

func TestRotateRewrapsInTheBackground(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	const resources = 700
	for i := range resources {
		d.Put(fmt.Sprintf("doc-%03d", i), fmt.Sprintf("content %d", i))
	}
	id := d.Grant("worker", "read:doc-007", daemontest.Uses(3))
	run := d.Open("worker")
	rotated, err := d.Operator().RotateKey(t.Context(), &operatorv1.RotateKeyRequest{})
	if err != nil || rotated.GetTerm() != 2 {
		t.Fatalf("rotates to term %d: %v", rotated.GetTerm(), err)
	}
	if content, reason := run.Read("doc-007"); content != "content 7" {
		t.Errorf("meanwhile it reads %q: %s", content, reason)
	}
	d.Restart() // what is left goes on by itself
	eventually(t, "that nothing of the old term is left", func() bool { return len(keysOf(t, d).GetOldTerms()) == 0 })
	keys := keysOf(t, d)
	if keys.GetTerm() != 2 || keys.GetRewrapTotal() != 0 || d.Status().GetRewrapLeft() != 0 {
		t.Errorf("afterwards: %v", keys)
	}
	for _, name := range []string{"doc-000", "doc-699"} {
		if got := d.Content(name); got == "" {
			t.Errorf("%s is empty", name)
		}
	}
	if used := d.Grants("worker")[id].GetUsed(); used != 1 {
		t.Errorf("the grant was used %d times, want 1", used)
	}
	if n := len(d.Entries("key.rotate")); n != 1 {
		t.Errorf("%d entries of the rotate", n)
	}
	if n := len(d.Entries("key.rewrap")); n < resources*2/256 {
		t.Errorf("%d entries of rewrapping", n)
	}
}

// The recovery code opens the vault when its key file is gone.
func TestRecoveryCodeUnlocks(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "text")
	code := addRecovery(t, d)
	if got, want := kinds(d.Status().GetSlots()), []string{"file", "recovery"}; !slices.Equal(got, want) {
		t.Errorf("slots %v, want %v", got, want)
	}
	d.Lock()
	if err := os.Rename(filepath.Join(d.Home, "secret.key"), filepath.Join(d.Home, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	op := d.Operator()
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{}); daemontest.Reason(err) != wire.KeyUnavailable {
		t.Errorf("without a key: %v", err)
	}
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "recovery", Secret: recovery.New().Seed()}); daemontest.Reason(err) != wire.WrongKey {
		t.Errorf("with another code: %v", err)
	}
	missing := &operatorv1.UnlockRequest{Slot: "passphrase", Secret: []byte("correct horse")}
	if _, err := op.Unlock(t.Context(), missing); daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("by a slot that is not there: %v", err)
	}
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "recovery", Secret: code.Seed()}); err != nil {
		t.Fatal(err)
	}
	if _, err := op.Unlock(t.Context(), missing); daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("by a slot that is not there, while open: %v", err)
	}
	if got := d.Content("plan"); got != "text" {
		t.Errorf("the content is %q", got)
	}
	// A wrong one is one also while the vault is open.
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "recovery", Secret: recovery.New().Seed()}); daemontest.Reason(err) != wire.WrongKey {
		t.Errorf("with another code while open: %v", err)
	}
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "recovery", Secret: code.Seed()}); err != nil {
		t.Errorf("with the code while open: %v", err)
	}
	if by := keysOf(t, d).GetUnlockedBy(); by != "recovery" {
		t.Errorf("unlocked by %q", by)
	}
	if err := os.Rename(filepath.Join(d.Home, "elsewhere"), filepath.Join(d.Home, "secret.key")); err != nil {
		t.Fatal(err)
	}
}

// A key that is lost while the vault is open can still be replaced.
func TestRecoveryCodeWithoutTheKey(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "text")
	file := filepath.Join(d.Home, "secret.key")
	must(t, os.Remove(file))
	addRecovery(t, d)
	op := d.Operator()
	if _, err := op.AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "recovery", Secret: recovery.New().PublicKey()}); daemontest.Reason(err) != wire.KeyUnavailable {
		t.Errorf("replacing it, which is a rekey: %v", err)
	}
	if _, err := op.RemoveSlot(t.Context(), &operatorv1.RemoveSlotRequest{Kind: "file"}); err != nil {
		t.Fatal(err)
	}
	if _, err := op.AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "file"}); err != nil {
		t.Fatal(err)
	}
	d.Restart()
	if got := d.Content("plan"); got != "text" {
		t.Errorf("the content is %q", got)
	}
}

// A vault that only a person can open starts locked, and the last slot stays.
func TestOnlyAPersonOpens(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "text")
	op := d.Operator()
	if _, err := op.RemoveSlot(t.Context(), &operatorv1.RemoveSlotRequest{Kind: "file"}); daemontest.Reason(err) != wire.InvalidArgument {
		t.Fatalf("removing the last slot: %v", err)
	}
	passphrase := []byte("correct horse battery")
	if _, err := op.AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: []byte("short")}); daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("a short passphrase: %v", err)
	}
	if _, err := op.AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: bytes.Clone(passphrase)}); err != nil {
		t.Fatal(err)
	}
	removed, err := op.RemoveSlot(t.Context(), &operatorv1.RemoveSlotRequest{Kind: "file"})
	if err != nil || !slices.Equal(kinds(removed.GetSlots()), []string{"passphrase"}) || removed.GetKeyLeft() {
		t.Fatalf("removing the file: %v, %v", removed, err)
	}
	if _, err := os.Lstat(filepath.Join(d.Home, "secret.key")); !os.IsNotExist(err) {
		t.Errorf("the key file: %v", err)
	}
	d.Restart()
	if s := d.Status(); s.GetVaultState() != "waiting" {
		t.Errorf("it starts %s (%s)", s.GetVaultState(), s.GetVaultCause())
	}
	op = d.Operator()
	for secret, want := range map[string]wire.Reason{"another one": wire.WrongKey, string(passphrase): wire.Allowed} {
		if want == wire.Allowed {
			continue
		}
		if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "passphrase", Secret: []byte(secret)}); daemontest.Reason(err) != want {
			t.Errorf("unlocking with %q: %v", secret, err)
		}
	}
	if _, err := op.Unlock(t.Context(), &operatorv1.UnlockRequest{Slot: "passphrase", Secret: bytes.Clone(passphrase)}); err != nil {
		t.Fatal(err)
	}
	if got := d.Content("plan"); got != "text" {
		t.Errorf("the content is %q", got)
	}
	// Back to a file, so that what the test leaves can be verified.
	if _, err := op.AddSlot(t.Context(), &operatorv1.AddSlotRequest{Kind: "file"}); err != nil {
		t.Fatal(err)
	}
	if _, err := op.RemoveSlot(t.Context(), &operatorv1.RemoveSlotRequest{Kind: "passphrase"}); err != nil {
		t.Fatal(err)
	}
}

// backupOf makes a backup and returns the file and what is said of it.
func backupOf(t *testing.T, d *daemontest.Daemon, req *operatorv1.BackupRequest) ([]byte, *operatorv1.BackupInfo, error) {
	t.Helper()
	stream, err := d.Operator().Backup(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for {
		got, err := stream.Recv()
		if err != nil {
			return nil, nil, err
		}
		file = append(file, got.GetChunk()...)
		if info := got.GetInfo(); info != nil {
			if _, err := stream.Recv(); err != io.EOF {
				t.Errorf("after the last message: %v", err)
			}
			return file, info, nil
		}
	}
}

func verifyBackup(t *testing.T, d *daemontest.Daemon, file []byte) (*operatorv1.VerifyBackupResponse, error) {
	t.Helper()
	stream, err := d.Operator().VerifyBackup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for chunk := range slices.Chunk(file, 100_000) {
		if stream.Send(&operatorv1.VerifyBackupRequest{Chunk: chunk}) != nil {
			break
		}
	}
	return stream.CloseAndRecv()
}

func TestBackup(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "one")
	d.Put("plan", "two")
	d.Put("large", string(bytes.Repeat([]byte("0123456789abcdef"), 1<<15)))
	if _, _, err := backupOf(t, d, &operatorv1.BackupRequest{}); daemontest.Reason(err) != wire.InvalidArgument {
		t.Fatalf("a backup that nobody can open: %v", err)
	}
	addRecovery(t, d)
	file, info, err := backupOf(t, d, &operatorv1.BackupRequest{Name: "monday"})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetName() != "monday" || info.GetSize() != uint64(len(file)) || info.GetGeneration()+1 != d.Status().GetGeneration() || !info.GetAudit() {
		t.Errorf("what is said of it: %v", info)
	}
	for _, marker := range []string{"plan", "op.applied", info.GetGenesis()} {
		if bytes.Contains(file, []byte(marker)) {
			t.Errorf("the file shows %q", marker)
		}
	}
	verified, err := verifyBackup(t, d, file)
	if err != nil {
		t.Fatal(err)
	}
	if verified.GetContents() != 3 || verified.GetEntries() != info.GetSeq() || verified.GetInfo().GetHead() != info.GetHead() {
		t.Errorf("verified: %v", verified)
	}
	for _, at := range []int{0, 40, 80, len(file) / 2, len(file) - 1} {
		damaged := bytes.Clone(file)
		damaged[at] ^= 1
		want := wire.IntegrityFailed
		if at == 0 { // it does not look like a backup any more
			want = wire.InvalidArgument
		}
		if _, err := verifyBackup(t, d, damaged); daemontest.Reason(err) != want {
			t.Errorf("byte %d flipped: %v", at, err)
		}
	}
	if _, err := verifyBackup(t, d, file[:len(file)-1]); daemontest.Reason(err) != wire.IntegrityFailed {
		t.Errorf("cut short: %v", err)
	}
	without, _, err := backupOf(t, d, &operatorv1.BackupRequest{NoAudit: true})
	if err != nil || len(without) >= len(file) {
		t.Errorf("without the log it has %d bytes instead of %d: %v", len(without), len(file), err)
	}
	if verified, err := verifyBackup(t, d, without); err != nil || verified.GetEntries() != 0 {
		t.Errorf("without the log: %v, %v", verified, err)
	}
	list, err := d.Operator().ListBackups(t.Context(), &operatorv1.ListBackupsRequest{})
	if err != nil || len(list.GetBackups()) != 2 || !proto.Equal(list.GetBackups()[1], info) {
		t.Errorf("the list: %v, %v", list, err)
	}
	if v := verified.GetInfo(); v.GetName() != "monday" || !slices.Equal(v.GetSlots(), info.GetSlots()) {
		t.Errorf("the verified backup is said to be %v", v)
	}
	if left, _ := filepath.Glob(filepath.Join(d.Home, "scratch-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A backup that its client does not read holds up no change; a prune would take
// its segments away, and more than a few would fill the disk with copies.
func TestStalledBackups(t *testing.T) {
	d := daemontest.Start(t)
	addRecovery(t, d)
	for i := range 16 { // more than grpc takes on its way
		d.Put(fmt.Sprintf("large-%d", i), string(bytes.Repeat([]byte("0123456789abcdef"), 1<<16)))
	}
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	for range 4 {
		stream, err := d.Operator().Backup(ctx, &operatorv1.BackupRequest{})
		must(t, err)
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := backupOf(t, d, &operatorv1.BackupRequest{}); daemontest.Reason(err) != wire.RateLimited {
		t.Errorf("one more: %v", err)
	}
	prune := &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{firstSegment(t, d)}}
	if _, err := d.Operator().PruneAudit(t.Context(), prune); daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("pruning meanwhile: %v", err)
	}
	d.Put("small", "text")
	hangUp()
	eventually(t, "another backup", func() bool {
		_, _, err := backupOf(t, d, &operatorv1.BackupRequest{})
		return err == nil
	})
}

// holds reports whether any file below dir holds the bytes.
func holds(t *testing.T, dir string, bytesOf []byte) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, bytesOf)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestPurge(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("stays", "text")
	addRecovery(t, d)
	before, err := os.ReadFile(filepath.Join(d.Home, "vault.db"))
	if err != nil {
		t.Fatal(err)
	}
	d.PutKind("token", "secret", string(bytes.Repeat([]byte("secret"), 2000)))
	_, made, err := backupOf(t, d, &operatorv1.BackupRequest{Name: "holds it"})
	if err != nil {
		t.Fatal(err)
	}
	sealed := sealedPiece(t, d.Home, before)
	if !holds(t, d.Home, sealed) {
		t.Fatal("the sealed bytes are not in the home: the scan finds nothing")
	}
	d.Remove("stays")
	if !holds(t, d.Home, sealed) {
		t.Fatal("a removal of something else took them away: the scan proves nothing")
	}
	done, err := d.Operator().RemoveResource(t.Context(), &operatorv1.RemoveResourceRequest{Name: "token", Purge: true})
	if err != nil {
		t.Fatal(err)
	}
	if holds(t, d.Home, sealed) {
		t.Error("the sealed bytes are still in the home")
	}
	if b := done.GetBackups(); len(b) != 1 || b[0].GetId() != made.GetId() || b[0].GetName() != "holds it" {
		t.Errorf("backups that hold it: %v", b)
	}
	d.Restart()
	if n := len(d.Entries("vault.purge")); n != 1 {
		t.Errorf("%d entries of the purge", n)
	}
}

// sealedPiece returns bytes from the middle of the largest run of base64 that is
// in the vault's file now and was not before.
func sealedPiece(t *testing.T, home string, before []byte) []byte {
	t.Helper()
	now, err := os.ReadFile(filepath.Join(home, "vault.db"))
	if err != nil {
		t.Fatal(err)
	}
	var longest []byte
	for _, run := range bytes.FieldsFunc(now, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '+' && r != '/'
	}) {
		if len(run) > len(longest) && !bytes.Contains(before, run) {
			longest = run
		}
	}
	if len(longest) < 200 {
		t.Fatalf("the longest sealed run has %d bytes", len(longest))
	}
	return longest[len(longest)/2:][:64]
}

func TestPruneOverTheSocket(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{Config: "auditSegmentSize: 65536\n"})
	for i := 0; len(segments(t, d.Home)) < 3; i++ {
		d.Put("plan", fmt.Sprint(i))
	}
	first := filepath.Join(d.Home, "audit", "00000001.jsonl")
	wrong := &operatorv1.SegmentCopy{Segment: 1, Sha256: hex.EncodeToString(make([]byte, 32))}
	right := firstSegment(t, d)
	op := d.Operator()
	if _, err := op.PruneAudit(t.Context(), &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{wrong}}); daemontest.Reason(err) != wire.InvalidArgument {
		t.Errorf("with another copy: %v", err)
	}
	dry, err := op.PruneAudit(t.Context(), &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{right}, DryRun: true})
	if err != nil || len(dry.GetSegments()) != 1 {
		t.Fatalf("a dry run: %v, %v", dry, err)
	}
	if _, err := os.Stat(first); err != nil {
		t.Fatalf("a dry run removed it: %v", err)
	}
	done, err := op.PruneAudit(t.Context(), &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{right}})
	if err != nil || len(done.GetSegments()) != 1 || done.GetSegments()[0].GetFirst() != 1 {
		t.Fatalf("pruning: %v, %v", done, err)
	}
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the segment: %v", err)
	}
	d.Restart()
	d.Put("plan", "after")
}

// firstSegment proves that somebody holds a copy of the first segment.
func firstSegment(t *testing.T, d *daemontest.Daemon) *operatorv1.SegmentCopy {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(d.Home, "audit", "00000001.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return &operatorv1.SegmentCopy{Segment: 1, Sha256: hex.EncodeToString(sum[:])}
}

func segments(t *testing.T, home string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(home, "audit", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
