package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"subjectbroker/grants"
	"subjectbroker/vault"
)

// What a call needs is judged by everybody's grants, and shown to an operator as far as
// it exists for that operator.
func TestCallsRequireLive(t *testing.T) {
	hers := uint32(1001)
	st := newState()
	st.catalog["hers.token"] = facts{kind: vault.KindSecret, version: 1, owner: &hers}
	st.catalog["token"] = facts{kind: vault.KindSecret, version: 1}
	pattern := func(text string) grants.Pattern {
		p, err := grants.ParsePattern(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	must(st.set.PutSubject(grants.Subject{Name: "worker"}))
	must(st.set.PutTool(grants.Tool{Name: "mail/send", Requires: []grants.Pattern{pattern("use:hers.token")}}))
	must(st.set.PutTool(grants.Tool{Name: "mail/list", Requires: []grants.Pattern{pattern("use:token")}}))
	must(st.set.PutGrant(grants.Grant{ID: "aaaa", Subject: "worker", Pattern: pattern("call:mail/*"), Effect: grants.Allow}))
	must(st.set.PutGrant(grants.Grant{ID: "bbbb", Subject: "worker", Pattern: pattern("use:hers.token"), Effect: grants.Allow, GrantedBy: &hers}))
	at := reading{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	who := asker{subject: "worker", tier: grants.Cooperative}
	call := func(tool string) grants.Capability { return grants.Capability{Action: grants.Call, Object: tool} }

	if got := st.decide(who, call("mail/send"), at); got.Outcome != grants.Allowed {
		t.Errorf("what it requires is granted by whose it is: %+v", got)
	}
	if got := st.decide(who, call("mail/list"), at); got.Outcome != grants.Denied || got.Cause != grants.CauseNoGrant {
		t.Errorf("what it requires is not granted: %+v", got)
	}
	explain := func(uid uint32) (grants.Decision, string) {
		q := st.explained(uid, who, call("mail/send"), at)
		decision, steps := grants.Explain(st.setFor(uid, who.subject, call("mail/send")), &q)
		var words []string
		for _, s := range steps {
			words = append(words, s.Detail+" "+s.GrantID)
		}
		return decision, strings.Join(words, "\n")
	}
	if got, words := explain(hers); got.Outcome != grants.Allowed || !strings.Contains(words, "bbbb") {
		t.Errorf("to her: %+v\n%s", got, words)
	}
	if got, words := explain(hers + 1); got.Cause != grants.CauseUnknownResource || strings.Contains(words, "bbbb") {
		t.Errorf("to another operator: %+v\n%s", got, words)
	}
	if slices.ContainsFunc(st.seen(hers+1, st.set.All()), func(g grants.Grant) bool { return g.ID == "bbbb" }) {
		t.Error("the control: the grant is shown to another operator in lists")
	}
}
