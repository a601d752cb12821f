package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Many append while the log is rotated, read and verified; every seq is given
// once, and what was answered is there.
func TestConcurrent(t *testing.T) {
	config := testConfig(t)
	config.SegmentSize = 20_000
	l := start(t, config, nil)
	const clients, each = 24, 25
	var (
		group, readers sync.WaitGroup
		mu             sync.Mutex
		answered       = map[uint64]Position{}
	)
	ctx, cancel := context.WithCancel(t.Context())
	readers.Go(func() {
		for ctx.Err() == nil {
			intact(t, config, l.Head())
			time.Sleep(10 * time.Millisecond)
		}
	})
	readers.Go(func() { // a tail -f
		next := uint64(1)
		for ctx.Err() == nil {
			_, changed := l.Durable()
			if err := l.Read(next, func(_ uint64, line []byte) error {
				e, err := decodeLine(line)
				if err != nil || e.Seq != next {
					return fmt.Errorf("entry %d, want %d: %w", e.Seq, next, err)
				}
				next++
				return nil
			}); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	readers.Go(func() {
		for ctx.Err() == nil {
			if err := l.Rotate(); err != nil && !errors.Is(err, ErrTimeout) {
				t.Error(err)
			}
			l.Health()
			time.Sleep(20 * time.Millisecond)
		}
	})
	for range clients {
		group.Go(func() {
			for range each {
				at, err := l.Record(ctx, acquired())
				if errors.Is(err, ErrTimeout) { // a slow disk is no fault of ours
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answered[at.Seq] = at
				mu.Unlock()
			}
		})
	}
	group.Wait()
	cancel()
	readers.Wait()
	found := 0
	if err := l.Replay(Position{}, func(e Entry, at Position) error {
		if want, ok := answered[at.Seq]; ok {
			found++
			if want != at {
				t.Errorf("entry %d was answered as %+v and is %+v", at.Seq, want, at)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if found != len(answered) {
		t.Errorf("%d of %d answered entries are there", found, len(answered))
	}
	head := l.Head()
	stop(t, l)
	report := intact(t, config, head)
	t.Logf("%d entries, %d signatures, %d segments", report.Entries, report.Signatures, report.Segments)
}
