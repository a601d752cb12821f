package policy

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
)

const (
	foreignResources = `resources:
  design-doc: {path: /srv/broker/design.md}
  payroll: {path: /srv/broker/private/payroll.csv}
  spare: {path: /srv/broker/spare}
`
	foreignRules = `rules:
  - {subject: worker, resource: design-doc, action: read, decision: allow}
  - {subject: worker, resource: payroll, action: read, decision: deny}
  - {subject: orchestrator, resource: payroll, action: read, decision: allow}
`
	foreignPolicy = `version: 1
storageRoot: /srv/broker
subjects: [worker, orchestrator, idle]
` + foreignResources + foreignRules
)

// The same policy as a program writes it.
const foreignJSON = `{
  "version": 1, "storageRoot": "\/srv/broker", "subjects": ["worker", "orchestrator", "idle"],
  "resources": {"design-doc": {"path": "/srv/broker/design.md"},
    "payroll": {"path": "/srv/broker/private/payroll.csv"}, "spare": {"path": "/srv/broker/spare"}},
  "rules": [
	{"subject": "worker", "resource": "design-doc", "action": "read", "decision": "allow"},
	{"subject": "worker", "resource": "payroll", "action": "read", "decision": "deny"},
	{"subject": "orchestrator", "resource": "payroll", "action": "read", "decision": "allow"}
  ]
}`

func TestImportSubjectBroker(t *testing.T) {
	want := &Document{
		Resources: map[string]Resource{
			"design-doc": {File: "/srv/broker/design.md", Pin: PinContent},
			"payroll":    {File: "/srv/broker/private/payroll.csv", Pin: PinContent},
			"spare":      {File: "/srv/broker/spare", Pin: PinContent},
		},
		Subjects: map[string]Subject{"worker": {}, "orchestrator": {}, "idle": {}},
		Profiles: map[string]grants.Profile{},
		Tools:    map[string]grants.Tool{},
		Grants: []grants.Grant{
			{Subject: "orchestrator", Pattern: pattern("read:payroll"), Effect: grants.Allow},
			{Subject: "worker", Pattern: pattern("read:design-doc"), Effect: grants.Allow},
			{Subject: "worker", Pattern: pattern("read:payroll"), Effect: grants.Deny},
		},
	}
	for name, lines := range map[string][2]int{foreignPolicy: {3, 7}, foreignJSON: {2, 4}} {
		report := &Report{
			StorageRoot: "/srv/broker", Subjects: 3, Resources: 3, Allows: 2, Denies: 1,
			Warnings: []Problem{{lines[0], "no rule names subject idle"}, {lines[1], "no rule names resource spare"}},
		}
		got, said, err := ImportSubjectBroker([]byte(name), Env{Now: noon})
		if err != nil {
			t.Fatalf("%v in\n%s", err, name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(report, said); diff != "" {
			t.Error(diff)
		}
		// What is imported is a document like any other.
		text, err := Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text, Env{Now: noon})
		if diff := cmp.Diff(want, again); err != nil || diff != "" {
			t.Errorf("%v\n%s\nin\n%s", err, diff, text)
		}
		if changes, err := Plan(again, got, false); err != nil || len(changes) != 0 {
			t.Errorf("importing once more: %+v, %v, want no change", changes, err)
		}
	}
}

// foreignRefusals change foreignPolicy in one place.
var foreignRefusals = []struct{ name, from, to, want string }{
	{"an empty file", foreignPolicy, "", "the document is empty"},
	{"an empty object", foreignPolicy, "{}", "line 1: the policy needs resources, rules, storageRoot, subjects, version"},
	{"a list", foreignPolicy, "[]", "line 1: the policy must be a mapping, not a list"},
	{"a second document", foreignPolicy, foreignPolicy + "---\n" + foreignPolicy, "line 12: a second document begins here"},
	{"no JSON", foreignPolicy, foreignJSON[:100], "line 3: not valid YAML"},
	{"an unknown key", "version: 1", "version: 1\nowner: me", `line 2: unknown key "owner" in the policy`},
	{"a section of ours", "version: 1", "version: 1\ngrants: []", `line 2: unknown key "grants" in the policy`},
	{"a key twice", "version: 1", "version: 1\nversion: 1", `line 2: "version" is in the policy already, on line 1`},
	{"a key of another case", "rules:", "Rules:", `line 1: the policy needs rules (and 1 more)`},
	{"no version", "version: 1\n", "", "line 1: the policy needs version"},
	{"another version", "version: 1", "version: 2", "line 1: version must be the number 1"},
	{"a version of text", "version: 1", `version: "1"`, "line 1: version must be the number 1"},
	{"no root", "storageRoot: /srv/broker\n", "", "line 1: the policy needs storageRoot"},
	{"an empty root", "storageRoot: /srv/broker", `storageRoot: ""`, "line 2: storageRoot must not be empty"},
	{"a relative root", "storageRoot: /srv", "storageRoot: srv", "line 2: storageRoot: an absolute, clean path"},
	{"a root with dots", "storageRoot: /srv/broker", "storageRoot: /srv/x/../broker", "line 2: storageRoot: an absolute, clean path"},
	{"a root with a slash behind", "storageRoot: /srv/broker", "storageRoot: /srv/broker/", "line 2: storageRoot: an absolute, clean path"},
	{"everything for a root", "storageRoot: /srv/broker", "storageRoot: /", "line 2: storageRoot: an absolute, clean path"},
	{"a variable for a root", "storageRoot: /srv/broker", "storageRoot: ${home}/x", "line 2: storageRoot: an absolute, clean path"},
	{"a mapping for subjects", "[worker, orchestrator, idle]", "{worker: {}}", "line 3: subjects must be a list, not a mapping"},
	{"null for subjects", "[worker, orchestrator, idle]", "", "line 3: subjects must be a list, not nothing"},
	{"a number for a subject", "idle]", "7]", "line 3: a subject must be text, not a number"},
	{"a malformed subject", "idle]", "a b]", "line 3: a subject: a name is"},
	{"a subject of 129 letters", "idle]", strings.Repeat("x", 129) + "]", "line 3: a subject: a name is"},
	{"a subject twice", "idle]", "worker]", "line 3: subject worker is in subjects already"},
	{"a list for resources", foreignResources, "resources: [design-doc]\n", "line 4: resources must be a mapping, not a list"},
	{"a malformed resource", "spare: {", "a b: {", "line 7: name of a resource: a name is"},
	{"a resource twice", "spare: {", "payroll: {", `line 7: "payroll" is in resources already, on line 6`},
	{"text for a resource", "{path: /srv/broker/spare}", "/srv/broker/spare", "line 7: a resource must be a mapping, not text"},
	{"no path", "{path: /srv/broker/spare}", "{}", "line 7: a resource needs path"},
	{"more than a path", "{path: /srv/broker/spare}", "{path: /srv/broker/spare, kind: text}", `line 7: unknown key "kind" in a resource`},
	{"a path outside the root", "/srv/broker/spare", "/srv/other/spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a path that only begins alike", "/srv/broker/spare", "/srv/broker2/spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a path out of the root", "/srv/broker/spare", "/srv/broker/../spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a path with dots that stays inside", "/srv/broker/spare", "/srv/broker/x/../spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a path with a slash twice", "/srv/broker/spare", "/srv/broker//spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"the root itself", "/srv/broker/spare", "/srv/broker", "line 7: resource spare: path is a clean path below storageRoot"},
	{"the root with a slash", "/srv/broker/spare", "/srv/broker/", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a relative path", "/srv/broker/spare", "spare", "line 7: resource spare: path is a clean path below storageRoot"},
	{"a newline in a path", "/srv/broker/spare", `"/srv/broker/a\nb"`, "line 7: resource spare: file is at most"},
	{"a variable in a path", "/srv/broker/spare", `"/srv/broker/${home}/x"`, "line 7: resource spare: ${home} stands only"},
	{"a mapping for rules", foreignRules, "rules: {}\n", "line 8: rules must be a list, not a mapping"},
	{"text for a rule", "- {subject: worker, resource: design-doc, action: read, decision: allow}", "- worker", "line 9: a rule must be a mapping, not text"},
	{"a rule without subject", "{subject: worker, resource: design-doc,", "{resource: design-doc,", "line 9: a rule needs subject"},
	{"a rule of little", "{subject: worker, resource: design-doc, action: read, decision: allow}", "{subject: worker}", "line 9: a rule needs action, decision, resource"},
	{"more than a rule", "action: read, decision: deny", "action: read, decision: deny, note: x", `line 10: unknown key "note" in a rule`},
	{"another action", "action: read, decision: deny", "action: write, decision: deny", "line 10: action must be read"},
	{"an action of another case", "action: read, decision: deny", "action: READ, decision: deny", "line 10: action must be read"},
	{"another decision", "decision: deny", "decision: ask", "line 10: decision: allow or deny"},
	{"a boolean for a decision", "decision: deny", "decision: true", "line 10: decision must be text, not true or false"},
	{"a subject that is nowhere", "- {subject: orchestrator", "- {subject: ghost", `line 11: no subject "ghost"; declare it under subjects`},
	{"a resource that is nowhere", "resource: design-doc", "resource: ghost", `line 9: no resource "ghost"; declare it under resources`},
	{"a pattern for a resource", "resource: design-doc", `resource: "*"`, `line 9: no resource "*"`},
	{"a rule twice", "- {subject: orchestrator, resource: payroll, action: read, decision: allow}", "- {subject: worker, resource: payroll, action: read, decision: deny}",
		"line 11: the same subject, resource and action as on line 10"},
	{"two rules that disagree", "- {subject: orchestrator, resource: payroll,", "- {subject: worker, resource: payroll,", "line 11: the same subject, resource and action as on line 10"},
	{"an anchor", "[worker,", "[&a worker,", "line 3: anchors are not allowed"},
	{"an alias", "idle]", "*a]", "line 3: not valid YAML: unknown anchor"},
	{"a merge key", "  spare: {path: /srv/broker/spare}", "  <<: {spare: {path: /srv/broker/spare}}", "line 7: merge keys are not allowed"},
	{"a tag", "version: 1", "version: !!int 1", "line 1: tags are not allowed"},
}

func TestImportSubjectBrokerRefuses(t *testing.T) {
	for _, test := range foreignRefusals {
		t.Run(test.name, func(t *testing.T) {
			if !strings.Contains(foreignPolicy, test.from) {
				t.Fatal("there is no such place in the policy")
			}
			text := strings.Replace(foreignPolicy, test.from, test.to, 1)
			document, _, err := ImportSubjectBroker([]byte(text), Env{Now: noon})
			if err == nil {
				t.Fatalf("accepted as %+v", document)
			}
			if refusal, ok := errors.AsType[*Error](err); !ok || len(refusal.Problems) == 0 {
				t.Errorf("the error is a %T without problems", err)
			}
			if got := err.Error(); !strings.HasPrefix(got, test.want) || strings.Contains(got, "\n") {
				t.Errorf("refused with\n  %s\nwant one line that begins with\n  %s", got, test.want)
			}
		})
	}
}

func TestImportKnowsTheCurrentState(t *testing.T) {
	current := &Document{Resources: map[string]Resource{"payroll": {File: "/elsewhere", Pin: PinContent}}}
	if _, _, err := ImportSubjectBroker([]byte(foreignPolicy), Env{Current: current}); err != nil {
		t.Errorf("a file of that name is refused: %v", err)
	}
	current.Resources["payroll"] = Resource{Kind: KindText}
	if _, _, err := ImportSubjectBroker([]byte(foreignPolicy), Env{Current: current}); err == nil || err.Error() != "line 6: resource payroll: the broker has sealed content of that name" {
		t.Errorf("sealed content of that name: %v", err)
	}
}

func FuzzImportSubjectBroker(f *testing.F) {
	f.Add([]byte(foreignPolicy))
	f.Add([]byte(foreignJSON))
	for _, r := range foreignRefusals {
		f.Add([]byte(strings.Replace(foreignPolicy, r.from, r.to, 1)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d, report, err := ImportSubjectBroker(data, Env{Now: noon})
		if err != nil {
			return
		}
		for name, r := range d.Resources {
			if !strings.HasPrefix(r.File, report.StorageRoot+"/") || strings.Contains(r.File, "/../") {
				t.Errorf("%q: %s lies at %s, outside %s", data, name, r.File, report.StorageRoot)
			}
		}
		text, err := Marshal(d)
		if err != nil {
			t.Fatalf("%q is imported as %+v, which cannot be written: %v", data, d, err)
		}
		again, err := Parse(text, Env{Now: noon})
		if diff := cmp.Diff(d, again); err != nil || diff != "" {
			t.Fatalf("%q is imported as %q, which is read as another: %v\n%s", data, text, err, diff)
		}
	})
}
