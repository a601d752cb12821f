package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/keysource"
)

// A lock does not wait for a backup or a purge, which hold up every change for
// as long as the vault is large.
func TestLockInterrupts(t *testing.T) {
	config := Config{Home: t.TempDir(), Logger: slog.New(slog.DiscardHandler), KeySource: keysource.KindFile}
	d := newDaemon(config, fileConfig{})
	t.Cleanup(d.close)
	if err := d.openVault(t.Context(), config, fileConfig{}); err != nil {
		t.Fatal(err)
	}
	working, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		d.changing.mu.Lock()
		defer d.changing.mu.Unlock()
		close(working)
		var err error
		for n := 0; err == nil; n++ {
			_, err = d.vault.Snapshot(filepath.Join(config.Home, fmt.Sprint("copy", n)))
		}
		ended <- err
	}()
	<-working
	entry := audit.Entry{Kind: kindVaultLock, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	if err := d.lock(t.Context(), entry, "by the test"); err != nil || !d.vault.Locked() {
		t.Errorf("locking: %v", err)
	}
	if err := <-ended; !errors.Is(err, vault.ErrLocked) {
		t.Errorf("the copy ended with %v", err)
	}
	if err := d.unlock(t.Context(), d.sources(keysource.Timeout), &entry); err != nil {
		t.Errorf("unlocking again: %v", err)
	}
}
