package daemon

import (
	"slices"
	"testing"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

func ptr[T any](v T) *T { return &v }

// What each RPC of the operator needs, and where it depends, on what. A new RPC
// without a line here fails.
func TestNeedOfEveryOperatorCall(t *testing.T) {
	st := newState()
	for _, s := range []grants.Subject{{Name: "plain", MinTier: grants.Cooperative}, {Name: "old"}, {Name: "off", Disabled: true}, {Name: "high", MinTier: grants.Bound}} {
		st.mustPutSubject(s)
	}
	pattern, err := grants.ParsePattern("read:plan")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []grants.Grant{
		{ID: "kkkk", Subject: "plain", Pattern: pattern, Effect: grants.Allow},
		{ID: "mmmm", Subject: "high", Pattern: pattern, Effect: grants.Deny},
	} {
		if err := st.set.PutGrant(g); err != nil {
			t.Fatal(err)
		}
	}
	type asked struct {
		what    string
		request any
		need    need
	}
	never := func(reason string) []asked { return []asked{{reason, nil, nothing}} }
	want := map[string][]asked{
		"Status":       never("says nothing about content or rights"),
		"ConfirmClock": never("says what time it is"),
		"Lock":         never("restricts"),
		"Unlock":       never("nobody can be authenticated while it is locked"),
		"Panic":        never("restricts"),

		"ShowKeys":   never("names slots"),
		"RotateKey":  never("changes no right"),
		"Rekey":      never("changes no right"),
		"AddSlot":    {{"a way into every copy", nil, whenRaised}},
		"TestSlot":   never("changes nothing"),
		"RemoveSlot": never("restricts"),

		"Backup":       never("is sealed"),
		"VerifyBackup": never("changes nothing"),
		"ListBackups":  never("says nothing about content"),

		"PutSecret":      never("brings content"),
		"GetSecret":      {{"discloses", nil, whenRaised}},
		"RevertSecret":   never("brings content back"),
		"AddFile":        never("brings content"),
		"CheckFiles":     never("changes nothing"),
		"RepinFile":      never("brings content"),
		"ListResources":  never("names things"),
		"GetResource":    never("names things"),
		"RemoveResource": never("restricts"),

		"AddSubject": {
			{"somebody who can ask", &operatorv1.AddSubjectRequest{Name: "x"}, whenRaised},
			{"the lowest tier", &operatorv1.AddSubjectRequest{Name: "x", MinTier: "cooperative"}, whenRaised},
			{"a raised tier", &operatorv1.AddSubjectRequest{Name: "x", MinTier: "bound"}, always},
		},
		"SetSubject": {
			{"disabling", &operatorv1.SetSubjectRequest{Name: "high", Enabled: ptr(false)}, nothing},
			{"enabling", &operatorv1.SetSubjectRequest{Name: "off", Enabled: ptr(true)}, whenRaised},
			{"enabling what is enabled", &operatorv1.SetSubjectRequest{Name: "plain", Enabled: ptr(true)}, nothing},
			{"raising", &operatorv1.SetSubjectRequest{Name: "plain", MinTier: "bound"}, always},
			{"raising what had no tier", &operatorv1.SetSubjectRequest{Name: "old", MinTier: "sandboxed"}, always},
			{"raising further", &operatorv1.SetSubjectRequest{Name: "high", MinTier: "sandboxed"}, always},
			{"lowering", &operatorv1.SetSubjectRequest{Name: "high", MinTier: "cooperative"}, always},
			{"lowering while disabling", &operatorv1.SetSubjectRequest{Name: "high", MinTier: "cooperative", Enabled: ptr(false)}, always},
			{"the same tier", &operatorv1.SetSubjectRequest{Name: "high", MinTier: "bound"}, nothing},
			{"saying what is so", &operatorv1.SetSubjectRequest{Name: "old", MinTier: "cooperative"}, nothing},
			{"nobody", &operatorv1.SetSubjectRequest{Name: "nobody", MinTier: "bound"}, nothing},
		},
		"ListSubjects": never("names things"),
		"RemoveSubject": {
			{"one of no tier", &operatorv1.RemoveSubjectRequest{Name: "plain"}, nothing},
			{"one of a raised tier, the last of which ends every need", &operatorv1.RemoveSubjectRequest{Name: "high"}, whenRaised},
		},

		"CreateGrants": {
			{"a right", &operatorv1.CreateGrantsRequest{Subject: "plain"}, whenRaised},
			{"a denial", &operatorv1.CreateGrantsRequest{Subject: "plain", Deny: true}, nothing},
		},
		"RevokeGrants": {
			{"a right", &operatorv1.RevokeGrantsRequest{GrantId: "kk"}, nothing},
			{"a right by name", &operatorv1.RevokeGrantsRequest{Subject: "plain", Capability: "read:plan"}, nothing},
			{"everything", &operatorv1.RevokeGrantsRequest{Subject: "high", All: true}, nothing},
			{"a denial", &operatorv1.RevokeGrantsRequest{GrantId: "m"}, whenRaised},
			{"a denial by name", &operatorv1.RevokeGrantsRequest{Subject: "high", Capability: "read:plan"}, whenRaised},
		},
		"ListGrants": never("names things"),
		"Explain":    never("changes nothing"),

		"ListRuns": never("names things"),
		"EndRun":   never("restricts"),
		"OpenLaunch": {
			{"alone", &operatorv1.OpenLaunchRequest{Subject: "high"}, nothing},
			{"with contents", &operatorv1.OpenLaunchRequest{Subject: "high", Disclose: []string{"plan"}}, whenRaised},
		},

		"GetOperator":           never("changes nothing"),
		"SetOperatorPassphrase": never("asks for the present one itself"),
		"OpenSession":           never("is how one is authenticated"),
		"CloseSession":          never("restricts"),

		"WatchEvents": never("names things"),
		"Apply":       never("is judged by its changes: see below"),
		"Export":      never("names things"),
		"AuditHead":   never("names things"),
		"ReadAudit":   never("names things"),
		"ListDenials": never("names things"),
		"PruneAudit":  never("changes no right"),
	}
	service := operatorv1.OperatorService_ServiceDesc
	var names []string
	for _, m := range service.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range service.Streams {
		names = append(names, s.StreamName)
	}
	for _, name := range names {
		row, known := needs["/"+service.ServiceName+"/"+name]
		if !known || len(want[name]) == 0 {
			t.Errorf("%s has no line: in the daemon %v, here %v", name, known, len(want[name]) > 0)
			continue
		}
		for _, a := range want[name] {
			if got := row(st, a.request); got != a.need {
				t.Errorf("%s, %s: it needs %d, want %d", name, a.what, got, a.need)
			}
		}
	}
	for name := range want {
		if !slices.Contains(names, name) {
			t.Errorf("%s is no RPC", name)
		}
	}
}

// What applying a document needs is what its neediest change needs.
func TestNeedOfChanges(t *testing.T) {
	current := &policy.Document{Subjects: map[string]policy.Subject{
		"plain": {}, "off": {Enabled: ptr(false)}, "high": {MinTier: grants.Bound},
	}}
	want := &policy.Document{Subjects: map[string]policy.Subject{}}
	subject := func(verb, name string, s policy.Subject) policy.Change {
		want.Subjects[name] = s
		return policy.Change{Verb: verb, What: policy.ASubject, Name: name}
	}
	grant := func(verb string, effect grants.Effect) policy.Change {
		return policy.Change{Verb: verb, What: policy.AGrant, Grant: grants.Grant{Effect: effect}}
	}
	for name, tc := range map[string]struct {
		changes []policy.Change
		want    need
	}{
		"nothing":                {nil, nothing},
		"a resource":             {[]policy.Change{{Verb: policy.Add, What: policy.AResource}}, nothing},
		"a new subject":          {[]policy.Change{subject(policy.Add, "fresh", policy.Subject{})}, whenRaised},
		"a new raised subject":   {[]policy.Change{subject(policy.Add, "fresh-high", policy.Subject{MinTier: grants.Bound})}, always},
		"raising":                {[]policy.Change{subject(policy.Modify, "plain", policy.Subject{MinTier: grants.Sandboxed})}, always},
		"lowering":               {[]policy.Change{subject(policy.Modify, "high", policy.Subject{MinTier: grants.Cooperative})}, always},
		"enabling":               {[]policy.Change{subject(policy.Modify, "off", policy.Subject{Enabled: ptr(true)})}, whenRaised},
		"removing a subject":     {[]policy.Change{{Verb: policy.Remove, What: policy.ASubject, Name: "off"}}, nothing},
		"removing a raised one":  {[]policy.Change{{Verb: policy.Remove, What: policy.ASubject, Name: "high"}}, whenRaised},
		"an allow grant":         {[]policy.Change{grant(policy.Add, grants.Allow)}, whenRaised},
		"another allow grant":    {[]policy.Change{grant(policy.Modify, grants.Allow)}, whenRaised},
		"an allow grant goes":    {[]policy.Change{grant(policy.Remove, grants.Allow)}, nothing},
		"a deny grant":           {[]policy.Change{grant(policy.Add, grants.Deny)}, nothing},
		"a deny grant goes":      {[]policy.Change{grant(policy.Remove, grants.Deny)}, whenRaised},
		"a profile":              {[]policy.Change{{Verb: policy.Modify, What: policy.AProfile}}, whenRaised},
		"a profile goes":         {[]policy.Change{{Verb: policy.Remove, What: policy.AProfile}}, nothing},
		"a tool":                 {[]policy.Change{{Verb: policy.Add, What: policy.ATool}}, whenRaised},
		"the neediest of many":   {[]policy.Change{grant(policy.Remove, grants.Allow), grant(policy.Add, grants.Allow)}, whenRaised},
		"what is not known here": {[]policy.Change{{Verb: policy.Add, What: "server"}}, whenRaised},
	} {
		if got := needOfChanges(current, want, tc.changes); got != tc.want {
			t.Errorf("%s: it needs %d, want %d", name, got, tc.want)
		}
	}
}
