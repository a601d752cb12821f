package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/grants"
)

func TestPolicyProbes(t *testing.T) {
	uid := uint32(1001)
	for _, test := range []struct {
		name     string
		subjects []grants.Subject
		profiles []grants.Profile
		want     map[string]string
	}{
		{"nothing", nil, nil, map[string]string{
			"profiles": "ok there is none: a run can use all that its subject was granted",
			"separate": "ok not set up: no subject has a uid of its own, so agents and sbd share one",
		}},
		{
			"tiers, a uid, and a subject without a profile",
			[]grants.Subject{
				{Name: "a", MinTier: grants.Bound, UID: &uid}, {Name: "b", MinTier: grants.Cooperative}, {Name: "c", MinTier: grants.Sandboxed},
				{Name: "d", MinTier: grants.Bound, Disabled: true},
			},
			[]grants.Profile{{Name: "p", Subject: "a"}, {Name: "q", Subject: "a"}},
			map[string]string{
				"profiles":          "warn 2, of a; none of b, c, whose runs have no ceiling",
				"demands-bound":     "ok demanded by a, d",
				"demands-sandboxed": "ok demanded by c",
				"separate":          "ok holds for a (uid 1001): the kernel tells them from sbd",
			},
		},
		{
			"every subject has one",
			[]grants.Subject{{Name: "a", MinTier: grants.Cooperative}, {Name: "off", MinTier: grants.Cooperative, Disabled: true}},
			[]grants.Profile{{Name: "p", Subject: "a"}},
			map[string]string{
				"profiles": "ok 1, of a; a run that names none has no ceiling",
				"separate": "ok not set up: no subject has a uid of its own, so agents and sbd share one",
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := map[string]string{}
			for _, p := range judgePolicy(test.subjects, test.profiles) {
				got[p.GetName()] = p.GetStatus() + " " + p.GetSummary()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := firstOf([]string{"a", "b", "c", "d", "e", "f", "g"}); got != "a, b, c, d, e and 2 more" {
		t.Error(got)
	}
}
