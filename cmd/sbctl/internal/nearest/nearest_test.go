package nearest_test

import (
	"testing"

	"pgregory.net/rapid"

	"subjectbroker/cmd/sbctl/internal/nearest"
)

func TestName(t *testing.T) {
	names := []string{"ACME", "acme", "design-doc", "github.token", "payroll", "readme"}
	for _, test := range []struct{ typed, want string }{
		{"design-dco", "design-doc"},
		{"design_doc", "design-doc"},
		{"Design-Doc", "design-doc"},
		{"design", "design-doc"},
		{"github-token", "github.token"},
		{"redame", "readme"},
		{"readme", "readme"},
		{"acm", "acme"},
		{"ACM", "ACME"},
		{"zebra", ""},
		{"r", ""},
		{"", ""},
	} {
		got, ok := nearest.Name(test.typed, names)
		if got != test.want || ok != (test.want != "") {
			t.Errorf("Name(%q) = %q, %v; want %q", test.typed, got, ok, test.want)
		}
	}
}

func TestDistanceIsAMetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[abc]{0,6}`)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		distance := nearest.Distance(a, b)
		if (distance == 0) != (a == b) {
			t.Fatalf("Distance(%q, %q) = %d", a, b, distance)
		}
		if back := nearest.Distance(b, a); back != distance {
			t.Fatalf("Distance(%q, %q) = %d, the other way %d", a, b, distance, back)
		}
		if distance > max(len(a), len(b)) {
			t.Fatalf("Distance(%q, %q) = %d, more than rewriting", a, b, distance)
		}
	})
}
