package daemon_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A crash between intent and commit, and one between commit and its end in the
// log: the next start gives the intent the end that the vault shows.
func TestIntentsGetTheirEnd(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true})
	d.Put("doc", "one")
	d.AddSubject("worker")
	d.Grant("worker", "read:doc")
	d.Stop()
	before := daemontest.Copy(t, d.Home, "vault.db")
	d.Start()
	d.Put("doc", "two")
	d.Kill()
	after := daemontest.Copy(t, d.Home, "vault.db", "audit.key")

	// The log up to and with the newest intent.
	segment := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
	var log []byte
	upTo := 0
	for line := range bytes.Lines(d.RawLog()) {
		log = append(log, line...)
		if bytes.Contains(line, []byte(`"kind":"op.intent"`)) {
			upTo = len(log)
		}
	}
	for _, tc := range []struct {
		name, end, content string
		vault              map[string][]byte
	}{
		{"before the commit", "op.not_applied", "one", before},
		{"after the commit", "op.applied", "two", after},
	} {
		t.Run(tc.name, func(t *testing.T) {
			home := daemontest.NewHome(t)
			must(t, os.Mkdir(place.AuditDir(home), 0o700))
			must(t, os.WriteFile(filepath.Join(place.AuditDir(home), filepath.Base(segment)), log[:upTo], 0o600))
			for path, raw := range after {
				must(t, os.WriteFile(filepath.Join(home, filepath.Base(path)), raw, 0o600))
			}
			for path, raw := range tc.vault {
				must(t, os.WriteFile(filepath.Join(home, filepath.Base(path)), raw, 0o600))
			}
			key, err := os.ReadFile(place.KeyFile(d.Home))
			must(t, err)
			must(t, os.WriteFile(place.KeyFile(home), key, 0o600))

			again := daemontest.StartWith(t, daemontest.Options{Home: home})
			content, reason := again.Open("worker").Read("doc")
			equal(t, "content: "+string(reason), content, tc.content)
			entries := again.Entries("op.intent", "op.applied", "op.not_applied")
			equal(t, "the end of the intent", entries[len(entries)-1].Kind, tc.end)
			ends(t, again)
			again.Put("doc", "three")
			ends(t, again)
		})
	}
}

// kill -9 at any moment, while changes are made: what was answered is there,
// what was not is there or not, and every intent has its end.
func TestKilledWhileChanging(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker")
	d.Put("doc", "0")
	answered := 0
	for range 6 {
		changing := make(chan struct{})
		var started sync.Once
		begun := make(chan struct{})
		operator := d.Operator()
		go func() {
			defer close(changing)
			for n := answered + 1; ; n++ {
				_, err := operator.PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "doc", Kind: "text", Content: fmt.Append(nil, n)})
				if err != nil {
					return
				}
				answered = n
				started.Do(func() { close(begun) })
			}
		}()
		<-begun
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		d.Kill()
		<-changing
		d.Start()
		var there int
		_, err := fmt.Sscan(d.Content("doc"), &there)
		must(t, err)
		if there != answered && there != answered+1 {
			t.Errorf("content %d is there, %d was answered", there, answered)
		}
		answered = there
		ends(t, d)
	}
}

// A vault that is older than what the log has applied is a rollback, also when
// the log was rotated since.
func TestRollbackAcrossSegments(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true})
	d.Put("doc", "one")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db")
	d.Start()
	d.Put("doc", "two")
	d.Signal(syscall.SIGHUP)
	awaitFile(t, filepath.Join(place.AuditDir(d.Home), "00000002.jsonl"))
	d.Put("doc", "three")
	d.Stop()
	daemontest.Restore(t, old)
	code, _, said := daemontest.Exit(t, daemontest.Command(t, d.Home, "--home", d.Home))
	equal(t, "exit code: "+said, code, wire.ExitIntegrity)
	equal(t, "said", said[:len("sbd: ROLLBACK_DETECTED: ")], "sbd: ROLLBACK_DETECTED: ")
}

// Both are older, and fit: nobody without a head kept elsewhere can tell. The
// head can.
func TestMatchingOldPairOpens(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{Spoiled: true})
	d.Put("doc", "one")
	d.Stop()
	old := daemontest.Copy(t, d.Home, "vault.db", "audit", "audit.key")
	d.Start()
	d.Put("doc", "two")
	d.Stop()
	daemontest.Restore(t, old)
	d.Start()
	equal(t, "content", d.Content("doc"), "one")
}
