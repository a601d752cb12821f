package grants

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// crowd returns a set of n grants: a tenth of them patterns, a hundredth denies,
// half of them of "worker" and the rest of 99 others.
func crowd(t testing.TB, n int) *Set {
	set := setOf(t)
	for i := range 99 {
		if err := set.PutSubject(Subject{Name: fmt.Sprintf("other%d", i)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		g := allow(fmt.Sprintf("read:team-%d.project.doc-%d", i%50, i))
		switch {
		case i%100 == 1:
			g = deny(fmt.Sprintf("read:team-%d.closed-%d.*", i%50, i))
		case i%10 == 0:
			g = allow(fmt.Sprintf("read:team-%d.open-%d.*", i%50, i))
		}
		if i%2 == 1 {
			g.Subject = fmt.Sprintf("other%d", i%99)
		}
		g.ID = letters(i)
		if err := set.PutGrant(g.Grant); err != nil {
			t.Fatal(err)
		}
	}
	return set
}

// letters writes i with the letters of ids.
func letters(i int) string {
	var id strings.Builder
	for n := i; ; n /= len(idLetters) {
		id.WriteByte(idLetters[n%len(idLetters)])
		if n < len(idLetters) {
			return id.String()
		}
	}
}

// questions are what a worker asks over and over: some exact, some by pattern,
// some denied.
func questions(set *Set) []*Request {
	var asked []*Request
	for _, g := range set.GrantsOf("worker")[:16] {
		what := g.Pattern.String()
		if g.Pattern.Prefix {
			what = strings.TrimSuffix(what, "*") + "notes"
		}
		asked = append(asked, asking(what))
	}
	missed := asking("read:team-1.project.doc-none")
	missed.Object = Object{}
	return append(asked, missed, asking("read:elsewhere"), asking("use:team-1.token"))
}

func TestDecideDoesNotAllocate(t *testing.T) {
	set := crowd(t, 1000)
	asked := questions(set)
	asked = append(asked, &Request{Subject: "nobody"}, &Request{Subject: "worker"})
	for _, r := range asked {
		under, capped := *r, *r
		under.Profile, under.Ceiling = "coder", NewCeiling(profile("read_resource", "notes/add"), every)
		capped.Profile, capped.Ceiling = "coder", NewCeiling(profile("read_resource").capped("use:*"), nil)
		unlisted := under
		under.Tool, unlisted.Tool = ToolRead, ToolList
		personal := *r
		personal.Object.Personal = true
		asked = append(asked, &under, &unlisted, &capped, &personal, &Request{Subject: "worker", Tier: Cooperative, Profile: "ghost"})
	}
	for _, r := range asked {
		if n := testing.AllocsPerRun(100, func() { Decide(set, r) }); n != 0 {
			t.Errorf("Decide of %s allocates %v times", r.Capability, n)
		}
	}
}

// BenchmarkDecide asks the same few questions of ever larger sets, as a worker
// does. The limit is 1 µs and no allocation.
func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1e2, 1e4, 1e6} {
		b.Run(fmt.Sprintf("grants=%d", n), func(b *testing.B) {
			set := crowd(b, n)
			asked := questions(set)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				Decide(set, asked[i%len(asked)])
			}
		})
	}
}

// BenchmarkDecideUnderACeiling is the same under a profile of twenty tools.
func BenchmarkDecideUnderACeiling(b *testing.B) {
	set := crowd(b, 1e4)
	p := profile("read_resource").capped("read:team-1.*", "read:*")
	var tools []Tool
	for i := range 20 {
		tools = append(tools, tool(fmt.Sprintf("server/tool%d", i), "use:github.token", "reach:api.github.com"))
		p.Tools = append(p.Tools, tools[i].Name)
	}
	asked := questions(set)
	for _, r := range asked {
		r.Profile, r.Ceiling = p.Name, NewCeiling(p, tools)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		Decide(set, asked[i%len(asked)])
	}
}

// BenchmarkDecideGrowth asks sets of 10² and 10⁶ grants in turns and reports how
// many times longer the large one takes, by the best round of each, so that a
// busy machine does not decide it. The limit is 1.3.
func BenchmarkDecideGrowth(b *testing.B) {
	sets := []*Set{crowd(b, 1e2), crowd(b, 1e6)}
	best := []time.Duration{time.Hour, time.Hour}
	asked := [][]*Request{questions(sets[0]), questions(sets[1])}
	b.ResetTimer()
	for b.Loop() {
		for k, set := range sets {
			start := time.Now()
			for i := range 5000 {
				Decide(set, asked[k][i%len(asked[k])])
			}
			best[k] = min(best[k], time.Since(start))
		}
	}
	b.ReportMetric(float64(best[1])/float64(best[0]), "times")
}

// BenchmarkDecideCold asks half a million different questions of 10⁶ grants in
// an order that no cache foresees: what it adds is the machine's memory.
func BenchmarkDecideCold(b *testing.B) {
	set := crowd(b, 1e6)
	given := set.GrantsOf("worker")
	r := asking("read:x")
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		r.Capability.Object = given[i*7919%len(given)].Pattern.Object
		Decide(set, r)
	}
}
