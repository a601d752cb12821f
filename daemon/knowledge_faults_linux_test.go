package daemon_test

import (
	"sync"
	"testing"

	"subjectbroker/audit"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P22: a disk that does not answer withholds what each tool of the memory has found,
// names it when it answers again, and nothing was captured.
func TestMemoryOnAStalledDisk(t *testing.T) {
	t.Parallel()
	home := daemontest.NewHome(t)
	stall, thaw := stallable(t, place.AuditDir(home))
	d := daemontest.StartWith(t, daemontest.Options{Home: home, Spoiled: true, AuditWait: audit.DefaultWaitLimit})
	run := librarian(t, d, "acme")
	mine := capture(t, run, "acme", "a marker", "", "")
	before := exported(t, d, &operatorv1.ExportKnowledgeRequest{})
	stall()
	var asks sync.WaitGroup
	for _, tool := range sixTools {
		asks.Go(func() {
			got, err := tool.ask(t.Context(), run, "acme", mine)
			if daemontest.Reason(err) != wire.AuditFailed {
				t.Errorf("%s: %v, %v", tool.name, got, err)
			}
		})
	}
	asks.Wait()
	thaw()
	recovers(t, d, func() error {
		return second(run.KnowledgeStats(t.Context(), &brokerv1.KnowledgeStatsRequest{RunId: run.ID}))
	})
	equal(t, "the memory", exported(t, d, &operatorv1.ExportKnowledgeRequest{}), before)
	withheld := map[uint64]bool{}
	for _, e := range d.Entries("release.withheld") {
		withheld[e.VoidSeq] = true
	}
	named := 0
	for _, kind := range []string{"memory.search", "memory.browse", "memory.stats", "memory.read", "memory.history"} {
		for _, e := range d.Entries(kind) {
			if withheld[e.Seq] {
				named++
			}
		}
	}
	if named == 0 {
		t.Errorf("no entry names what was withheld: %v", withheld)
	}
}
