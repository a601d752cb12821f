//go:build linux

package faults

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
)

// TestMain prints what was tried in all. It also is what this program does when
// it starts itself again.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == stepRole {
		os.Exit(stepMain(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 3 && os.Args[1] == serverRole {
		os.Exit(serverMain(os.Args[2]))
	}
	code := daemontest.Main(m)
	programs.remove()
	if total.scenarios > 0 {
		fmt.Printf("figure: the fault suite in all: %s\n", words(total.counts))
	}
	os.Exit(code)
}

// A noun is something that is counted.
type noun string

// What is counted, in the order in which it is told.
const (
	kills         noun = "kills"
	cuts          noun = "power cuts"
	faults        noun = "injected faults"
	starvedStarts noun = "starved starts"
	changed       noun = "replaced files"
	flips         noun = "flipped bytes"
	pages         noun = "spoiled pages"
	forged        noun = "forged histories"
	starts        noun = "rival starts"
	calls         noun = "calls"
	answers       noun = "answers kept"
	losses        noun = "losses"
)

var nouns = []noun{kills, cuts, faults, starvedStarts, changed, flips, pages, forged, starts, calls, answers, losses}

// words tells counts; losses also when there are none.
func words(counts map[noun]int) string {
	var said []string
	for _, n := range nouns {
		if counts[n] > 0 || n == losses {
			said = append(said, fmt.Sprintf("%d %s", counts[n], n))
		}
	}
	return strings.Join(said, ", ")
}

// total sums up all scenarios of the process.
var total = struct {
	sync.Mutex
	scenarios int
	counts    map[noun]int
}{counts: map[noun]int{}}

// score counts what one scenario tried. It is safe for concurrent use.
type score struct {
	t      *testing.T
	mu     sync.Mutex
	counts map[noun]int
}

// keepScore begins a scenario. When the test ends, one line tells what was tried.
func keepScore(t *testing.T, what string) *score {
	t.Helper()
	s := &score{t: t, counts: map[noun]int{}}
	start := time.Now()
	t.Cleanup(func() {
		if t.Skipped() {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		t.Logf("figure: %s: %s (%.0f s)", what, words(s.counts), time.Since(start).Seconds())
		total.Lock()
		defer total.Unlock()
		total.scenarios++
		for n, count := range maps.All(s.counts) {
			total.counts[n] += count
		}
	})
	return s
}

func (s *score) add(n noun, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[n] += count
}

// lost tells of something that should be there, or should not.
func (s *score) lost(t *testing.T, format string, args ...any) {
	t.Helper()
	s.add(losses, 1)
	t.Errorf("lost: "+format, args...)
}

// need leaves the test out unless it runs as root and the programs are there.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		daemontest.LeaveOut(t, "faults", "needs root")
	}
	needPrograms(t, programs...)
}

// rounds ranges over n rounds, or, for a soak, over rounds until this loop's
// share of the time has passed.
func rounds(t *testing.T, n int) func(yield func(int) bool) {
	t.Helper()
	soak, err := time.ParseDuration(os.Getenv("SOAK"))
	if soaks := os.Getenv("SOAK") != ""; soaks && err != nil {
		t.Fatalf("SOAK: %v", err)
	}
	return func(yield func(int) bool) {
		until := time.Now().Add(soak / soakingLoops * 2) // two run at a time
		for round := 0; round < n || time.Now().Before(until); round++ {
			if !yield(round) || t.Failed() {
				return
			}
		}
	}
}

// soakingLoops is how many loops over rounds there are.
const soakingLoops = 7
