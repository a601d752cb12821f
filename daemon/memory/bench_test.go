package memory

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// tenants are the names of n tenants.
func tenants(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("tenant-%02d", i)
	}
	return names
}

// fill adds entries of about equal number to the tenants named, in pieces as the
// daemon loads them, and returns how large their texts are.
func fill(tb testing.TB, ix *Index, entries int, names []string) (text int) {
	tb.Helper()
	draw := source(len(names))
	v := words100k()
	var batch []Entry
	for n := range entries {
		e := v.entry(&draw, n, names[draw.below(len(names))])
		text += len(e.Title) + len(e.Text)
		batch = append(batch, e)
		if len(batch) == 1000 || n+1 == entries {
			ix.AddAll(batch, func(e Entry, err error) { tb.Fatalf("%s: %v", e.ID, err) })
			batch = batch[:0]
		}
	}
	ix.Settle()
	return text
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkBuild builds an index of 10⁵ entries in 50 tenants, and says what an
// entry takes.
func BenchmarkBuild(b *testing.B) {
	for range b.N {
		words100k()
		before, began := heap(), cpu(b)
		ix := newIndex(b)
		text := fill(b, ix, 100_000, tenants(50))
		b.ReportMetric((cpu(b) - began).Seconds(), "cpu-s") // that of making up the texts included
		after := heap()
		size := ix.Size()
		b.ReportMetric(float64(after-before)/100_000, "B/entry")
		b.ReportMetric(float64(size.Postings)/100_000, "postings-B/entry")
		b.ReportMetric(float64(text)/100_000, "text-B/entry")
		b.ReportMetric(float64(size.Terms)/100_000, "terms/entry")
		runtime.KeepAlive(ix)
	}
}

// queries of each sort, over the words that entries are made of.
func benchQueries(tb testing.TB) map[string][]Query {
	tb.Helper()
	v := words100k()
	queries := map[string][]Query{}
	add := func(sort, query string) {
		q, err := ParseQuery(query)
		if err != nil {
			tb.Fatal(err)
		}
		queries[sort] = append(queries[sort], q)
	}
	draw := source(7)
	for n := range 64 {
		add("common", strings.Join([]string{v.words[n%20], v.words[(n*7)%50], v.words[(n*3)%100]}, " "))
		add("rare", strings.Join([]string{v.words[5000+n*100], v.words[20000+n*300]}, " "))
		add("phrase", fmt.Sprintf("%q", v.words[n%10]+" "+v.words[n%7]))
		add("prefix", v.words[300+n*10][:3]+"*")
		add("drawn", v.text(&draw, 5))
	}
	return queries
}

// BenchmarkSearch searches with eight at once, for every sort of query: all of 50
// tenants, one of them, one of ten entries beside them.
func BenchmarkSearch(b *testing.B) {
	ix := newIndex(b)
	fill(b, ix, 100_000, tenants(50))
	addTo(b, ix, "small", 10)
	scopes := map[string][]string{"all": tenants(50), "one": {"tenant-07"}, "small": {"small"}}
	for _, sort := range []string{"common", "rare", "phrase", "prefix", "drawn"} {
		queries := benchQueries(b)[sort]
		for _, scope := range []string{"all", "one", "small"} {
			b.Run(sort+"/"+scope, func(b *testing.B) {
				eight(b, func(n int) { ix.Search(queries[n%len(queries)], Scope{Tenants: scopes[scope]}) })
			})
		}
	}
}

// BenchmarkSearchLarge searches a tenant that has all 10⁵ entries, and one of ten
// beside it.
func BenchmarkSearchLarge(b *testing.B) {
	ix := newIndex(b)
	fill(b, ix, 100_000, []string{"large"})
	addTo(b, ix, "small", 10)
	for _, sort := range []string{"common", "rare", "phrase", "prefix", "drawn"} {
		queries := benchQueries(b)[sort]
		for _, scope := range []string{"large", "small"} {
			b.Run(sort+"/"+scope, func(b *testing.B) {
				eight(b, func(n int) { ix.Search(queries[n%len(queries)], Scope{Tenants: []string{scope}}) })
			})
		}
	}
}

// BenchmarkAdd adds one entry after the other to a tenant of 2000.
func BenchmarkAdd(b *testing.B) {
	ix := newIndex(b)
	fill(b, ix, 2000, []string{"t"})
	draw := source(3)
	var took []time.Duration
	for n := range b.N {
		e := words100k().entry(&draw, 1_000_000+n, "t")
		start := time.Now()
		if err := ix.Add(e); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	percentiles(b, took)
}

// BenchmarkForget takes entries out of a tenant of 10⁵.
func BenchmarkForget(b *testing.B) {
	ix := newIndex(b)
	fill(b, ix, 100_000, []string{"t"})
	recent, err := ix.Recent(Scope{Tenants: []string{"t"}}, 100_000, "")
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var took []time.Duration
	for n := range b.N {
		start := time.Now()
		if err := ix.Forget(recent[n*31%len(recent)].ID); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
	}
	percentiles(b, took)
}

func addTo(tb testing.TB, ix *Index, tenant string, entries int) {
	tb.Helper()
	draw := source(99)
	for n := range entries {
		if err := ix.Add(words100k().entry(&draw, 5_000_000+n, tenant)); err != nil {
			tb.Fatal(err)
		}
	}
}

// cpu is the processor time of this process.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// eight runs work in eight goroutines, and reports percentiles and, because the
// machine may be busy, processor time.
func eight(b *testing.B, work func(n int)) {
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	before := cpu(b)
	b.ResetTimer()
	for g := range 8 {
		wg.Go(func() {
			var took []time.Duration
			for n := g; n < b.N; n += 8 {
				start := time.Now()
				work(n)
				took = append(took, time.Since(start))
			}
			mu.Lock()
			all = append(all, took...)
			mu.Unlock()
		})
	}
	wg.Wait()
	b.ReportMetric((cpu(b)-before).Seconds()*1000/float64(b.N), "cpu-ms")
	percentiles(b, all)
}

func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	at := func(p int) float64 { return took[min(len(took)*p/100, len(took)-1)].Seconds() * 1000 }
	b.ReportMetric(at(50), "p50-ms")
	b.ReportMetric(at(99), "p99-ms")
}

func newIndex(tb testing.TB) *Index {
	tb.Helper()
	ix, err := New(Config{Kinds: modelKinds})
	if err != nil {
		tb.Fatal(err)
	}
	return ix
}
