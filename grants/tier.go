package grants

import "errors"

// Tier says how firmly the operating system separates a run from other
// subjects. The zero Tier is none: as the tier of a run it satisfies nothing,
// as a minimum it demands nothing.
type Tier uint8

// Tiers. They are not one ladder: see [Tier.Satisfies].
const (
	Cooperative Tier = iota + 1 // same uid, the agent's word
	Keyed                       // whoever holds an agent key
	Bound                       // a launch in namespaces of its own
	Sandboxed                   // the same with a closed view of the file system
	Separate                    // another uid than the daemon's

	tierCount = int(Separate) + 1
)

var tierNames = [tierCount]string{
	Cooperative: "cooperative", Keyed: "keyed", Bound: "bound", Sandboxed: "sandboxed", Separate: "separate",
}

// strengths orders tiers as minima: cooperative < bound < sandboxed. A separate
// uid holds what bound holds, but the run still sees other files; a key proves
// no more than the agent's word does.
var strengths = [tierCount]uint8{Cooperative: 1, Keyed: 1, Bound: 2, Separate: 2, Sandboxed: 3}

var (
	errTier    = errors.New("a tier is one of cooperative, keyed, bound, sandboxed, separate")
	errMinTier = errors.New("a minimum tier is one of cooperative, bound, sandboxed")
)

// String returns the tier's name; empty for none.
func (t Tier) String() string {
	if int(t) < tierCount {
		return tierNames[t]
	}
	return ""
}

// Satisfies reports whether a run of tier t may do what demands minimum.
func (t Tier) Satisfies(minimum Tier) bool {
	if int(t) >= tierCount || int(minimum) >= tierCount {
		return false
	}
	return strengths[t] >= max(strengths[minimum], 1)
}

// ParseTier parses the tier of a run.
func ParseTier(s string) (Tier, error) {
	for t := Cooperative; int(t) < tierCount; t++ {
		if tierNames[t] == s {
			return t, nil
		}
	}
	return 0, errTier
}

// ParseMinTier parses a tier that a subject or a grant may demand: cooperative,
// bound or sandboxed.
func ParseMinTier(s string) (Tier, error) {
	t, err := ParseTier(s)
	if err != nil || !t.isMinimum() {
		return 0, errMinTier
	}
	return t, nil
}

func (t Tier) isMinimum() bool {
	return t == Cooperative || t == Bound || t == Sandboxed
}

// MarshalText returns the tier's name.
func (t Tier) MarshalText() ([]byte, error) {
	if t.String() == "" {
		return nil, errTier
	}
	return []byte(t.String()), nil
}

// UnmarshalText parses as [ParseTier] does.
func (t *Tier) UnmarshalText(text []byte) error {
	parsed, err := ParseTier(string(text))
	if err == nil {
		*t = parsed
	}
	return err
}
