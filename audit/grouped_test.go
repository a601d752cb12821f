package audit

import (
	"testing"
	"testing/synctest"
	"time"
)

// What nothing waits for is written together, in its order, and in time; whoever
// waits is not kept waiting for company.
func TestGrouped(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, l *Log, grouped func() Ticket)
		// How many commits there are, and after how long all of it is durable.
		syncs int
		after time.Duration
	}{
		{"alone", func(_ *testing.T, _ *Log, grouped func() Ticket) { grouped() }, 1, GroupDelay},
		{"in company", func(_ *testing.T, _ *Log, grouped func() Ticket) {
			for range 10 {
				grouped()
				time.Sleep(GroupDelay / 20)
				synctest.Wait()
			}
		}, 1, GroupDelay},
		{"behind others", func(_ *testing.T, _ *Log, grouped func() Ticket) {
			grouped()
			time.Sleep(GroupDelay)
			synctest.Wait()
			grouped()
		}, 2, 2 * GroupDelay},
		{"somebody waits", func(t *testing.T, _ *Log, grouped func() Ticket) {
			grouped()
			if err := grouped().Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}, 1, 0},
		{"an entry in a hurry comes behind", func(t *testing.T, l *Log, grouped func() Ticket) {
			grouped()
			record(t, l, acquired())
		}, 1, 0},
		{"much", func(_ *testing.T, l *Log, grouped func() Ticket) {
			for l.pendingBytes() < maxGrouped {
				grouped()
			}
			synctest.Wait()
		}, 1, 0},
		{"the end", func(t *testing.T, l *Log, grouped func() Ticket) {
			grouped()
			stop(t, l)
		}, 1, 0},
		{"together", func(t *testing.T, l *Log, _ func() Ticket) {
			before := l.Head().Seq
			for _, bad := range []Entry{{Kind: "no such kind"}, {}} { // then none of them
				if _, err := l.AppendOperators(2, func(i int, _ uint64, _ time.Time) (Entry, error) {
					return []Entry{acquired(), bad}[i], nil
				}); err == nil {
					t.Error("an entry that cannot be was appended")
				}
			}
			ticket, err := l.AppendOperators(10, func(i int, seq uint64, _ time.Time) (Entry, error) {
				if seq != before+1+uint64(i) {
					t.Errorf("entry %d is said to become %d", before+1+uint64(i), seq)
				}
				return acquired(), nil
			})
			if err != nil || ticket.Seq() != before+10 {
				t.Fatalf("%d, %v", ticket.Seq(), err)
			}
			if err := ticket.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		}, 1, 0},
		{"control: not grouped", func(_ *testing.T, l *Log, _ func() Ticket) {
			for range 10 {
				_, _ = l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
				synctest.Wait()
			}
		}, 10, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{}
				config := testConfig(t)
				l := start(t, config, d)
				syncs := 0
				d.fail(func(op string) error {
					if op == "sync" {
						syncs++
					}
					return nil
				})
				began := time.Now()
				var last uint64
				tc.do(t, l, func() Ticket {
					ticket, err := l.AppendGrouped(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
					if err != nil {
						t.Fatal(err)
					}
					last = ticket.Seq()
					return ticket
				})
				for l.Head().Seq < last {
					_, changed := l.Durable()
					<-changed
				}
				if took := time.Since(began); syncs != tc.syncs || took != tc.after {
					t.Errorf("%d commits, durable after %v; want %d and %v", syncs, took, tc.syncs, tc.after)
				}
				stop(t, l)
				intact(t, config, l.Head())
			})
		})
	}
}

func (l *Log) pendingBytes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending.buf)
}
