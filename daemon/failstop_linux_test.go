package daemon_test

import (
	"os/exec"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P23: after a failed fsync of the vault nothing is released until it was
// reopened and verified, and the daemon does that by itself.
func TestFailedCommit(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		daemontest.LeaveOut(t, "failing fsync", "strace is not installed")
	}
	daemontest.NeedRoot(t, "failing fsync") // to trace a process that cannot be dumped
	home := daemontest.NewHome(t)
	d := daemontest.Launch(t, daemontest.Options{Home: home})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	d.Stop()

	// The file of the vault fails for a while, from its first commit of the
	// mutation below on; commits of the start come before.
	failing := daemontest.Options{Home: home, Spoiled: true, Wrap: []string{
		strace, "-D", "-f", "-qq", "-o", "/dev/null", "-P", place.VaultFile(home), "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=5..8",
	}}
	f := daemontest.Launch(t, failing)
	run := f.Open("worker")
	equal(t, "before", run.Refused("readme"), wire.Allowed)
	failed := 0
	for n := 0; n < 20 && failed == 0; n++ {
		_, err := f.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "other", Kind: "text", Content: []byte("x")})
		if err != nil {
			equal(t, "a change whose commit fails", daemontest.Reason(err), wire.IntegrityFailed)
			failed++
		}
	}
	if failed == 0 {
		t.Fatal("no commit failed")
	}
	if reason := run.Refused("readme"); reason == wire.Allowed {
		// It may be reopened already; then it says so.
		if state := f.Status().GetVaultState(); state != "unlocked" {
			t.Errorf("released while the vault is %s", state)
		}
	}
	recovers(t, f, func() error {
		_, err := f.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "other", Kind: "text", Content: []byte("x")})
		return err
	})
	equal(t, "afterwards", f.Open("worker").Refused("readme"), wire.Allowed)
	equal(t, "state", f.Status().GetVaultState(), "unlocked")
	ends(t, f)
	equal(t, "exit code", f.Stop(), 0)
	f.Verify()
}
