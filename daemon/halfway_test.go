package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	grpcpeer "google.golang.org/grpc/peer"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// An unlock that fails half-way leaves a vault that is locked, and says so: at
// each look at the clock, of which each entry takes one, the log is taken away.
func TestUnlockThatFails(t *testing.T) {
	home := t.TempDir()
	segment := filepath.Join(place.AuditDir(home), "00000001.jsonl")
	var left atomic.Int64
	now := func() time.Time {
		if left.Add(-1) == 0 {
			_ = os.Rename(segment, segment+".away")
		}
		return time.Now()
	}
	config := Config{Home: home, Logger: slog.New(slog.DiscardHandler), KeySource: keysource.KindFile, Now: now}
	d := newDaemon(config, fileConfig{})
	t.Cleanup(d.close)
	if err := d.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	entry := audit.Entry{Kind: kindVaultLock, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	failed := 0
	for look := int64(1); ; look++ {
		if err := d.lock(t.Context(), entry, "by the test"); err != nil {
			t.Fatal(err)
		}
		left.Store(look)
		err := d.unlock(t.Context(), d.sources(keysource.Timeout), &entry)
		reached := left.Swap(0) <= 0
		if word := d.locking.word(); (word == unlocked) == d.locked() || (err == nil) == d.locked() {
			t.Errorf("the log gone at look %d: %v; locked %v, status says %s", look, err, d.locked(), word)
		}
		if !reached {
			break
		}
		if err != nil {
			failed++
		}
		if err := os.Rename(segment+".away", segment); err != nil {
			t.Fatal(err)
		}
		for ok := false; !ok; ok, _ = d.log().Health() {
			time.Sleep(10 * time.Millisecond)
		}
		if err := d.unlock(t.Context(), d.sources(keysource.Timeout), &entry); err != nil {
			t.Fatal(err)
		}
		d.changing.mu.Lock()
		err = d.settle()
		d.changing.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	if failed < 2 {
		t.Errorf("%d attempts failed: this test did nothing", failed)
	}
}

// A vault that failed while it was being unlocked, and was locked again, is
// reopened once; then it waits for the operator.
func TestReopenedWhileLocked(t *testing.T) {
	config := Config{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler), KeySource: keysource.KindFile}
	d := newDaemon(config, fileConfig{})
	t.Cleanup(d.close)
	if err := d.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	entry := audit.Entry{Kind: kindVaultUnlock, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	d.vaultFailed(vault.ErrFailed)
	d.current.Store(newState())
	d.vault.Lock()
	d.recoverVault()
	if word := d.locking.word(); word != lockedByOperator || d.locking.waitsForRecovery() {
		t.Errorf("status says %s", word)
	}
	if err := d.unlock(t.Context(), d.sources(keysource.Timeout), &entry); err != nil || d.locked() {
		t.Errorf("unlocking: %v", err)
	}
}

// A new term whose end the log could not take is there all the same, and the
// rows of the old one are not forgotten.
func TestRotateThatIsNotRecorded(t *testing.T) {
	home := t.TempDir()
	segment := filepath.Join(place.AuditDir(home), "00000001.jsonl")
	var left atomic.Int64
	config := Config{Home: home, Logger: slog.New(slog.DiscardHandler), KeySource: keysource.KindFile, Now: func() time.Time {
		if left.Add(-1) == 0 {
			_ = os.Rename(segment, segment+".away")
		}
		return time.Now()
	}}
	d := newDaemon(config, fileConfig{})
	t.Cleanup(d.close)
	if err := d.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	<-d.upkeep.kick // of the start
	ctx := grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: &peer.Peer{}})
	left.Store(2) // the intent is the first look at the clock
	if _, err := (operator{d: d}).RotateKey(ctx, &operatorv1.RotateKeyRequest{}); !errors.Is(err, vault.ErrNotRecorded) {
		t.Fatalf("rotating: %v", err)
	}
	_, old := d.vault.Terms()
	if _, rows, _ := d.upkeep.progress(); len(old) != 1 || rows == 0 || len(d.upkeep.kick) != 1 {
		t.Errorf("old terms %v, %d rows to rewrap, upkeep woken: %v", old, rows, len(d.upkeep.kick) == 1)
	}
}
