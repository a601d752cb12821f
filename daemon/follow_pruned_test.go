package daemon_test

import (
	"testing"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Who follows a log of which a part was pruned is told each entry once.
func TestFollowAPrunedLog(t *testing.T) {
	t.Parallel()
	d := daemontest.StartWith(t, daemontest.Options{Config: "auditSegmentSize: 65536\n"})
	for len(segments(t, d.Home)) < 3 {
		d.Put("plan", "content")
	}
	_, err := d.Operator().PruneAudit(t.Context(), &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{firstSegment(t, d)}})
	must(t, err)
	stream, err := d.Operator().ReadAudit(t.Context(), &operatorv1.ReadAuditRequest{Follow: true})
	must(t, err)
	d.Put("plan", "newest")
	end := d.Seq()
	for last := uint64(0); last < end; {
		batch, err := stream.Recv()
		must(t, err)
		for _, line := range batch.GetLines() {
			e, err := verify.ParseLine(line)
			must(t, err)
			if e.Seq <= last {
				t.Fatalf("entry %d after entry %d", e.Seq, last)
			}
			last = e.Seq
		}
	}
}
