package grants

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the contract's "Grants, exactly" in the plainest words: a list of
// grants and no index.
type model struct {
	subjects []Subject
	grants   []Grant
}

func (m *model) decide(r *Request) Decision {
	at := slices.IndexFunc(m.subjects, func(s Subject) bool { return s.Name == r.Subject })
	if at < 0 {
		return refused(CauseUnknownSubject, "")
	}
	subject := m.subjects[at]
	if subject.Disabled {
		return refused(CauseSubjectDisabled, "")
	}
	if !modelSatisfies(r.Tier, subject.MinTier) {
		return refused(CauseTierTooLow, "")
	}
	var matching []Grant
	for _, g := range m.grants {
		if g.Subject == r.Subject && modelMatches(g.Pattern, r.Capability) {
			matching = append(matching, g)
		}
	}
	slices.SortFunc(matching, func(a, b Grant) int {
		return cmp.Or(
			-cmp.Compare(modelLength(a), modelLength(b)), // exact before pattern, longer before shorter
			cmp.Compare(orMax(a.Uses), orMax(b.Uses)),    // never reached: one allow for each pattern
			strings.Compare(a.ID, b.ID),
		)
	})
	for _, g := range matching {
		if g.Effect == Deny && !modelEnded(g, r) {
			return refused(CauseExplicitDeny, g.ID)
		}
	}
	resource := r.Capability.Action == Read || r.Capability.Action == Use
	if resource && !r.Object.Exists {
		return refused(CauseUnknownResource, "")
	}
	near := refused(CauseNoGrant, "")
	for _, g := range matching {
		var miss Cause
		switch {
		case g.Effect == Deny:
			continue
		case resource && r.Object.Secret && g.Pattern.Prefix:
			continue
		case modelEnded(g, r):
			miss = CauseGrantExpired
		case g.Uses > 0 && r.Used(g.ID) >= g.Uses:
			miss = CauseGrantExhausted
		case !modelSatisfies(r.Tier, g.Tier):
			miss = CauseTierTooLow
		case r.Capability.Action == Read && r.Object.Secret && !g.Disclose:
			miss = CauseDisclosureNotGranted
		case resource && !r.Object.HasContent:
			return refused(CauseNoContent, g.ID)
		default:
			d := allowed(g.ID)
			d.Limited = g.Uses > 0
			d.Disclosed = r.Capability.Action == Read && r.Object.Secret
			if g.RequireApproval {
				d.Outcome, d.Reason = Pending, ReasonApprovalPending
			}
			return d
		}
		if near.Cause == CauseNoGrant {
			near = refused(miss, g.ID)
		}
	}
	return near
}

func modelLength(g Grant) int {
	if !g.Pattern.Prefix {
		return math.MaxInt
	}
	return len(g.Pattern.Object)
}

func orMax(uses uint64) uint64 {
	return uses - 1 // without limit is the most
}

func modelMatches(p Pattern, c Capability) bool {
	text, star := strings.CutSuffix(p.String(), "*")
	if star {
		return strings.HasPrefix(c.String(), text)
	}
	return c.String() == text
}

func modelSatisfies(run, minimum Tier) bool {
	switch minimum {
	case 0, Cooperative:
		return run != 0
	case Bound:
		return run == Bound || run == Sandboxed || run == Separate
	default:
		return run == minimum
	}
}

func modelEnded(g Grant, r *Request) bool {
	if g.Until.IsZero() {
		return false
	}
	if r.ClockBehind {
		return g.Effect == Allow
	}
	wall := r.Now.Equal(g.Until) || r.Now.After(g.Until)
	boot := g.BootID == r.BootID && g.BootUntil > 0 && r.SinceBoot >= g.BootUntil
	return wall || boot
}

// The alphabets are small, so that things meet.
var (
	someNames   = []string{"a", "b"}
	someObjects = []string{"x", "y", "d.x", "d.y", "d.e.x", "d.", "d"}
	someActions = []Action{Read, Read, Use, Call, MemoryRead}
)

func anyPattern(t *rapid.T) Pattern {
	p := Pattern{Action: rapid.SampledFrom(someActions).Draw(t, "action")}
	if p.Prefix = rapid.Bool().Draw(t, "prefix"); p.Prefix {
		p.Object = rapid.SampledFrom([]string{"", "d.", "d.e.", "x."}).Draw(t, "object")
	} else {
		p.Object = rapid.SampledFrom(someObjects).Draw(t, "object")
	}
	return p
}

func anyGrant(t *rapid.T) Grant {
	g := Grant{
		ID:      rapid.StringMatching("[a-z]{4}").Draw(t, "id"),
		Subject: rapid.SampledFrom(someNames).Draw(t, "subject"),
		Pattern: anyPattern(t),
		Effect:  rapid.SampledFrom([]Effect{Allow, Allow, Allow, Deny}).Draw(t, "effect"),
	}
	if rapid.Bool().Draw(t, "timed") {
		g.Until = noon.Add(time.Duration(rapid.IntRange(-1, 2).Draw(t, "until")))
		if rapid.Bool().Draw(t, "boot clock") {
			g.BootID = rapid.SampledFrom([]string{"boot", "earlier"}).Draw(t, "boot")
			g.BootUntil = time.Hour + time.Duration(rapid.IntRange(-1, 1).Draw(t, "boot until"))
		}
	}
	if g.Effect == Allow {
		g.Uses = rapid.Uint64Range(0, 2).Draw(t, "uses")
		g.Tier = rapid.SampledFrom([]Tier{0, 0, Cooperative, Bound, Sandboxed}).Draw(t, "tier")
		g.Disclose = rapid.Bool().Draw(t, "disclose")
		g.RequireApproval = rapid.Bool().Draw(t, "approval")
	}
	return g
}

func anyRequest(t *rapid.T) *Request {
	used := rapid.Uint64Range(0, 2).Draw(t, "used")
	return &Request{
		Subject:    rapid.SampledFrom([]string{"a", "b", "nobody"}).Draw(t, "asks"),
		Capability: Capability{rapid.SampledFrom(someActions).Draw(t, "to"), rapid.SampledFrom(someObjects).Draw(t, "what")},
		Object: Object{
			Exists: rapid.Bool().Draw(t, "exists"), Secret: rapid.Bool().Draw(t, "secret"), HasContent: rapid.Bool().Draw(t, "has content"),
		},
		Tier:        Tier(rapid.IntRange(0, int(Separate)).Draw(t, "run")),
		Now:         noon.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "now"))),
		BootID:      rapid.SampledFrom([]string{"boot", "later"}).Draw(t, "booted"),
		SinceBoot:   time.Hour + time.Duration(rapid.IntRange(-1, 1).Draw(t, "since boot")),
		ClockBehind: rapid.IntRange(0, 9).Draw(t, "behind") == 0,
		Used:        func(string) uint64 { return used },
	}
}

// TestEvaluatorAgainstModel puts, replaces and removes at random, and asks set
// and model the same after each step.
func TestEvaluatorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set, m := NewSet(), &model{}
		t.Repeat(map[string]func(*rapid.T){
			"put subject": func(t *rapid.T) {
				s := Subject{
					Name:     rapid.SampledFrom(someNames).Draw(t, "name"),
					Disabled: rapid.IntRange(0, 4).Draw(t, "disabled") == 0,
					MinTier:  rapid.SampledFrom([]Tier{0, 0, Cooperative, Bound}).Draw(t, "min tier"),
				}
				if err := set.PutSubject(s); err != nil {
					t.Fatal(err)
				}
				m.subjects = append(slices.DeleteFunc(m.subjects, func(old Subject) bool { return old.Name == s.Name }), s)
			},
			"remove subject": func(t *rapid.T) {
				name := rapid.SampledFrom(someNames).Draw(t, "name")
				gone := len(set.RemoveSubject(name))
				before := len(m.grants)
				m.subjects = slices.DeleteFunc(m.subjects, func(s Subject) bool { return s.Name == name })
				m.grants = slices.DeleteFunc(m.grants, func(g Grant) bool { return g.Subject == name })
				if gone != before-len(m.grants) {
					t.Fatalf("RemoveSubject took %d grants with it, want %d", gone, before-len(m.grants))
				}
			},
			"put grant": func(t *rapid.T) {
				g := anyGrant(t)
				if same, ok := set.Find(g.Subject, g.Pattern, g.Effect); ok {
					g.ID = same.ID
				}
				known := slices.ContainsFunc(m.subjects, func(s Subject) bool { return s.Name == g.Subject })
				if err := set.PutGrant(g); (err == nil) != known {
					t.Fatalf("PutGrant: %v, subject known: %v", err, known)
				}
				if known {
					m.grants = append(slices.DeleteFunc(m.grants, func(old Grant) bool { return old.ID == g.ID }), g)
				}
			},
			"remove grant": func(t *rapid.T) {
				if len(m.grants) == 0 {
					return
				}
				g := rapid.SampledFrom(m.grants).Draw(t, "grant")
				if _, ok := set.RemoveGrant(g.ID); !ok {
					t.Fatalf("RemoveGrant does not know %s", g.ID)
				}
				m.grants = slices.DeleteFunc(m.grants, func(old Grant) bool { return old.ID == g.ID })
			},
			"revoke exact": func(t *rapid.T) {
				name := rapid.SampledFrom(someObjects).Draw(t, "name")
				for _, g := range set.Exact(name) {
					set.RemoveGrant(g.ID)
				}
				m.grants = slices.DeleteFunc(m.grants, func(g Grant) bool {
					return g.Pattern.String() == "read:"+name || g.Pattern.String() == "use:"+name
				})
			},
			"": func(t *rapid.T) {
				if got := len(set.All()); got != len(m.grants) {
					t.Fatalf("%d grants, want %d", got, len(m.grants))
				}
				for range 4 {
					r := anyRequest(t)
					got, want := Decide(set, r), m.decide(r)
					if got != want {
						t.Fatalf("Decide(%+v) = %+v, want %+v, grants %+v", r, got, want, m.grants)
					}
					if explained, steps := Explain(set, r); explained != got || len(steps) == 0 {
						t.Fatalf("Explain(%+v) = %+v with %d steps, but Decide says %+v", r, explained, len(steps), got)
					}
				}
			},
		})
	})
}

// TestRowsRoundTrip: what is encoded decodes to the same, whatever the order in
// which a set returns it.
func TestRowsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := anyGrant(t)
		g.Note = rapid.StringOfN(rapid.RuneFrom([]rune("aé<&\"\\\u200b\u202e\U0001f600")), 0, 8, -1).Draw(t, "note")
		row, err := EncodeGrant(g)
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeGrant(row)
		if err != nil || !reflect.DeepEqual(again, g) {
			t.Fatalf("DecodeGrant(%s) = %+v, %v, want %+v", row, again, err, g)
		}
	})
}
