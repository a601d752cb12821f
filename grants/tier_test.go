package grants

import "testing"

// A run of the tier in a row may do what demands the tier in a column.
func TestTiersSatisfy(t *testing.T) {
	minima := []Tier{0, Cooperative, Bound, Sandboxed}
	for tier, want := range map[Tier][]bool{
		0:           {false, false, false, false},
		Cooperative: {true, true, false, false},
		Keyed:       {true, true, false, false},
		Bound:       {true, true, true, false},
		Separate:    {true, true, true, false},
		Sandboxed:   {true, true, true, true},
		99:          {false, false, false, false},
	} {
		for i, minimum := range minima {
			if got := tier.Satisfies(minimum); got != want[i] {
				t.Errorf("%q.Satisfies(%q) = %v, want %v", tier, minimum, got, want[i])
			}
		}
	}
	if Sandboxed.Satisfies(99) {
		t.Error("a minimum that is no tier is satisfied")
	}
}

func TestParseTier(t *testing.T) {
	for tier := Cooperative; tier <= Separate; tier++ {
		if got, err := ParseTier(tier.String()); err != nil || got != tier {
			t.Errorf("ParseTier(%q) = %v, %v", tier, got, err)
		}
		_, err := ParseMinTier(tier.String())
		if demandable := tier == Cooperative || tier == Bound || tier == Sandboxed; demandable != (err == nil) {
			t.Errorf("ParseMinTier(%q): %v", tier, err)
		}
	}
	for _, bad := range []string{"", "Bound", "BOUND", " bound", "none", "\u212aeyed"} {
		if _, err := ParseTier(bad); err == nil {
			t.Errorf("ParseTier(%q) accepts it", bad)
		}
	}
}
