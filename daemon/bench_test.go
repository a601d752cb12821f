package daemon_test

import (
	"strings"
	"sync"
	"testing"

	"subjectbroker/daemon/daemontest"
)

// BenchmarkAcquire64 is 64 clients that read at once, client side included;
// with -cpuprofile it shows what an acquire consists of.
func BenchmarkAcquire64(b *testing.B) {
	d := daemontest.Start(b)
	d.Put("plan", strings.Repeat("x", 1024))
	d.AddSubject("worker")
	d.Grant("worker", "read:plan")
	runs := make([]*daemontest.Run, 64)
	for i := range runs {
		runs[i] = d.Open("worker")
	}
	b.ResetTimer()
	var clients sync.WaitGroup
	for i, run := range runs {
		clients.Go(func() {
			for n := i; n < b.N; n += len(runs) {
				if _, err := run.Acquire(b.Context(), acquire(run, "plan")); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	clients.Wait()
}
