package audit

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// BenchmarkFdatasync is the limit that BenchmarkAppendDurable is held against:
// appending as many bytes and making them durable, and nothing else.
func BenchmarkFdatasync(b *testing.B) {
	f, err := osFolder(b.TempDir()).Create("limit")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	line := make([]byte, 480)
	offset := int64(0)
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		began := time.Now()
		if _, err := f.WriteAt(line, offset); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		offset += int64(len(line))
	}
	reportMedian(b, took)
}

// BenchmarkAppendDurable is one client that waits for each entry.
func BenchmarkAppendDurable(b *testing.B) {
	l := start(b, testConfig(b), nil)
	defer stop(b, l)
	took := make([]time.Duration, 0, 1<<16)
	for b.Loop() {
		began := time.Now()
		record(b, l, acquired())
		took = append(took, time.Since(began))
	}
	reportMedian(b, took)
}

// BenchmarkAppendShared is 64 clients that share the syncs.
func BenchmarkAppendShared(b *testing.B) {
	config := testConfig(b)
	l := start(b, config, nil)
	defer stop(b, l)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			record(b, l, acquired())
		}
	})
	info, err := os.Stat(filepath.Join(config.Dir, segmentName(1)))
	if err == nil {
		b.ReportMetric(float64(info.Size())/float64(b.N), "log-B/op")
	}
}

// BenchmarkSeal is what an entry costs without the disk.
func BenchmarkSeal(b *testing.B) {
	l := start(b, testConfig(b), nil)
	defer stop(b, l)
	key := l.w.key
	e := acquired()
	e.V, e.Seq, e.Timestamp, e.Vault, e.Segment = 1, 7, time.Now(), testVault, 1
	b.ReportAllocs()
	for b.Loop() {
		if err := e.check(); err != nil {
			b.Fatal(err)
		}
		batch := newBatch(0)
		batch.add(&e)
		batch.seal(Hash{}, testVault, key)
	}
}

// BenchmarkOpen surveys a segment of 100 000 entries.
func BenchmarkOpen(b *testing.B) {
	config := testConfig(b)
	l := start(b, config, nil)
	const n = 100_000
	var last Ticket
	for range n {
		ticket, err := l.Append(func(uint64, time.Time) (Entry, error) { return acquired(), nil })
		if err != nil {
			b.Fatal(err)
		}
		last = ticket
	}
	if err := last.Wait(b.Context()); err != nil {
		b.Fatal(err)
	}
	stop(b, l)
	config.Fresh = false
	for b.Loop() {
		l, _, err := Open(config)
		if err != nil {
			b.Fatal(err)
		}
		stop(b, l)
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "entries/s")
}

func reportMedian(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
