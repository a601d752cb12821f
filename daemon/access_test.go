package daemon

import (
	"slices"
	"testing"
	"time"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

func ptr[T any](v T) *T { return &v }

// What each RPC of the operator needs, and where it depends, on what. A new RPC
// without a line here fails. That it is enough is shown by what the calls do: see
// TestWithoutASessionNothingWidens.
func TestNeedOfEveryOperatorCall(t *testing.T) {
	st := newState()
	for _, s := range []grants.Subject{{Name: "plain", MinTier: grants.Cooperative}, {Name: "old"}, {Name: "off", Disabled: true}, {Name: "high", MinTier: grants.Bound}} {
		st.mustPutSubject(s)
	}
	st.catalog["stored"], st.catalog["declared"], st.catalog["file"] = facts{version: 1}, facts{}, facts{file: true}
	st.mustPutSubject(grants.Subject{Name: "tiered", MinTier: grants.Cooperative})
	inTier := grantOf(t, "bbbbbbbbbb", "tiered", "read:team.*", grants.Allow, time.Time{})
	inTier.Tier = grants.Bound
	for _, g := range []grants.Grant{
		inTier, grantOf(t, "cccccccccc", "plain", "read:promised", grants.Allow, time.Time{}), grantOf(t, "dddddddddd", "plain", "read:denied", grants.Deny, time.Time{}),
	} {
		st.mustPutGrant(g)
	}
	st.mustPutGrant(grantOf(t, "eeeeeeeeee", "plain", "memory.read:granted", grants.Allow, time.Time{}))
	st.mustPutGrant(grantOf(t, "ffffffffff", "plain", "memory.read:denied", grants.Deny, time.Time{}))
	type line struct {
		what    string
		request any
		need    need
	}
	never := func(reason string) []line { return []line{{reason, nil, nothing}} }
	want := map[string][]line{
		"Status":       never("says nothing about content or rights"),
		"ConfirmClock": {{"brings timed grants back", nil, whenRaised}},
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

		"PutSecret": {
			{"a name that is free", &operatorv1.PutSecretRequest{Name: "fresh"}, nothing},
			{"what was declared and has no content", &operatorv1.PutSecretRequest{Name: "declared"}, nothing},
			{"another version", &operatorv1.PutSecretRequest{Name: "stored"}, whenRaised},
			{"whether it is the same", &operatorv1.PutSecretRequest{Name: "stored", IfChanged: true}, whenRaised},
			{"what must not be there", &operatorv1.PutSecretRequest{Name: "stored", IfAbsent: true}, whenRaised},
			{"a file, which is refused", &operatorv1.PutSecretRequest{Name: "file"}, nothing},
			{"a name that a pattern covers", &operatorv1.PutSecretRequest{Name: "team.plan"}, whenRaised},
			{"a name that was granted", &operatorv1.PutSecretRequest{Name: "promised"}, whenRaised},
			{"a name that was only denied", &operatorv1.PutSecretRequest{Name: "denied"}, nothing},
		},
		"GetSecret":    {{"discloses", nil, whenRaised}},
		"RevertSecret": {{"an older content in the place of a newer one", nil, whenRaised}},
		"AddFile": {
			{"a name that is free", &operatorv1.AddFileRequest{Name: "fresh"}, nothing},
			{"a name that a pattern covers", &operatorv1.AddFileRequest{Name: "team.plan"}, whenRaised},
		},
		"CheckFiles":    never("changes nothing"),
		"RepinFile":     {{"another content in the place of that which was pinned", nil, whenRaised}},
		"ListResources": never("names things"),
		"GetResource":   never("names things"),
		"RemoveResource": {
			{"what was granted", &operatorv1.RemoveResourceRequest{Name: "promised"}, nothing},
			{"what a pattern covers", &operatorv1.RemoveResourceRequest{Name: "team.plan"}, nothing},
			{"what was denied", &operatorv1.RemoveResourceRequest{Name: "denied"}, whenRaised},
		},

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

		"MintAgentKey":   {{"somebody who can ask", nil, whenRaised}},
		"ListAgentKeys":  never("names things"),
		"RotateAgentKey": {{"somebody who can ask", nil, whenRaised}},
		"RevokeAgentKey": never("restricts"),

		"AddTenant":   never("there is nothing in it"),
		"ListTenants": never("names things"),
		"RemoveTenant": {
			{"what was granted", &operatorv1.RemoveTenantRequest{Name: "granted"}, nothing},
			{"what was denied", &operatorv1.RemoveTenantRequest{Name: "denied"}, whenRaised},
		},

		"ForgetKnowledge": never("takes away"),
		"ImportKnowledge": never("asks itself"),
		"ExportKnowledge": never("likewise"),
		"ListKnowledge":   {{"discloses", nil, whenRaised}},
		"GetKnowledge":    {{"discloses", nil, whenRaised}},
		"SearchKnowledge": {{"discloses", nil, whenRaised}},

		"CreateGrants": never("is judged by its grants: see below"),
		"RevokeGrants": never("likewise"),
		"ListGrants":   never("names things"),
		"Explain":      never("changes nothing"),

		"ListRuns": never("names things"),
		"EndRun":   never("restricts"),
		"OpenLaunch": {
			{"of one that every process of the uid can be", &operatorv1.OpenLaunchRequest{Subject: "plain"}, nothing},
			{"of one that has no tier", &operatorv1.OpenLaunchRequest{Subject: "old"}, nothing},
			{"of a raised one", &operatorv1.OpenLaunchRequest{Subject: "high"}, whenRaised},
			{"of one with a raised grant", &operatorv1.OpenLaunchRequest{Subject: "tiered"}, whenRaised},
			{"of nobody", &operatorv1.OpenLaunchRequest{Subject: "nobody"}, nothing},
			{"with contents", &operatorv1.OpenLaunchRequest{Subject: "plain", Disclose: []string{"plan"}}, whenRaised},
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

		"AddServer":      {{"runs a command with credentials", nil, whenRaised}},
		"ListServers":    never("names things"),
		"GetServer":      never("names things"),
		"TrustServer":    {{"lets tools through that were withheld", nil, whenRaised}},
		"RestartServer":  {{"lifts what a policy has ended", nil, whenRaised}},
		"ReadServerLogs": never("changes nothing"),
		"RemoveServer":   {{"takes its pins away", nil, whenRaised}},

		"ListPolicies": never("names things"),
		"ResetPolicy":  {{"gives back what was used up", nil, whenRaised}},
		"CallStats":    never("names things"),
		"Metrics":      never("names things"),

		"ListApprovals":  never("names things"),
		"DecideApproval": {{"an answer that nobody can give alone", nil, always}},
		"RevokeConsent":  never("restricts"),
		"WatchApprovals": never("names things"),
	}
	service := operatorv1.OperatorService_ServiceDesc
	var names []string
	for _, m := range service.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range service.Streams {
		names = append(names, s.StreamName)
		for _, a := range want[s.StreamName] {
			if a.need != nothing { // no interceptor asks its row
				t.Errorf("%s is a stream and needs something", s.StreamName)
			}
		}
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

// grantOf is a grant of a subject that ends at a time; zero: never.
func grantOf(t *testing.T, id, subject, capability string, effect grants.Effect, until time.Time) grants.Grant {
	t.Helper()
	pattern, err := grants.ParsePattern(capability)
	if err != nil {
		t.Fatal(err)
	}
	return grants.Grant{ID: id, Subject: subject, Pattern: pattern, Effect: effect, Until: until}
}

// A denial that takes the place of one that lasts longer gives something back, and
// so does one that goes.
func TestNeedOfDenials(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour := noon.Add(time.Hour)
	st := newState()
	for _, name := range []string{"worker", "other"} {
		st.mustPutSubject(grants.Subject{Name: name})
	}
	forever := grantOf(t, "bbbbbbbbbb", "worker", "read:forever", grants.Deny, time.Time{})
	timed := grantOf(t, "cccccccccc", "worker", "read:timed", grants.Deny, hour)
	allow := grantOf(t, "dddddddddd", "worker", "read:allowed", grants.Allow, hour)
	for _, g := range []grants.Grant{forever, timed, allow} {
		st.mustPutGrant(g)
	}
	for name, tc := range map[string]struct {
		subject, capability string
		effect              grants.Effect
		until               time.Time
		want                need
	}{
		"a right":                     {"worker", "read:x", grants.Allow, time.Time{}, whenRaised},
		"a right that ends":           {"worker", "read:x", grants.Allow, hour, whenRaised},
		"a denial":                    {"worker", "read:x", grants.Deny, time.Time{}, nothing},
		"a denial that ends":          {"worker", "read:x", grants.Deny, noon, nothing},
		"an end for one without":      {"worker", "read:forever", grants.Deny, hour, whenRaised},
		"the same without an end":     {"worker", "read:forever", grants.Deny, time.Time{}, nothing},
		"an earlier end":              {"worker", "read:timed", grants.Deny, hour.Add(-time.Millisecond), whenRaised},
		"the same end":                {"worker", "read:timed", grants.Deny, hour, nothing},
		"a later end":                 {"worker", "read:timed", grants.Deny, hour.Add(time.Millisecond), nothing},
		"no end for one that had":     {"worker", "read:timed", grants.Deny, time.Time{}, nothing},
		"an end for somebody else":    {"other", "read:forever", grants.Deny, hour, nothing},
		"a denial of what is allowed": {"worker", "read:allowed", grants.Deny, noon, nothing},
		"an end under a wider denial": {"worker", "read:forever.*", grants.Deny, noon, nothing},
	} {
		g := grantOf(t, "ffffffffff", tc.subject, tc.capability, tc.effect, tc.until)
		harmless := grantOf(t, "gggggggggg", "worker", "read:harmless", grants.Deny, time.Time{})
		for _, made := range [][]grants.Grant{{g}, {g, harmless}, {harmless, g}} {
			if got := st.needOfGrants(made...); got != tc.want {
				t.Errorf("%s, of %d: it needs %d, want %d", name, len(made), got, tc.want)
			}
		}
		for _, verb := range []string{policy.Add, policy.Modify} {
			changes := []policy.Change{{Verb: verb, What: policy.AGrant, Grant: g}}
			if got := st.needOfChanges(&policy.Document{}, &policy.Document{}, changes); got != tc.want {
				t.Errorf("%s, by %s in a document: it needs %d, want %d", name, verb, got, tc.want)
			}
		}
	}
	for name, tc := range map[string]struct {
		gone []grants.Grant
		all  bool
		want need
	}{
		"nothing":           {nil, false, nothing},
		"a right":           {[]grants.Grant{allow}, false, nothing},
		"a denial":          {[]grants.Grant{timed}, false, whenRaised},
		"a right, a denial": {[]grants.Grant{allow, timed}, false, whenRaised},
		"all of a subject":  {[]grants.Grant{allow, timed, forever}, true, nothing},
	} {
		if got := st.needOfRevoking(tc.gone, tc.all); got != tc.want {
			t.Errorf("revoking %s needs %d, want %d", name, got, tc.want)
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
		"another resource":       {[]policy.Change{{Verb: policy.Modify, What: policy.AResource}}, whenRaised},
		"a resource goes":        {[]policy.Change{{Verb: policy.Remove, What: policy.AResource}}, nothing},
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
		"a tool goes":            {[]policy.Change{{Verb: policy.Remove, What: policy.ATool}}, whenRaised},
		"the neediest of many":   {[]policy.Change{grant(policy.Remove, grants.Allow), grant(policy.Add, grants.Allow)}, whenRaised},
		"what is not known here": {[]policy.Change{{Verb: policy.Add, What: "server"}}, whenRaised},
	} {
		if got := newState().needOfChanges(current, want, tc.changes); got != tc.want {
			t.Errorf("%s: it needs %d, want %d", name, got, tc.want)
		}
	}
}
