package daemon_test

import (
	"testing"

	"subjectbroker/daemon/daemontest"
)

// Contract §2: a vault that the operator locked opens only by the operator.
func TestALockOutlivesARestart(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("plan", "text")
	d.Lock()
	d.Restart()
	if s := d.Status(); s.GetVaultState() != "locked" || s.GetAuditState() != "ok" {
		t.Fatalf("after a restart the vault is %s (%s), the log %s", s.GetVaultState(), s.GetVaultCause(), s.GetAuditState())
	}
	d.Restart()
	d.Unlock()
	if got := d.Content("plan"); got != "text" {
		t.Errorf("the content is %q", got)
	}
	d.Restart()
	if s := d.Status(); s.GetVaultState() != "unlocked" {
		t.Errorf("after an unlock and a restart the vault is %s", s.GetVaultState())
	}
	if locks, unlocks := d.Entries("vault.lock"), d.Entries("vault.unlock"); len(locks) != 1 || len(unlocks) != 1 {
		t.Errorf("%d locks and %d unlocks in the log, want one each", len(locks), len(unlocks))
	}
}
