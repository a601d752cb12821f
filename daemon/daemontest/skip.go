package daemontest

import (
	"os"
	"testing"
)

// LeaveOut skips a test that cannot run here, in the words that testreport
// names at the end and, with TEST_ALL=1, fails for.
func LeaveOut(t testing.TB, name, why string) {
	t.Helper()
	t.Skipf("suite left out: %s: %s", name, why)
}

// NeedRoot leaves a test out unless it runs as root.
func NeedRoot(t testing.TB, name string) {
	t.Helper()
	if os.Geteuid() != 0 {
		LeaveOut(t, name, "it needs root")
	}
}
