package daemon_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// P64: requests that arrive together, and those whose client does not wait for
// the answer, have no more denials than the rest.
func TestDenialsAreRationedTogether(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	runs := []*daemontest.Run{d.Open("worker"), d.Open("worker"), d.Open("worker"), d.Open("worker")}
	var askers sync.WaitGroup
	for _, run := range runs {
		for i := range 100 {
			askers.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if i%2 == 0 {
					time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
				}
				_, _ = run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "readme"})
				_, _ = run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "not a name"})
				_, _ = run.Acquire(ctx, &brokerv1.AcquireRequest{RunId: "none", ResourceId: "readme"})
			})
		}
	}
	askers.Wait()
	entries := 0
	for _, kind := range []string{"acquire", "authz", "flag"} { // flag: cancelled before anybody looked
		entries += len(d.Entries(kind))
	}
	if entries > 20 {
		t.Errorf("%d denials were recorded, more than the budget of 20", entries)
	}
}
