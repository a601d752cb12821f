package rules

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// genRules draws rules with every limit, small enough to be reached.
func genRules(t *rapid.T) Rules {
	r := Rules{OnViolation: rapid.SampledFrom([]Action{Block, Kill}).Draw(t, "on")}
	if rapid.Bool().Draw(t, "calls") {
		r.Limits.MaxToolCalls = count(rapid.Uint64Range(0, 8).Draw(t, "most"))
	}
	if rapid.Bool().Draw(t, "rate") {
		r.Limits.Rate = &Rate{rapid.Uint64Range(1, 4).Draw(t, "perWindow"), time.Duration(rapid.IntRange(1, 10).Draw(t, "window")) * time.Second}
	}
	if rapid.Bool().Draw(t, "runtime") {
		r.Limits.MaxRuntime = time.Duration(rapid.IntRange(1, 60).Draw(t, "runtime")) * time.Second
	}
	if rapid.Bool().Draw(t, "budget") {
		r.Limits.Budget = &Budget{Max: rapid.Uint64Range(1, 20).Draw(t, "max"), Currency: "USD", PerCall: rapid.Uint64Range(1, 5).Draw(t, "cost"), ToolCosts: map[string]uint64{"b": 7}}
	}
	if rapid.Bool().Draw(t, "breaker") {
		r.Limits.Breaker = &Breaker{rapid.Uint64Range(1, 3).Draw(t, "failures"), 5 * time.Second, rapid.SampledFrom([]Counts{CountTransport, CountErrors}).Draw(t, "counts")}
	}
	return r
}

// Whatever is called, settled, given back and stored in between: no more is
// forwarded than the limits say, counted here by lists of what happened; and judging
// changes nothing.
func TestLimitsAreNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := genRules(t)
		c, err := Compile(policy(r), nil)
		if err != nil {
			t.Fatal(err)
		}
		limits := r.Limits
		m, now := &Meter{}, noon
		type forwarded struct {
			at   time.Time
			cost uint64
		}
		var all []forwarded
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			tool := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tool")
			switch rapid.SampledFrom([]string{"call", "call", "call", "end", "pass", "undo", "store"}).Draw(t, "step") {
			case "call":
				before := m.Append(nil)
				v := c.Judge(m, Call{Tool: tool, Now: now})
				if !bytes.Equal(before, m.Append(nil)) {
					t.Fatal("judging changed the meter")
				}
				if again := c.Explain(m, Call{Tool: tool, Now: now}); again.Outcome != v.Outcome || again.Policy != v.Policy {
					t.Fatalf("judged %v, explained %v", v, again)
				}
				if v.Outcome != Forwarded {
					if v.Policy == "" || v.Action != r.OnViolation {
						t.Fatalf("%+v", v)
					}
					continue
				}
				cost := c.Take(m, Call{Tool: tool, Now: now})
				all = append(all, forwarded{now, cost.Micros})
			case "undo":
				if c.Judge(m, Call{Tool: tool, Now: now}).Outcome != Forwarded {
					continue
				}
				before := m.Append(nil)
				cost := c.Take(m, Call{Tool: tool, Now: now})
				full := limits.Rate != nil && uint64(len(m.times)) == limits.Rate.Calls
				c.Undo(m, cost)
				after := m.Append(nil)
				// One that has left the window may be forgotten, and when a breaker was
				// used last.
				if !full && m.breakers[tool] == nil && !bytes.Equal(before, after) {
					t.Fatalf("given back, and %x became %x", before, after)
				}
			case "end":
				c.Settle(m, tool, End(rapid.IntRange(1, 5).Draw(t, "end")), now)
			case "pass":
				now = now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
			case "store":
				raw := m.Append(nil)
				if m, err = ParseMeter(raw); err != nil || !bytes.Equal(raw, m.Append(nil)) {
					t.Fatalf("%x: %v", raw, err)
				}
			}
		}
		if most := limits.MaxToolCalls; most != nil && uint64(len(all)) > *most {
			t.Fatalf("%d calls of %d", len(all), *most)
		}
		var spent uint64
		for i, f := range all {
			spent += f.cost
			if limits.MaxRuntime != 0 && f.at.Sub(all[0].at) >= limits.MaxRuntime {
				t.Fatalf("call %d came after %s", i, f.at.Sub(all[0].at))
			}
			if r := limits.Rate; r != nil && i >= int(r.Calls) && f.at.Sub(all[i-int(r.Calls)].at) < r.Window {
				t.Fatalf("call %d is one too many in %s", i, r.Window)
			}
		}
		if limits.Budget != nil && (spent > limits.Budget.Max || spent != m.Spent) {
			t.Fatalf("%d spent of %d, counted %d", spent, limits.Budget.Max, m.Spent)
		}
		if uint64(len(all)) != m.Calls {
			t.Fatalf("%d calls, counted %d", len(all), m.Calls)
		}
	})
}

// Without limits nothing is ever stopped: what the test above measures is there.
func TestNoLimits(t *testing.T) {
	c := compile(t, Rules{})
	m := &Meter{}
	for range 1000 {
		if v := c.Judge(m, Call{Tool: "t", Now: noon}); v.Outcome != Forwarded {
			t.Fatalf("%+v", v)
		}
		c.Take(m, Call{Tool: "t", Now: noon})
		c.Settle(m, "t", EndTransport, noon)
	}
	if len(m.times) > 0 || len(m.breakers) > 0 {
		t.Error("something is kept that nobody asks for")
	}
}

// What is counted from the log again is what was counted.
func TestRetake(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := Compile(policy(genRules(t)), nil)
		if err != nil {
			t.Fatal(err)
		}
		live, replayed, now := &Meter{}, &Meter{}, noon
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			tool := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tool")
			if rapid.Bool().Draw(t, "end") {
				end := End(rapid.IntRange(1, 5).Draw(t, "how"))
				c.Settle(live, tool, end, now)
				c.Settle(replayed, tool, end, now)
				continue
			}
			if c.Judge(live, Call{Tool: tool, Now: now}).Outcome == Forwarded {
				cost := c.Take(live, Call{Tool: tool, Now: now})
				c.Retake(replayed, tool, now, cost.Micros)
			}
		}
		if !bytes.Equal(live.Append(nil), replayed.Append(nil)) {
			t.Fatalf("%x, and from the log %x", live.Append(nil), replayed.Append(nil))
		}
	})
}

func FuzzParseMeter(f *testing.F) {
	m := &Meter{Calls: 3, Spent: 10, Began: noon, KilledBy: BudgetPolicy, times: []int64{5, 3, 9}, breakers: map[string]*breaker{"a": {1, 2, 3, 4}, "é": {}}}
	f.Add(m.Append(nil))
	f.Add((&Meter{}).Append(nil))
	f.Add([]byte{1, 0x80, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		m, err := ParseMeter(raw)
		if err != nil {
			return
		}
		if again := m.Append(nil); !bytes.Equal(raw, again) {
			t.Fatalf("%x is written as %x", raw, again)
		}
		if len(m.times) > MaxPerCall || len(m.breakers) > maxBreakers {
			t.Fatal("larger than a meter is")
		}
	})
}

func TestParseMeterRefuses(t *testing.T) {
	good := (&Meter{Calls: 300, Began: noon, times: []int64{1, 2}, breakers: map[string]*breaker{"a": {}, "b": {}}}).Append(nil)
	if _, err := ParseMeter(good); err != nil {
		t.Fatal(err)
	}
	for n := range good {
		if _, err := ParseMeter(good[:n]); err == nil {
			t.Errorf("the first %d bytes were taken", n)
		}
	}
	for name, raw := range map[string][]byte{
		"nothing":                  nil,
		"another version":          slices.Concat([]byte{2}, good[1:]),
		"something after":          slices.Concat(good, []byte{0}),
		"a number in another form": {1, 0x80, 0, 0, 0, 0, 0, 0},
		"breakers out of order":    bytes.Replace(bytes.Replace(bytes.Replace(good, []byte("\x01a"), []byte("\x01x"), 1), []byte("\x01b"), []byte("\x01a"), 1), []byte("\x01x"), []byte("\x01b"), 1),
	} {
		if _, err := ParseMeter(raw); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// A meter's stored form is what it was: a daemon that was updated reads what it wrote
// before.
func TestMeterGolden(t *testing.T) {
	m := &Meter{Calls: 3, Spent: 20_000, Began: time.UnixMilli(1_900_000_000_000), KilledBy: "BudgetPolicy", times: []int64{1_900_000_000_000, 1_900_000_000_250}, breakers: map[string]*breaker{"read": {0, 1_900_000_000_000, 0, 1_900_000_000_100}, "write": {2, 0, 0, 1_900_000_000_200}}}
	const want = "0103a09c0180e0998dcc6e0c427564676574506f6c6963790280e0998dcc6ef40302047265616400" +
		"80e0998dcc6e00c8e1998dcc6e05777269746502000090e3998dcc6e"
	if got := fmt.Sprintf("%x", m.Append(nil)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
