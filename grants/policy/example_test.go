package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"subjectbroker/grants"
)

// example is a block of YAML in the policy reference.
type example struct {
	text   string
	refuse string // the refusal that the page promises; empty: it is good
}

// examples returns the blocks between ```yaml and ```. A block that the page
// shows as refused opens with ```yaml refused and ends in the refusal, as a
// comment.
func examples(page string) (found []example) {
	blocks := strings.Split(page, "```yaml")
	for _, block := range blocks[1:] {
		kind, rest, _ := strings.Cut(block, "\n")
		e := example{text: strings.SplitN(rest, "```", 2)[0]}
		if kind == " refused" {
			at := strings.LastIndex(e.text, "# ")
			e.refuse = strings.TrimSpace(e.text[at+len("# "):])
		}
		found = append(found, e)
	}
	return found
}

func TestExamplesInThePolicyReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, e := range examples(string(page)) {
		warnings, err := Lint([]byte(e.text), Env{Now: noon})
		switch {
		case e.refuse != "":
			refused++
			if err == nil || err.Error() != e.refuse {
				t.Errorf("refused with %v, the page says %s, in\n%s", err, e.refuse, e.text)
			}
		case err != nil:
			t.Errorf("%v in\n%s", err, e.text)
		case len(warnings) > 0:
			t.Errorf("%v in\n%s", warnings, e.text)
		}
	}
	if refused < 3 {
		t.Errorf("only %d refused examples were found", refused)
	}
}

// answers are the rows of the page's table of questions under a profile.
var answers = regexp.MustCompile("(?m)^\\| `([^`]+)`, `([^`]+)` \\| `?([A-Za-z_]+)`? \\|")

func TestAnswersInThePolicyReference(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## Profiles and tools")
	d, err := Parse([]byte(examples(section)[0].text), Env{Now: noon})
	if err != nil {
		t.Fatal(err)
	}
	set := setOf(t, d)
	rows := answers.FindAllStringSubmatch(section, -1)
	for _, row := range rows {
		capability, err := grants.ParseCapability(row[1])
		if err != nil {
			t.Fatal(err)
		}
		ceiling, _ := set.Ceiling(row[2])
		r := grants.Request{
			Subject: "worker", Capability: capability, Tier: grants.Cooperative, Profile: row[2], Ceiling: ceiling,
			Object: grants.Object{Exists: true, HasContent: true}, Now: noon,
			Resource: func(string) grants.Object { return grants.Object{Exists: true, HasContent: true} },
		}
		decision := grants.Decide(set, &r)
		said := map[grants.Outcome]string{grants.Allowed: "allowed", grants.Pending: "pending", grants.Denied: string(decision.Cause)}[decision.Outcome]
		if said != row[3] {
			t.Errorf("%s under %s is %s, the page says %s", row[1], row[2], said, row[3])
		}
	}
	if len(rows) < 6 {
		t.Errorf("only %d answers were found", len(rows))
	}
}

// setOf is the state that a document describes.
func setOf(t *testing.T, d *Document) *grants.Set {
	t.Helper()
	set := grants.NewSet()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, s := range d.Subjects {
		subject := grants.Subject{Name: name}
		s.ApplyTo(&subject)
		must(set.PutSubject(subject))
	}
	for _, tool := range d.Tools {
		must(set.PutTool(tool))
	}
	for _, p := range d.Profiles {
		must(set.PutProfile(p))
	}
	for _, g := range d.Grants {
		g.ID = grants.NewID()
		must(set.PutGrant(g))
	}
	return set
}
