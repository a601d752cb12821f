package daemon_test

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A vault from before segments that were pruned since cannot be held against
// the log: its newest entry, or those from which it counts uses, are gone.
func TestRecoverOlderThanPruned(t *testing.T) {
	t.Parallel()
	rotate := func(t *testing.T, d *spoilable) {
		d.Signal(syscall.SIGHUP)
		for head := (&operatorv1.AuditHeadResponse{}); head.GetSegment() < 2; {
			var err error
			head, err = d.Operator().AuditHead(t.Context(), &operatorv1.AuditHeadRequest{})
			must(t, err)
		}
	}
	for name, tc := range map[string]struct {
		before, after func(t *testing.T, d *spoilable) // the moment of the older vault
	}{
		"of an older generation": {
			func(_ *testing.T, d *spoilable) { d.Stop() },
			func(t *testing.T, d *spoilable) { d.Put("other", "three"); rotate(t, d) },
		},
		"of the same generation": {
			func(_ *testing.T, d *spoilable) { d.Stop() },
			func(t *testing.T, d *spoilable) { d.reads(t, "doc", "one"); rotate(t, d) },
		},
		"with older counters": {
			func(t *testing.T, d *spoilable) { rotate(t, d); d.Put("other", "three"); d.Kill() },
			func(t *testing.T, d *spoilable) { d.reads(t, "doc", "one") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newSpoilable(t, "")
			tc.before(t, d)
			old := daemontest.Copy(t, d.Home, "vault.db")
			d.Start()
			tc.after(t, d)
			pruned, err := d.Operator().PruneAudit(t.Context(), &operatorv1.PruneAuditRequest{
				Copies: []*operatorv1.SegmentCopy{firstSegment(t, d.Daemon)},
			})
			must(t, err)
			equal(t, "pruned segments", len(pruned.GetSegments()), 1)
			d.Kill()
			daemontest.Restore(t, old)
			refusesToStart(t, d.Home, wire.RollbackDetected)
			recovered(t, d.Home, "was pruned since", d.limited, d.fresh, "count as used up")
			aside, err := filepath.Glob(filepath.Join(d.Home, "audit", "aside-*", "*"))
			must(t, err)
			equal(t, fmt.Sprintf("files set aside of %v", aside), len(aside), 2)
			sound(t, d.Home)
			d.Start()
			equal(t, "cause", d.accepted(t), "LOG_SET_ASIDE")
			d.exhausted(t)
			d.Stop()
			sound(t, d.Home)
		})
	}
}
