package grants

import (
	"errors"
	"slices"
	"testing"
)

func ids(list []Grant) []string {
	var ids []string
	for _, g := range list {
		ids = append(ids, g.ID)
	}
	return ids
}

func wantIDs(t *testing.T, what string, got []Grant, want ...string) {
	t.Helper()
	if !slices.Equal(ids(got), want) {
		t.Errorf("%s: %v, want %v", what, ids(got), want)
	}
}

func TestAGrantNeedsItsSubject(t *testing.T) {
	set := NewSet()
	if err := set.PutGrant(allow("read:plan").as("a").Grant); !errors.Is(err, ErrNoSubject) {
		t.Errorf("PutGrant: %v, want ErrNoSubject", err)
	}
}

func TestASubjectHasOneGrantOfAKind(t *testing.T) {
	set := setOf(t, allow("read:plan").as("a"))
	if err := set.PutGrant(allow("read:plan").as("b").Grant); !errors.Is(err, ErrDuplicate) {
		t.Errorf("PutGrant of the same under another id: %v, want ErrDuplicate", err)
	}
	for _, other := range []granted{deny("read:plan").as("b"), allow("use:plan").as("c"), allow("read:plan.*").as("d")} {
		if err := set.PutGrant(other.Grant); err != nil {
			t.Errorf("PutGrant of another pattern or effect: %v", err)
		}
	}
	if err := set.PutGrant(allow("read:plan").as("a").uses(3).Grant); err != nil {
		t.Fatal(err)
	}
	if g, ok := set.Find("worker", pattern("read:plan"), Allow); !ok || g.ID != "a" || g.Uses != 3 {
		t.Errorf("Find: %+v, %v, want the replaced grant", g, ok)
	}
}

func TestAReplacedGrantLeavesNothingBehind(t *testing.T) {
	set := setOf(t, allow("read:docs.*").as("a"))
	if err := set.PutGrant(allow("read:plan").as("a").Grant); err != nil {
		t.Fatal(err)
	}
	wantIDs(t, "GrantsOf", set.GrantsOf("worker"), "a")
	if d := Decide(set, asking("read:docs.x")); d.Cause != CauseNoGrant {
		t.Errorf("what the grant was before still counts: %+v", d)
	}
}

func TestARefusedGrantChangesNothing(t *testing.T) {
	set := setOf(t, allow("read:plan").as("a"), allow("read:other").as("b"))
	if err := set.PutGrant(allow("read:other").as("a").Grant); !errors.Is(err, ErrDuplicate) {
		t.Errorf("PutGrant: %v, want ErrDuplicate", err)
	}
	if err := set.PutGrant(deny("read:plan").as("a").uses(1).Grant); err == nil {
		t.Error("PutGrant takes a deny with uses")
	}
	if g, _ := set.Grant("a"); g.Pattern != pattern("read:plan") || g.Effect != Allow {
		t.Errorf("the grant became %+v", g)
	}
}

func TestLists(t *testing.T) {
	set := setOf(t,
		allow("read:plan").as("plan"), deny("read:plan").as("noplan"), allow("read:*").as("any"),
		allow("use:plan").as("useplan"), allow("call:plan").as("tool"), allow("read:docs.*").as("docs"),
		deny("memory.read:plan").as("noread"), allow("memory.write:plan").as("write"), allow("memory.write:*").as("writes"),
	)
	if err := set.PutSubject(Subject{Name: "boss"}); err != nil {
		t.Fatal(err)
	}
	for _, g := range []Grant{{ID: "bossplan", Subject: "boss", Pattern: pattern("read:plan"), Effect: Allow}} {
		if err := set.PutGrant(g); err != nil {
			t.Fatal(err)
		}
	}
	wantIDs(t, "All", set.All(), "bossplan", "tool", "noread", "writes", "write", "any", "docs", "plan", "noplan", "useplan")
	wantIDs(t, "GrantsOf", set.GrantsOf("worker"), "tool", "noread", "writes", "write", "any", "docs", "plan", "noplan", "useplan")
	wantIDs(t, "GrantsOf an unknown subject", set.GrantsOf("nobody"))
	wantIDs(t, "Matching", set.Matching("plan"), "bossplan", "any", "plan", "noplan", "useplan")
	wantIDs(t, "Exact", set.Exact("plan"), "bossplan", "plan", "noplan", "useplan")
	wantIDs(t, "ExactTenant", set.ExactTenant("plan"), "noread", "write")
	if each := slices.Collect(set.Each()); len(each) != len(set.All()) {
		t.Errorf("Each yields %d grants of %d", len(each), len(set.All()))
	}
	if names := set.Subjects(); len(names) != 2 || names[0].Name != "boss" {
		t.Errorf("Subjects: %+v", names)
	}
}

func TestASubjectOfTheSameNameInheritsNothing(t *testing.T) {
	set := setOf(t, allow("read:plan").as("a"), allow("read:*").as("b"))
	wantIDs(t, "RemoveSubject", set.RemoveSubject("worker"), "b", "a")
	if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
		t.Fatal(err)
	}
	if d := Decide(set, asking("read:plan")); d.Cause != CauseNoGrant {
		t.Errorf("Decide: %+v, want NO_GRANT", d)
	}
	if _, ok := set.Grant("a"); ok {
		t.Error("the grant is still found by its id")
	}
}

func TestChangingASubjectKeepsItsGrants(t *testing.T) {
	set := setOf(t, allow("read:plan").as("a"))
	if err := set.PutSubject(Subject{Name: "worker", Disabled: true}); err != nil {
		t.Fatal(err)
	}
	if d := Decide(set, asking("read:plan")); d.Cause != CauseSubjectDisabled {
		t.Errorf("Decide: %+v, want SUBJECT_DISABLED", d)
	}
	if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
		t.Fatal(err)
	}
	if d := Decide(set, asking("read:plan")); d != allowed("a") {
		t.Errorf("Decide: %+v, want allow", d)
	}
}

func TestRefusedConditions(t *testing.T) {
	for name, g := range map[string]granted{
		"no id":                       allow("read:plan"),
		"an id in capitals":           allow("read:plan").as("A"),
		"no effect":                   {Grant{ID: "a", Subject: "worker", Pattern: pattern("read:plan")}},
		"no pattern":                  {Grant{ID: "a", Subject: "worker", Effect: Allow}},
		"a pattern never parsed":      {Grant{ID: "a", Subject: "worker", Effect: Allow, Pattern: Pattern{Read, "doc", true}}},
		"a star in the object":        {Grant{ID: "a", Subject: "worker", Effect: Allow, Pattern: Pattern{Read, "*", false}}},
		"a malformed subject":         {Grant{ID: "a", Subject: "wor ker", Effect: Allow, Pattern: pattern("read:plan")}},
		"a deny with uses":            deny("read:plan").as("a").uses(1),
		"a deny with a tier":          deny("read:plan").as("a").tier(Bound),
		"a deny that discloses":       deny("read:plan").as("a").disclosing(),
		"a deny to approve":           deny("read:plan").as("a").needsApproval(),
		"a tier no minimum can be":    allow("read:plan").as("a").tier(Separate),
		"a boot clock without a wall": allow("read:plan").as("a").boot("boot", 1),
		"half a boot clock":           allow("read:plan").as("a").until(noon).boot("boot", 0),
		"a year of five digits":       allow("read:plan").as("a").until(noon.AddDate(9000, 0, 0)),
	} {
		if err := g.Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, s := range map[string]Subject{
		"no name":                  {},
		"a tier no minimum can be": {Name: "worker", MinTier: Keyed},
		"a malformed owner":        {Name: "worker", Owner: "a b"},
	} {
		if err := s.Validate(); err == nil {
			t.Errorf("a subject with %s is accepted", name)
		}
	}
}
