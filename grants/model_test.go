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
	profiles []Profile
	tools    []Tool
	runs     []modelRun
}

// modelRun is a run that opened under a profile, with what profile and tools were
// then.
type modelRun struct {
	ceiling *Ceiling
	profile Profile
	tools   []Tool
}

// judge says why a run under the profile cannot reach c, or whether a person has
// to approve it: not if one of the tools that require it needs nobody.
func (run *modelRun) judge(c Capability) (cause Cause, gated bool) {
	cause, gated = CauseToolNotListed, true
	within := func(list []Pattern) bool {
		return slices.ContainsFunc(list, func(p Pattern) bool { return modelMatches(p, c) })
	}
	for _, name := range run.profile.Tools {
		t := Tool{Name: name}
		declared := slices.IndexFunc(run.tools, func(t Tool) bool { return t.Name == name })
		switch {
		case declared >= 0:
			t = run.tools[declared]
		case name == "read_resource", name == "list_resources":
			t.Requires = []Pattern{pattern("read:*")}
		default:
			continue
		}
		called := c.String() == "call:"+name
		if !called && !within(t.Requires) {
			continue
		}
		if !called && run.profile.Caps != nil && !within(run.profile.Caps) {
			if cause == CauseToolNotListed {
				cause = CauseCapsNarrowed
			}
			continue
		}
		cause = ""
		asks := t.Gate
		switch run.profile.Approval {
		case ApprovalAlways:
			asks = true
		case ApprovalAuto:
			asks = asks || t.Approval
		case ApprovalNever:
		}
		gated = gated && asks
	}
	return cause, gated && cause == ""
}

// judgeAll is judge of all that a pattern names.
func (run *modelRun) judgeAll(q Pattern) Cause {
	if !q.Prefix {
		cause, _ := run.judge(Capability{q.Action, q.Object})
		return cause
	}
	covered := func(list []Pattern) bool {
		return slices.ContainsFunc(list, func(p Pattern) bool { return modelCovers(p, q) })
	}
	for _, name := range run.profile.Tools {
		list := BuiltinRequires(name)
		if at := slices.IndexFunc(run.tools, func(t Tool) bool { return t.Name == name }); at >= 0 {
			list = run.tools[at].Requires
		}
		switch {
		case !covered(list):
		case run.profile.Caps != nil && !covered(run.profile.Caps):
			return CauseCapsNarrowed
		default:
			return ""
		}
	}
	return CauseToolNotListed
}

// asks reports whether a person approves a call of a tool for the profile's sake.
func (run *modelRun) asks(name string, now Tool) bool {
	then := Tool{}
	if at := slices.IndexFunc(run.tools, func(t Tool) bool { return t.Name == name }); at >= 0 && slices.Contains(run.profile.Tools, name) {
		then = run.tools[at]
	}
	switch run.profile.Approval {
	case ApprovalAlways:
		return true
	case ApprovalNever:
		return then.Gate
	default:
		return then.Gate || then.Approval || now.Approval
	}
}

// decide is the whole of it: what the grants say and, of a call, what its tool needs.
func (m *model) decide(r *Request) Decision {
	d := m.decideGrants(r)
	at := slices.IndexFunc(m.tools, func(t Tool) bool { return t.Name == r.Capability.Object })
	if r.Capability.Action != Call || d.Outcome == Denied {
		return d
	}
	var tool Tool
	if at >= 0 {
		tool = m.tools[at]
	}
	var run *modelRun
	if r.Ceiling != nil {
		run = &m.runs[slices.IndexFunc(m.runs, func(run modelRun) bool { return run.ceiling == r.Ceiling })]
	}
	asks := tool.Gate || run != nil && run.asks(r.Capability.Object, tool)
	for _, q := range tool.Requires {
		if run != nil {
			if cause := run.judgeAll(q); cause != "" {
				return refused(cause, "")
			}
		}
		need := *r
		need.Capability, need.Tool, need.Object = Capability{q.Action, q.Object}, "", Object{}
		if r.Resource != nil && !q.Prefix {
			need.Object = r.Resource(q.Object)
		}
		if q.Action == MemoryRead || q.Action == MemoryWrite { // what a tool means by a tenant is its own
			need.Object.Exists = true
		}
		var got Decision
		if q.Prefix {
			got = m.decidePattern(&need, q)
		} else {
			got = m.decideGrants(&need)
		}
		if got.Outcome == Denied {
			return got
		}
		asks = asks || got.Outcome == Pending
	}
	if asks {
		d.Outcome, d.Reason = Pending, ReasonApprovalPending
	}
	return d
}

// decidePattern says whether all that q names is allowed by one grant, and nothing of
// it denied.
func (m *model) decidePattern(r *Request, q Pattern) Decision {
	var covering []Grant
	for _, g := range m.grants {
		if g.Subject == r.Subject && modelCovers(g.Pattern, q) {
			covering = append(covering, g)
		}
	}
	slices.SortFunc(covering, func(a, b Grant) int { return -cmp.Compare(modelLength(a), modelLength(b)) })
	for _, g := range covering {
		if g.Effect == Deny && !modelEnded(g, r) {
			return refused(CauseExplicitDeny, g.ID)
		}
	}
	denied := ""
	for _, g := range m.grants {
		if g.Subject == r.Subject && g.Effect == Deny && !modelEnded(g, r) && modelCovers(q, g.Pattern) && (denied == "" || g.ID < denied) {
			denied = g.ID
		}
	}
	if denied != "" {
		return refused(CauseExplicitDeny, denied)
	}
	near := refused(CauseNoGrant, "")
	for _, g := range covering {
		var miss Cause
		switch {
		case g.Effect == Deny:
			continue
		case modelEnded(g, r):
			miss = CauseGrantExpired
		case g.Uses > 0 && r.Used(g.ID) >= g.Uses:
			miss = CauseGrantExhausted
		case !modelSatisfies(r.Tier, g.Tier):
			miss = CauseTierTooLow
		default:
			d := allowed(g.ID)
			if m.patternGated(r, q) || g.RequireApproval {
				d.Outcome = Pending
			}
			return d
		}
		if near.Cause == CauseNoGrant {
			near = refused(miss, g.ID)
		}
	}
	return near
}

// patternGated reports whether a person approves all that gives the run what q names.
func (m *model) patternGated(r *Request, q Pattern) bool {
	if r.Ceiling == nil {
		return false
	}
	run := m.runs[slices.IndexFunc(m.runs, func(run modelRun) bool { return run.ceiling == r.Ceiling })]
	gated := true
	for _, name := range run.profile.Tools {
		t := Tool{Requires: BuiltinRequires(name)}
		if at := slices.IndexFunc(run.tools, func(t Tool) bool { return t.Name == name }); at >= 0 {
			t = run.tools[at]
		}
		if slices.ContainsFunc(t.Requires, func(p Pattern) bool { return modelCovers(p, q) }) {
			gated = gated && (t.Gate || run.profile.Approval == ApprovalAlways || run.profile.Approval == ApprovalAuto && t.Approval)
		}
	}
	return gated
}

func modelCovers(p, q Pattern) bool {
	wide, star := strings.CutSuffix(p.String(), "*")
	narrow, _ := strings.CutSuffix(q.String(), "*")
	return star && strings.HasPrefix(narrow, wide) || p == q
}

func (m *model) decideGrants(r *Request) Decision {
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
	var gated bool
	if r.Ceiling != nil {
		run := m.runs[slices.IndexFunc(m.runs, func(run modelRun) bool { return run.ceiling == r.Ceiling })]
		if run.profile.Subject != r.Subject {
			return refused(CauseSubjectMismatch, "")
		}
		if r.Tool != "" && !slices.Contains(run.profile.Tools, r.Tool) {
			return refused(CauseToolNotListed, "")
		}
		var cause Cause
		if cause, gated = run.judge(r.Capability); cause != "" {
			return refused(cause, "")
		}
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
	if memory := r.Capability.Action == MemoryRead || r.Capability.Action == MemoryWrite; memory && !r.Object.Exists {
		return refused(CauseUnknownTenant, "")
	}
	near := refused(CauseNoGrant, "")
	for _, g := range matching {
		var miss Cause
		switch {
		case g.Effect == Deny:
			continue
		case resource && r.Object.Secret && g.Pattern.Prefix:
			continue
		case resource && r.Object.Personal && (g.GrantedBy == nil || *g.GrantedBy != r.Object.OwnerUID):
			miss = CausePersonal
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
			if g.RequireApproval || gated {
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
	someNames    = []string{"a", "b"}
	someObjects  = []string{"x", "y", "d.x", "d.y", "d.e.x", "d.", "d"}
	someActions  = []Action{Read, Read, Use, Call, MemoryRead}
	someProfiles = []string{"p", "q"}
	someTools    = []string{"d/x", "d/y", "x/d"}
)

func anyPattern(t *rapid.T) Pattern {
	p := Pattern{Action: rapid.SampledFrom(someActions).Draw(t, "action")}
	if p.Prefix = rapid.Bool().Draw(t, "prefix"); p.Prefix {
		objects := []string{"", "d.", "d.e.", "x."}
		if p.Action == Call {
			objects = []string{"", "d/", "d."}
		}
		p.Object = rapid.SampledFrom(objects).Draw(t, "object")
	} else if p.Action == Call {
		p.Object = rapid.SampledFrom(slices.Concat(someTools, someObjects)).Draw(t, "object")
	} else {
		p.Object = rapid.SampledFrom(someObjects).Draw(t, "object")
	}
	return p
}

func anyPatterns(t *rapid.T) []Pattern {
	patterns := []Pattern{}
	for range rapid.IntRange(0, 2).Draw(t, "patterns") {
		if p := anyPattern(t); !slices.Contains(patterns, p) {
			patterns = append(patterns, p)
		}
	}
	return SortedPatterns(patterns)
}

func anyTool(t *rapid.T) Tool {
	return Tool{
		Name: rapid.SampledFrom(someTools).Draw(t, "tool"), Requires: anyPatterns(t),
		Approval: rapid.Bool().Draw(t, "tool approval"), Gate: rapid.IntRange(0, 3).Draw(t, "gate") == 0,
	}
}

func anyProfile(t *rapid.T) Profile {
	p := Profile{
		Name:     rapid.SampledFrom(someProfiles).Draw(t, "profile"),
		Subject:  rapid.SampledFrom(someNames).Draw(t, "subject"),
		Approval: rapid.SampledFrom([]Approval{ApprovalAuto, ApprovalAuto, ApprovalAlways, ApprovalNever}).Draw(t, "profile approval"),
	}
	for _, name := range append([]string{"capability_report", "list_resources", "read_resource"}, someTools...) {
		if rapid.Bool().Draw(t, "lists") {
			p.Tools = append(p.Tools, name)
		}
	}
	if rapid.Bool().Draw(t, "capped") {
		p.Caps = anyPatterns(t)
	}
	return p
}

func anyUID(t *rapid.T) uint32 { return rapid.Uint32Range(1001, 1002).Draw(t, "uid") }

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
	if rapid.IntRange(0, 3).Draw(t, "known") > 0 {
		by := anyUID(t)
		g.GrantedBy = &by
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
	other := Object{
		Exists: rapid.IntRange(0, 5).Draw(t, "other exists") > 0, Secret: rapid.Bool().Draw(t, "other is secret"),
		HasContent: rapid.IntRange(0, 5).Draw(t, "other has content") > 0,
	}
	return &Request{
		Subject:    rapid.SampledFrom([]string{"a", "b", "nobody"}).Draw(t, "asks"),
		Capability: Capability{rapid.SampledFrom(someActions).Draw(t, "to"), rapid.SampledFrom(slices.Concat(someObjects, someTools)).Draw(t, "what")},
		Object: Object{
			Exists: rapid.Bool().Draw(t, "exists"), Secret: rapid.Bool().Draw(t, "secret"), HasContent: rapid.Bool().Draw(t, "has content"),
			Personal: rapid.IntRange(0, 2).Draw(t, "personal") == 0, OwnerUID: anyUID(t),
		},
		Tier:        Tier(rapid.IntRange(0, int(Separate)).Draw(t, "run")),
		Tool:        rapid.SampledFrom([]string{"", "", "read_resource", "list_resources"}).Draw(t, "with"),
		Now:         noon.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "now"))),
		BootID:      rapid.SampledFrom([]string{"boot", "later"}).Draw(t, "booted"),
		SinceBoot:   time.Hour + time.Duration(rapid.IntRange(-1, 1).Draw(t, "since boot")),
		ClockBehind: rapid.IntRange(0, 9).Draw(t, "behind") == 0,
		Used:        func(string) uint64 { return used },
		Resource:    func(string) Object { return other },
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
				m.profiles = slices.DeleteFunc(m.profiles, func(p Profile) bool { return p.Subject == name })
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
			"put tool": func(t *rapid.T) {
				tool := anyTool(t)
				if err := set.PutTool(tool); err != nil {
					t.Fatal(err)
				}
				m.tools = append(slices.DeleteFunc(m.tools, func(old Tool) bool { return old.Name == tool.Name }), tool)
			},
			"remove tool": func(t *rapid.T) {
				name := rapid.SampledFrom(someTools).Draw(t, "name")
				before := len(m.tools)
				m.tools = slices.DeleteFunc(m.tools, func(t Tool) bool { return t.Name == name })
				if _, ok := set.RemoveTool(name); ok != (len(m.tools) < before) {
					t.Fatalf("RemoveTool knows %s: %v", name, ok)
				}
			},
			"put profile": func(t *rapid.T) {
				p := anyProfile(t)
				fits := slices.ContainsFunc(m.subjects, func(s Subject) bool { return s.Name == p.Subject }) &&
					!slices.ContainsFunc(m.profiles, func(old Profile) bool { return old.Name == p.Name && old.Subject != p.Subject }) &&
					!slices.ContainsFunc(p.Tools, func(name string) bool {
						return strings.Contains(name, "/") && !slices.ContainsFunc(m.tools, func(t Tool) bool { return t.Name == name })
					})
				if err := set.PutProfile(p); (err == nil) != fits {
					t.Fatalf("PutProfile(%+v): %v, fits: %v", p, err, fits)
				}
				if fits {
					m.profiles = append(slices.DeleteFunc(m.profiles, func(old Profile) bool { return old.Name == p.Name }), p)
				}
			},
			"remove profile": func(t *rapid.T) {
				name := rapid.SampledFrom(someProfiles).Draw(t, "name")
				before := len(m.profiles)
				m.profiles = slices.DeleteFunc(m.profiles, func(p Profile) bool { return p.Name == name })
				if _, ok := set.RemoveProfile(name); ok != (len(m.profiles) < before) {
					t.Fatalf("RemoveProfile knows %s: %v", name, ok)
				}
			},
			"open a run": func(t *rapid.T) {
				name := rapid.SampledFrom(someProfiles).Draw(t, "under")
				at := slices.IndexFunc(m.profiles, func(p Profile) bool { return p.Name == name })
				ceiling, ok := set.Ceiling(name)
				if ok != (at >= 0) {
					t.Fatalf("Ceiling knows %s: %v", name, ok)
				}
				if ok {
					m.runs = append(m.runs, modelRun{ceiling, m.profiles[at], slices.Clone(m.tools)})
				}
			},
			"": func(t *rapid.T) {
				if got := len(set.All()); got != len(m.grants) {
					t.Fatalf("%d grants, want %d", got, len(m.grants))
				}
				for range 4 {
					r := anyRequest(t)
					if len(m.runs) > 0 && rapid.IntRange(0, 3).Draw(t, "under a profile") > 0 {
						run := rapid.SampledFrom(m.runs).Draw(t, "run of")
						r.Profile, r.Ceiling = run.profile.Name, run.ceiling
						if rapid.IntRange(0, 9).Draw(t, "its own") > 0 {
							r.Subject = run.profile.Subject
						}
					}
					got, want := Decide(set, r), m.decide(r)
					if got != want {
						t.Fatalf("Decide(%+v) = %+v, want %+v, grants %+v", r, got, want, m.grants)
					}
					if explained, steps := Explain(set, r); explained != got || len(steps) == 0 {
						t.Fatalf("Explain(%+v) = %+v with %d steps, but Decide says %+v", r, explained, len(steps), got)
					}
					if free := withoutCeiling(set, r); wider(got, free) {
						t.Fatalf("Decide(%+v) = %+v, and without its ceiling only %+v", r, got, free)
					}
					if any := withoutTool(set, r); wider(got, any) {
						t.Fatalf("Decide(%+v) = %+v, and with no tool of ours only %+v", r, got, any)
					}
				}
			},
		})
	})
}

func withoutCeiling(set *Set, r *Request) Decision {
	free := *r
	free.Profile, free.Ceiling = "", nil
	return Decide(set, &free)
}

func withoutTool(set *Set, r *Request) Decision {
	free := *r
	free.Tool = ""
	return Decide(set, &free)
}

// wider reports whether a gives something that b does not.
func wider(a, b Decision) bool {
	switch a.Outcome {
	case Allowed:
		return a != b
	case Pending:
		return b.Outcome == Denied || a.GrantID != b.GrantID
	default:
		return false
	}
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

func TestProfilesAndToolsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := anyProfile(t)
		slices.Sort(p.Tools)
		row, err := EncodeProfile(p)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeProfile(row); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("DecodeProfile(%s) = %+v, %v, want %+v", row, again, err, p)
		}
		tool := anyTool(t)
		if len(tool.Requires) == 0 {
			tool.Requires = nil
		}
		if row, err = EncodeTool(tool); err != nil {
			t.Fatal(err)
		}
		if again, err := DecodeTool(row); err != nil || !reflect.DeepEqual(again, tool) {
			t.Fatalf("DecodeTool(%s) = %+v, %v, want %+v", row, again, err, tool)
		}
	})
}
