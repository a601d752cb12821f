//go:build linux

package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// crowd is several clients at once. Each reads the note over and over on a run
// of its own, charged to a grant with limited uses, and one stores an ever
// higher number. They write down what they were answered, and nothing else
// counts.
type crowd struct {
	w       *world
	grant   string
	stopped chan struct{}
	done    sync.WaitGroup
	turns   []atomic.Int64 // requests that each reader has ended

	mu       sync.Mutex
	receipts []receipt // of all rounds
	refused  map[string]int
	number   int // newest that was answered
	asked    int // newest that was asked for
}

// receipt is an answer with content.
type receipt struct {
	seq uint64
	run string
}

// unpowered forgets what was answered since the power began to go: a sync that
// is under way then may come back without an error although nothing was synced,
// which is how ext4 is shut down, and not how power goes.
func (c *crowd) unpowered(reads, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receipts, c.number = c.receipts[:reads], number
}

// sofar is what was answered up to now.
func (c *crowd) sofar() (reads, number int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.receipts), c.number
}

const manyUses = 1 << 40

// gather prepares the world for a crowd.
func gather(w *world) *crowd {
	w.t.Helper()
	w.Put("note", hello)
	w.Put("number", "0")
	w.AddSubject("crowd")
	return &crowd{w: w, grant: w.Grant("crowd", "read:note", daemontest.Uses(manyUses)), refused: map[string]int{}}
}

// begin lets readers and one writer work until they are stopped or the daemon
// no longer answers. It returns when each has had an answer.
func (c *crowd) begin(readers int) {
	c.w.t.Helper()
	c.stopped = make(chan struct{})
	started := make(chan struct{}, readers+1)
	c.turns = make([]atomic.Int64, readers)
	for i := range readers {
		run := c.w.Open("crowd")
		c.done.Go(func() {
			var once sync.Once
			for !c.over() {
				got, err := run.Acquire(c.w.t.Context(), &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: "note"})
				c.noteRead(run.ID, got, err)
				c.turns[i].Add(1)
				once.Do(func() { started <- struct{}{} })
				if err != nil && !c.goesOn(err) {
					return
				}
			}
		})
	}
	operator := c.w.Operator()
	c.done.Go(func() {
		var once sync.Once
		for !c.over() {
			c.mu.Lock()
			c.asked++
			n := c.asked
			c.mu.Unlock()
			_, err := operator.PutSecret(c.w.t.Context(), &operatorv1.PutSecretRequest{Name: "number", Kind: "text", Content: fmt.Append(nil, n)})
			if err == nil {
				c.mu.Lock()
				c.number = n
				c.mu.Unlock()
			}
			once.Do(func() { started <- struct{}{} })
			if err != nil && !c.goesOn(err) {
				return
			}
		}
	})
	for range readers + 1 {
		<-started
	}
}

// turn waits until each reader has the answer to a request that it began after
// the call.
func (c *crowd) turn() {
	c.w.t.Helper()
	for i := range c.turns {
		before := c.turns[i].Load()
		c.w.restored(func() error {
			if c.turns[i].Load() >= before+2 { // the first was on its way
				return nil
			}
			return errors.New("a reader waits for its answer")
		})
	}
}

// goesOn reports whether the daemon still answers, and waits a moment.
func (c *crowd) goesOn(err error) bool {
	reason := string(daemontest.Reason(err))
	c.mu.Lock()
	c.refused[reason]++
	c.mu.Unlock()
	time.Sleep(5 * time.Millisecond)
	return reason != "BROKER_UNAVAILABLE" && reason != "RUN_ENDED"
}

func (c *crowd) noteRead(run string, got *brokerv1.AcquireResponse, err error) {
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if string(got.GetContent()) != hello {
		c.w.lost(c.w.t, "content %q was released instead of %q", got.GetContent(), hello)
	}
	c.receipts = append(c.receipts, receipt{got.GetAuditSeq(), run})
}

func (c *crowd) over() bool {
	select {
	case <-c.stopped:
		return true
	default:
		return false
	}
}

// end stops the crowd.
func (c *crowd) end() {
	close(c.stopped)
	c.done.Wait()
}

// audit compares what the clients wrote down with what is there: an entry for
// each content, each use counted, the newest number that was answered or a later
// one that was asked for, an end for every intent.
func (c *crowd) audit() {
	w := c.w
	w.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	released := map[receipt]bool{}
	open := map[uint64]bool{}
	for _, e := range w.entries() {
		switch e.Kind {
		case "acquire":
			if e.Decision == "allow" && e.ResourceID == "note" {
				released[receipt{e.Seq, e.RunID}] = true
			}
		case "op.intent":
			open[e.Generation] = true
		case "op.applied", "op.not_applied":
			delete(open, e.Generation)
		}
	}
	for _, r := range c.receipts {
		if !released[r] {
			w.lost(w.t, "content was released with entry %d, which is not in the log", r.seq)
		}
	}
	if len(open) > 0 {
		w.lost(w.t, "intents without an end: %v", open)
	}
	if used := w.Grants("crowd")[c.grant].GetUsed(); used < uint64(len(c.receipts)) {
		w.lost(w.t, "%d uses were answered, %d are counted", len(c.receipts), used)
	}
	var there int
	if _, err := fmt.Sscan(w.Content("number"), &there); err != nil || there < c.number || there > c.asked {
		w.lost(w.t, "number %d is there, %d was answered and %d asked for: %v", there, c.number, c.asked, err)
	}
	c.number, c.asked = there, there
	seqs := make([]uint64, 0, len(c.receipts))
	for _, r := range c.receipts {
		seqs = append(seqs, r.seq)
	}
	slices.Sort(seqs)
	if len(slices.Compact(seqs)) != len(c.receipts) {
		w.lost(w.t, "two answers have the same entry")
	}
}

// close counts what was kept.
func (c *crowd) close() {
	reads, number := c.sofar()
	c.w.add(answers, reads+number)
}

// entries are the entries of the log on the disk, without the ends of segments
// that were abandoned and do not count.
func (w *world) entries() []verify.Entry {
	w.t.Helper()
	names, err := filepath.Glob(filepath.Join(place.AuditDir(w.Home), "*.jsonl"))
	must(w.t, err)
	slices.Sort(names)
	var all, segment []verify.Entry
	var ends []int64 // of the lines of segment
	for _, name := range names {
		raw, err := os.ReadFile(name)
		must(w.t, err)
		before, beforeEnds, offset := segment, ends, int64(0)
		segment, ends = nil, nil
		for line := range bytes.Lines(raw) {
			offset += int64(len(line))
			e, err := verify.ParseLine(line)
			if err != nil {
				break // the end of an abandoned segment, or what is being written
			}
			segment, ends = append(segment, e), append(ends, offset)
		}
		if len(segment) > 0 && segment[0].VoidSegment != 0 {
			for len(beforeEnds) > 0 && beforeEnds[len(beforeEnds)-1] > segment[0].VoidOffset {
				before, beforeEnds = before[:len(before)-1], beforeEnds[:len(beforeEnds)-1]
			}
		}
		all = append(all, before...)
	}
	return append(all, segment...)
}
