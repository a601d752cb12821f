package policy

import (
	"strings"
	"testing"
	"time"
)

// That identical calls share one request is chosen, kept and written.
func TestShareApprovals(t *testing.T) {
	const document = "version: 1\nsubjects: {worker: {}}\npolicies:\n- {subject: worker, server: m, shareApprovals: true}\n- {subject: worker, server: n}\n"
	env := Env{Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	doc, err := Parse([]byte(document), env)
	if err != nil {
		t.Fatal(err)
	}
	for server, want := range map[string]bool{"m": true, "n": false} {
		if got := doc.Policies[Pair{"worker", server}].ShareApprovals; got != want {
			t.Errorf("around %s: %v, want %v", server, got, want)
		}
	}
	raw, err := Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(raw), "shareApprovals: true"); n != 1 || strings.Count(string(raw), "shareApprovals") != 1 {
		t.Errorf("it is written %d times:\n%s", n, raw)
	}
	was, is := doc.Policies[Pair{"worker", "n"}], doc.Policies[Pair{"worker", "m"}]
	is.Server = "n"
	if d := policyDifference(&was, &is); len(d) != 1 {
		t.Errorf("the difference is %v", d)
	}
	if _, err := Parse([]byte(strings.Replace(document, "true", "sometimes", 1)), env); err == nil {
		t.Error("something else than true or false is taken")
	}
}
