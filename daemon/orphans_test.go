package daemon_test

import (
	"fmt"
	"sync"
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

// A run that was open when the daemon died has an end in the log before anybody
// can open another one, once, however far back it was opened; what ended by
// itself has no second end.
func TestRunsOfADeadDaemon(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	ended := d.Open("worker")
	ended.Close()
	old := d.Open("worker")
	d.Lock() // which ends it
	equal(t, "runs of a locked vault", len(d.Status().GetRuns()), 0)
	d.Unlock()
	open := map[string]bool{}
	first := d.Open("worker")
	open[first.ID] = true
	var readers sync.WaitGroup
	for range 14 { // further back than a start reads first
		readers.Go(func() {
			for range 300 {
				if reason := first.Refused("readme"); reason != wire.Allowed {
					t.Error(reason)
					return
				}
			}
		})
	}
	readers.Wait()
	for range 2 {
		open[d.Open("worker").ID] = true
	}
	seq := d.Seq()
	d.Kill()
	d.Start()
	var died []verify.Entry
	for _, e := range d.Since(seq, "run.end", "vault.open") {
		if e.Kind == "vault.open" {
			break
		}
		died = append(died, e)
	}
	equal(t, "runs that were ended before the vault was open", len(died), len(open))
	for _, e := range died {
		equal(t, "the end of "+e.RunID, fmt.Sprint(open[e.RunID], e.Cause, e.SubjectID, e.Tier), "trueDAEMON_DIEDworkercooperative")
	}

	seq = d.Seq()
	d.Kill() // with nothing open
	d.Start()
	equal(t, "ends after a start with nothing open", len(d.Since(seq, "run.end")), 0)
	last := d.Open("worker")
	d.Restart() // cleanly, which ends it
	ends := map[string]int{}
	for _, e := range d.Entries("run.end") {
		ends[e.RunID]++
	}
	for _, id := range []string{ended.ID, old.ID, first.ID, last.ID} {
		equal(t, "ends of "+id, ends[id], 1)
	}
}
