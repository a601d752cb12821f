package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
)

var noon = time.Date(2030, 6, 1, 12, 0, 0, 0, time.UTC)

const everything = `version: 1
owner: laptop
resources:
  design-doc: {kind: text}
  github.token: {kind: secret, note: "rotate in June: Zoë"}
  logo: {kind: binary}
  readme: {file: "${home}/README.md", pin: path}
  hosts: {file: /etc/hosts, sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef}
  payroll: {kind: text, domain: personal}
subjects:
  worker: {uid: 1001, minTier: bound, enabled: false}
  orchestrator: {}
profiles:
  coder: {subject: worker, tools: [read_resource, github/create_issue], caps: ["use:github.token", "read:docs.*"], approval: never}
  guest: {subject: worker, tools: [], caps: [], approval: auto}
tools:
  github/create_issue: {requires: ["use:github.token"], approval: always, gate: always}
  shell/curl: {requires: ["use:github.token", "reach:api.github.com"], approval: never}
grants:
  - {subject: worker, capability: "read:design-doc", effect: allow, until: "2030-12-31T18:00:00+02:00", uses: 3, tier: bound, requireApproval: false, note: ""}
  - {subject: worker, capability: "read:docs.*", effect: deny, note: not yet}
  - {subject: orchestrator, capability: "read:github.token", disclose: true, until: 2030-06-02T00:00:00Z}
  - {subject: orchestrator, capability: "use:github.token", requireApproval: true}
  - {subject: orchestrator, capability: "call:github/*"}
  - {subject: orchestrator, capability: "memory.read:acme"}
tenants: [initech, acme]
`

func pattern(text string) grants.Pattern {
	p, err := grants.ParsePattern(text)
	if err != nil {
		panic(text + ": " + err.Error())
	}
	return p
}

func TestParseEverything(t *testing.T) {
	got, err := Parse([]byte(everything), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	disabled, uid := false, uint32(1001)
	want := &Document{
		Owner: "laptop",
		Resources: map[string]Resource{
			"design-doc":   {Kind: KindText, Owner: "laptop"},
			"github.token": {Kind: KindSecret, Note: "rotate in June: Zoë", Owner: "laptop"},
			"logo":         {Kind: KindBinary, Owner: "laptop"},
			"readme":       {File: "${home}/README.md", Pin: PinPath, Owner: "laptop"},
			"hosts":        {File: "/etc/hosts", Pin: PinContent, SHA256: strings.Repeat("0123456789abcdef", 4), Owner: "laptop"},
			"payroll":      {Kind: KindText, Domain: DomainPersonal, Owner: "laptop"},
		},
		Subjects: map[string]Subject{
			"worker":       {UID: &uid, MinTier: grants.Bound, Enabled: &disabled, Owner: "laptop"},
			"orchestrator": {Owner: "laptop"},
		},
		Profiles: map[string]grants.Profile{
			"coder": {
				Name: "coder", Subject: "worker", Tools: []string{"github/create_issue", "read_resource"},
				Caps: []grants.Pattern{pattern("read:docs.*"), pattern("use:github.token")}, Approval: grants.ApprovalNever, Owner: "laptop",
			},
			"guest": {Name: "guest", Subject: "worker", Caps: []grants.Pattern{}, Owner: "laptop"},
		},
		Tools: map[string]grants.Tool{
			"github/create_issue": {Name: "github/create_issue", Requires: []grants.Pattern{pattern("use:github.token")}, Approval: true, Gate: true, Owner: "laptop"},
			"shell/curl":          {Name: "shell/curl", Requires: []grants.Pattern{pattern("reach:api.github.com"), pattern("use:github.token")}, Owner: "laptop"},
		},
		Tenants: map[string]grants.Tenant{"acme": {Name: "acme", Owner: "laptop"}, "initech": {Name: "initech", Owner: "laptop"}},
		Grants: []grants.Grant{
			{Subject: "orchestrator", Pattern: pattern("call:github/*"), Effect: grants.Allow, Owner: "laptop"},
			{Subject: "orchestrator", Pattern: pattern("memory.read:acme"), Effect: grants.Allow, Owner: "laptop"},
			{Subject: "orchestrator", Pattern: pattern("read:github.token"), Effect: grants.Allow, Disclose: true, Until: time.Date(2030, 6, 2, 0, 0, 0, 0, time.UTC), Owner: "laptop"},
			{Subject: "orchestrator", Pattern: pattern("use:github.token"), Effect: grants.Allow, RequireApproval: true, Owner: "laptop"},
			{Subject: "worker", Pattern: pattern("read:design-doc"), Effect: grants.Allow, Until: time.Date(2030, 12, 31, 16, 0, 0, 0, time.UTC), Uses: 3, Tier: grants.Bound, Owner: "laptop"},
			{Subject: "worker", Pattern: pattern("read:docs.*"), Effect: grants.Deny, Note: "not yet", Owner: "laptop"},
		},
	}
	// The example above names design-doc before it is ruled whether a grant
	// fits; its order must not matter.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"nothing but the version":           "version: 1\n",
		"JSON":                              `{"version": 1, "subjects": {"worker": {}}, "grants": [{"subject": "worker", "capability": "read:*"}]}`,
		"empty sections":                    "version: 1\nresources: {}\nsubjects: {}\ngrants: []\n",
		"comments and markers":              "# policy\n---\nversion: 1 # one\n...\n",
		"a byte order mark":                 "\ufeffversion: 1\n",
		"Windows line ends":                 "version: 1\r\nsubjects:\r\n  worker: {}\r\n",
		"quoted keys":                       "\"version\": 1\n'subjects': {\"123\": {}, \"null\": {}}\n",
		"grants before subjects":            "grants: [{subject: worker, capability: \"read:*\"}]\nsubjects: {worker: {}}\nversion: 1\n",
		"words YAML 1.1 took for booleans":  "version: 1\nsubjects: {yes: {}, no: {}, on: {}}\n",
		"profiles before what they name":    "profiles: {p: {subject: worker, tools: [a/b]}}\ntools: {a/b: {requires: []}}\nsubjects: {worker: {}}\nversion: 1\n",
		"what is always there in a profile": "version: 1\nsubjects: {w: {}}\nprofiles: {p: {subject: w, tools: [capability_report, explain_decision, read_resource, list_resources]}}\n",
		"the defaults written":              "version: 1\nsubjects: {w: {}}\nprofiles: {p: {subject: w, tools: [a/b], approval: auto}}\ntools: {a/b: {requires: [], approval: never}}\n",
		"two profiles of one subject":       "version: 1\nsubjects: {w: {}}\nprofiles: {p: {subject: w, tools: []}, q: {subject: w, tools: []}}\n",
		"the highest uid":                   "version: 1\nsubjects: {w: {uid: 4294967294}}\n",
		"an allow and a deny of the same":   "version: 1\nsubjects: {w: {}}\ngrants:\n- {subject: w, capability: \"read:*\"}\n- {subject: w, capability: \"read:*\", effect: deny}\n",
	} {
		if _, err := Parse([]byte(text), Env{Now: noon}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// refusals are documents and what their refusal begins with. "…" at the start
// stands for a good version and two subjects on lines 1 and 2.
var refusals = []struct{ name, text, want string }{
	{"an empty file", "", "the document is empty"},
	{"a comment only", "# nothing here\n", "the document is empty"},
	{"white space only", " \n\n", "the document is empty"},
	{"null", "null\n", "line 1: the document must be a mapping, not nothing"},
	{"a marker only", "---\n", "line 2: the document must be a mapping, not nothing"},
	{"a list", "- version: 1\n", "line 1: the document must be a mapping, not a list"},
	{"a word", "version\n", "line 1: the document must be a mapping, not text"},
	{"a second document", "version: 1\n---\nversion: 1\n", "line 2: a second document begins here"},
	{"an empty second document", "version: 1\n---\n", "line 2: a second document begins here"},
	{"a broken second document", "version: 1\n---\n[\n", "line 4: not valid YAML"},
	{"no YAML", "version: 1\n  x: [\n", "line 2: not valid YAML"},
	{"a tab for indentation", "version: 1\nsubjects:\n\tworker: {}\n", "line 3: not valid YAML"},
	{"too deep", strings.Repeat("[", 20000), "line 1: not valid YAML"},
	{"invalid UTF-8", "version: 1\n# \xff\n", "line 2: not valid UTF-8"},
	{"UTF-16", "\xff\xfev\x00e\x00", "line 1: not valid UTF-8"},
	{"a NUL", "version: 1\x00\n", "not valid YAML: control characters"},
	{"too large", "version: 1\n#" + strings.Repeat("x", MaxSize) + "\n", "the document is larger than"},

	{"no version", "owner: laptop\n", "line 1: version: 1 is missing"},
	{"another version", "version: 2\n", "line 1: version must be the number 1"},
	{"a version of text", "version: \"1\"\n", "line 1: version must be the number 1"},
	{"a fractional version", "version: 1.0\n", "line 1: version must be the number 1"},
	{"a version in another base", "version: 0x1\n", "line 1: version must be the number 1"},
	{"a null version", "version:\n", "line 1: version must be the number 1"},

	{"an unknown section", "…\nsecrets: {}\n", `line 4: unknown key "secrets" in the document`},
	{"a section of another case", "…\nGrants: []\n", `line 4: unknown key "Grants" in the document`},
	{"a section that only folds alike", "version: 1\nto\u212aens: {}\n", "line 2: unknown key"},
	{"tenants that are no list", "…\ntenants: {acme: {}}\n", "line 4: tenants must be a list, not a mapping"},
	{"a tenant that is no name", "…\ntenants: [acme, \"a b\"]\n", "line 4: name of a tenant: a name is 1 to 128"},
	{"a tenant that is no text", "…\ntenants: [1]\n", "line 4: name of a tenant must be text, not a number"},
	{"an empty tenant", "…\ntenants: [\"\"]\n", "line 4: name of a tenant must not be empty"},
	{"a tenant twice", "…\ntenants: [acme, acme]\n", "line 4: tenant acme is there twice"},
	{"a grant of no tenant", "…\ngrants: [{subject: worker, capability: \"memory.read:acme\"}]\n", "line 4: no tenant \"acme\"; declare it under tenants"},
	{"approval of memory", "…\ngrants: [{subject: worker, capability: \"memory.write:*\", requireApproval: true}]\n", "line 4: requireApproval is not for memory.write"},
	{"an unknown key in a resource", "…\nresources: {a: {kind: text, size: 3}}\n", `line 4: unknown key "size" in a resource`},
	{"an unknown key in a subject", "version: 1\nsubjects: {a: {mintier: bound}}\n", `line 2: unknown key "mintier" in a subject`},
	{"an unknown key in a grant", "…\ngrants: [{subject: worker, capability: \"read:*\", ttl: 1h}]\n", `line 4: unknown key "ttl" in a grant`},

	{"a section twice", "…\nsubjects: {}\n", `line 4: "subjects" is in the document already, on line 2`},
	{"the version twice", "version: 1\nversion: 1\n", `line 2: "version" is in the document already, on line 1`},
	{"a name twice", "version: 1\nsubjects:\n  a: {}\n  b: {}\n  \"a\": {}\n", `line 5: "a" is in subjects already, on line 3`},
	{"a field twice", "…\nresources:\n  a: {kind: text, kind: text}\n", `line 5: "kind" is in a resource already`},
	{"a field of a grant twice", "…\ngrants:\n- subject: worker\n  capability: \"read:*\"\n  subject: boss\n", `line 7: "subject" is in a grant already, on line 5`},

	{"an anchor", "version: 1\nsubjects:\n  a: &x {}\n", "line 3: anchors are not allowed"},
	{"an anchor on a scalar", "version: &v 1\n", "line 1: anchors are not allowed"},
	{"an anchor on a key", "&k version: 1\n", "line 1: anchors are not allowed"},
	{"an alias", "version: 1\nsubjects:\n  a: &x {}\n  b: *x\n", "line 3: anchors are not allowed (and 1 more)"},
	{"an alias to nothing", "version: *v\n", "line 1: not valid YAML: unknown anchor"},
	{"a merge key", "version: 1\nsubjects:\n  a:\n    <<: {minTier: bound}\n", "line 4: merge keys are not allowed"},
	{"a tag", "version: !!int 1\n", "line 1: tags are not allowed"},
	{"a tag that changes the type", "version: 1\nowner: !!str 123\n", "line 2: tags are not allowed"},
	{"a tag of one's own", "version: 1\nowner: !x laptop\n", "line 2: tags are not allowed"},
	{"the tag that is no tag", "version: 1\nowner: ! laptop\n", "line 2: tags are not allowed"},
	{"a tag on a list", "version: 1\ngrants: !!set {}\n", "line 2: tags are not allowed"},
	{"a binary tag", "version: 1\nowner: !!binary bGFwdG9w\n", "line 2: tags are not allowed"},

	{"null for a mapping", "version: 1\nsubjects:\n", "line 2: subjects must be a mapping, not nothing"},
	{"null for a list", "version: 1\ngrants:\n", "line 2: grants must be a list, not nothing"},
	{"null for a resource", "version: 1\nresources:\n  a:\n", "line 3: a resource must be a mapping, not nothing"},
	{"null for a subject", "version: 1\nsubjects: {a: ~}\n", "line 2: a subject must be a mapping, not nothing"},
	{"null for a grant", "version: 1\ngrants: [null]\n", "line 2: a grant must be a mapping, not nothing"},
	{"null for text", "…\nresources: {a: {kind: text, note: }}\n", "line 4: note must be text, not nothing"},
	{"a list for a mapping", "version: 1\nsubjects: [a, b]\n", "line 2: subjects must be a mapping, not a list"},
	{"a mapping for a list", "version: 1\ngrants: {subject: a}\n", "line 2: grants must be a list, not a mapping"},
	{"text for a subject", "version: 1\nsubjects: {a: bound}\n", "line 2: a subject must be a mapping, not text"},
	{"a number for text", "version: 1\nowner: 123\n", "line 2: owner must be text, not a number"},
	{"a boolean for text", "version: 1\nowner: true\n", "line 2: owner must be text, not true or false"},
	{"a time for text", "version: 1\nowner: 2030-06-01\n", "line 2: owner must be text, not a time"},
	{"a list for text", "…\nresources: {a: {kind: [text]}}\n", "line 4: kind must be text, not a list"},
	{"a number for a name", "version: 1\nsubjects: {123: {}}\n", "line 2: a key in subjects must be text, not a number: put it in quotes"},
	{"null for a name", "version: 1\nsubjects: {null: {}}\n", "line 2: a key in subjects must be text, not nothing"},
	{"a list for a name", "version: 1\nsubjects: {[a]: {}}\n", "line 2: a key in subjects must be text, not a list"},
	{"text for a boolean", "version: 1\nsubjects: {a: {enabled: \"true\"}}\n", "line 2: enabled must be true or false, not text"},
	{"yes for a boolean", "version: 1\nsubjects: {a: {enabled: yes}}\n", "line 2: enabled must be true or false, not text"},
	{"a boolean in capitals", "version: 1\nsubjects: {a: {enabled: True}}\n", "line 2: enabled must be written as true or false"},
	{"a number for a boolean", "version: 1\nsubjects: {a: {enabled: 1}}\n", "line 2: enabled must be true or false, not a number"},

	{"a malformed subject", "version: 1\nsubjects: {\"a b\": {}}\n", "line 2: name of a subject"},
	{"a malformed resource", "version: 1\nresources: {\"a/b\": {kind: text}}\n", "line 2: name of a resource"},
	{"a malformed owner", "version: 1\nowner: \"my laptop\"\n", "line 2: owner: a name is"},
	{"an empty owner", "version: 1\nowner: \"\"\n", "line 2: owner must not be empty"},

	{"neither kind nor file", "version: 1\nresources: {a: {}}\n", "line 2: resource a: a resource needs either kind or file"},
	{"kind and file", "version: 1\nresources: {a: {kind: text, file: /a}}\n", "line 2: resource a: a resource has either"},
	{"an unknown kind", "version: 1\nresources: {a: {kind: file}}\n", "line 2: resource a: kind is text, secret or binary"},
	{"a kind of another case", "version: 1\nresources: {a: {kind: Text}}\n", "line 2: resource a: kind is"},
	{"an empty kind", "version: 1\nresources: {a: {kind: \"\", file: /a}}\n", "line 2: kind must not be empty"},
	{"a pin without a file", "version: 1\nresources: {a: {kind: text, pin: content}}\n", "line 2: resource a: pin and sha256 belong to a file"},
	{"an unknown pin", "version: 1\nresources: {a: {file: /a, pin: inode}}\n", "line 2: resource a: pin is content or path"},
	{"a hash of a file that may change", "version: 1\nresources: {a: {file: /a, pin: path, sha256: " + strings.Repeat("a", 64) + "}}\n", "line 2: resource a: sha256 needs pin: content"},
	{"a hash in capitals", "version: 1\nresources: {a: {file: /a, sha256: " + strings.Repeat("A", 64) + "}}\n", "line 2: resource a: sha256 is 64"},
	{"another domain", "version: 1\nresources: {a: {kind: text, domain: work}}\n", "line 2: resource a: domain is personal"},
	{"a relative file", "version: 1\nresources: {a: {file: README.md}}\n", "line 2: resource a: file is an absolute"},
	{"a file with dots", "version: 1\nresources: {a: {file: /a/../b}}\n", "line 2: resource a: file is an absolute"},
	{"a file out of home", "version: 1\nresources: {a: {file: \"${home}/../b\"}}\n", "line 2: resource a: file is an absolute"},
	{"a folder", "version: 1\nresources: {a: {file: /}}\n", "line 2: resource a: file is an absolute"},
	{"home itself", "version: 1\nresources: {a: {file: \"${home}\"}}\n", "line 2: resource a: file is an absolute"},
	{"a tilde", "version: 1\nresources: {a: {file: ~/x}}\n", "line 2: resource a: file is an absolute"},
	{"another variable", "version: 1\nresources: {a: {file: \"${HOME}/x\"}}\n", "line 2: resource a: file is an absolute"},
	{"home in the middle", "version: 1\nresources: {a: {file: \"/a/${home}/x\"}}\n", "line 2: resource a: ${home} stands only at the beginning"},
	{"a newline in a file", "version: 1\nresources: {a: {file: \"/a\\nb\"}}\n", "line 2: resource a: file is at most"},
	{"a newline in a note", "version: 1\nresources: {a: {kind: text, note: \"a\\nb\"}}\n", "line 2: resource a: a note is"},

	{"an unknown tier", "version: 1\nsubjects: {a: {minTier: strong}}\n", "line 2: minTier: a minimum tier is one of"},
	{"a tier no minimum can be", "version: 1\nsubjects: {a: {minTier: separate}}\n", "line 2: minTier: a minimum tier is one of"},

	{"uid 0", "version: 1\nsubjects:\n  a: {uid: 0}\n", "line 3: uid 0 is root"},
	{"the uid of nobody", "version: 1\nsubjects:\n  a: {uid: 4294967295}\n", "line 3: uid 4294967295 is nobody's"},
	{"a uid of more than 32 bits", "version: 1\nsubjects:\n  a: {uid: 4294968297}\n", "line 3: uid must be written as a whole number of at most 32 bits"},
	{"a negative uid", "version: 1\nsubjects:\n  a: {uid: -1}\n", "line 3: uid must be written as a whole number"},
	{"a uid of text", "version: 1\nsubjects:\n  a: {uid: \"1001\"}\n", "line 3: uid must be a whole number of at most 32 bits in plain digits, not text"},
	{"a uid in octal", "version: 1\nsubjects:\n  a: {uid: 0o1751}\n", "line 3: uid must be written as"},
	{"a uid with a leading zero", "version: 1\nsubjects:\n  a: {uid: 01001}\n", "line 3: uid must be written as"},
	{"a null uid", "version: 1\nsubjects:\n  a: {uid: }\n", "line 3: uid must be a whole number of at most 32 bits in plain digits, not nothing"},
	{"a uid twice", "version: 1\nsubjects:\n  b: {uid: 1001}\n  a: {uid: 1002}\n  c: {uid: 1001}\n", "line 5: subject c: uid 1001 is that of subject b"},

	{"null for profiles", "…\nprofiles:\n", "line 4: profiles must be a mapping, not nothing"},
	{"a list for profiles", "…\nprofiles: []\n", "line 4: profiles must be a mapping, not a list"},
	{"null for a profile", "…\nprofiles:\n  p:\n", "line 5: a profile must be a mapping, not nothing"},
	{"an unknown key in a profile", "…\nprofiles:\n  p: {subject: worker, tools: [], minTier: bound}\n", `line 5: unknown key "minTier" in a profile`},
	{"a key of a profile twice", "…\nprofiles:\n  p: {subject: worker, tools: [], tools: []}\n", `line 5: "tools" is in a profile already, on line 5`},
	{"a profile twice", "…\nprofiles:\n  p: {subject: worker, tools: []}\n  p: {subject: worker, tools: []}\n", `line 6: "p" is in profiles already, on line 5`},
	{"a malformed profile", "…\nprofiles:\n  a/b: {subject: worker, tools: []}\n", "line 5: profile a/b: name of the profile: a name is"},
	{"a profile of no subject", "…\nprofiles:\n  p: {tools: []}\n", "line 5: profile p needs subject"},
	{"a profile of an empty subject", "…\nprofiles:\n  p: {subject: \"\", tools: []}\n", "line 5: subject must not be empty"},
	{"a profile of a malformed subject", "…\nprofiles:\n  p: {subject: a b, tools: []}\n", "line 5: profile p: name of the subject: a name is"},
	{"a profile of two subjects", "…\nprofiles:\n  p: {subject: [worker, boss], tools: []}\n", "line 5: subject must be text, not a list"},
	{"a profile of a subject that is nowhere", "…\nprofiles:\n  p: {subject: ghost, tools: []}\n", `line 5: profile p: no subject "ghost"; declare it under subjects`},
	{"a profile without tools", "…\nprofiles:\n  p: {subject: worker}\n", "line 5: profile p needs tools"},
	{"null for tools of a profile", "…\nprofiles:\n  p: {subject: worker, tools: }\n", "line 5: tools must be a list, not nothing"},
	{"text for tools of a profile", "…\nprofiles:\n  p: {subject: worker, tools: read_resource}\n", "line 5: tools must be a list, not text"},
	{"a number for a tool", "…\nprofiles:\n  p:\n    subject: worker\n    tools:\n    - read_resource\n    - 7\n", "line 9: a tool must be text, not a number"},
	{"a malformed tool in a profile", "…\nprofiles:\n  p:\n    subject: worker\n    tools:\n    - read_resource\n    - create_issue\n", "line 9: a tool: a tool is named SERVER/tool"},
	{"a pattern for a tool", "…\nprofiles:\n  p: {subject: worker, tools: [github/*]}\n", "line 5: a tool: a tool is named SERVER/tool"},
	{"a tool of a profile twice", "…\nprofiles:\n  p:\n    subject: worker\n    tools:\n    - read_resource\n    - read_resource\n", "line 9: read_resource is in tools already"},
	{"a tool that is nowhere", "…\nprofiles:\n  p:\n    subject: worker\n    tools:\n    - read_resource\n    - github/create_issue\n", `line 9: profile p: no tool "github/create_issue"; declare it under tools`},
	{"null for caps", "…\nprofiles:\n  p: {subject: worker, tools: [], caps: }\n", "line 5: caps must be a list, not nothing"},
	{"text for caps", "…\nprofiles:\n  p: {subject: worker, tools: [], caps: \"read:*\"}\n", "line 5: caps must be a list, not text"},
	{"a malformed cap", "…\nprofiles:\n  p:\n    subject: worker\n    tools: []\n    caps:\n    - read:docs.*\n    - read:doc*\n", "line 10: a capability in caps: '*' stands only"},
	{"a cap without action", "…\nprofiles:\n  p: {subject: worker, tools: [], caps: [plan]}\n", "line 5: a capability in caps: the action is missing"},
	{"a mapping for a cap", "…\nprofiles:\n  p: {subject: worker, tools: [], caps: [read: plan]}\n", "line 5: a capability in caps must be text, not a mapping"},
	{"a cap twice", "…\nprofiles:\n  p:\n    subject: worker\n    tools: []\n    caps:\n    - read:plan\n    - read:plan\n", "line 10: read:plan is in caps already"},
	{"an approval that is none", "…\nprofiles:\n  p: {subject: worker, tools: [], approval: sometimes}\n", "line 5: approval: approval is auto, always or never"},
	{"a boolean for approval", "…\nprofiles:\n  p: {subject: worker, tools: [], approval: true}\n", "line 5: approval must be text, not true or false"},
	{"an anchor in a profile", "…\nprofiles:\n  p: {subject: worker, tools: &t []}\n  q: {subject: worker, tools: *t}\n", "line 5: anchors are not allowed (and 1 more)"},
	{"a merge key in a profile", "…\nprofiles:\n  p:\n    <<: {subject: worker}\n    tools: []\n", "line 6: merge keys are not allowed"},

	{"null for tools", "…\ntools:\n", "line 4: tools must be a mapping, not nothing"},
	{"a list for tools", "…\ntools: [a/b]\n", "line 4: tools must be a mapping, not a list"},
	{"null for a tool", "…\ntools:\n  a/b:\n", "line 5: a tool must be a mapping, not nothing"},
	{"an unknown key in a tool", "…\ntools:\n  a/b: {requires: [], command: [x]}\n", `line 5: unknown key "command" in a tool`},
	{"a tool twice", "…\ntools:\n  a/b: {requires: []}\n  \"a/b\": {requires: []}\n", `line 6: "a/b" is in tools already, on line 5`},
	{"a built-in tool", "…\ntools:\n  read_resource: {requires: [\"read:*\"]}\n", "line 5: tool read_resource: only tools named SERVER/tool are declared"},
	{"a tool without server", "…\ntools:\n  create_issue: {requires: []}\n", "line 5: tool create_issue: only tools named SERVER/tool are declared"},
	{"a malformed name of a tool", "…\ntools:\n  a/b c: {requires: []}\n", "line 5: tool a/b c: a tool is named SERVER/tool"},
	{"a tool that does not say what it requires", "…\ntools:\n  a/b: {}\n", "line 5: tool a/b needs requires"},
	{"null for requires", "…\ntools:\n  a/b: {requires: }\n", "line 5: requires must be a list, not nothing"},
	{"a malformed requirement", "…\ntools:\n  a/b:\n    requires:\n    - use:token\n    - write:token\n", "line 8: a capability in requires: an action is one of"},
	{"a requirement twice", "…\ntools:\n  a/b:\n    requires:\n    - use:token\n    - use:token\n", "line 8: use:token is in requires already"},
	{"an approval that is none of a tool's", "…\ntools:\n  a/b: {requires: [], approval: auto}\n", "line 5: approval: approval of a tool is always or never"},
	{"a gate that is none", "…\ntools:\n  a/b: {requires: [], gate: never}\n", "line 5: gate: gate is always, or left out"},
	{"a boolean for a gate", "…\ntools:\n  a/b: {requires: [], gate: true}\n", "line 5: gate must be text, not true or false"},

	{"no subject", "…\ngrants: [{capability: \"read:*\"}]\n", "line 4: a grant needs subject"},
	{"no capability", "…\ngrants: [{subject: worker}]\n", "line 4: a grant needs capability"},
	{"a capability without action", "…\ngrants: [{subject: worker, capability: plan}]\n", "line 4: capability: the action is missing"},
	{"an unknown action", "…\ngrants: [{subject: worker, capability: \"write:plan\"}]\n", "line 4: capability: an action is one of"},
	{"a star in the middle of a word", "…\ngrants: [{subject: worker, capability: \"read:doc*\"}]\n", "line 4: capability: '*' stands only"},
	{"an unknown effect", "…\ngrants: [{subject: worker, capability: \"read:*\", effect: permit}]\n", "line 4: effect: an effect is allow or deny"},
	{"a null effect", "…\ngrants: [{subject: worker, capability: \"read:*\", effect: }]\n", "line 4: effect must be text, not nothing"},
	{"a past until", "…\ngrants: [{subject: worker, capability: \"read:*\", until: \"2030-06-01T11:59:59Z\"}]\n", "line 4: until is past"},
	{"an until at this moment", "…\ngrants: [{subject: worker, capability: \"read:*\", until: \"2030-06-01T12:00:00Z\"}]\n", "line 4: until is past"},
	{"an until without zone", "…\ngrants: [{subject: worker, capability: \"read:*\", until: \"2031-06-01T12:00:00\"}]\n", "line 4: until: a time is written"},
	{"a date for until", "…\ngrants: [{subject: worker, capability: \"read:*\", until: 2031-06-01}]\n", "line 4: until: a time is written"},
	{"a clock time for until", "…\ngrants: [{subject: worker, capability: \"read:*\", until: \"18:00\"}]\n", "line 4: until: a time is written"},
	{"the zero time for until", "…\ngrants: [{subject: worker, capability: \"read:*\", until: \"0001-01-01T00:00:00Z\"}]\n", "line 4: until: a time is written"},
	{"a number for until", "…\ngrants: [{subject: worker, capability: \"read:*\", until: 1906545600}]\n", "line 4: until must be a time of RFC 3339, not a number"},
	{"no uses at all", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: 0}]\n", "line 4: uses must be written as a whole number from 1"},
	{"negative uses", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: -1}]\n", "line 4: uses must be written as"},
	{"uses in another base", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: 0x3}]\n", "line 4: uses must be written as"},
	{"uses with a separator", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: 1_000}]\n", "line 4: uses must be"},
	{"uses of text", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: \"3\"}]\n", "line 4: uses must be a whole number from 1 in plain digits, not text"},
	{"uses of a fraction", "…\ngrants: [{subject: worker, capability: \"read:*\", uses: 3.0}]\n", "line 4: uses must be a whole number"},
	{"a deny with uses", "…\ngrants: [{subject: worker, capability: \"read:*\", effect: deny, uses: 3}]\n", "line 4: a deny takes no uses"},
	{"a deny to approve", "…\ngrants: [{subject: worker, capability: \"read:*\", effect: deny, requireApproval: true}]\n", "line 4: a deny takes no"},

	{"a subject that is nowhere", "…\ngrants:\n- {subject: ghost, capability: \"read:*\"}\n", `line 5: no subject "ghost"`},
	{"a subject of another case", "…\ngrants:\n- {subject: Worker, capability: \"read:*\"}\n", `line 5: no subject "Worker"`},
	{"a resource that is nowhere", "…\ngrants:\n- {subject: worker, capability: \"read:ghost\"}\n", `line 5: no resource "ghost"`},
	{"a resource to use that is nowhere", "…\ngrants:\n- {subject: worker, capability: \"use:ghost\"}\n", `line 5: no resource "ghost"`},
	{"a deny of a resource that is nowhere", "…\ngrants:\n- {subject: worker, capability: \"read:ghost\", effect: deny}\n", `line 5: no resource "ghost"`},
	{"two grants for one thing", "…\ngrants:\n- {subject: worker, capability: \"read:*\"}\n- {subject: boss, capability: \"read:*\"}\n- {subject: worker, capability: \"read:*\", uses: 3}\n",
		"line 7: the same subject, capability and effect as on line 5"},
	{"a secret to read without disclosure", "…\nresources: {key: {kind: secret}}\ngrants:\n- {subject: worker, capability: \"read:key\"}\n", "line 6: resource key is a secret"},
}

func TestParseRefuses(t *testing.T) {
	for _, test := range refusals {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(test.text, "…\n", "version: 1\nsubjects: {worker: {}, boss: {}}\n# good so far\n", 1)
			document, err := Parse([]byte(text), Env{Now: noon})
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

func TestEachProblemIsReported(t *testing.T) {
	_, err := Parse([]byte("version: 2\nowner: 7\nsubjects: {a: {enabled: 1}}\nextra: x\n"), Env{})
	refusal, ok := errors.AsType[*Error](err)
	if !ok || len(refusal.Problems) != 4 {
		t.Fatalf("Parse: %v, want four problems", err)
	}
	for i, p := range refusal.Problems {
		if p.Line != i+1 {
			t.Errorf("problem %d is on line %d", i, p.Line)
		}
	}
}

func TestARefusalIsOneShortLine(t *testing.T) {
	for name, text := range map[string]string{
		"an endless key":          "version: 1\n" + strings.Repeat("k", 1<<20) + ": 1\n",
		"an endless anchor":       "version: *" + strings.Repeat("a", 1<<20) + "\n",
		"a key of many lines":     "version: 1\n\"a\\nb\\e[31m\u2028\": 1\n",
		"more problems than read": "version: 1\nsubjects:\n" + strings.Repeat("  a: 1\n", 10000),
	} {
		_, err := Parse([]byte(text), Env{})
		if err == nil {
			t.Errorf("%s is accepted", name)
			continue
		}
		if got := err.Error(); len(got) > 400 || strings.ContainsFunc(got, isControl) || !utf8.ValidString(got) {
			t.Errorf("%s is refused with %d bytes: %.100q", name, len(got), got)
		}
		if refusal, _ := errors.AsType[*Error](err); len(refusal.Problems) > maxProblems {
			t.Errorf("%s has %d problems", name, len(refusal.Problems))
		}
	}
}

func TestReferencesToTheCurrentState(t *testing.T) {
	const text = "version: 1\ngrants:\n- {subject: worker, capability: \"read:plan\"}\n"
	current := &Document{
		Resources: map[string]Resource{"plan": {Kind: KindText}, "key": {Kind: KindSecret}},
		Subjects:  map[string]Subject{"worker": {}},
	}
	if _, err := Parse([]byte(text), Env{Current: current}); err != nil {
		t.Errorf("what the state holds is not known: %v", err)
	}
	if _, err := Parse([]byte(strings.Replace(text, "plan", "key", 1)), Env{Current: current}); err == nil {
		t.Error("a secret of the state can be read without disclosure")
	}
	const profile = "version: 1\nprofiles:\n  p: {subject: worker, tools: [a/b]}\n"
	if _, err := Parse([]byte(profile), Env{Current: current}); err == nil {
		t.Error("a profile lists a tool that nobody declared")
	}
	current.Tools = map[string]grants.Tool{"a/b": {Name: "a/b"}}
	if _, err := Parse([]byte(profile), Env{Current: current}); err != nil {
		t.Errorf("a tool that the state holds is not known: %v", err)
	}
	const memory = "version: 1\ngrants: [{subject: worker, capability: \"memory.write:acme\"}]\n"
	if _, err := Parse([]byte(memory), Env{Current: current}); err == nil {
		t.Error("a tenant that nobody declared is granted")
	}
	current.Tenants = map[string]grants.Tenant{"acme": {Name: "acme"}}
	if _, err := Parse([]byte(memory), Env{Current: current}); err != nil {
		t.Errorf("a tenant that the state holds is not known: %v", err)
	}
	uid := uint32(1001)
	current.Subjects["worker"] = Subject{UID: &uid}
	for text, want := range map[string]string{
		"version: 1\nsubjects: {worker: {uid: 1001}}\n":                    "",
		"version: 1\nsubjects: {worker: {uid: 1002}, boss: {uid: 1003}}\n": "",
		"version: 1\nsubjects: {boss: {uid: 1001}}\n":                      "line 2: subject boss: uid 1001 is that of subject worker",
		"version: 1\nsubjects: {boss: {uid: 1001}, worker: {uid: 1002}}\n": "line 2: subject boss: uid 1001 is that of subject worker",
	} {
		_, err := Parse([]byte(text), Env{Current: current})
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%q with the state's uids: %v, want %q", text, err, want)
		}
	}
	current.Resources["plan"] = Resource{Kind: KindSecret}
	declared := text + "resources: {plan: {kind: text}}\n"
	if _, err := Parse([]byte(declared), Env{Current: current}); err != nil {
		t.Errorf("the document's own word does not count before the state's: %v", err)
	}
}

func TestLint(t *testing.T) {
	const text = `version: 1
resources: {key: {kind: secret}, plan: {kind: text}}
subjects: {worker: {}, boss: {}}
grants:
- {subject: worker, capability: "read:key", disclose: true}
- {subject: worker, capability: "use:key", disclose: true}
- {subject: worker, capability: "read:*", disclose: true}
- {subject: boss, capability: "read:plan"}
- {subject: boss, capability: "read:*", effect: deny}
- {subject: boss, capability: "use:key", effect: deny, until: "2030-06-02T00:00:00Z"}
- {subject: boss, capability: "use:*"}
`
	warnings, err := Lint([]byte(text), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	want := []Problem{
		{5, "discloses a secret without until or uses"},
		{6, "disclose does nothing: it is for read: of kind secret"},
		{7, "disclose does nothing: a pattern with '*' never matches kind secret"},
		{8, "never allows anything: read:* is denied"},
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Error(diff)
	}
	const capped = `version: 1
subjects: {worker: {}}
tools:
  github/create_issue: {requires: ["use:github.token", "reach:api.github.com"]}
profiles:
  good: {subject: worker, tools: [read_resource, github/create_issue], caps: ["read:docs.*", "use:*", "reach:*"]}
  free: {subject: worker, tools: [read_resource]}
  odd:
    subject: worker
    tools:
    - github/create_issue
    - read_resource
    caps: ["read:docs.*", "reach:api.github.com", "memory.read:acme"]
  shut: {subject: worker, tools: [list_resources, capability_report], caps: []}
`
	want = []Problem{
		{8, "profile odd: no tool requires memory.read:acme, which caps name"},
		{11, "profile odd: github/create_issue requires use:github.token, which caps leave out"},
		{14, "profile shut: list_resources requires read:*, which caps leave out"},
	}
	warnings, err = Lint([]byte(capped), Env{})
	if diff := cmp.Diff(want, warnings); err != nil || diff != "" {
		t.Errorf("Lint of caps: %v\n%s", err, diff)
	}
	if warnings, err := Lint([]byte(everything), Env{Now: noon}); err != nil || len(warnings) > 0 {
		t.Errorf("Lint of a good document: %v, %v", warnings, err)
	}
	if _, err := Lint([]byte("version: 2\n"), Env{}); err == nil {
		t.Error("Lint accepts what Parse refuses")
	}
}
