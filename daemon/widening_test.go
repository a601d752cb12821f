package daemon_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// widen are calls of an operator that try to give somebody something, by every
// way that there is.
func widen(c operatorv1.OperatorServiceClient, denied string) map[string]func(context.Context) error {
	calls := map[string]func(context.Context) error{}
	for _, word := range []string{"read:plan", "plan", "read:timed", "read:lapsing", "read:*"} {
		for _, deny := range []bool{false, true} {
			for _, ttl := range []int64{0, 1, int64(time.Hour / time.Millisecond)} {
				calls[fmt.Sprintf("grant %s deny=%v ttl=%d", word, deny, ttl)] = func(ctx context.Context) error {
					_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{word}, Deny: deny, TtlMs: ttl})
					return err
				}
			}
			effect, owner := "allow", "owner: x\n"
			if deny {
				effect = "deny"
			}
			for _, until := range []string{"", ", until: 2026-03-01T12:30:00Z"} {
				doc := fmt.Sprintf("version: 1\n%sgrants: [{subject: worker, capability: %q, effect: %s%s}]\n", owner, word, effect, until)
				calls["apply "+doc] = func(ctx context.Context) error {
					_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte(doc)})
					return err
				}
			}
		}
		calls["revoke "+word] = func(ctx context.Context) error {
			_, err := c.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: word})
			return err
		}
	}
	for _, n := range []int{0, 1, len(denied)} {
		calls["revoke by id "+denied[:n]] = func(ctx context.Context) error {
			_, err := c.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{GrantId: denied[:n]})
			return err
		}
	}
	for _, tier := range []string{"", "cooperative", "bound"} {
		for name, enabled := range map[string]*bool{"": nil, " enabled": ptr(true)} {
			for _, subject := range []string{"worker", "off", "high"} {
				calls["set "+subject+" "+tier+name] = func(ctx context.Context) error {
					_, err := c.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: subject, MinTier: tier, Enabled: enabled})
					return err
				}
			}
		}
		calls["add a subject "+tier] = func(ctx context.Context) error {
			_, err := c.AddSubject(ctx, &operatorv1.AddSubjectRequest{Name: "new" + tier, MinTier: tier})
			return err
		}
	}
	for _, doc := range []string{
		"subjects: {high: {minTier: cooperative}}", "subjects: {off: {enabled: true}}", "subjects: {off: {}}", "subjects: {third: {}}",
		"profiles: {coder: {subject: worker, tools: [read_resource]}}", "tools: {git/push: {requires: [\"read:*\"]}}",
	} {
		calls["apply "+doc] = func(ctx context.Context) error {
			_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\n" + doc + "\n")})
			return err
		}
	}
	for name, document := range map[string]string{"denials": "version: 1\nowner: theirs\n", "everything": "version: 1\nowner: \"\"\n"} {
		calls["prune "+name] = func(ctx context.Context) error {
			_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte(document), Prune: true})
			return err
		}
	}
	calls["remove the raised one"] = func(ctx context.Context) error {
		_, err := c.RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: "high"})
		return err
	}
	return calls
}

// tiers are two that a decision may differ at.
var tiers = []string{"cooperative", "bound"}

// reach is everything that somebody can do now, a word for each.
func reach(t *testing.T, d *daemontest.Daemon) map[string]bool {
	t.Helper()
	can := map[string]bool{}
	list, err := d.Operator().ListSubjects(t.Context(), &operatorv1.ListSubjectsRequest{})
	must(t, err)
	for _, s := range list.GetSubjects() {
		if !s.GetEnabled() {
			continue
		}
		can["be "+s.GetName()] = true
		for _, tier := range tiers {
			for _, name := range []string{"plan", "timed", "lapsing", "open"} {
				got, err := d.Operator().Explain(t.Context(), &operatorv1.ExplainRequest{Subject: s.GetName(), Capability: "read:" + name, Tier: tier})
				must(t, err)
				if got.GetDecision() == "allow" {
					can[s.GetName()+" "+tier+" "+name] = true
				}
			}
		}
	}
	return can
}

// more is what one can do and the other cannot.
func more(after, before map[string]bool) string {
	var words []string
	for word := range after {
		if !before[word] {
			words = append(words, word)
		}
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// Whatever an operator without a session can do while a subject asks for a raised
// tier, nobody can do more afterwards than before: not at once, and not when what
// was said has ended. With a session some of it does, so the calls are real.
func TestWithoutASessionNothingWidens(t *testing.T) {
	for _, session := range []bool{false, true} {
		t.Run(fmt.Sprintf("session=%v", session), func(t *testing.T) {
			clock := newClock()
			d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
			for _, name := range []string{"plan", "timed", "lapsing", "open"} {
				d.Put(name, "text")
			}
			for _, name := range []string{"worker", "off", "high"} {
				d.AddSubject(name)
				d.Grant(name, "read:*")
			}
			deny := func(capability string, until time.Time) string {
				q := &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{capability}, Deny: true}
				if !until.IsZero() {
					q.Until = until.UnixMilli()
				}
				made, err := d.Operator().CreateGrants(t.Context(), q)
				must(t, err)
				return made.GetGrants()[0].GetGrantId()
			}
			id := deny("read:plan", time.Time{})
			deny("read:timed", clock.Now().Add(24*time.Hour))
			deny("read:lapsing", clock.Now().Add(10*time.Minute))
			_, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nowner: theirs\ngrants: [{subject: high, capability: \"read:open\", effect: deny}]\n")})
			must(t, err)
			_, err = d.Operator().SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "off", Enabled: new(bool)})
			must(t, err)
			setTier(d, "high", "bound")
			c := anotherOperator(t, d)
			if session {
				_, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
				must(t, err)
			}
			before := reach(t, d)
			if before["worker cooperative plan"] || !before["worker cooperative open"] || !before["high bound plan"] || before["high cooperative plan"] {
				t.Fatalf("the world is another: %v", before)
			}
			done, widened := 0, ""
			calls := widen(c, id)
			for _, name := range sortedKeys(calls) {
				if calls[name](t.Context()) != nil {
					continue
				}
				if done++; session {
					continue
				}
				if now := more(reach(t, d), before); now != "" {
					widened = name + ": " + now
					break
				}
			}
			// And then what was said to end has ended, as has one denial of before.
			clock.step(2 * time.Hour)
			for _, tier := range tiers {
				before["worker "+tier+" lapsing"] = true
			}
			if later := more(reach(t, d), before); later != "" {
				widened += " later: " + later
			}
			if session && widened == "" {
				t.Error("with a session nothing widens either: these calls do nothing")
			}
			if !session && widened != "" {
				t.Errorf("without a session: %s", widened)
			}
			if done == 0 {
				t.Error("every call was refused")
			}
		})
	}
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func ptr[T any](v T) *T { return &v }

// A call that needed nothing when it came, and waits while a tier is raised, needs
// as much as one that comes after that.
func TestNeedIsJudgedWhenACallsTurnComes(t *testing.T) {
	d := world(t)
	d.Authenticate()
	others := make([]operatorv1.OperatorServiceClient, 8)
	for i := range others {
		others[i] = anotherOperator(t, d)
	}
	for round := range 10 {
		var calls sync.WaitGroup
		start := make(chan struct{})
		for i, c := range others {
			calls.Go(func() {
				<-start
				_, _ = c.PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "plan", Kind: "text", Content: []byte("x")})
				if i%2 == 0 {
					_, _ = c.SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "high", MinTier: "cooperative"})
				}
			})
		}
		close(start)
		_, err := d.Operator().SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "high", MinTier: "bound"})
		must(t, err)
		calls.Wait()
		equal(t, fmt.Sprintf("the tier in round %d", round), tierOf(t, d, "high"), "bound")
		setTier(d, "high", "cooperative")
	}
}
