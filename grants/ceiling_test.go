package grants

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func tool(name string, requires ...string) Tool {
	t := Tool{Name: name}
	for _, r := range requires {
		t.Requires = append(t.Requires, pattern(r))
	}
	return t
}

// profile is "coder", a profile of "worker" with these tools.
func profile(tools ...string) Profile {
	return Profile{Name: "coder", Subject: "worker", Tools: tools}
}

func (p Profile) capped(caps ...string) Profile {
	p.Caps = []Pattern{}
	for _, c := range caps {
		p.Caps = append(p.Caps, pattern(c))
	}
	return p
}

func (p Profile) approving(a Approval) Profile { p.Approval = a; return p }

var (
	issue = tool("github/create_issue", "use:github.token", "reach:api.github.com")
	curl  = tool("shell/curl", "reach:*")
	notes = tool("notes/add", "memory.write:notes", "read:docs.*")
	every = []Tool{issue, curl, notes}
)

func TestCeilings(t *testing.T) {
	const (
		unlisted = CauseToolNotListed
		narrowed = CauseCapsNarrowed
	)
	for _, test := range []struct {
		name    string
		profile Profile
		ask     string
		want    Cause
	}{
		{"no tools", profile(), "read:plan", unlisted},
		{"what is always there reaches nothing", profile("capability_report", "explain_decision"), "read:plan", unlisted},
		{"reading", profile("read_resource"), "read:plan", ""},
		{"listing", profile("list_resources"), "read:plan", ""},
		{"reading is not using", profile("read_resource"), "use:plan", unlisted},
		{"what a tool requires", profile("github/create_issue"), "use:github.token", ""},
		{"no more than that", profile("github/create_issue"), "use:github.tokens", unlisted},
		{"nor by another action", profile("github/create_issue"), "read:github.token", unlisted},
		{"all that it requires", profile("github/create_issue"), "reach:api.github.com", ""},
		{"a pattern", profile("notes/add"), "read:docs.a", ""},
		{"outside a pattern", profile("notes/add"), "read:plan", unlisted},
		{"what a tool that is not listed requires", profile("shell/curl"), "memory.write:notes", unlisted},
		{"two tools", profile("shell/curl", "notes/add"), "memory.write:notes", ""},
		{"the call of a listed tool", profile("github/create_issue"), "call:github/create_issue", ""},
		{"the call of another one", profile("github/create_issue"), "call:github/delete_repository", unlisted},
		{"the call of a tool whose name only begins alike", profile("github/create_issue"), "call:github/create_issues", unlisted},
		{"a built-in is called without a capability", profile("read_resource"), "call:read_resource", unlisted},
		{"a tool that is not declared", profile("ghost/tool"), "call:ghost/tool", unlisted},
		{"within caps", profile("read_resource").capped("read:docs.*"), "read:docs.a", ""},
		{"outside caps", profile("read_resource").capped("read:docs.*"), "read:plan", narrowed},
		{"caps add nothing", profile("notes/add").capped("read:*", "use:*"), "read:plan", unlisted},
		{"nor an action", profile("notes/add").capped("read:*", "use:*"), "use:plan", unlisted},
		{"caps of another action", profile("github/create_issue").capped("read:*"), "use:github.token", narrowed},
		{"caps wider than the requirement", profile("notes/add").capped("read:*"), "read:docs.a", ""},
		{"empty caps leave nothing", profile("read_resource").capped(), "read:plan", narrowed},
		{"caps do not narrow the call of a listed tool", profile("github/create_issue").capped("read:docs.*"), "call:github/create_issue", ""},
		{"one of two caps", profile("read_resource").capped("read:a.*", "read:b.*"), "read:b.x", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := NewCeiling(test.profile, every)
			if ok, cause := c.Covers(capability(test.ask)); ok != (test.want == "") || cause != test.want {
				t.Errorf("Covers(%s) = %v, %q, want %q", test.ask, ok, cause, test.want)
			}
		})
	}
	var none *Ceiling
	if ok, cause := none.Covers(capability("read:plan")); !ok || cause != "" {
		t.Errorf("no ceiling covers %v, %q, want everything", ok, cause)
	}
	for _, action := range []Action{0, 200} {
		if ok, _ := NewCeiling(profile("read_resource"), nil).Covers(Capability{action, "plan"}); ok {
			t.Errorf("an action of number %d is covered", action)
		}
	}
}

func TestADeclaredToolIsNoBuiltin(t *testing.T) {
	stolen := Tool{Name: "read_resource", Requires: []Pattern{pattern("use:*")}}
	if ok, _ := NewCeiling(profile("read_resource"), []Tool{stolen}).Covers(capability("use:plan")); ok {
		t.Error("a tool with the name of a built-in one is listed in its place")
	}
}

// Under a profile that covers it everything is as without one; and what it does
// not cover is denied whatever is granted, by a cause that says so.
func TestDecisionsUnderACeiling(t *testing.T) {
	under := func(p Profile) func(*Request) {
		return func(r *Request) { r.Profile, r.Ceiling = p.Name, NewCeiling(p, every) }
	}
	reading := under(profile("read_resource").capped("read:docs.*"))
	any := []granted{allow("read:*").as("any"), allow("use:*").as("use")}
	check(t, []decision{
		{"covered and granted", any, asking("read:docs.a"), reading, allowed("any")},
		{"covered, not granted", nil, asking("read:docs.a"), reading, refused(CauseNoGrant, "")},
		{"granted, left out by caps", any, asking("read:plan"), reading, refused(CauseCapsNarrowed, "")},
		{"granted, no tool for it", any, asking("use:docs.a"), reading, refused(CauseToolNotListed, "")},
		{"denied and not covered", []granted{deny("read:*")}, asking("read:plan"), reading, refused(CauseCapsNarrowed, "")},
		{"denied and covered", []granted{deny("read:*").as("no")}, asking("read:docs.a"), reading, refused(CauseExplicitDeny, "no")},
		{"not there and not covered", any, &Request{Subject: "worker", Capability: capability("read:plan"), Tier: Cooperative}, reading, refused(CauseCapsNarrowed, "")},
		{"not there and covered", any, &Request{Subject: "worker", Capability: capability("read:docs.a"), Tier: Cooperative}, reading, refused(CauseUnknownResource, "")},
		{"the tier is judged first", any, asking("read:plan"), func(r *Request) { reading(r); r.Tier = 0 }, refused(CauseTierTooLow, "")},
		{"a profile without a ceiling is unknown", any, asking("read:docs.a"), func(r *Request) { r.Profile = "coder" }, refused(CauseUnknownProfile, "")},
		{"a ceiling of another subject", any, asking("read:docs.a"),
			func(r *Request) {
				p := profile("read_resource")
				p.Subject = "boss"
				r.Profile, r.Ceiling = p.Name, NewCeiling(p, nil)
			}, refused(CauseSubjectMismatch, "")},
		{"with a tool that it lists", any, asking("read:docs.a"), func(r *Request) { reading(r); r.Tool = ToolRead }, allowed("any")},
		{"with one that it does not list", any, asking("read:docs.a"), func(r *Request) { reading(r); r.Tool = ToolList }, refused(CauseToolNotListed, "")},
		{"read by a tool that does not read", any, asking("read:docs.a"),
			func(r *Request) { under(profile("notes/add"))(r); r.Tool = ToolRead }, refused(CauseToolNotListed, "")},
		{"the control: by the tool that requires it", any, asking("read:docs.a"), under(profile("notes/add")), allowed("any")},
		{"with a tool, and no profile", any, asking("read:docs.a"), func(r *Request) { r.Tool = ToolRead }, allowed("any")},
		{"a ceiling without its name counts too", any, asking("read:plan"),
			func(r *Request) { reading(r); r.Profile = "" }, refused(CauseCapsNarrowed, "")},
	})
}

func TestApprovalUnderAProfile(t *testing.T) {
	asks, gate := tool("a/asks", "reach:x"), tool("a/gate", "reach:x")
	asks.Approval, gate.Gate = true, true
	free := tool("a/free", "reach:*")
	for _, test := range []struct {
		name    string
		profile Profile
		ask     string
		pending bool
	}{
		{"as the tool says", profile("a/asks"), "call:a/asks", true},
		{"also for what it requires", profile("a/asks"), "reach:x", true},
		{"as the other tool says", profile("a/free"), "call:a/free", false},
		{"a tool that requires it needs nobody", profile("a/asks", "a/free"), "reach:x", false},
		{"in whatever order", profile("a/free", "a/gate", "a/asks"), "reach:x", false},
		{"a gate", profile("a/gate"), "call:a/gate", true},
		{"never: not as the tool says", profile("a/asks").approving(ApprovalNever), "call:a/asks", false},
		{"never: but as its gate says", profile("a/gate").approving(ApprovalNever), "call:a/gate", true},
		{"always: everything", profile("a/free").approving(ApprovalAlways), "reach:x", true},
		{"always: reading too", profile("read_resource").approving(ApprovalAlways), "read:plan", true},
		{"auto: not reading", profile("read_resource", "a/gate"), "read:plan", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			set := setOf(t, allow("call:a/*").as("call"), allow("reach:*").as("reach"), allow("read:*").as("read"))
			r := asking(test.ask)
			r.Profile, r.Ceiling = "coder", NewCeiling(test.profile, []Tool{asks, free, gate})
			want := Allowed
			if test.pending {
				want = Pending
			}
			if got := Decide(set, r); got.Outcome != want || got.GrantID == "" {
				t.Errorf("Decide: %+v, want %s", got, want)
			}
			if got := Decide(setOf(t), r); got.Outcome != Denied {
				t.Errorf("Decide without a grant: %+v: a denial is no prompt", got)
			}
		})
	}
}

func TestACeilingNeverChanges(t *testing.T) {
	set := setOf(t, allow("use:*").as("any"))
	mustPut := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mustPut(set.PutTool(issue))
	mustPut(set.PutProfile(profile("github/create_issue").capped("use:github.token")))
	opened, _ := set.Ceiling("coder")
	judge := func(when, what string, want Cause) {
		t.Helper()
		r := asking(what)
		r.Profile, r.Ceiling = "coder", opened
		if got := Decide(set, r); got.Cause != want {
			t.Errorf("%s: %s of an open run: %+v, want cause %q", when, what, got, want)
		}
	}
	judge("at once", "use:github.token", "")
	judge("at once", "use:plan", CauseToolNotListed)

	wider := tool("github/create_issue", "use:*")
	mustPut(set.PutTool(wider))
	mustPut(set.PutProfile(profile("github/create_issue")))
	judge("after profile and tool grew", "use:plan", CauseToolNotListed)
	if now, _ := set.Ceiling("coder"); now == nil {
		t.Error("no ceiling for a new run")
	} else if ok, _ := now.Covers(capability("use:plan")); !ok {
		t.Error("a new run does not see the new tool")
	}

	set.RemoveTool("github/create_issue")
	judge("after the tool went", "use:github.token", "")
	if now, _ := set.Ceiling("coder"); now == nil {
		t.Error("no ceiling for a new run")
	} else if ok, _ := now.Covers(capability("use:github.token")); ok {
		t.Error("a tool that is gone still gives something to a new run")
	}
	set.RemoveProfile("coder")
	judge("after the profile went", "use:github.token", "")
	if now, ok := set.Ceiling("coder"); ok || now != nil {
		t.Error("a profile that is gone has a ceiling")
	}
}

// TestACeilingOwnsItsLists: what a caller does later with the lists that it put
// in changes neither the set nor a ceiling.
func TestACeilingOwnsItsLists(t *testing.T) {
	p, lent := profile("github/create_issue").capped("use:github.token"), tool("github/create_issue", "use:*")
	c := NewCeiling(p, []Tool{lent})
	set := setOf(t)
	if err := set.PutTool(lent); err != nil {
		t.Fatal(err)
	}
	if err := set.PutProfile(p); err != nil {
		t.Fatal(err)
	}
	p.Caps[0], lent.Requires[0] = pattern("use:*"), pattern("read:*")
	live, _ := set.Ceiling("coder")
	for name, c := range map[string]*Ceiling{"an open run": c, "a new run": live} {
		if ok, _ := c.Covers(capability("use:github.token")); !ok {
			t.Errorf("%s cannot reach what it could", name)
		}
		if ok, cause := c.Covers(capability("use:plan")); ok || cause != CauseCapsNarrowed {
			t.Errorf("%s can reach what it could not, %q", name, cause)
		}
	}
}

// TestCeilingAgainstModel asks many small profiles the same as the model.
func TestCeilingAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := modelRun{profile: anyProfile(t)}
		for range rapid.IntRange(0, 4).Draw(t, "tools") {
			one := anyTool(t)
			run.tools = append(slices.DeleteFunc(run.tools, func(old Tool) bool { return old.Name == one.Name }), one)
		}
		c := NewCeiling(run.profile, run.tools)
		for range 16 {
			what := anyRequest(t).Capability
			wantCause, wantGated := run.judge(what)
			found, cause := c.find(Pattern{Action: what.Action, Object: what.Object})
			if ok, again := c.Covers(what); cause != wantCause || again != cause || ok != (cause == "") {
				t.Fatalf("%s: %q, Covers %v, %q, want %q, of %+v with %+v", what, cause, ok, again, wantCause, run.profile, run.tools)
			}
			q := anyPattern(t)
			if _, cause := c.find(q); cause != run.judgeAll(q) {
				t.Fatalf("%s: %q, want %q, of %+v with %+v", q, cause, run.judgeAll(q), run.profile, run.tools)
			}
			if cause == "" && found.gated != wantGated {
				t.Fatalf("%s: gated %v, want %v, of %+v with %+v", what, found.gated, wantGated, run.profile, run.tools)
			}
		}
	})
}
