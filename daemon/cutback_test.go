package daemon_test

import (
	"encoding/binary"
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
	var last uint64 // before the last use, and after another one
	for range 3 {
		last = newestTx(t, file)
		if content, reason := run.Read("plan"); content != "text" {
			t.Fatalf("it reads %q: %s", content, reason)
		}
	}
	eventually(t, "a checkpoint", func() bool { return newestTx(t, file) > last })
	d.Kill()
	segment := filepath.Join(d.Home, "audit", "00000001.jsonl")
	must(t, os.Truncate(segment, int64(len(before))))
	code, _, said := daemontest.Exit(t, daemontest.Command(t, d.Home, "--home", d.Home, "--key-source", "file"))
	if code != wire.ExitIntegrity || !strings.Contains(said, "ROLLBACK_DETECTED") {
		t.Errorf("a log without the uses: exit %d: %s", code, said)
	}
}

// newestTx is the number of the newest transaction in a bbolt file, which stands
// in one of its two meta pages once the rest of the transaction is written.
func newestTx(t *testing.T, path string) uint64 {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	tx := func(page int64) uint64 {
		var number [8]byte
		_, err := f.ReadAt(number[:], page*int64(os.Getpagesize())+64)
		must(t, err)
		return binary.NativeEndian.Uint64(number[:])
	}
	return max(tx(0), tx(1))
}
