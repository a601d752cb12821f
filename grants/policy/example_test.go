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
