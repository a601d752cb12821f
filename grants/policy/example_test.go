package policy

import (
	"os"
	"strings"
	"testing"
)

// example is a block of YAML in the policy reference.
type example struct {
	text   string
	refuse string // the refusal that the page promises; empty: it is good
}

// examples returns the blocks between ```yaml and ```. A block that the page
// shows as refused begins with "# refused: " and the refusal.
func examples(page string) (found []example) {
	blocks := strings.Split(page, "```yaml\n")
	for _, block := range blocks[1:] {
		e := example{text: strings.SplitN(block, "```", 2)[0]}
		if rest, ok := strings.CutPrefix(e.text, "# refused: "); ok {
			e.refuse, _, _ = strings.Cut(rest, "\n")
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
	found := examples(string(page))
	if len(found) < 5 {
		t.Fatalf("only %d examples found", len(found))
	}
	for _, e := range found {
		warnings, err := Lint([]byte(e.text), Env{Now: noon})
		switch {
		case e.refuse == "" && err != nil:
			t.Errorf("%v in\n%s", err, e.text)
		case e.refuse == "" && len(warnings) > 0:
			t.Errorf("%v in\n%s", warnings, e.text)
		case e.refuse != "" && (err == nil || err.Error() != e.refuse):
			t.Errorf("refused with %v, the page says %s, in\n%s", err, e.refuse, e.text)
		}
	}
}
