package daemon

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// asksMuch is a state in which something asks a person about much, and nothing about the
// rest.
func asksMuch(t *testing.T) *state {
	t.Helper()
	st := newState()
	st.open = true
	for _, name := range []string{"asked", "ruled", "profiled", "free"} {
		st.mustPutSubject(grants.Subject{Name: name, MinTier: grants.Cooperative})
	}
	gated := grantOf(t, "bbbbbbbbbb", "asked", "call:srv/write", grants.Allow, time.Time{})
	reading := grantOf(t, "cccccccccc", "asked", "read:docs.plan", grants.Allow, time.Time{})
	gated.RequireApproval, reading.RequireApproval = true, true
	for _, g := range []grants.Grant{
		gated, reading, grantOf(t, "dddddddddd", "free", "call:other/*", grants.Allow, time.Time{}),
		grantOf(t, "ffffffffff", "ruled", "call:git/*", grants.Allow, time.Time{}),
	} {
		st.mustPutGrant(g)
	}
	for _, p := range []rules.Policy{policyThatAsks("ruled", "git"), policyOf("free", "other")} {
		compiled, err := rules.Compile(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		st.policies[keyOfPolicy(&p)] = compiled
	}
	for _, tool := range []grants.Tool{
		{Name: "desk/gated", Gate: true}, {Name: "shop/asks", Approval: true, Requires: patterns(t, "reach:shop")}, {Name: "shop/free"}, {Name: "park/free"},
	} {
		must(st.set.PutTool(tool))
	}
	for _, p := range []grants.Profile{
		{Name: "careful", Subject: "profiled", Tools: []string{"park/free"}, Approval: grants.ApprovalAlways},
		{Name: "usual", Subject: "profiled", Tools: []string{"shop/asks", "shop/free"}},
		{Name: "easy", Subject: "free", Tools: []string{"park/free"}, Approval: grants.ApprovalNever},
	} {
		must(st.set.PutProfile(p))
	}
	for name, secret := range map[string]string{"git": "git.token", "other": "other.token"} {
		st.servers[name] = grants.Server{Name: name, Command: []string{"x"}, Env: map[string]string{"T": "${secret:" + secret + "}"}, Hosted: true}
	}
	return st
}

func policyOf(subject, server string) rules.Policy {
	return rules.Policy{Subject: subject, Server: server, Audit: rules.Strict, Rules: rules.Rules{OnViolation: rules.Block}}
}

func policyThatAsks(subject, server string) rules.Policy {
	p := policyOf(subject, server)
	p.Rules.Security.RequireApproval = []string{"merge"}
	return p
}

func patterns(t *testing.T, words ...string) (all []grants.Pattern) {
	t.Helper()
	for _, word := range words {
		p, err := grants.ParsePattern(word)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return all
}

// What would let pass unasked what a person is asked about needs somebody who could
// answer, by whichever call; beside each the same where nobody is asked.
func TestNeedOfWhatLiftsAnApproval(t *testing.T) {
	st := asksMuch(t)
	row := func(name string, req any) need {
		return needs["/"+operatorv1.OperatorService_ServiceDesc.ServiceName+"/"+name](st, req)
	}
	for name, tc := range map[string]struct{ got, want need }{
		"resetting a policy that asks":  {row("ResetPolicy", &operatorv1.ResetPolicyRequest{Subject: "ruled", Server: "git"}), whenAsked},
		"removing a policy that asks":   {row("ResetPolicy", &operatorv1.ResetPolicyRequest{Subject: "ruled", Server: "git", Remove: true}), whenAsked},
		"resetting another":             {row("ResetPolicy", &operatorv1.ResetPolicyRequest{Subject: "free", Server: "other"}), whenRaised},
		"removing a server of a policy": {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "git"}), whenAsked},
		"removing one of a grant":       {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "srv"}), whenAsked},
		"removing one of a gate":        {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "desk"}), whenAsked},
		"removing one of an approval":   {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "shop"}), whenAsked},
		"removing another server":       {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "other"}), whenRaised},
		"removing one of a like name":   {row("RemoveServer", &operatorv1.RemoveServerRequest{Name: "sr"}), whenRaised},
		"trusting":                      {row("TrustServer", &operatorv1.TrustServerRequest{Name: "git"}), whenAsked},
		"trusting another":              {row("TrustServer", &operatorv1.TrustServerRequest{Name: "other"}), whenRaised},
		"adding a server of that name":  {row("AddServer", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "srv"}}), whenAsked},
		"adding one with its secret": {row("AddServer", &operatorv1.AddServerRequest{Server: &operatorv1.Server{
			Name: "git2", Headers: map[string]string{"X": "a ${secret:git.token}"},
		}}), whenAsked},
		"adding one with another's": {row("AddServer", &operatorv1.AddServerRequest{Server: &operatorv1.Server{
			Name: "git2", Env: map[string]string{"X": "${secret:other.token}"},
		}}), whenRaised},
		"adding another server":           {row("AddServer", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "new"}}), whenRaised},
		"removing a subject with a grant": {row("RemoveSubject", &operatorv1.RemoveSubjectRequest{Name: "asked"}), whenAsked},
		"with a policy":                   {row("RemoveSubject", &operatorv1.RemoveSubjectRequest{Name: "ruled"}), whenAsked},
		"with a profile":                  {row("RemoveSubject", &operatorv1.RemoveSubjectRequest{Name: "profiled"}), whenAsked},
		"with nothing of that":            {row("RemoveSubject", &operatorv1.RemoveSubjectRequest{Name: "free"}), nothing},
	} {
		if tc.got != tc.want {
			t.Errorf("%s needs %d, want %d", name, tc.got, tc.want)
		}
	}
}

func TestNeedOfGrantsThatLift(t *testing.T) {
	st := asksMuch(t)
	grant := func(subject, word string, asks bool) grants.Grant {
		g := grantOf(t, "gggggggggg", subject, word, grants.Allow, time.Time{})
		g.RequireApproval = asks
		return g
	}
	for name, tc := range map[string]struct {
		g    grants.Grant
		want need
	}{
		"the same without":               {grant("asked", "call:srv/write", false), whenAsked},
		"the same again":                 {grant("asked", "call:srv/write", true), whenRaised},
		"a wider one":                    {grant("asked", "call:srv/*", false), whenAsked},
		"a wider one that asks":          {grant("asked", "call:srv/*", true), whenRaised},
		"the widest":                     {grant("asked", "call:*", false), whenAsked},
		"one for somebody else":          {grant("free", "call:srv/write", false), whenAsked},
		"another tool":                   {grant("asked", "call:srv/read", false), whenRaised},
		"another action":                 {grant("asked", "use:docs.plan", false), whenRaised},
		"the content":                    {grant("free", "read:docs.*", false), whenAsked},
		"other content":                  {grant("free", "read:notes.*", false), whenRaised},
		"around a policy":                {grant("free", "call:git/merge", false), whenAsked},
		"around it, and asked each time": {grant("free", "call:git/merge", true), whenRaised},
		"under it":                       {grant("ruled", "call:git/merge", false), whenRaised},
		"around a policy that does not":  {grant("asked", "call:other/x", false), whenRaised},
	} {
		harmless := grant("free", "read:harmless", false)
		for _, made := range [][]grants.Grant{{tc.g}, {harmless, tc.g}, {tc.g, harmless}} {
			if got := st.needOfGrants(made...); got != tc.want {
				t.Errorf("%s, of %d: it needs %d, want %d", name, len(made), got, tc.want)
			}
		}
		for _, verb := range []string{policy.Add, policy.Modify} {
			if got := st.needOfChanges(&policy.Document{}, &policy.Document{}, []policy.Change{{Verb: verb, What: policy.AGrant, Grant: tc.g}}); got != tc.want {
				t.Errorf("%s, by %s in a document: it needs %d, want %d", name, verb, got, tc.want)
			}
		}
	}
	// What takes away asks nobody, and is remembered, so that it does not come back
	// without asking.
	gone := st.set.GrantsOf("asked")
	if got := st.needOfRevoking(gone, false); got != nothing {
		t.Errorf("revoking what asks needs %d", got)
	}
	for _, g := range gone {
		st.end(endedGrant{Grant: g})
	}
	if got := st.needOfGrants(grant("asked", "call:srv/write", false)); got != whenAsked {
		t.Errorf("granting without asking what was revoked needs %d", got)
	}
	if got := st.needOfGrants(grant("asked", "call:srv/other", false)); got != whenRaised {
		t.Errorf("granting something else needs %d", got)
	}
	// A wider right that stays would take over.
	st = asksMuch(t)
	wider := grantOf(t, "hhhhhhhhhh", "asked", "call:srv/*", grants.Allow, time.Time{})
	st.mustPutGrant(wider)
	gated, _ := st.set.Grant("bbbbbbbbbb")
	if got := st.needOfRevoking([]grants.Grant{gated}, false); got != whenAsked {
		t.Errorf("revoking what asks beside a right that stays needs %d", got)
	}
	if got := st.needOfRevoking([]grants.Grant{gated, wider}, false); got != nothing {
		t.Errorf("revoking both needs %d", got)
	}
	if got := st.needOfRevoking([]grants.Grant{wider}, false); got != nothing {
		t.Errorf("revoking the wider one needs %d", got)
	}
	// What is remembered does not go because of others.
	for i := range keptEnded/2 + 1 {
		other := grantOf(t, fmt.Sprintf("i%09d", i), "asked", fmt.Sprintf("read:x%d", i), grants.Allow, time.Time{})
		other.RequireApproval = true
		if st.needOfRevoking([]grants.Grant{other}, false) != nothing {
			if i < keptEnded/2 {
				t.Errorf("revoking asks after %d", i)
			}
			break
		}
		st.end(endedGrant{Grant: other})
	}
	other := grantOf(t, "jjjjjjjjjj", "asked", "read:last", grants.Allow, time.Time{})
	other.RequireApproval = true
	if got := st.needOfRevoking([]grants.Grant{other}, false); got != whenAsked {
		t.Errorf("revoking what cannot be remembered needs %d", got)
	}
}

func TestNeedOfDocumentsThatLift(t *testing.T) {
	st := asksMuch(t)
	weaker := policyThatAsks("ruled", "git")
	weaker.Rules.Security.RequireApproval = nil
	warns := policyThatAsks("ruled", "git")
	warns.ObserveUntil = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	stricter := policyThatAsks("ruled", "git")
	stricter.Rules.Security.RequireApproval = []string{"merge", "push"}
	limited := policyThatAsks("ruled", "git")
	limited.Rules.OnViolation = rules.Warn
	tool := func(verb, name string, gate, approval bool, requires ...string) policy.Change {
		return policy.Change{Verb: verb, What: policy.ATool, Name: name, Tool: grants.Tool{Name: name, Gate: gate, Approval: approval, Requires: patterns(t, requires...)}}
	}
	profile := func(verb, name, subject string, approval grants.Approval, tools ...string) policy.Change {
		return policy.Change{Verb: verb, What: policy.AProfile, Name: name, Profile: grants.Profile{Name: name, Subject: subject, Tools: tools, Approval: approval}}
	}
	of := func(verb string, p rules.Policy) policy.Change {
		return policy.Change{Verb: verb, What: policy.APolicy, Policy: p}
	}
	server := func(verb, name, secret string) policy.Change {
		return policy.Change{Verb: verb, What: policy.AServer, Name: name, Server: grants.Server{Name: name, Env: map[string]string{"T": "${secret:" + secret + "}"}}}
	}
	for name, tc := range map[string]struct {
		c    policy.Change
		want need
	}{
		"a policy that asks no more":      {of(policy.Modify, weaker), whenAsked},
		"one that only logs":              {of(policy.Modify, warns), whenAsked},
		"one that warns":                  {of(policy.Modify, limited), whenAsked},
		"one that asks more":              {of(policy.Modify, stricter), nothing},
		"a policy that asks goes":         {of(policy.Remove, stricter), whenAsked},
		"another goes":                    {of(policy.Remove, policyOf("free", "other")), whenRaised},
		"a first one":                     {of(policy.Add, policyThatAsks("free", "git")), nothing},
		"a gate goes":                     {tool(policy.Modify, "desk/gated", false, false), whenAsked},
		"a gate stays":                    {tool(policy.Modify, "desk/gated", true, false), whenRaised},
		"a gate for an approval":          {tool(policy.Modify, "desk/gated", false, true), whenAsked},
		"an approval goes":                {tool(policy.Modify, "shop/asks", false, false, "reach:shop"), whenAsked},
		"an approval becomes a gate too":  {tool(policy.Modify, "shop/asks", true, true, "reach:shop"), whenRaised},
		"a tool with a gate goes":         {tool(policy.Remove, "desk/gated", false, false), whenAsked},
		"one with an approval goes":       {tool(policy.Remove, "shop/asks", false, false), whenAsked},
		"one without goes":                {tool(policy.Remove, "park/free", false, false), whenRaised},
		"a new tool":                      {tool(policy.Add, "desk/new", false, false), whenRaised},
		"the same way without asking":     {tool(policy.Modify, "shop/free", false, false, "reach:shop"), whenAsked},
		"the same way, asking too":        {tool(policy.Modify, "shop/free", false, true, "reach:shop"), whenRaised},
		"a way where everything is asked": {tool(policy.Modify, "park/free", false, false, "reach:shop"), whenRaised},
		"always to never":                 {profile(policy.Modify, "careful", "profiled", grants.ApprovalNever, "park/free"), whenAsked},
		"always to auto":                  {profile(policy.Modify, "careful", "profiled", grants.ApprovalAuto, "park/free"), whenAsked},
		"always, with more tools":         {profile(policy.Modify, "careful", "profiled", grants.ApprovalAlways, "park/free", "shop/free"), whenRaised},
		"auto to never":                   {profile(policy.Modify, "usual", "profiled", grants.ApprovalNever, "shop/asks", "shop/free"), whenAsked},
		"auto to always":                  {profile(policy.Modify, "usual", "profiled", grants.ApprovalAlways, "shop/asks", "shop/free"), whenRaised},
		"another tool beside it":          {profile(policy.Modify, "usual", "profiled", grants.ApprovalAuto, "shop/asks", "shop/free", "park/free"), whenAsked},
		"fewer tools":                     {profile(policy.Modify, "usual", "profiled", grants.ApprovalAuto, "shop/asks"), whenRaised},
		"a profile that asks goes":        {profile(policy.Remove, "careful", "profiled", grants.ApprovalAlways), whenAsked},
		"one that asks nobody":            {profile(policy.Modify, "easy", "free", grants.ApprovalNever, "park/free", "shop/free"), whenRaised},
		"one that asks nobody goes":       {profile(policy.Remove, "easy", "free", grants.ApprovalNever), nothing},
		"a new profile":                   {profile(policy.Add, "new", "profiled", grants.ApprovalNever, "park/free"), whenRaised},
		"a server goes":                   {server(policy.Remove, "git", "git.token"), whenAsked},
		"another goes, too":               {server(policy.Remove, "other", "other.token"), whenRaised},
		"a server is run another way":     {server(policy.Modify, "git", "git.token"), whenAsked},
		"another name for its secret":     {server(policy.Add, "git2", "git.token"), whenAsked},
		"another server":                  {server(policy.Add, "new", "new.token"), whenRaised},
		"a subject goes":                  {policy.Change{Verb: policy.Remove, What: policy.ASubject, Name: "ruled"}, whenAsked},
		"another subject goes":            {policy.Change{Verb: policy.Remove, What: policy.ASubject, Name: "free"}, nothing},
	} {
		if got := st.needOfChanges(&policy.Document{}, &policy.Document{}, []policy.Change{tc.c}); got != tc.want {
			t.Errorf("%s: it needs %d, want %d", name, got, tc.want)
		}
	}
}

// While a tier is raised, what lifts an approval needs what everything needs then,
// also where the passphrase was forgotten since.
func TestNeedAsThingsAre(t *testing.T) {
	plain, raised, locked := asksMuch(t), asksMuch(t), newState()
	raised.mustPutSubject(grants.Subject{Name: "high", MinTier: grants.Bound})
	for i, st := range []*state{plain, raised, locked} {
		var got []need
		for _, n := range []need{nothing, whenRaised, whenAsked, always} {
			got = append(got, n.now(st))
		}
		want := [][]need{{nothing, nothing, whenAsked, always}, {nothing, whenRaised, whenRaised, always}, {nothing, whenRaised, whenAsked, always}}[i]
		if !slices.Equal(got, want) {
			t.Errorf("state %d: %v, want %v", i, got, want)
		}
	}
}
