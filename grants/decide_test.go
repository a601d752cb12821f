package grants

import (
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

// granted builds a grant of "worker" in the words of a test.
type granted struct{ Grant }

func allow(capability string) granted {
	return granted{Grant{Subject: "worker", Pattern: pattern(capability), Effect: Allow}}
}

func deny(capability string) granted {
	return granted{Grant{Subject: "worker", Pattern: pattern(capability), Effect: Deny}}
}

func (g granted) as(id string) granted      { g.ID = id; return g }
func (g granted) uses(n uint64) granted     { g.Uses = n; return g }
func (g granted) tier(t Tier) granted       { g.Tier = t; return g }
func (g granted) until(t time.Time) granted { g.Until = t; return g }
func (g granted) disclosing() granted       { g.Disclose = true; return g }
func (g granted) needsApproval() granted    { g.RequireApproval = true; return g }
func (g granted) boot(id string, until time.Duration) granted {
	g.BootID, g.BootUntil = id, until
	return g
}

// setOf holds the enabled, cooperative subject "worker" with these grants.
func setOf(t testing.TB, given ...granted) *Set {
	t.Helper()
	set := NewSet()
	if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
		t.Fatal(err)
	}
	for i, g := range given {
		if g.ID == "" {
			g.ID = "grant" + string(rune('a'+i))
		}
		if err := set.PutGrant(g.Grant); err != nil {
			t.Fatalf("%s: %v", g.Pattern, err)
		}
	}
	return set
}

// asking is a request of "worker" for text that exists, at noon, in a
// cooperative run, with nothing used so far.
func asking(what string) *Request {
	return &Request{
		Subject: "worker", Capability: capability(what), Tier: Cooperative,
		Object: Object{Exists: true, HasContent: true},
		Now:    noon, BootID: "boot", SinceBoot: time.Hour,
		Used: func(string) uint64 { return 0 },
	}
}

func allowed(id string) Decision {
	return Decision{Outcome: Allowed, Reason: ReasonAllowed, GrantID: id}
}

func refused(cause Cause, id string) Decision {
	return Decision{Outcome: Denied, Reason: ReasonAccessDenied, Cause: cause, GrantID: id}
}

func (d Decision) limited() Decision   { d.Limited = true; return d }
func (d Decision) disclosed() Decision { d.Disclosed = true; return d }

type decision struct {
	name   string
	given  []granted
	ask    *Request
	change func(*Request) // what is different from asking; nil: nothing
	want   Decision
}

func check(t *testing.T, tests []decision) {
	t.Helper()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			set := setOf(t, test.given...)
			if test.change != nil {
				test.change(test.ask)
			}
			if got := Decide(set, test.ask); got != test.want {
				t.Errorf("Decide: %+v, want %+v", got, test.want)
			}
			got, steps := Explain(set, test.ask)
			if got != test.want {
				t.Errorf("Explain: %+v, want %+v", got, test.want)
			}
			if len(steps) == 0 {
				t.Error("Explain has no steps")
			}
		})
	}
}

func TestDefaultIsDeny(t *testing.T) {
	check(t, []decision{
		{"nothing granted", nil, asking("read:plan"), nil, refused(CauseNoGrant, "")},
		{"another object", []granted{allow("read:plan")}, asking("read:plan2"), nil, refused(CauseNoGrant, "")},
		{"another action", []granted{allow("use:plan")}, asking("read:plan"), nil, refused(CauseNoGrant, "")},
		{"another case", []granted{allow("read:Plan")}, asking("read:plan"), nil, refused(CauseNoGrant, "")},
		{"no action at all", []granted{allow("read:*")}, asking("read:plan"),
			func(r *Request) { r.Capability.Action = 0 }, refused(CauseNoGrant, "")},
		{"an action out of range", []granted{allow("read:*")}, asking("read:plan"),
			func(r *Request) { r.Capability.Action = 200 }, refused(CauseNoGrant, "")},
		{"another subject", []granted{allow("read:plan")}, asking("read:plan"),
			func(r *Request) { r.Subject = "Worker" }, refused(CauseUnknownSubject, "")},
	})
}

func TestTheMostSpecificAllowIsCharged(t *testing.T) {
	all := []granted{
		allow("read:*").as("any"), allow("read:docs.*").as("docs"), allow("read:docs.a.*").as("docsa"), allow("read:docs.a.b").as("exact"),
	}
	without := func(id string, given []granted) (rest []granted) {
		for _, g := range given {
			if g.ID == id {
				g = g.uses(1).until(noon)
			}
			rest = append(rest, g)
		}
		return rest
	}
	check(t, []decision{
		{"exact before patterns", all, asking("read:docs.a.b"), nil, allowed("exact")},
		{"the longest pattern", all, asking("read:docs.a.c"), nil, allowed("docsa")},
		{"a shorter pattern", all, asking("read:docs.b"), nil, allowed("docs")},
		{"the shortest pattern", all, asking("read:plan"), nil, allowed("any")},
		{"exact has ended, the longest pattern", without("exact", all), asking("read:docs.a.b"), nil, allowed("docsa")},
		{"two have ended", without("docsa", without("exact", all)), asking("read:docs.a.b"), nil, allowed("docs")},
		{"the exact one is charged though the pattern is without limit",
			[]granted{allow("read:*").as("any"), allow("read:plan").as("exact").uses(2)}, asking("read:plan"), nil, allowed("exact").limited()},
	})
}

func TestAnyDenyWins(t *testing.T) {
	check(t, []decision{
		{"over the same pattern", []granted{allow("read:plan"), deny("read:plan").as("no")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "no")},
		{"a wide deny over an exact allow", []granted{allow("read:plan"), deny("read:*").as("no")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "no")},
		{"an exact deny over a wide allow", []granted{allow("read:*"), deny("read:plan").as("no")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "no")},
		{"only where it matches", []granted{allow("read:*").as("any"), deny("read:plan")}, asking("read:other"), nil, allowed("any")},
		{"only for its action", []granted{allow("read:*").as("any"), deny("use:*")}, asking("read:plan"), nil, allowed("any")},
		{"until it ends", []granted{allow("read:*").as("any"), deny("read:plan").until(noon.Add(1)).as("no")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "no")},
		{"and then no more", []granted{allow("read:*").as("any"), deny("read:plan").until(noon)}, asking("read:plan"), nil, allowed("any")},
		{"a pattern also over kind secret", []granted{allow("read:key").disclosing(), deny("read:*").as("no")}, asking("read:key"),
			secret, refused(CauseExplicitDeny, "no")},
		{"before the resource is looked at", []granted{deny("read:*").as("no")}, asking("read:plan"), missing, refused(CauseExplicitDeny, "no")},
		{"the most specific of two is named", []granted{deny("read:*").as("wide"), deny("read:plan").as("exact")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "exact")},
	})
}

func secret(r *Request)  { r.Object.Secret = true }
func missing(r *Request) { r.Object = Object{} }
func empty(r *Request)   { r.Object.HasContent = false }

func TestSubjects(t *testing.T) {
	for _, test := range []struct {
		name    string
		subject Subject
		tier    Tier
		want    Decision
	}{
		{"enabled", Subject{}, Cooperative, allowed("any")},
		{"disabled", Subject{Disabled: true}, Sandboxed, refused(CauseSubjectDisabled, "")},
		{"at its minimum", Subject{MinTier: Bound}, Bound, allowed("any")},
		{"above its minimum", Subject{MinTier: Bound}, Separate, allowed("any")},
		{"below its minimum", Subject{MinTier: Bound}, Keyed, refused(CauseTierTooLow, "")},
		{"in a run of no tier", Subject{}, 0, refused(CauseTierTooLow, "")},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := setOf(t, allow("read:*").as("any"))
			test.subject.Name = "worker"
			if err := set.PutSubject(test.subject); err != nil {
				t.Fatal(err)
			}
			r := asking("read:plan")
			r.Tier = test.tier
			if got := Decide(set, r); got != test.want {
				t.Errorf("Decide: %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestTheHigherOfTwoTiersIsDemanded(t *testing.T) {
	for _, test := range []struct {
		subject, grant, run Tier
		want                Cause
	}{
		{0, 0, Cooperative, ""},
		{0, Bound, Cooperative, CauseTierTooLow},
		{0, Bound, Separate, ""},
		{0, Sandboxed, Separate, CauseTierTooLow},
		{Bound, Cooperative, Cooperative, CauseTierTooLow},
		{Bound, Sandboxed, Bound, CauseTierTooLow},
		{Bound, Sandboxed, Sandboxed, ""},
		{Sandboxed, Bound, Bound, CauseTierTooLow},
	} {
		set := setOf(t, allow("read:plan").tier(test.grant))
		if err := set.PutSubject(Subject{Name: "worker", MinTier: test.subject}); err != nil {
			t.Fatal(err)
		}
		r := asking("read:plan")
		r.Tier = test.run
		if got := Decide(set, r); got.Cause != test.want {
			t.Errorf("subject demands %q, grant demands %q, run has %q: cause %q, want %q", test.subject, test.grant, test.run, got.Cause, test.want)
		}
	}
}

func TestTime(t *testing.T) {
	timed := allow("read:plan").as("timed").until(noon).boot("boot", 2*time.Hour)
	at := func(now time.Time, boot string, since time.Duration) func(*Request) {
		return func(r *Request) { r.Now, r.BootID, r.SinceBoot = now, boot, since }
	}
	given := []granted{timed}
	before, after := noon.Add(-time.Nanosecond), noon.Add(time.Hour)
	ended := refused(CauseGrantExpired, "timed")
	check(t, []decision{
		{"before both ends", given, asking("read:plan"), at(before, "boot", 2*time.Hour-1), allowed("timed")},
		{"at the edge of the wall clock", given, asking("read:plan"), at(noon, "boot", time.Hour), ended},
		{"at the edge of the boot clock", given, asking("read:plan"), at(before, "boot", 2*time.Hour), ended},
		{"the wall clock was set back", given, asking("read:plan"), at(noon.Add(-24*time.Hour), "boot", 3*time.Hour), ended},
		{"the wall clock was set forward", given, asking("read:plan"), at(after, "boot", time.Hour), ended},
		{"after a reboot only the wall clock counts", given, asking("read:plan"), at(before, "later", 9*time.Hour), allowed("timed")},
		{"after a reboot the wall clock ends it", given, asking("read:plan"), at(noon, "later", 0), ended},
		{"the present boot is not known", given, asking("read:plan"), at(before, "", 9*time.Hour), allowed("timed")},
		{"granted without a boot clock", []granted{allow("read:plan").as("timed").until(noon)}, asking("read:plan"), at(before, "", 9*time.Hour), allowed("timed")},
		{"in another time zone", given, asking("read:plan"), at(noon.In(time.FixedZone("", 7200)), "boot", time.Hour), ended},
		{"the wall clock is behind", given, asking("read:plan"),
			func(r *Request) { r.Now, r.ClockBehind = before, true }, ended},
		{"the wall clock is not known", given, asking("read:plan"), func(r *Request) { r.Now = time.Time{} }, ended},
		{"without an end the clock does not matter", []granted{allow("read:plan").as("always")}, asking("read:plan"),
			func(r *Request) { r.Now, r.ClockBehind = time.Time{}, true }, allowed("always")},
		{"a timed deny stands while the clock is behind", []granted{allow("read:*"), deny("read:plan").as("no").until(noon.Add(-time.Hour))}, asking("read:plan"),
			func(r *Request) { r.ClockBehind = true }, refused(CauseExplicitDeny, "no")},
	})
}

func TestUses(t *testing.T) {
	used := func(n uint64) func(*Request) {
		return func(r *Request) {
			r.Used = func(id string) uint64 {
				if id != "three" {
					return 0
				}
				return n
			}
		}
	}
	given := []granted{allow("read:plan").as("three").uses(3)}
	check(t, []decision{
		{"none so far", given, asking("read:plan"), used(0), allowed("three").limited()},
		{"the last one", given, asking("read:plan"), used(2), allowed("three").limited()},
		{"used up", given, asking("read:plan"), used(3), refused(CauseGrantExhausted, "three")},
		{"more than used up", given, asking("read:plan"), used(4), refused(CauseGrantExhausted, "three")},
		{"without a counter", given, asking("read:plan"), func(r *Request) { r.Used = nil }, refused(CauseGrantExhausted, "three")},
		{"used up, and a pattern goes on", append(given, allow("read:*").as("any")), asking("read:plan"), used(3), allowed("any")},
		{"without limit nobody counts", []granted{allow("read:plan").as("free")}, asking("read:plan"), func(r *Request) { r.Used = nil }, allowed("free")},
	})
}

func TestSecrets(t *testing.T) {
	check(t, []decision{
		{"read with disclosure", []granted{allow("read:key").as("g").disclosing()}, asking("read:key"), secret, allowed("g").disclosed()},
		{"read without disclosure", []granted{allow("read:key").as("g")}, asking("read:key"), secret, refused(CauseDisclosureNotGranted, "g")},
		{"read by pattern", []granted{allow("read:*")}, asking("read:key"), secret, refused(CauseNoGrant, "")},
		{"read by disclosing pattern", []granted{allow("read:*").disclosing()}, asking("read:key"), secret, refused(CauseNoGrant, "")},
		{"use needs no disclosure", []granted{allow("use:key").as("g")}, asking("use:key"), secret, allowed("g")},
		{"use discloses nothing", []granted{allow("use:key").as("g").disclosing()}, asking("use:key"), secret, allowed("g")},
		{"use by pattern", []granted{allow("use:*")}, asking("use:key"), secret, refused(CauseNoGrant, "")},
		{"use does not let read", []granted{allow("use:key")}, asking("read:key"), secret, refused(CauseNoGrant, "")},
		{"disclosure does not matter for text", []granted{allow("read:plan").as("g").disclosing()}, asking("read:plan"), nil, allowed("g")},
		{"what is no resource is no secret", []granted{allow("call:a/*").as("g")}, asking("call:a/b"), secret, allowed("g")},
	})
}

func TestResources(t *testing.T) {
	any := []granted{allow("read:*").as("any")}
	check(t, []decision{
		{"not there, granted", any, asking("read:plan"), missing, refused(CauseUnknownResource, "")},
		{"not there, not granted", nil, asking("read:plan"), missing, refused(CauseUnknownResource, "")},
		{"without content, granted", any, asking("read:plan"), empty, refused(CauseNoContent, "any")},
		{"without content, not granted", nil, asking("read:plan"), empty, refused(CauseNoGrant, "")},
		{"without content, gated: a denial is no prompt", []granted{allow("read:plan").as("gated").needsApproval()}, asking("read:plan"), empty, refused(CauseNoContent, "gated")},
		{"a tool is no resource", []granted{allow("call:a/b").as("g")}, asking("call:a/b"), missing, allowed("g")},
		{"a tenant is not asked for content", []granted{allow("memory.read:acme").as("g")}, asking("memory.read:acme"), func(r *Request) { r.Object = Object{Exists: true} }, allowed("g")},
		{"no such tenant, granted", []granted{allow("memory.read:*").as("g")}, asking("memory.read:acme"), missing, refused(CauseUnknownTenant, "")},
		{"no such tenant, denied", []granted{deny("memory.write:*").as("no")}, asking("memory.write:acme"), missing, refused(CauseExplicitDeny, "no")},
		{"no such tenant, not granted", nil, asking("memory.write:acme"), missing, refused(CauseUnknownTenant, "")},
	})
}

func (g granted) by(uid uint32) granted { g.GrantedBy = &uid; return g }

// Personal content is its operator's to grant, and nobody's beside.
func TestPersonal(t *testing.T) {
	personal := func(r *Request) { r.Object.Personal, r.Object.OwnerUID = true, 1000 }
	both := func(r *Request) { personal(r); r.Object.Secret = true }
	mine, other := allow("read:diary").as("mine").by(1000), allow("read:diary").as("other").by(1001)
	check(t, []decision{
		{"granted by its operator", []granted{mine}, asking("read:diary"), personal, allowed("mine")},
		{"by another one", []granted{other}, asking("read:diary"), personal, refused(CausePersonal, "other")},
		{"by nobody knows whom", []granted{allow("read:diary").as("old")}, asking("read:diary"), personal, refused(CausePersonal, "old")},
		{"by root", []granted{allow("read:diary").as("root").by(0)}, asking("read:diary"), personal, refused(CausePersonal, "root")},
		{"of root, by nobody knows whom", []granted{allow("read:diary").as("old")}, asking("read:diary"),
			func(r *Request) { r.Object.Personal = true }, refused(CausePersonal, "old")},
		{"by its operator's pattern", []granted{allow("read:*").as("any").by(1000)}, asking("read:diary"), personal, allowed("any")},
		{"by another one's pattern", []granted{allow("read:*").as("any").by(1001)}, asking("read:diary"), personal, refused(CausePersonal, "any")},
		{"exactly by another, by pattern by its operator", []granted{other, allow("read:*").as("any").by(1000)}, asking("read:diary"), personal, allowed("any")},
		{"a deny is anybody's", []granted{mine, deny("read:*").as("no").by(1001)}, asking("read:diary"), personal, refused(CauseExplicitDeny, "no")},
		{"and may be nobody's", []granted{mine, deny("read:*").as("no")}, asking("read:diary"), personal, refused(CauseExplicitDeny, "no")},
		{"using it is no other matter", []granted{allow("use:diary").as("other").by(1001)}, asking("use:diary"), personal, refused(CausePersonal, "other")},
		{"conditions hold as ever", []granted{mine.until(noon)}, asking("read:diary"), personal, refused(CauseGrantExpired, "mine")},
		{"it comes before conditions", []granted{other.until(noon)}, asking("read:diary"), personal, refused(CausePersonal, "other")},
		{"a pattern does not match a secret all the same", []granted{allow("read:*").by(1000)}, asking("read:diary"), both, refused(CauseNoGrant, "")},
		{"disclosure is needed all the same", []granted{mine}, asking("read:diary"), both, refused(CauseDisclosureNotGranted, "mine")},
		{"what is not personal is anybody's to grant", []granted{other}, asking("read:diary"),
			func(r *Request) { r.Object.OwnerUID = 1000 }, allowed("other")},
		{"what is no resource is not personal", []granted{allow("call:a/b").as("g")}, asking("call:a/b"), personal, allowed("g")},
		{"not there", []granted{other}, asking("read:diary"), func(r *Request) { personal(r); r.Object.Exists = false }, refused(CauseUnknownResource, "")},
		{"not granted", nil, asking("read:diary"), personal, refused(CauseNoGrant, "")},
	})
}

func TestApproval(t *testing.T) {
	pending := Decision{Outcome: Pending, Reason: ReasonApprovalPending, GrantID: "gated"}
	gated := allow("read:plan").as("gated").needsApproval()
	check(t, []decision{
		{"gated", []granted{gated}, asking("read:plan"), nil, pending},
		{"gated and limited", []granted{gated.uses(1)}, asking("read:plan"), nil, pending.limited()},
		{"the charged grant decides", []granted{gated, allow("read:*").as("any")}, asking("read:plan"), nil, pending},
		{"not the others", []granted{allow("read:plan").as("exact"), allow("read:*").needsApproval()}, asking("read:plan"), nil, allowed("exact")},
		{"denied is denied", []granted{gated, deny("read:plan").as("no")}, asking("read:plan"), nil, refused(CauseExplicitDeny, "no")},
		{"ended is denied", []granted{gated.until(noon)}, asking("read:plan"), nil, refused(CauseGrantExpired, "gated")},
	})
}

func TestTheNearestMissIsTheCause(t *testing.T) {
	check(t, []decision{
		{"the most specific one", []granted{allow("read:*").uses(1), allow("read:plan").as("exact").until(noon)}, asking("read:plan"),
			func(r *Request) { r.Used = func(string) uint64 { return 1 } }, refused(CauseGrantExpired, "exact")},
		{"a longer pattern before a shorter one", []granted{allow("read:*").until(noon), allow("read:docs.*").as("docs").tier(Bound)}, asking("read:docs.a"), nil,
			refused(CauseTierTooLow, "docs")},
		{"a deny that has ended is none", []granted{deny("read:plan").until(noon)}, asking("read:plan"), nil, refused(CauseNoGrant, "")},
	})
}

func TestExplainTellsEachStep(t *testing.T) {
	set := setOf(t,
		allow("read:docs.a").as("exact").until(noon),
		allow("read:docs.*").as("docs").tier(Bound),
		allow("read:*").as("any").needsApproval(),
		deny("read:docs.*").as("old").until(noon.Add(-time.Minute)),
	)
	got, steps := Explain(set, asking("read:docs.a"))
	if got.Outcome != Pending || got.GrantID != "any" {
		t.Errorf("Explain: %+v, want pending on any", got)
	}
	want := []Step{
		{CheckSubject, Pass, "the subject is enabled", ""},
		{CheckTier, Pass, "a run of tier cooperative, cooperative is demanded", ""},
		{CheckGrant, Fail, "allow read:docs.a: expired, its end was 2030-06-01T12:00:00Z", "exact"},
		{CheckGrant, Skip, "deny read:docs.*: the deny has expired", "old"},
		{CheckTier, Fail, "a run of tier cooperative, bound is demanded", "docs"},
		{CheckGrant, Match, "allow read:*: holds", "any"},
		{CheckResource, Pass, "the resource exists and has content", ""},
		{CheckApproval, Fail, "a person must approve", "any"},
	}
	if len(steps) != len(want) {
		t.Fatalf("%d steps, want %d: %+v", len(steps), len(want), steps)
	}
	for i := range want {
		if steps[i] != want[i] {
			t.Errorf("step %d: %+v, want %+v", i, steps[i], want[i])
		}
	}
}

// ceilingSteps is what Explain says of profile and ceiling.
func ceilingSteps(set *Set, r *Request) (steps []Step) {
	_, all := Explain(set, r)
	for _, s := range all {
		if s.Check == CheckProfile || s.Check == CheckCeiling {
			steps = append(steps, s)
		}
	}
	return steps
}

func TestExplainTellsOfTheCeiling(t *testing.T) {
	set := setOf(t, allow("read:*").as("any"), allow("call:*").as("call"))
	p := profile("read_resource", "github/create_issue").capped("read:docs.*")
	other := p
	other.Subject = "boss"
	pass := Step{CheckProfile, Pass, "the run is under profile coder", ""}
	for _, test := range []struct {
		ask     string
		profile string
		ceiling *Ceiling
		tool    string
		want    []Step
	}{
		{"read:docs.a", "", nil, "", nil},
		{"read:docs.a", "", nil, ToolRead, nil},
		{"read:docs.a", "coder", NewCeiling(p, every), ToolRead, []Step{pass, {CheckCeiling, Pass, "read_resource requires read:*", ""}}},
		{"call:github/create_issue", "coder", NewCeiling(p, every), "", []Step{pass, {CheckCeiling, Pass, "the profile lists github/create_issue", ""}}},
		{"read:plan", "coder", NewCeiling(p, every), ToolRead, []Step{pass, {CheckCeiling, Fail, "read_resource requires read:*, but caps leave it out", ""}}},
		{"use:plan", "coder", NewCeiling(p, every), "", []Step{pass, {CheckCeiling, Fail, "no tool of the profile requires it", ""}}},
		{"read:docs.a", "coder", NewCeiling(p, every), ToolList, []Step{pass, {CheckCeiling, Fail, "the profile does not list list_resources, with which this is done", ""}}},
		{"read:docs.a", "coder", nil, ToolRead, []Step{{CheckProfile, Fail, "no such profile", ""}}},
		{"read:docs.a", "coder", NewCeiling(other, every), ToolRead, []Step{{CheckProfile, Fail, "the profile is another subject's", ""}}},
	} {
		r := asking(test.ask)
		r.Profile, r.Ceiling, r.Tool = test.profile, test.ceiling, test.tool
		if got := ceilingSteps(set, r); !slices.Equal(got, test.want) {
			t.Errorf("%s under %q: %+v, want %+v", test.ask, test.profile, got, test.want)
		}
	}
}

func TestStates(t *testing.T) {
	r := asking("read:plan")
	r.Used = func(string) uint64 { return 2 }
	for want, g := range map[State]granted{
		Active:    allow("read:plan").uses(3).until(noon.Add(1)),
		Expired:   allow("read:plan").uses(1).until(noon),
		Exhausted: allow("read:plan").uses(2),
	} {
		if got := g.State(r); got != want {
			t.Errorf("state %s, want %s", got, want)
		}
	}
}
