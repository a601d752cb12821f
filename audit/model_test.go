package audit

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// model is what a careful client knows: which entries it was told are durable.
type model struct {
	t        *testing.T
	config   Config
	disk     *disk
	log      *Log
	answered []Position
	genesis  string
}

// Whatever is done to a log, entries that were acknowledged are in it, in
// order, and the verifier agrees.
func TestLogAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var failed any // rapid's panic must not cross the bubble
		synctest.Test(t, func(t *testing.T) {
			m := &model{t: t, config: testConfig(t), disk: &disk{}}
			m.config.SegmentSize = rapid.Int64Range(1000, 6000).Draw(rt, "segment size")
			m.log = start(t, m.config, m.disk)
			m.genesis = m.log.Head().Genesis
			defer func() {
				if failed = recover(); failed != nil {
					m.disk.fail(nil)
					_ = m.log.Close()
				}
			}()
			for range rapid.IntRange(1, 15).Draw(rt, "steps") {
				m.step(rt)
			}
			m.disk.fail(nil)
			wait()
			m.reopen(rt)
			m.record(rt)
			head := m.log.Head()
			stop(t, m.log)
			intact(t, m.config, head)
		})
		if failed != nil {
			panic(failed)
		}
		if t.Failed() {
			rt.FailNow()
		}
	})
}

func (m *model) step(rt *rapid.T) {
	switch rapid.SampledFrom([]string{"record", "record", "burst", "rotate", "fault", "heal", "reopen", "tear"}).Draw(rt, "step") {
	case "record":
		m.record(rt)
	case "burst":
		m.burst(rapid.IntRange(2, 12).Draw(rt, "entries"))
	case "rotate":
		_ = m.log.Rotate()
	case "fault":
		errno := rapid.SampledFrom([]error{unix.ENOSPC, unix.EIO}).Draw(rt, "errno")
		op := rapid.SampledFrom([]string{"write", "sync", "reserve", "create", "publish", "truncate"}).Draw(rt, "operation")
		m.disk.mu.Lock()
		m.disk.short = rapid.IntRange(0, 2000).Draw(rt, "short")
		m.disk.mu.Unlock()
		if rapid.Bool().Draw(rt, "once") {
			m.disk.fail(once(errno, op))
		} else {
			m.disk.fail(on(errno, op))
		}
	case "heal":
		m.disk.fail(nil)
		wait()
	case "reopen":
		m.reopen(rt)
	case "tear":
		m.tear(rt)
	}
}

func (m *model) record(rt *rapid.T) {
	at, err := m.log.Record(m.t.Context(), acquired())
	switch {
	case err == nil:
		m.answered = append(m.answered, at)
	case !errors.Is(err, ErrFailed):
		rt.Fatalf("recorded with %v", err)
	}
}

func (m *model) burst(n int) {
	var group sync.WaitGroup
	var mu sync.Mutex
	for range n {
		group.Go(func() {
			if at, err := m.log.Record(m.t.Context(), acquired()); err == nil {
				mu.Lock()
				m.answered = append(m.answered, at)
				mu.Unlock()
			}
		})
	}
	group.Wait()
}

// reopen closes and opens the log, as the vault would: it remembers one of the
// answered positions.
func (m *model) reopen(rt *rapid.T) {
	stop(m.t, m.log)
	m.open(rt)
}

func (m *model) open(rt *rapid.T) {
	m.disk.fail(nil)
	m.config.Fresh, m.config.Known = false, Position{}
	if len(m.answered) > 0 {
		m.config.Known = rapid.SampledFrom(m.answered).Draw(rt, "known")
	}
	m.disk.osFolder = osFolder(m.config.Dir)
	l, _, err := open(m.config, m.disk)
	if err != nil {
		rt.Fatal(err)
	}
	m.log = l
	if head := m.log.Head(); head.Genesis != m.genesis {
		rt.Fatalf("another genesis")
	}
	found := map[uint64]Hash{}
	last := uint64(0)
	err = m.log.Replay(Position{}, func(e Entry, p Position) error {
		if p.Seq != last+1 {
			rt.Fatalf("entry %d after %d", p.Seq, last)
		}
		last = p.Seq
		found[p.Seq] = p.Hash
		return nil
	})
	if err != nil {
		rt.Fatal(err)
	}
	for _, at := range m.answered {
		if found[at.Seq] != Hash(at.Hash) {
			rt.Fatalf("entry %d was answered and is not there", at.Seq)
		}
	}
}

// tear leaves behind the log what a crash in the middle of a commit could.
func (m *model) tear(rt *rapid.T) {
	stop(m.t, m.log)
	number := m.log.w.number // the committer has ended
	content, err := os.ReadFile(segmentPath(m.config, number))
	if err != nil {
		rt.Fatal(err)
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	line := rapid.SampledFrom(lines).Draw(rt, "line")
	torn := rapid.OneOf(
		rapid.Just(line[:rapid.IntRange(0, len(line)).Draw(rt, "cut")]),
		rapid.SliceOfN(rapid.Byte(), 0, 2000),
	).Draw(rt, "torn")
	if err := appendTo(segmentPath(m.config, number), string(torn)); err != nil {
		rt.Fatal(err)
	}
	m.open(rt)
}
