package policy

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"subjectbroker/grants"
	"subjectbroker/grants/rules"
)

func TestMarshalIsStable(t *testing.T) {
	document, err := Parse([]byte(everything), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	const want = `version: 1
owner: laptop
resources:
  design-doc: {kind: text}
  github.token: {kind: secret, note: "rotate in June: Zoë"}
  hosts: {file: /etc/hosts, pin: content, sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}
  logo: {kind: binary}
  payroll: {kind: text, domain: personal}
  readme: {file: "${home}/README.md", pin: path}
subjects:
  orchestrator: {}
  worker: {uid: 1001, minTier: bound, enabled: false}
profiles:
  coder: {subject: worker, tools: [github/create_issue, read_resource], caps: ["read:docs.*", "use:github.token"], approval: never}
  guest: {subject: worker, tools: [], caps: []}
tools:
  github/create_issue: {requires: ["use:github.token"], approval: always, gate: always}
  shell/curl: {requires: ["reach:api.github.com", "use:github.token"]}
tenants: [acme, initech]
grants:
- {subject: orchestrator, capability: "call:github/*"}
- {subject: orchestrator, capability: "memory.read:acme"}
- {subject: orchestrator, capability: "read:github.token", until: "2030-06-02T00:00:00Z", disclose: true}
- {subject: orchestrator, capability: "use:github.token", requireApproval: true}
- {subject: worker, capability: "read:design-doc", until: "2030-12-31T16:00:00Z", uses: 3, tier: bound}
- {subject: worker, capability: "read:docs.*", effect: deny, note: not yet}
`
	got, err := Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

func TestMarshalOfNothing(t *testing.T) {
	got, err := Marshal(&Document{})
	if err != nil || string(got) != "version: 1\n" {
		t.Errorf("Marshal = %q, %v", got, err)
	}
}

func TestMarshalRefusesWhatParseWould(t *testing.T) {
	read := func(g grants.Grant) *Document {
		g.Subject, g.Pattern = "worker", pattern("read:*")
		return &Document{Grants: []grants.Grant{g}}
	}
	twice := read(grants.Grant{Effect: grants.Allow})
	twice.Grants = append(twice.Grants, twice.Grants[0])
	for name, d := range map[string]*Document{
		"a malformed owner":     {Owner: "a b"},
		"a malformed resource":  {Resources: map[string]Resource{"a b": {Kind: KindText}}},
		"no kind":               {Resources: map[string]Resource{"a": {}}},
		"a file not in UTF-8":   {Resources: map[string]Resource{"a": {File: "/\xff", Pin: PinPath}}},
		"a relative file":       {Resources: map[string]Resource{"a": {File: "a", Pin: PinPath}}},
		"a malformed subject":   {Subjects: map[string]Subject{"a b": {}}},
		"a tier for no minimum": {Subjects: map[string]Subject{"a": {MinTier: grants.Keyed}}},
		"uid 0":                 {Subjects: map[string]Subject{"a": {UID: new(uint32)}}},
		"a malformed profile":   {Profiles: map[string]grants.Profile{"p": {Name: "p"}}},
		"a malformed tool":      {Tools: map[string]grants.Tool{"read_resource": {Name: "read_resource"}}},
		"a profile misnamed":    {Profiles: map[string]grants.Profile{"p": {Name: "q", Subject: "worker"}}},
		"a tool misnamed":       {Tools: map[string]grants.Tool{"a/b": {Name: "a/c"}}},
		"no effect":             read(grants.Grant{}),
		"a deny with uses":      read(grants.Grant{Effect: grants.Deny, Uses: 1}),
		"a note of two lines":   read(grants.Grant{Effect: grants.Allow, Note: "a\nb"}),
		"no subject":            {Grants: []grants.Grant{{Pattern: pattern("read:*"), Effect: grants.Allow}}},
		"no pattern":            {Grants: []grants.Grant{{Subject: "worker", Effect: grants.Allow}}},
		"a grant twice":         twice,
	} {
		if text, err := Marshal(d); err == nil {
			t.Errorf("%s is written:\n%s", name, text)
		}
	}
}

func TestHome(t *testing.T) {
	document := func(file string) *Document {
		return &Document{Resources: map[string]Resource{"a": {File: file, Pin: PinContent}}}
	}
	for _, test := range []struct{ home, file, folded string }{
		{"/home/ann", "/home/ann/x/y", "${home}/x/y"},
		{"/home/ann", "/home/anna/x", "/home/anna/x"},
		{"/home/ann", "/home/ann", "/home/ann"},
		{"/", "/etc/hosts", "${home}/etc/hosts"},
	} {
		d := document(test.file)
		d.Fold(test.home)
		if got := d.Resources["a"].File; got != test.folded {
			t.Errorf("Fold(%q) of %s = %s, want %s", test.home, test.file, got, test.folded)
		}
		if err := d.Expand(test.home); err != nil || d.Resources["a"].File != test.file {
			t.Errorf("Expand(%q) = %s, %v, want %s", test.home, d.Resources["a"].File, err, test.file)
		}
	}
	d := document("/home/ann/x")
	if d.Fold(""); d.Resources["a"].File != "/home/ann/x" {
		t.Error("an empty home folds")
	}
	for _, home := range []string{"", "home", "/home/", "/home/../x"} {
		if err := document("${home}/x").Expand(home); err == nil {
			t.Errorf("Expand(%q) is accepted", home)
		}
	}
	if err := document("/x").Expand(""); err != nil {
		t.Errorf("Expand without anything to expand: %v", err)
	}
}

// The names and texts are those that YAML likes to take for something else.
var (
	someNames = []string{"a", "b", "123", "null", "true", "yes", "on", "1e3", "0x1F", "2030-06-01", "0b1", "1.5", "nan", "N", "version", "owner", "0", "00", "1_0", "a.b"}
	oddRunes  = []rune("a1 :#-{}[],&*!|>'\"%@`~?=<\\/é\u200b\u202e\u3000\ufeff\U0001f600\ufffd\u00a0\U000e0001")
)

func anyNote(t *rapid.T) string {
	if rapid.Bool().Draw(t, "noted") {
		return rapid.StringOfN(rapid.RuneFrom(oddRunes), 0, 12, -1).Draw(t, "note")
	}
	return rapid.SampledFrom(append(someNames, "", "~", "- a", "a: b", " a", "a ", "<<", "...", "---")).Draw(t, "note")
}

func anyDocument(t *rapid.T) *Document {
	d := &Document{Resources: map[string]Resource{}, Subjects: map[string]Subject{}}
	d.Owner = rapid.SampledFrom(append(someNames, "")).Draw(t, "owner")
	name := rapid.SampledFrom(someNames)
	for range rapid.IntRange(0, 4).Draw(t, "resources") {
		r := Resource{Note: anyNote(t), Owner: d.Owner}
		r.Domain = rapid.SampledFrom([]string{"", DomainPersonal}).Draw(t, "domain")
		if rapid.Bool().Draw(t, "file") {
			r.File = rapid.SampledFrom([]string{"/", homePrefix}).Draw(t, "root") + "x" + strings.ReplaceAll(rapid.StringOfN(rapid.RuneFrom(oddRunes), 0, 9, -1).Draw(t, "path"), "/", "")
			r.Pin = rapid.SampledFrom([]string{PinContent, PinPath}).Draw(t, "pin")
		} else {
			r.Kind = rapid.SampledFrom([]string{KindText, KindSecret, KindBinary}).Draw(t, "kind")
		}
		d.Resources[name.Draw(t, "resource")] = r
	}
	taken := map[uint32]bool{}
	for range rapid.IntRange(0, 3).Draw(t, "subjects") {
		s := Subject{Owner: d.Owner, MinTier: rapid.SampledFrom([]grants.Tier{0, grants.Cooperative, grants.Bound, grants.Sandboxed}).Draw(t, "min tier")}
		if rapid.Bool().Draw(t, "said") {
			enabled := rapid.Bool().Draw(t, "enabled")
			s.Enabled = &enabled
		}
		if rapid.Bool().Draw(t, "mapped") {
			uid := rapid.Uint32Range(1, 1<<32-2).Filter(func(uid uint32) bool { return !taken[uid] }).Draw(t, "uid")
			s.UID, taken[uid] = &uid, true
		}
		d.Subjects[name.Draw(t, "subject")] = s
	}
	d.Tools, d.Profiles = map[string]grants.Tool{}, map[string]grants.Profile{}
	patterns := func(what string) []grants.Pattern {
		list := []grants.Pattern{}
		for _, text := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"read:*", "read:a.*", "read:123", "use:z", "call:a/b", "memory.read:*", "reach:h:443"}), 0, 3, rapid.ID).Draw(t, what) {
			list = append(list, pattern(text))
		}
		return grants.SortedPatterns(list)
	}
	for range rapid.IntRange(0, 3).Draw(t, "tools") {
		one := grants.Tool{Name: name.Draw(t, "server") + "/" + rapid.SampledFrom([]string{"null", "a:b", "1", "-x", "..", "a/b"}).Draw(t, "tool"), Owner: d.Owner}
		one.Requires = patterns("requires")
		one.Approval, one.Gate = rapid.Bool().Draw(t, "approval"), rapid.Bool().Draw(t, "gate")
		d.Tools[one.Name] = one
	}
	for range rapid.IntRange(0, 3).Draw(t, "profiles") {
		one := grants.Profile{Name: name.Draw(t, "profile"), Subject: name.Draw(t, "subject"), Owner: d.Owner}
		one.Approval = rapid.SampledFrom([]grants.Approval{grants.ApprovalAuto, grants.ApprovalAlways, grants.ApprovalNever}).Draw(t, "approval")
		for tool := range d.Tools {
			one.Tools = append(one.Tools, tool)
		}
		slices.Sort(one.Tools)
		one.Tools = one.Tools[:rapid.IntRange(0, len(one.Tools)).Draw(t, "listed")]
		if rapid.Bool().Draw(t, "reads") {
			one.Tools = append(one.Tools, "read_resource")
			slices.Sort(one.Tools)
		}
		if rapid.Bool().Draw(t, "capped") {
			one.Caps = patterns("caps")
		}
		d.Profiles[one.Name] = one
	}
	d.Servers, d.Policies = map[string]grants.Server{}, map[Pair]rules.Policy{}
	for range rapid.IntRange(0, 3).Draw(t, "servers") {
		one := anyServer(t)
		one.Owner = d.Owner
		d.Servers[one.Name] = one
	}
	for range rapid.IntRange(0, 3).Draw(t, "policies") {
		one := anyPolicy(t)
		one.Owner = d.Owner
		if wrong, _ := one.Check(); len(wrong) == 0 {
			d.Policies[PairOf(&one)] = one.Canonical()
		}
	}
	seen := map[key]bool{}
	for range rapid.IntRange(0, 5).Draw(t, "grants") {
		g := grants.Grant{
			Subject: name.Draw(t, "subject"),
			Pattern: pattern(rapid.SampledFrom([]string{"read:*", "read:a.*", "read:z", "use:z", "call:a/b", "memory.read:*", "memory.write:z"}).Draw(t, "pattern")),
			Effect:  rapid.SampledFrom([]grants.Effect{grants.Allow, grants.Deny}).Draw(t, "effect"),
			Note:    anyNote(t), Owner: d.Owner,
		}
		if rapid.Bool().Draw(t, "timed") {
			g.Until = noon.Add(time.Duration(rapid.Int64Range(1, 1e15).Draw(t, "until")))
		}
		if g.Effect == grants.Allow {
			g.Uses = rapid.Uint64().Draw(t, "uses")
			g.Tier = rapid.SampledFrom([]grants.Tier{0, grants.Bound}).Draw(t, "tier")
			g.RequireApproval, g.Disclose = rapid.Bool().Draw(t, "approval") && !g.Pattern.Action.NamesTenant(), rapid.Bool().Draw(t, "disclose")
		}
		if !seen[keyOf(&g)] {
			seen[keyOf(&g)] = true
			d.Grants = append(d.Grants, g)
		}
	}
	grants.SortGrants(d.Grants)
	for range rapid.IntRange(0, 3).Draw(t, "tenants") {
		if d.Tenants == nil {
			d.Tenants = map[string]grants.Tenant{}
		}
		one := name.Draw(t, "tenant")
		d.Tenants[one] = grants.Tenant{Name: one, Owner: d.Owner}
	}
	return d
}

var someServers = []string{"null", "1", "a", "on", "0x1f", "1e3", "true"}

func anyText(t *rapid.T, what string) string {
	return rapid.StringOfN(rapid.RuneFrom(slices.Concat(oddRunes, []rune("\x01\n\t\x7f\u0085\u2028"))), 0, 9, -1).Draw(t, what)
}

func anyServer(t *rapid.T) grants.Server {
	s := grants.Server{Name: rapid.SampledFrom(someServers).Draw(t, "server"), Hosted: true}
	values := map[string]string{}
	for range rapid.IntRange(0, 3).Draw(t, "variables") {
		value := strings.ReplaceAll(strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return -1
			}
			return r
		}, anyText(t, "value")), "${", "")
		if rapid.Bool().Draw(t, "secret") {
			value += "${secret:" + rapid.SampledFrom(someNames).Draw(t, "named") + "}"
		}
		values[rapid.SampledFrom([]string{"A", "null", "NO", "_1", "yes"}).Draw(t, "variable")] = value
	}
	if len(values) == 0 {
		values = nil
	}
	if rapid.Bool().Draw(t, "by url") {
		s.URL, s.Headers = rapid.SampledFrom([]string{"https://example.com/mcp?a=b", "http://127.0.0.1:1", "http://[::1]/x"}).Draw(t, "url"), values
		return s
	}
	s.Env = values
	s.Command = append(rapid.SliceOfN(rapid.SampledFrom(append(someNames, "-y", "a b", "~", "", "é")), 0, 4).Draw(t, "arguments"), "last")
	s.Command[0] = "npx"
	if rapid.Bool().Draw(t, "somewhere") {
		s.Cwd = "/srv/a b"
	}
	return s
}

func anyPolicy(t *rapid.T) rules.Policy {
	p := newPolicy()
	p.Subject, p.Server = rapid.SampledFrom(someNames).Draw(t, "of"), rapid.SampledFrom(someServers).Draw(t, "around")
	p.Audit = rapid.SampledFrom([]rules.Audit{rules.Strict, rules.Strict, rules.Grouped}).Draw(t, "audit")
	p.ApprovalWait = time.Duration(rapid.IntRange(0, 300_000).Draw(t, "wait")) * time.Millisecond
	p.Methods = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"tasks/get", "null", "x.y"}), 0, 2, rapid.ID).Draw(t, "methods")
	if rapid.Bool().Draw(t, "observed") {
		p.ObserveUntil = noon.Add(time.Duration(rapid.Int64Range(1, 1e15).Draw(t, "until")))
	}
	actions := rapid.SampledFrom([]rules.Action{rules.Block, rules.Warn, rules.Kill, rules.RequestApproval})
	p.Rules.OnViolation = actions.Draw(t, "on")
	l := &p.Rules.Limits
	span := func(what string) time.Duration {
		return time.Duration(rapid.Int64Range(1, int64(rules.MaxSpan/time.Millisecond)).Draw(t, what)) * time.Millisecond
	}
	if rapid.Bool().Draw(t, "calls") {
		most := rapid.Uint64Range(0, 1<<40).Draw(t, "most")
		l.MaxToolCalls = &most
	}
	if rapid.Bool().Draw(t, "runtime") {
		l.MaxRuntime = span("runtime")
	}
	if rapid.Bool().Draw(t, "rate") {
		l.Rate = &rules.Rate{Calls: rapid.Uint64Range(1, rules.MaxPerCall).Draw(t, "per"), Window: span("window")}
	}
	if rapid.Bool().Draw(t, "breaker") {
		l.Breaker = &rules.Breaker{Failures: rapid.Uint64Range(1, 9).Draw(t, "failures"), Reset: span("reset"), Counts: rapid.SampledFrom([]rules.Counts{rules.CountErrors, rules.CountTransport}).Draw(t, "counts")}
	}
	tools := rapid.SampledFrom([]string{"null", "read file", "1", "~", "a: b", "- x", "é", "true"})
	if rapid.Bool().Draw(t, "budget") {
		micros := rapid.Uint64Range(1, rules.MaxMicros)
		l.Budget = &rules.Budget{Max: micros.Draw(t, "max"), Currency: rapid.SampledFrom([]string{"USD", "null", "1"}).Draw(t, "currency"), Warn: rapid.Uint64Range(0, 1e6).Draw(t, "warn"), PerCall: micros.Draw(t, "cost")}
		if rapid.Bool().Draw(t, "by tool") {
			l.Budget.ToolCosts = map[string]uint64{tools.Draw(t, "tool"): micros.Draw(t, "its cost")}
		}
	}
	s := &p.Rules.Security
	list := func(what string) []string { return rapid.SliceOfNDistinct(tools, 0, 2, rapid.ID).Draw(t, what) }
	s.DeniedTools, s.RequireApproval = list("denied"), list("approval")
	if rapid.IntRange(0, 3).Draw(t, "allowed") == 0 {
		s.AllowedTools = list("allowed")
	}
	for range rapid.IntRange(0, 3).Draw(t, "rules") {
		r := rules.Rule{Tool: tools.Draw(t, "tool"), Action: actions.Draw(t, "action")}
		if rapid.Bool().Draw(t, "allow") {
			r.AllowIf = anyMatchers(t)
		} else {
			r.DenyIf = anyMatchers(t)
		}
		s.Granular = append(s.Granular, r)
	}
	return p
}

func anyMatchers(t *rapid.T) map[string]rules.Matcher {
	all := map[string]rules.Matcher{}
	for range rapid.IntRange(1, 3).Draw(t, "arguments") {
		var m rules.Matcher
		switch rapid.IntRange(0, 5).Draw(t, "matcher") {
		case 0:
			m.Regex = rapid.SampledFrom([]string{"^a+$", "null", "1", `\.env`, "a: b", "x # y", "\u2028"}).Draw(t, "regex")
		case 1:
			text := anyText(t, "exact")
			m.Exact = &text
		case 2:
			m.OneOf = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"true", "1.0", "", "~", "a"}), 1, 3, rapid.ID).Draw(t, "one of")
		case 3:
			m.Prefix = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"true", "1.0", "~"}), 1, 3, rapid.ID).Draw(t, "prefix")
		case 4:
			m.Path = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"/", "/a b", "src"}), 1, 3, rapid.ID).Draw(t, "path")
		case 5:
			m.Host = rapid.SampledFrom([][]string{{"::1"}, {"*.example.com", "a.b"}, {"null"}}).Draw(t, "host")
		}
		all[rapid.SampledFrom([]string{"null", "/a/0", "a b", "~", "1", "/"}).Draw(t, "argument")] = m
	}
	return all
}

// TestDocumentsRoundTrip: Parse of Marshal is the same document, and Marshal of
// that is the same bytes.
func TestDocumentsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyDocument(t)
		maps.DeleteFunc(d.Policies, func(_ Pair, p rules.Policy) bool { return p.Audit == rules.Grouped }) // see TestGrouped
		text, err := Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		// What the grants name is not the matter here: let the state know it all.
		again, err := Parse(text, Env{Now: noon, Current: knowing(d)})
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if diff := cmp.Diff(d, again, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%s\nin\n%s", diff, text)
		}
		if twice, err := Marshal(again); err != nil || !bytes.Equal(text, twice) {
			t.Fatalf("written as\n%s, %v, and before as\n%s", twice, err, text)
		}
		if changes, err := Plan(d, again, d.Owner != ""); err != nil || len(changes) > 0 {
			t.Fatalf("Plan of the same: %v, %v", changes, err)
		}
	})
}

// knowing is a state that holds whatever the grants of d name.
func knowing(d *Document) *Document {
	state := &Document{Resources: map[string]Resource{}, Subjects: map[string]Subject{}, Tenants: map[string]grants.Tenant{"z": {Name: "z"}}}
	for _, g := range d.Grants {
		state.Subjects[g.Subject] = Subject{}
		state.Resources[g.Pattern.Object] = Resource{Kind: KindText}
	}
	for _, p := range d.Profiles {
		state.Subjects[p.Subject] = Subject{}
	}
	for _, p := range d.Policies {
		state.Subjects[p.Subject] = Subject{}
	}
	for _, s := range d.Servers {
		for _, secret := range s.Secrets() {
			state.Resources[secret] = Resource{Kind: KindText}
		}
	}
	return state
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	f.Add([]byte(servers))
	for _, r := range refusals {
		if len(r.text) < 1000 {
			f.Add([]byte(r.text))
		}
	}
	if page, err := os.ReadFile("../../docs/policy.md"); err == nil {
		for _, e := range examples(string(page)) {
			f.Add([]byte(e.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, err := Parse(data, Env{Now: noon})
		if err != nil {
			return
		}
		text, err := Marshal(d)
		if err != nil {
			t.Fatalf("%+v cannot be written: %v", d, err)
		}
		again, err := Parse(text, Env{Now: noon})
		if err != nil {
			t.Fatalf("%q is written as %q and then refused: %v", data, text, err)
		}
		if diff := cmp.Diff(d, again); diff != "" {
			t.Fatalf("%q is written as %q, which differs:\n%s", data, text, diff)
		}
		if twice, err := Marshal(again); err != nil || !bytes.Equal(text, twice) {
			t.Fatalf("%q is written as %q, then as %q, %v", data, text, twice, err)
		}
	})
}
