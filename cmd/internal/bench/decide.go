package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"subjectbroker/grants"
)

// measureDecision judges against few grants and against many.
func measureDecision(_ context.Context, s *settings) ([]figure, error) {
	const few = 100
	many := s.pick(1_000_000, 100_000)
	small, err := policyOf(few)
	if err != nil {
		return nil, err
	}
	large, err := policyOf(many)
	if err != nil {
		return nil, err
	}
	// Each takes the best of its turns: what a decision costs, not what the
	// machine did meanwhile.
	var fewCost, manyCost, spread, lookup cost
	index := map[string]int{}
	for i := range many {
		index[object(i)] = i
	}
	objects := make([]string, 1<<12)
	for i := range objects {
		objects[i] = object(i * (many / len(objects)))
	}
	var found int
	for range s.pick(3, 1) {
		fewCost.best(testing.Benchmark(func(b *testing.B) { decide(b, small, object(few/2)) }))
		manyCost.best(testing.Benchmark(func(b *testing.B) { decide(b, large, object(many/2)) }))
		spread.best(testing.Benchmark(func(b *testing.B) { decide(b, large, objects...) }))
		lookup.best(testing.Benchmark(func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				found += index[objects[i%len(objects)]]
			}
		}))
	}
	return []figure{{
		name:  fmt.Sprintf("one decision among %d grants", many),
		got:   fmt.Sprintf("%.0f ns, %d allocations", manyCost.ns, manyCost.allocs),
		limit: "1 µs", ratio: manyCost.ns / 1000, bound: 1,
	}, {
		name:  "the same",
		got:   fmt.Sprintf("%.0f ns", manyCost.ns),
		limit: fmt.Sprintf("among %d grants %.0f ns", few, fewCost.ns),
		ratio: manyCost.ns / fewCost.ns, bound: 1.3,
	}, {
		name:  "allocations in a decision",
		got:   fmt.Sprint(manyCost.allocs),
		limit: "none", ratio: float64(manyCost.allocs), bound: 0.5,
	}, {
		name:  fmt.Sprintf("one decision among %d, other names each time", many),
		got:   fmt.Sprintf("%.0f ns", spread.ns),
		limit: fmt.Sprintf("one lookup in a map of as many names %.0f ns", lookup.ns),
		ratio: spread.ns / lookup.ns,
	}}, nil
}

// cost is what one operation takes.
type cost struct {
	ns     float64
	allocs int64
}

func (c *cost) best(r testing.BenchmarkResult) {
	if ns := float64(r.T.Nanoseconds()) / float64(r.N); c.ns == 0 || ns < c.ns {
		*c = cost{ns, r.AllocsPerOp()}
	}
}

// policyOf has n grants of one subject, a tenth of them patterns and a tenth
// denials.
func policyOf(n int) (*grants.Set, error) {
	set := grants.NewSet()
	if err := set.PutSubject(grants.Subject{Name: subject}); err != nil {
		return nil, err
	}
	for i := range n {
		capability, effect := "read:"+object(i), grants.Allow
		switch i % 10 {
		case 3:
			capability = fmt.Sprintf("read:team-%d.*", i)
		case 7:
			effect = grants.Deny
		}
		pattern, err := grants.ParsePattern(capability)
		if err != nil {
			return nil, err
		}
		grant := grants.Grant{ID: grants.NewID(), Subject: subject, Pattern: pattern, Effect: effect}
		if err := set.PutGrant(grant); err != nil {
			return nil, fmt.Errorf("grant %d: %w", i, err)
		}
	}
	return set, nil
}

func object(i int) string { return fmt.Sprintf("project.docs.r%07d", i) }

func decide(b *testing.B, set *grants.Set, objects ...string) {
	request := grants.Request{
		Subject:    subject,
		Capability: grants.Capability{Action: grants.Read},
		Object:     grants.Object{Exists: true, HasContent: true},
		Tier:       grants.Cooperative,
		Now:        time.Now(),
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		request.Capability.Object = objects[i%len(objects)]
		grants.Decide(set, &request)
	}
}
