package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

// P3, P43: after a use of a limited grant the vault soon knows of it, so that a
// log that is cut back to a good end while sbd is dead gives no use back.
func TestUsesOutliveALogThatIsCutBack(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true})
	d.Put("plan", "text")
	d.AddSubject("worker")
	d.Grant("worker", "read:plan", daemontest.Uses(3))
	run := d.Open("worker")
	before := d.RawLog()
	file := filepath.Join(d.Home, "vault.db")
	used, err := os.Stat(file)
	must(t, err)
	for range 3 {
		if content, reason := run.Read("plan"); content != "text" {
			t.Fatalf("it reads %q: %s", content, reason)
		}
	}
	eventually(t, "a checkpoint", func() bool {
		now, err := os.Stat(file)
		return err == nil && now.ModTime().After(used.ModTime())
	})
	d.Kill()
	segment := filepath.Join(d.Home, "audit", "00000001.jsonl")
	must(t, os.Truncate(segment, int64(len(before))))
	code, _, said := daemontest.Exit(t, daemontest.Command(t, d.Home, "--home", d.Home, "--key-source", "file"))
	if code != wire.ExitIntegrity || !strings.Contains(said, "ROLLBACK_DETECTED") {
		t.Errorf("a log without the uses: exit %d: %s", code, said)
	}
}
