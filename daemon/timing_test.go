package daemon_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
)

// deniedKinds are what is denied for a cause of its own each, once deniedInEveryWay has
// seen to it.
var deniedKinds = []string{"unknownx", "forbidden", "denied", "expired", "exhausted"}

// deniedInEveryWay opens a run that may read "open" and no other of deniedKinds.
func deniedInEveryWay(t *testing.T, d *daemontest.Daemon, clock *clock) *daemontest.Run {
	t.Helper()
	for _, name := range []string{"forbidden", "denied", "expired", "exhausted", "open"} {
		d.Put(name, "content of "+name)
	}
	d.AddSubject("worker")
	d.Grant("worker", "read:open")
	d.Grant("worker", "read:denied", daemontest.Denying)
	d.Grant("worker", "read:expired", daemontest.For(time.Minute))
	d.Grant("worker", "read:exhausted", daemontest.Uses(1))
	run := d.Open("worker")
	equal(t, "the one use", run.Refused("exhausted"), wire.Allowed)
	clock.step(time.Hour)
	return run
}

// P41: a denial tells nothing about why, neither by its bytes nor by the time
// that it takes. Unknown, forbidden, explicitly denied, expired, exhausted and
// without content are asked for in random order, thousands of times; the ranks
// of their times must not differ by more than chance allows. The control is the
// same test with one of them asked for twice.
func TestDenialsTakeTheSameTime(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	run := deniedInEveryWay(t, d, clock)

	const each = 600
	took := make([][]float64, len(deniedKinds))
	var doubled []float64 // the control
	var body []byte
	ask := func(name string) time.Duration {
		clock.step(2 * time.Second) // the budget for denials is never used up
		begun := time.Now()
		_, err := run.Acquire(t.Context(), acquire(run, name))
		span := time.Since(begun)
		raw, marshalErr := proto.Marshal(status.Convert(err).Proto())
		must(t, marshalErr)
		if body == nil {
			body = raw
			equal(t, "the reason", daemontest.Reason(err), wire.AccessDenied)
		}
		if string(raw) != string(body) {
			t.Fatalf("%s is answered %q, not %q", name, raw, body)
		}
		return span
	}
	for range each {
		for _, i := range rand.Perm(len(deniedKinds) + 1) {
			if i < len(deniedKinds) {
				took[i] = append(took[i], float64(ask(deniedKinds[i])))
				continue
			}
			doubled = append(doubled, float64(ask(deniedKinds[0])+ask(deniedKinds[0])))
		}
	}
	for i, kind := range deniedKinds {
		t.Logf("%-10s median %v", kind, time.Duration(median(took[i])))
		for j := range i {
			// With 10 pairs and 600 samples each, 5 standard deviations are no chance.
			if z := rankSum(took[i], took[j]); math.Abs(z) > 5 {
				t.Errorf("%s and %s take different times: z = %.1f", kind, deniedKinds[j], z)
			}
		}
	}
	if z := rankSum(doubled, took[0]); z < 5 {
		t.Errorf("asking twice passes for asking once: z = %.1f", z)
	}
}

// The same for what it is answered when the log cannot be written, and to those
// who explain.
func TestDenialsLookTheSame(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now, Spoiled: true})
	run := deniedInEveryWay(t, d, clock)
	answers := func(also ...string) map[string]bool {
		seen := map[string]bool{}
		for _, name := range append(deniedKinds, also...) {
			clock.step(time.Minute)
			_, err := run.Acquire(t.Context(), acquire(run, name))
			seen[fmt.Sprint(status.Convert(err).Proto())] = true
			decision, reason := run.Explained(name)
			if decision == "" {
				decision = string(reason)
			}
			seen["explain "+decision+string(reason)] = true
		}
		return seen
	}
	equal(t, "kinds of answers", len(answers()), 2)
	log := filepath.Join(place.AuditDir(d.Home), "00000001.jsonl")
	must(t, os.Rename(log, log+".gone"))
	// Now even what is allowed is answered as the others are.
	seen := answers("open")
	equal(t, "kinds of answers while the log fails", len(seen), 2)
	if !seen["explain "+string(wire.AuditFailed)+string(wire.AuditFailed)] {
		t.Errorf("the log does not fail: %v", seen)
	}
}

func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[len(sorted)/2]
}

// rankSum is the statistic of Wilcoxon, Mann and Whitney in standard deviations:
// positive when a tends to be larger than b.
func rankSum(a, b []float64) float64 {
	type sample struct {
		value float64
		ofA   bool
	}
	var all []sample
	for _, v := range a {
		all = append(all, sample{v, true})
	}
	for _, v := range b {
		all = append(all, sample{v, false})
	}
	slices.SortFunc(all, func(x, y sample) int {
		switch {
		case x.value < y.value:
			return -1
		case x.value > y.value:
			return 1
		}
		return 0
	})
	var sum, ties float64
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].value == all[i].value {
			j++
		}
		rank := float64(i+j+1) / 2 // ranks count from 1; equal values share theirs
		for _, s := range all[i:j] {
			if s.ofA {
				sum += rank
			}
		}
		n := float64(j - i)
		ties += n*n*n - n
		i = j
	}
	n, m := float64(len(a)), float64(len(b))
	total := n + m
	mean := n * (total + 1) / 2
	variance := n * m / 12 * (total + 1 - ties/(total*(total-1)))
	return (sum - mean) / math.Sqrt(variance)
}

// Distributions that are the same pass, and such that differ a little do not.
func TestRankSum(t *testing.T) {
	same := func(shift float64) (a, b []float64) {
		for range 600 {
			a = append(a, math.Exp(rand.NormFloat64())+shift)
			b = append(b, math.Exp(rand.NormFloat64()))
		}
		return a, b
	}
	if z := rankSum(same(0)); math.Abs(z) > 5 {
		t.Errorf("samples of one distribution: z = %.1f", z)
	}
	if z := rankSum(same(0.5)); z < 5 {
		t.Errorf("a shift by half a median: z = %.1f", z)
	}
}
