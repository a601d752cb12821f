package daemon_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// An operator sees what is in the memory as agents find it, and who captured it; each
// look is an entry that says what was handed out, and nothing of what it says.
func TestOperatorLooks(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme", "beta")
	first := capture(t, run, "acme", "the plan of old", "words", "")
	newer := capture(t, run, "acme", "the plan", strings.Repeat("many words ", 100), first)
	other := capture(t, run, "beta", "another plan", "", "")
	imported(t, d, `{"kind":"lesson","title":"from a file","created":5,"subject":"somebody"}`, "beta")
	operator := d.Operator()

	list := func(req *operatorv1.ListKnowledgeRequest) (ids []string) {
		t.Helper()
		got, err := operator.ListKnowledge(t.Context(), req)
		must(t, err)
		for _, e := range got.GetEntries() {
			ids = append(ids, e.GetEntryId())
		}
		return ids
	}
	seq := d.Seq()
	all := list(&operatorv1.ListKnowledgeRequest{})
	if len(all) != 3 || all[0] != other || all[1] != newer {
		t.Errorf("%q", all)
	}
	e := d.Await(seq, func(e verify.Entry) bool { return e.Kind == "memory.look" })
	if e.Action != "list" || e.Count != 3 || e.Disclosed != "yes" || e.Bytes == 0 || !slices.Equal(e.Tenants, []string{"acme", "beta"}) || e.Decision != "allow" || !e.HasPeer {
		t.Errorf("%+v", e)
	}
	for _, one := range []struct {
		req  *operatorv1.ListKnowledgeRequest
		want []string
	}{
		{&operatorv1.ListKnowledgeRequest{Tenants: []string{"acme"}}, []string{newer}},
		{&operatorv1.ListKnowledgeRequest{Kinds: []string{"lesson"}}, all[2:]},
		{&operatorv1.ListKnowledgeRequest{Since: 6}, all[:2]},
		{&operatorv1.ListKnowledgeRequest{Limit: 1}, all[:1]},
		{&operatorv1.ListKnowledgeRequest{Limit: 1, Before: all[0]}, all[1:2]},
		{&operatorv1.ListKnowledgeRequest{Before: all[2]}, nil},
	} {
		if got := list(one.req); !slices.Equal(got, one.want) {
			t.Errorf("%v: %q, want %q", one.req, got, one.want)
		}
	}

	show := func(id string) *operatorv1.GetKnowledgeResponse {
		t.Helper()
		got, err := operator.GetKnowledge(t.Context(), &operatorv1.GetKnowledgeRequest{EntryId: id})
		must(t, err)
		return got
	}
	seq = d.Seq()
	got := show(first)
	if e := got.GetEntry(); e.GetText() != "words" || e.GetSubject() != "worker" || e.GetRunId() != run.ID || e.GetSupersededBy() != newer || e.GetSuperseded() == 0 || e.GetCreated() == 0 {
		t.Errorf("%v", e)
	}
	if v := got.GetVersions(); len(v) != 2 || v[0].GetEntryId() != newer || v[0].GetText() != "" || v[0].GetTitle() != "the plan" || v[0].GetSupersedes() != first || got.GetTotal() != 2 {
		t.Errorf("%v", got)
	}
	e = d.Await(seq, func(e verify.Entry) bool { return e.Kind == "memory.look" })
	if e.Action != "show" || e.ResourceID != first || !slices.Equal(e.Tenants, []string{"acme"}) || e.Disclosed != "yes" {
		t.Errorf("%+v", e)
	}
	if e := show(all[2]).GetEntry(); e.GetSubject() != "somebody" || e.GetRunId() != "" || e.GetCreated() != 5 {
		t.Errorf("%v", e)
	}

	// The same hits, with the same scores, as an agent has that may read the same.
	asked, err := run.SearchKnowledge(t.Context(), &brokerv1.SearchKnowledgeRequest{RunId: run.ID, Query: "plan old"})
	must(t, err)
	found, err := operator.SearchKnowledge(t.Context(), &operatorv1.SearchKnowledgeRequest{Query: "plan old"})
	must(t, err)
	var agent, mine []string
	for _, hit := range asked.GetHits() {
		agent = append(agent, fmt.Sprint(hit.GetEntry().GetEntryId(), hit.GetEntry().GetText(), hit.GetScore(), hit.GetMatched(), len(hit.GetReplaced())))
	}
	for _, hit := range found.GetHits() {
		mine = append(mine, fmt.Sprint(hit.GetEntry().GetEntryId(), hit.GetEntry().GetText(), hit.GetScore(), hit.GetMatched(), len(hit.GetReplaced())))
	}
	if diff := cmp.Diff(agent, mine); diff != "" || len(mine) != 2 || found.GetTotal() != asked.GetTotal() {
		t.Errorf("%s%v", diff, mine)
	}
	if found, err = operator.SearchKnowledge(t.Context(), &operatorv1.SearchKnowledgeRequest{Query: "plan", Tenants: []string{"beta"}}); err != nil || len(found.GetHits()) != 1 {
		t.Errorf("%v, %v", found, err)
	}

	// What was forgotten is what is left of it.
	_, err = operator.ForgetKnowledge(t.Context(), &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{newer}})
	must(t, err)
	got = show(newer)
	if e := got.GetEntry(); e.GetForgotten() == 0 || e.GetTitle()+e.GetText()+e.GetSubject()+e.GetRunId() != "" || e.GetSupersedes() != first {
		t.Errorf("%v", e)
	}
	if slices.Contains(list(&operatorv1.ListKnowledgeRequest{}), newer) {
		t.Error("it is still listed")
	}

	// What cannot be looked for is said, and what was looked for is in no log.
	for what, ask := range map[string]func() error{
		"no tenant is named nowhere": func() error {
			return second(operator.ListKnowledge(t.Context(), &operatorv1.ListKnowledgeRequest{Tenants: []string{"nowhere"}}))
		},
		"kinds are": func() error {
			return second(operator.SearchKnowledge(t.Context(), &operatorv1.SearchKnowledgeRequest{Query: "x", Kinds: []string{"qzx"}}))
		},
		"limit is": func() error {
			return second(operator.ListKnowledge(t.Context(), &operatorv1.ListKnowledgeRequest{Limit: 101}))
		},
		"there is no entry": func() error {
			return second(operator.GetKnowledge(t.Context(), &operatorv1.GetKnowledgeRequest{EntryId: "aaaaaaaaaaaaaaaa"}))
		},
		"an id has": func() error {
			return second(operator.GetKnowledge(t.Context(), &operatorv1.GetKnowledgeRequest{EntryId: "QZX"}))
		},
		"": func() error {
			return second(operator.SearchKnowledge(t.Context(), &operatorv1.SearchKnowledgeRequest{Query: `"qzx`}))
		},
	} {
		if err := wire.FromError(ask()); err == nil || err.Reason != wire.InvalidArgument || !strings.Contains(err.Message, what) || strings.Contains(strings.ToLower(err.Message), "qzx") {
			t.Errorf("%s: %+v", what, err)
		}
	}
	for _, file := range segments(t, d.Home) {
		raw, err := os.ReadFile(file)
		must(t, err)
		if text := string(raw); strings.Contains(text, "plan") || strings.Contains(text, "many words") {
			t.Errorf("%s says what was looked for", file)
		}
	}
	d.Lock()
	if err := second(operator.ListKnowledge(t.Context(), &operatorv1.ListKnowledgeRequest{})); daemontest.Reason(err) != wire.VaultLocked {
		t.Errorf("%v", err)
	}
}

// It is content: while a subject has a raised tier it takes an operator who is
// authenticated, as the export does.
func TestOperatorLooksAuthenticated(t *testing.T) {
	d := daemontest.Start(t)
	run := librarian(t, d, "acme")
	id := capture(t, run, "acme", "the plan", "", "")
	operator := d.Operator()
	looks := map[string]func() error{
		"list": func() error { return second(operator.ListKnowledge(t.Context(), &operatorv1.ListKnowledgeRequest{})) },
		"show": func() error {
			return second(operator.GetKnowledge(t.Context(), &operatorv1.GetKnowledgeRequest{EntryId: id}))
		},
		"search": func() error {
			return second(operator.SearchKnowledge(t.Context(), &operatorv1.SearchKnowledgeRequest{Query: "plan"}))
		},
	}
	for what, ask := range looks { // the control
		if err := ask(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := operator.SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte("a passphrase")})
	must(t, err)
	_, err = operator.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("a passphrase")})
	must(t, err)
	_, err = operator.AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "high", MinTier: "bound"})
	must(t, err)
	for what, ask := range looks {
		if err := ask(); err != nil {
			t.Errorf("%s, with a session: %v", what, err)
		}
	}
	_, err = operator.CloseSession(t.Context(), &operatorv1.CloseSessionRequest{})
	must(t, err)
	for what, ask := range looks {
		seq := d.Seq()
		if err := wire.FromError(ask()); err == nil || err.Reason != wire.AccessDenied || err.Cause != "OPERATOR_AUTH_REQUIRED" {
			t.Errorf("%s: %+v", what, err)
		}
		if e := d.Await(seq, func(e verify.Entry) bool { return e.Kind == "memory.look" }); e.Decision != "deny" || e.Action != what || e.Disclosed != "" {
			t.Errorf("%s: %+v", what, e)
		}
	}
}
