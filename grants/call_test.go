package grants

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCallsAgainstModel asks set and model about calls of tools that require
// something, of which most are allowed.
func TestCallsAgainstModel(t *testing.T) {
	outcomes := map[Outcome]int{}
	causes := map[Cause]int{}
	rapid.Check(t, func(t *rapid.T) {
		set, m := NewSet(), &model{subjects: []Subject{{Name: "a"}}}
		if err := set.PutSubject(m.subjects[0]); err != nil {
			t.Fatal(err)
		}
		put := func(g Grant) {
			g.Subject = "a"
			if same, ok := set.Find(g.Subject, g.Pattern, g.Effect); ok {
				g.ID = same.ID
			}
			if set.PutGrant(g) == nil {
				m.grants = append(slices.DeleteFunc(m.grants, func(old Grant) bool { return old.ID == g.ID }), g)
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "grants") {
			put(anyGrant(t))
		}
		putTool := func() {
			tool := anyTool(t)
			if err := set.PutTool(tool); err != nil {
				t.Fatal(err)
			}
			m.tools = append(slices.DeleteFunc(m.tools, func(old Tool) bool { return old.Name == tool.Name }), tool)
		}
		for range rapid.IntRange(1, 3).Draw(t, "tools") {
			putTool()
		}
		for _, tool := range m.tools {
			for _, q := range tool.Requires { // most of what they need
				if rapid.IntRange(0, 3).Draw(t, "granted") > 0 {
					g := anyGrant(t)
					g.Effect, g.Pattern, g.Until, g.BootID, g.BootUntil = Allow, q, time.Time{}, "", 0
					put(g)
				}
			}
		}
		put(Grant{ID: "zzzz", Pattern: pattern("call:*"), Effect: Allow})
		p := anyProfile(t)
		p.Subject, p.Tools = "a", nil
		for _, tool := range m.tools {
			p.Tools = append(p.Tools, tool.Name)
		}
		if rapid.Bool().Draw(t, "not narrowed") {
			p.Caps = nil
		}
		ceiling := NewCeiling(p, m.tools)
		m.runs = append(m.runs, modelRun{ceiling, p, slices.Clone(m.tools)})
		if rapid.IntRange(0, 2).Draw(t, "later") == 0 { // after the run opened
			putTool()
		}
		for range 24 { // enough of them that every cause comes up
			r := anyRequest(t)
			r.Subject, r.Tool, r.Tier, r.Capability = "a", "", Sandboxed, Capability{Call, rapid.SampledFrom(someTools).Draw(t, "called")}
			if rapid.Bool().Draw(t, "under the profile") {
				r.Profile, r.Ceiling = p.Name, ceiling
			}
			if rapid.IntRange(0, 9).Draw(t, "no resources") == 0 {
				r.Resource = nil
			}
			got, want := Decide(set, r), m.decide(r)
			if got != want {
				t.Fatalf("Decide(%+v) = %+v, want %+v, grants %+v, tools %+v", r, got, want, m.grants, m.tools)
			}
			if explained, steps := Explain(set, r); explained != got || len(steps) == 0 {
				t.Fatalf("Explain(%+v) = %+v, but Decide says %+v", r, explained, got)
			}
			outcomes[got.Outcome]++
			causes[got.Cause]++
		}
	})
	for _, o := range []Outcome{Allowed, Pending, Denied} {
		if outcomes[o] == 0 {
			t.Errorf("nothing came to %s: the test tests little", o)
		}
	}
	for _, cause := range []Cause{CauseNoGrant, CauseExplicitDeny, CauseGrantExhausted, CauseUnknownResource, CauseNoContent, CauseDisclosureNotGranted} {
		if causes[cause] == 0 {
			t.Errorf("nothing was denied for %s: the test tests little", cause)
		}
	}
}

// TestCall is the rule in examples.
func TestCall(t *testing.T) {
	token := func(name string) Object {
		return Object{Exists: name == "token" || name == "empty", Secret: true, HasContent: name == "token"}
	}
	for _, tc := range []struct {
		name    string
		tool    Tool
		grants  []string // "capability", "!capability" denies, "?capability" asks
		profile *Profile
		want    Outcome
		cause   Cause
	}{
		{name: "a tool that nobody declared", grants: []string{"call:x/y"}, want: Allowed},
		{name: "no grant", tool: Tool{Name: "x/y"}, want: Denied, cause: CauseNoGrant},
		{name: "another tool", tool: Tool{Name: "x/y"}, grants: []string{"call:x/z"}, want: Denied, cause: CauseNoGrant},
		{name: "all tools of the server", tool: Tool{Name: "x/y"}, grants: []string{"call:x/*"}, want: Allowed},
		{name: "denied", tool: Tool{Name: "x/y"}, grants: []string{"call:x/*", "!call:x/y"}, want: Denied, cause: CauseExplicitDeny},
		{name: "what it requires is there", tool: needs("use:token"), grants: []string{"call:x/y", "use:token"}, want: Allowed},
		{name: "what it requires is missing", tool: needs("use:token"), grants: []string{"call:x/y"}, want: Denied, cause: CauseNoGrant},
		{name: "what it requires is denied", tool: needs("use:token"), grants: []string{"call:x/y", "use:token", "!use:*"}, want: Denied, cause: CauseExplicitDeny},
		{name: "what it requires is not there", tool: needs("use:other"), grants: []string{"call:x/y", "use:other"}, want: Denied, cause: CauseUnknownResource},
		{name: "what it requires is empty", tool: needs("use:empty"), grants: []string{"call:x/y", "use:empty"}, want: Denied, cause: CauseNoContent},
		{name: "one of two is missing", tool: needs("reach:api.example.com", "use:token"), grants: []string{"call:x/y", "use:token"}, want: Denied, cause: CauseNoGrant},
		{name: "a pattern needs a pattern", tool: needs("read:docs.*"), grants: []string{"call:x/y", "read:docs.a"}, want: Denied, cause: CauseNoGrant},
		{name: "a pattern is there", tool: needs("read:docs.*"), grants: []string{"call:x/y", "read:*"}, want: Allowed},
		{name: "a part of the pattern is denied", tool: needs("read:docs.*"), grants: []string{"call:x/y", "read:*", "!read:docs.secret"}, want: Denied, cause: CauseExplicitDeny},
		{name: "beside the pattern is denied", tool: needs("read:docs.*"), grants: []string{"call:x/y", "read:*", "!read:other"}, want: Allowed},
		{name: "a person is asked for the call", tool: Tool{Name: "x/y"}, grants: []string{"?call:x/y"}, want: Pending},
		{name: "a person is asked for what it requires", tool: needs("use:token"), grants: []string{"call:x/y", "?use:token"}, want: Pending},
		{name: "a gate", tool: Tool{Name: "x/y", Gate: true}, grants: []string{"call:x/y"}, want: Pending},
		{name: "a gate, and no grant", tool: Tool{Name: "x/y", Gate: true}, want: Denied, cause: CauseNoGrant},
		{name: "approval without a profile", tool: Tool{Name: "x/y", Approval: true}, grants: []string{"call:x/y"}, want: Allowed},
		{name: "approval under auto", tool: Tool{Name: "x/y", Approval: true}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"x/y"}}, want: Pending},
		{name: "approval under never", tool: Tool{Name: "x/y", Approval: true}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"x/y"}, Approval: ApprovalNever}, want: Allowed},
		{name: "a gate under never", tool: Tool{Name: "x/y", Gate: true}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"x/y"}, Approval: ApprovalNever}, want: Pending},
		{name: "always", tool: Tool{Name: "x/y"}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"x/y"}, Approval: ApprovalAlways}, want: Pending},
		{name: "not listed", tool: Tool{Name: "x/y"}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"read_resource"}}, want: Denied, cause: CauseToolNotListed},
		{name: "caps leave out what it requires", tool: needs("use:token"), grants: []string{"call:x/y", "use:token"}, profile: &Profile{Tools: []string{"x/y"}, Caps: []Pattern{}}, want: Denied, cause: CauseCapsNarrowed},
		{name: "caps do not narrow the call itself", tool: Tool{Name: "x/y"}, grants: []string{"call:x/y"}, profile: &Profile{Tools: []string{"x/y"}, Caps: []Pattern{}}, want: Allowed},
	} {
		set := NewSet()
		if err := set.PutSubject(Subject{Name: "worker"}); err != nil {
			t.Fatal(err)
		}
		if tc.tool.Name != "" {
			if err := set.PutTool(tc.tool); err != nil {
				t.Fatal(err)
			}
		}
		for _, text := range tc.grants {
			g := Grant{ID: NewID(), Subject: "worker", Effect: Allow}
			switch text[0] {
			case '!':
				g.Effect, text = Deny, text[1:]
			case '?':
				g.RequireApproval, text = true, text[1:]
			}
			g.Pattern = pattern(text)
			if err := set.PutGrant(g); err != nil {
				t.Fatal(err)
			}
		}
		r := &Request{Subject: "worker", Tier: Cooperative, Now: noon, Capability: Capability{Call, "x/y"}, Resource: token}
		if tc.profile != nil {
			p := *tc.profile
			p.Name, p.Subject = "coder", "worker"
			r.Profile, r.Ceiling = p.Name, NewCeiling(p, set.Tools())
		}
		if got := Decide(set, r); got.Outcome != tc.want || got.Cause != tc.cause {
			t.Errorf("%s: %s %s, want %s %s", tc.name, got.Outcome, got.Cause, tc.want, tc.cause)
		}
		if n := testing.AllocsPerRun(20, func() { Decide(set, r) }); n != 0 {
			t.Errorf("%s: Decide allocates %v times", tc.name, n)
		}
	}
}

func needs(requires ...string) Tool {
	t := Tool{Name: "x/y"}
	for _, text := range requires {
		t.Requires = append(t.Requires, pattern(text))
	}
	return t
}

// Another tool of the profile that requires the call of a gated one does not open it.
func TestGateHoldsForEveryWay(t *testing.T) {
	set := NewSet()
	for _, err := range []error{
		set.PutSubject(Subject{Name: "worker"}),
		set.PutTool(Tool{Name: "x/y", Approval: true}),
		set.PutTool(Tool{Name: "a/all", Requires: []Pattern{pattern("call:x/*")}}),
		set.PutProfile(Profile{Name: "coder", Subject: "worker", Tools: []string{"a/all", "x/y"}}),
		set.PutGrant(Grant{ID: "aaaa", Subject: "worker", Pattern: pattern("call:*"), Effect: Allow}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ceiling, _ := set.Ceiling("coder")
	r := &Request{Subject: "worker", Tier: Cooperative, Now: noon, Capability: Capability{Call, "x/y"}, Profile: "coder", Ceiling: ceiling}
	if got := Decide(set, r); got.Outcome != Pending {
		t.Errorf("%s, want pending", got.Outcome)
	}
	if err := set.PutTool(Tool{Name: "x/y"}); err != nil {
		t.Fatal(err)
	}
	if got := Decide(set, r); got.Outcome != Pending {
		t.Errorf("after the tool was declared anew, a run that is open: %s, want pending", got.Outcome)
	}
	r.Capability.Object = "x/z"
	if got := Decide(set, r); got.Outcome != Allowed {
		t.Errorf("the control: %s %s, want allow", got.Outcome, got.Cause)
	}
}
