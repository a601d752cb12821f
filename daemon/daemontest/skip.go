package daemontest

import (
	"os"
	"testing"
)

// LeaveOut skips a test that cannot run here and says so; with TEST_ALL=1
// nothing may be left out, and it fails.
func LeaveOut(t testing.TB, name, why string) {
	t.Helper()
	if os.Getenv("TEST_ALL") == "1" {
		t.Fatalf("suite left out: %s: %s", name, why)
	}
	t.Skipf("suite left out: %s: %s", name, why)
}

// NeedRoot leaves a test out unless it runs as root.
func NeedRoot(t testing.TB, name string) {
	t.Helper()
	if os.Geteuid() != 0 {
		LeaveOut(t, name, "it needs root")
	}
}
