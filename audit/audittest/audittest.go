// Package audittest builds real audit logs in temporary folders for tests, and
// has the independent verifier look at each when the test ends.
//
// It is for tests only: keys are thrown away with the folder.
package audittest

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"subjectbroker/audit"
	"subjectbroker/audit/verify"
)

// VaultID is the vault that logs made here belong to.
const VaultID = "00112233445566778899aabbccddeeff"

// Config returns a configuration for a new log in a temporary folder.
func Config(t testing.TB) audit.Config {
	t.Helper()
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	seal := make([]byte, 32)
	_, _ = rand.Read(seal)
	return audit.Config{
		Dir: filepath.Join(home, "audit"), KeyFile: filepath.Join(home, "audit.key"),
		SealKey: seal, VaultID: VaultID, Fresh: true,
		WaitLimit: time.Minute, // a machine where much is tested at once has slow disks
	}
}

// New begins a log. When the test ends it is closed and must verify.
func New(t testing.TB) *audit.Log {
	t.Helper()
	return Open(t, Config(t))
}

// Open opens a log. When the test ends it is closed and must verify.
func Open(t testing.TB, config audit.Config) *audit.Log {
	t.Helper()
	l, _, err := audit.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	genesis := l.Head().Genesis
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("closing the audit log: %v", err)
		}
		Verify(t, config.Dir, genesis)
	})
	return l
}

// Verify fails the test unless the log in dir is intact.
func Verify(t testing.TB, dir, genesis string) verify.Report {
	t.Helper()
	report, err := verify.Dir(context.Background(), dir, verify.Options{Genesis: genesis, AllSignatures: true})
	if err != nil {
		t.Errorf("verifying the audit log: %v", err)
	} else if report.Fault != nil {
		t.Errorf("verifying the audit log: %v", report.Fault)
	}
	return report
}
