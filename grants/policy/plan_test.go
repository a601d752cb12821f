package policy

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
)

// state is a document as the daemon would hold it: with ids, made by whoever the
// owner is.
func state(t *testing.T, owner, text string) *Document {
	t.Helper()
	d := wanted(t, owner, text)
	for i := range d.Grants {
		d.Grants[i].ID = "id" + string(rune('a'+i))
		d.Grants[i].Created = noon
	}
	return d
}

func wanted(t *testing.T, owner, text string) *Document {
	t.Helper()
	head := "version: 1\n"
	if owner != "" {
		head += "owner: " + owner + "\n"
	}
	d, err := Parse([]byte(head+text), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// join puts things of several owners into one state.
func join(states ...*Document) *Document {
	all := &Document{Resources: map[string]Resource{}, Subjects: map[string]Subject{}, Profiles: map[string]grants.Profile{}, Tools: map[string]grants.Tool{}, Tenants: map[string]grants.Tenant{}}
	for _, s := range states {
		for name, r := range s.Resources {
			all.Resources[name] = r
		}
		for name, s := range s.Subjects {
			all.Subjects[name] = s
		}
		maps.Copy(all.Profiles, s.Profiles)
		maps.Copy(all.Tools, s.Tools)
		maps.Copy(all.Tenants, s.Tenants)
		all.Grants = append(all.Grants, s.Grants...)
	}
	return all
}

func plan(t *testing.T, current, want *Document, prune bool) []string {
	t.Helper()
	changes, err := Plan(current, want, prune)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range changes {
		line := c.Verb + " " + c.What + " " + c.Name
		if c.Detail != "" {
			line += " (" + c.Detail + ")"
		}
		lines = append(lines, line)
	}
	return lines
}

func wantPlan(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

const small = `resources: {plan: {kind: text}, hosts: {file: /etc/hosts}}
subjects: {worker: {minTier: bound}, boss: {}}
grants:
- {subject: worker, capability: "read:plan", uses: 3, until: "2030-12-31T00:00:00Z"}
- {subject: boss, capability: "read:*"}
`

func TestPlanOfEverythingNew(t *testing.T) {
	wantPlan(t, plan(t, &Document{}, wanted(t, "laptop", small), true),
		"add resource hosts", "add resource plan", "add subject boss", "add subject worker",
		"add grant boss allow read:*", "add grant worker allow read:plan")
}

func TestPlanOfTheSameIsEmpty(t *testing.T) {
	for _, owner := range []string{"laptop", "other", ""} {
		wantPlan(t, plan(t, state(t, owner, small), wanted(t, "laptop", small), false))
		wantPlan(t, plan(t, state(t, owner, small), wanted(t, "laptop", small), true))
	}
}

func TestPlanOfChanges(t *testing.T) {
	got := plan(t, state(t, "", small), wanted(t, "", `resources: {plan: {kind: text, note: secret plan, domain: personal}, hosts: {file: /etc/hostname, pin: path}}
subjects: {worker: {minTier: sandboxed, enabled: false}, boss: {enabled: true}}
grants:
- {subject: worker, capability: "read:plan", uses: 5, requireApproval: true, note: soon}
- {subject: boss, capability: "read:*", effect: deny}
- {subject: boss, capability: "read:hosts", tier: bound}
`), false)
	wantPlan(t, got,
		"change resource hosts (file: /etc/hosts -> /etc/hostname, pin: content -> path)",
		"change resource plan (domain: none -> personal, note: none -> secret plan)",
		"change subject worker (minTier: bound -> sandboxed, enabled: true -> false)",
		"add grant boss deny read:*", "add grant boss allow read:hosts",
		"change grant worker allow read:plan (until: 2030-12-31T00:00:00Z -> none, uses: 3 -> 5, requireApproval: false -> true, note: none -> soon)")
}

func TestAChangedGrantKeepsWhatItIs(t *testing.T) {
	current := state(t, "first", small)
	current.Grants[1].BootID, current.Grants[1].BootUntil = "boot", 7
	changes, err := Plan(current, wanted(t, "second", strings.Replace(small, "uses: 3", "uses: 4", 1)), false)
	if err != nil || len(changes) != 1 {
		t.Fatalf("Plan: %+v, %v, want one change", changes, err)
	}
	want := current.Grants[1]
	want.Uses = 4
	if diff := cmp.Diff(want, changes[0].Grant); diff != "" {
		t.Error(diff)
	}
	changes, err = Plan(current, wanted(t, "second", strings.Replace(small, "2030-12-31", "2030-12-30", 1)), false)
	if err != nil || len(changes) != 1 || changes[0].Grant.BootID != "" {
		t.Errorf("Plan of another end: %+v, %v, want it without the old boot clock", changes, err)
	}
}

// What a document leaves out about a subject or a resource it leaves alone, or
// applying it again would enable what somebody disabled in an emergency.
func TestPlanLeavesAloneWhatIsNotSaid(t *testing.T) {
	disabled := false
	current := state(t, "laptop", small)
	current.Subjects["boss"] = Subject{MinTier: grants.Sandboxed, Enabled: &disabled}
	current.Resources["plan"] = Resource{Kind: KindText, Note: "by hand", Domain: DomainPersonal}
	current.Resources["hosts"] = Resource{File: "/etc/hosts", Pin: PinContent, SHA256: strings.Repeat("a", 64)}
	wantPlan(t, plan(t, current, wanted(t, "laptop", small), true))
}

func TestPruneRemovesOnlyWhatTheOwnerHas(t *testing.T) {
	mine := state(t, "laptop", small)
	byHand := state(t, "", "resources: {diary: {kind: text}}\nsubjects: {guest: {}}\ngrants: [{subject: guest, capability: \"read:diary\"}]\n")
	others := state(t, "server", "resources: {logs: {kind: text}}\nsubjects: {daemon: {}}\ngrants: [{subject: daemon, capability: \"read:*\"}]\n")
	current := join(mine, byHand, others)
	nothing := wanted(t, "laptop", "")
	wantPlan(t, plan(t, current, nothing, false))
	wantPlan(t, plan(t, current, nothing, true),
		"remove grant boss allow read:*", "remove grant worker allow read:plan",
		"remove subject boss", "remove subject worker", "remove resource hosts", "remove resource plan")
}

func TestPruneShowsWhatGoesWithIt(t *testing.T) {
	mine := state(t, "laptop", small)
	guest := Document{
		Subjects: map[string]Subject{"guest": {}},
		Grants: []grants.Grant{
			{ID: "x", Subject: "guest", Pattern: pattern("read:plan"), Effect: grants.Allow},
			{ID: "y", Subject: "guest", Pattern: pattern("call:plan"), Effect: grants.Allow},
			{ID: "z", Subject: "worker", Pattern: pattern("use:*"), Effect: grants.Deny},
		},
	}
	wantPlan(t, plan(t, join(mine, &guest), wanted(t, "laptop", "resources: {hosts: {file: /etc/hosts}}\nsubjects: {boss: {}}\n"), true),
		"remove grant boss allow read:*",
		"remove grant guest allow read:plan (goes with its resource)",
		"remove grant worker allow read:plan",
		"remove grant worker deny use:* (goes with its subject)",
		"remove subject worker", "remove resource plan")
}

func TestPlanOfTenants(t *testing.T) {
	const text = "subjects: {boss: {}}\ntenants: [acme, initech]\ngrants: [{subject: boss, capability: \"memory.read:acme\"}]\n"
	want := wanted(t, "laptop", text)
	wantPlan(t, plan(t, &Document{}, want, false),
		"add tenant acme", "add tenant initech", "add subject boss", "add grant boss allow memory.read:acme")
	mine := state(t, "laptop", text)
	wantPlan(t, plan(t, mine, want, true))
	guest := Document{
		Subjects: map[string]Subject{"guest": {}},
		Tenants:  map[string]grants.Tenant{"other": {Name: "other", Owner: "server"}, "byhand": {Name: "byhand"}},
		Grants: []grants.Grant{
			{ID: "x", Subject: "guest", Pattern: pattern("memory.write:acme"), Effect: grants.Allow},
			{ID: "y", Subject: "guest", Pattern: pattern("memory.write:*"), Effect: grants.Allow},
			{ID: "z", Subject: "guest", Pattern: pattern("memory.read:other"), Effect: grants.Deny},
			{ID: "w", Subject: "guest", Pattern: pattern("read:acme"), Effect: grants.Deny},
		},
	}
	wantPlan(t, plan(t, join(mine, &guest), wanted(t, "laptop", "subjects: {boss: {}}\n"), true),
		"remove grant boss allow memory.read:acme", "remove grant guest allow memory.write:acme (goes with its tenant)",
		"remove tenant acme", "remove tenant initech")
	named := &Document{Owner: "laptop", Subjects: want.Subjects, Grants: want.Grants}
	if changes, err := Plan(mine, named, true); err == nil || !strings.Contains(err.Error(), "tenant acme, which pruning would remove") {
		t.Errorf("a tenant that is granted is pruned: %v, %v", changes, err)
	}
}

func TestPlanRefuses(t *testing.T) {
	current := state(t, "laptop", small)
	for name, test := range map[string]struct {
		want  *Document
		prune bool
		says  string
	}{
		"pruning without an owner":     {wanted(t, "", small), true, "needs an owner"},
		"another kind":                 {wanted(t, "laptop", "resources: {plan: {kind: secret}}\n"), false, "resource plan is of kind text and cannot become of kind secret"},
		"a file for sealed content":    {wanted(t, "laptop", "resources: {plan: {file: /etc/hosts}}\n"), false, "cannot become a file"},
		"sealed content for a file":    {wanted(t, "laptop", "resources: {hosts: {kind: text}}\n"), false, "resource hosts is a file"},
		"a grant of a pruned resource": {&Document{Owner: "laptop", Subjects: map[string]Subject{"worker": {}}, Grants: current.Grants[1:]}, true, "resource plan, which pruning would remove"},
		"a grant to a pruned subject":  {&Document{Owner: "laptop", Grants: current.Grants[:1]}, true, "subject boss, which pruning would remove"},
	} {
		changes, err := Plan(current, test.want, test.prune)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %+v, %v, want an error with %q", name, changes, err, test.says)
		}
	}
}

func TestSubjectsThereAndBack(t *testing.T) {
	for _, s := range []grants.Subject{
		{Name: "a"}, {Name: "a", MinTier: grants.Bound}, {Name: "a", Disabled: true, MinTier: grants.Cooperative},
	} {
		copied := grants.Subject{Name: "a", Disabled: s.Disabled}
		FromSubject(s).ApplyTo(&copied)
		if copied.Disabled != s.Disabled || copied.MinTier != max(s.MinTier, grants.Cooperative) {
			t.Errorf("%+v became %+v", s, copied)
		}
	}
}

const profiled = `resources: {token: {kind: secret}}
subjects: {worker: {uid: 1001}, boss: {}}
tools:
  github/create_issue: {requires: ["use:token"], approval: always}
  shell/curl: {requires: ["reach:*"]}
profiles:
  coder: {subject: worker, tools: [read_resource, github/create_issue], caps: ["read:docs.*", "use:token"]}
  admin: {subject: boss, tools: [shell/curl], approval: always}
`

func TestPlanOfProfilesAndTools(t *testing.T) {
	wantPlan(t, plan(t, &Document{}, wanted(t, "laptop", profiled), true),
		"add resource token", "add tool github/create_issue", "add tool shell/curl",
		"add subject boss", "add subject worker", "add profile admin", "add profile coder")
	for _, owner := range []string{"laptop", "other", ""} {
		wantPlan(t, plan(t, state(t, owner, profiled), wanted(t, "laptop", profiled), true))
	}
	got := plan(t, state(t, "", profiled), wanted(t, "", `subjects: {worker: {uid: 1002}, boss: {uid: 1003}}
tools:
  github/create_issue: {requires: ["use:token", "reach:api.github.com"], gate: always}
  shell/curl: {requires: []}
profiles:
  coder: {subject: worker, tools: [read_resource], caps: [], approval: never}
  admin: {subject: boss, tools: [], caps: ["read:*"]}
`), false)
	wantPlan(t, got,
		"change tool github/create_issue (requires: use:token -> reach:api.github.com use:token, approval: always -> never, gate: none -> always)",
		"change tool shell/curl (requires: reach:* -> none)",
		"change subject boss (uid: none -> 1003)",
		"change subject worker (uid: 1001 -> 1002)",
		"change profile admin (tools: shell/curl -> none, caps: none -> read:*, approval: always -> auto)",
		"change profile coder (tools: github/create_issue read_resource -> read_resource, caps: read:docs.* use:token -> [], approval: auto -> never)")
}

func TestAChangedProfileKeepsWhoMadeIt(t *testing.T) {
	current := state(t, "first", profiled)
	for name, p := range current.Profiles {
		p.Created = noon
		current.Profiles[name] = p
	}
	for name, tool := range current.Tools {
		tool.Created = noon
		current.Tools[name] = tool
	}
	want := wanted(t, "second", strings.ReplaceAll(profiled, "token", "key"))
	changes, err := Plan(current, want, false)
	if err != nil {
		t.Fatal(err)
	}
	tool, profile := want.Tools["github/create_issue"], want.Profiles["coder"]
	tool.Owner, profile.Owner, tool.Created, profile.Created = "first", "first", noon, noon
	for _, c := range changes {
		switch {
		case c.What == ATool:
			if diff := cmp.Diff(tool, c.Tool); diff != "" {
				t.Error(diff)
			}
		case c.What == AProfile:
			if diff := cmp.Diff(profile, c.Profile); diff != "" {
				t.Error(diff)
			}
		case c.What != AResource:
			t.Errorf("an unexpected change: %+v", c)
		}
	}
}

func TestPruneOfProfilesAndTools(t *testing.T) {
	mine := state(t, "laptop", profiled)
	nothing := wanted(t, "laptop", "")
	wantPlan(t, plan(t, mine, nothing, false))
	wantPlan(t, plan(t, mine, nothing, true),
		"remove profile admin", "remove profile coder", "remove subject boss", "remove subject worker",
		"remove tool github/create_issue", "remove tool shell/curl", "remove resource token")

	others := &Document{Profiles: map[string]grants.Profile{"guest": {Name: "guest", Subject: "worker", Tools: []string{"read_resource"}, Owner: "server"}}}
	wantPlan(t, plan(t, join(mine, others), wanted(t, "laptop", "resources: {token: {kind: secret}}\nsubjects: {boss: {}}\n"), true),
		"remove profile admin", "remove profile coder", "remove profile guest (goes with its subject)",
		"remove subject worker", "remove tool github/create_issue", "remove tool shell/curl")

	for name, test := range map[string]struct {
		current, want *Document
		prune         bool
		says          string
	}{
		"a profile of another subject": {mine, wanted(t, "laptop", "subjects: {worker: {}, boss: {}}\nprofiles: {coder: {subject: boss, tools: []}}\n"), false,
			"profile coder is of subject worker and cannot become one of boss"},
		"a tool that somebody else's profile lists": {
			join(mine, &Document{Profiles: map[string]grants.Profile{"guest": {Name: "guest", Subject: "boss", Tools: []string{"shell/curl"}, Owner: "server"}}}),
			wanted(t, "laptop", "subjects: {boss: {}}\n"), true, "profile guest names tool shell/curl, which pruning would remove"},
		"a tool that the document lists and no more declares": {mine,
			&Document{Owner: "laptop", Subjects: map[string]Subject{"worker": {}}, Profiles: map[string]grants.Profile{"coder": mine.Profiles["coder"]}}, true,
			"profile coder names tool github/create_issue, which pruning would remove"},
		"a subject that the document no more declares": {mine,
			&Document{Owner: "laptop", Tools: mine.Tools, Profiles: map[string]grants.Profile{"coder": mine.Profiles["coder"]}}, true,
			"profile coder names subject worker, which pruning would remove"},
	} {
		changes, err := Plan(test.current, test.want, test.prune)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %+v, %v, want an error with %q", name, changes, err, test.says)
		}
	}
}
