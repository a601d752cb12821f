package daemon_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// anotherOperator is an operator's connection of its own.
func anotherOperator(t *testing.T, d *daemontest.Daemon) operatorv1.OperatorServiceClient {
	t.Helper()
	c, _ := anotherConn(t, d)
	return c
}

func anotherConn(t *testing.T, d *daemontest.Daemon) (operatorv1.OperatorServiceClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := client.Operator(t.Context(), d.Places)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	return operatorv1.NewOperatorServiceClient(conn), conn
}

// outcome is how a call ended, in words.
func outcome(err error) string {
	e := wire.FromError(err)
	switch {
	case e == nil:
		return "ALLOWED"
	case e.Cause != "":
		return fmt.Sprintf("%s %s (%s)", e.Reason, e.Cause, e.Hint)
	}
	return string(e.Reason)
}

const (
	unlockFirst = "ACCESS_DENIED OPERATOR_AUTH_REQUIRED (sbctl operator unlock)"
	setFirst    = "ACCESS_DENIED OPERATOR_AUTH_REQUIRED (sbctl operator set-passphrase)"
)

// verbs are calls of the operator by what they do. They are made in order: what
// one makes, the next may need.
func verbs(c operatorv1.OperatorServiceClient) []struct {
	name string
	gate bool // it hands out content or rights
	call func(context.Context) error
} {
	apply := func(doc string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\n" + doc)})
			return err
		}
	}
	enabled, disabled := true, false
	return []struct {
		name string
		gate bool
		call func(context.Context) error
	}{
		{"secret get", true, func(ctx context.Context) error {
			_, err := c.GetSecret(ctx, &operatorv1.GetSecretRequest{Name: "plan"})
			return err
		}},
		{"grant", true, func(ctx context.Context) error {
			_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:plan"}})
			return err
		}},
		{"grant --deny", false, func(ctx context.Context) error {
			_, err := c.CreateGrants(ctx, &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"read:never"}, Deny: true})
			return err
		}},
		{"subject add", true, func(ctx context.Context) error {
			_, err := c.AddSubject(ctx, &operatorv1.AddSubjectRequest{Name: "fresh"})
			return err
		}},
		{"subject disable", false, func(ctx context.Context) error {
			_, err := c.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: &disabled})
			return err
		}},
		{"subject enable", true, func(ctx context.Context) error {
			_, err := c.SetSubject(ctx, &operatorv1.SetSubjectRequest{Name: "worker", Enabled: &enabled})
			return err
		}},
		{"subject rm of a raised one", true, func(ctx context.Context) error {
			_, err := c.RemoveSubject(ctx, &operatorv1.RemoveSubjectRequest{Name: "spare"})
			return err
		}},
		{"apply a grant", true, apply("grants: [{subject: worker, capability: \"read:plan\", effect: allow, note: again}]\n")},
		{"apply a subject", true, apply("subjects: {declared: {}}\n")},
		{"apply a profile", true, apply("profiles: {coder: {subject: worker, tools: [read_resource]}}\n")},
		{"apply a denial", false, apply("grants: [{subject: worker, capability: \"read:other\", effect: deny}]\n")},
		{"dry run", false, func(ctx context.Context) error {
			_, err := c.Apply(ctx, &operatorv1.ApplyRequest{Document: []byte("version: 1\nsubjects: {dry: {}}\n"), DryRun: true})
			return err
		}},
		{"slot add", true, func(ctx context.Context) error {
			_, err := c.AddSlot(ctx, &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: []byte("another passphrase")})
			return err
		}},
		{"revoke a denial", true, func(ctx context.Context) error {
			_, err := c.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", Capability: "read:never"})
			return err
		}},
		{"revoke all", false, func(ctx context.Context) error {
			_, err := c.RevokeGrants(ctx, &operatorv1.RevokeGrantsRequest{Subject: "worker", All: true})
			return err
		}},
		{"secret put of a new name", false, func(ctx context.Context) error {
			_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "new", Kind: "text", Content: []byte("new")})
			return err
		}},
		{"secret put of a new version", true, func(ctx context.Context) error {
			_, err := c.PutSecret(ctx, &operatorv1.PutSecretRequest{Name: "plan", Kind: "text", Content: []byte("new")})
			return err
		}},
		{"secret revert", true, func(ctx context.Context) error {
			_, err := c.RevertSecret(ctx, &operatorv1.RevertSecretRequest{Name: "plan", To: 1})
			return err
		}},
		{"subjects", false, func(ctx context.Context) error {
			_, err := c.ListSubjects(ctx, &operatorv1.ListSubjectsRequest{})
			return err
		}},
	}
}

// world is what verbs needs, before any tier is raised.
func world(t *testing.T) *daemontest.Daemon {
	t.Helper()
	d := daemontest.Start(t)
	for _, name := range []string{"plan", "never", "other"} {
		d.Put(name, "text")
	}
	for _, name := range []string{"worker", "high", "spare"} {
		d.AddSubject(name)
	}
	return d
}

// Architecture §8: while a subject asks for more than every process of this uid
// has, what hands out content or rights needs an authenticated operator; what
// takes away never does. Without such a subject nothing does.
func TestWhatNeedsAuthentication(t *testing.T) {
	for name, tc := range map[string]struct {
		raise, session bool
		gated          string
	}{
		"raised, without a session":     {true, false, unlockFirst},
		"raised, with a session":        {true, true, "ALLOWED"},
		"not raised, without a session": {false, false, "ALLOWED"},
	} {
		t.Run(name, func(t *testing.T) {
			d := world(t)
			d.Authenticate()
			if tc.raise {
				setTier(d, "high", "bound")
				setTier(d, "spare", "bound")
			}
			c := anotherOperator(t, d)
			if tc.session {
				_, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
				must(t, err)
			}
			for _, v := range verbs(c) {
				seq := d.Seq()
				want := "ALLOWED"
				if v.gate {
					want = tc.gated
				}
				got := outcome(v.call(t.Context()))
				equal(t, v.name, got, want)
				if v.gate && tc.gated != "ALLOWED" {
					e := d.Await(seq, nil)
					equal(t, v.name+": the entry", e.Decision+" "+e.ReasonCode+" "+e.Cause, "deny ACCESS_DENIED OPERATOR_AUTH_REQUIRED")
				}
			}
			// Raising and lowering need it in any case.
			_, err := c.SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "worker", MinTier: "bound"})
			want := unlockFirst
			if tc.session {
				want = "ALLOWED"
			}
			equal(t, "raising", outcome(err), want)
			_, err = c.SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "high", MinTier: "cooperative"})
			if !tc.raise {
				want = "ALLOWED" // it says what is so
			}
			equal(t, "lowering", outcome(err), want)
			// What stops things needs nothing, and comes last.
			_, err = c.Panic(t.Context(), &operatorv1.PanicRequest{})
			equal(t, "panic", outcome(err), "ALLOWED")
			_, err = c.Unlock(t.Context(), &operatorv1.UnlockRequest{})
			equal(t, "unlock", outcome(err), "ALLOWED")
			_, err = c.Lock(t.Context(), &operatorv1.LockRequest{})
			equal(t, "lock", outcome(err), "ALLOWED")
			d.Unlock()
		})
	}
}

// A tier above cooperative would be a lie while every process of this uid could
// lower it again.
func TestRaisingNeedsAWayToAuthenticate(t *testing.T) {
	d := world(t)
	c := d.Operator()
	raise := func() string {
		_, err := c.SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "high", MinTier: "bound"})
		return outcome(err)
	}
	add := func() string {
		_, err := c.AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "added", MinTier: "bound"})
		return outcome(err)
	}
	apply := func() string {
		_, err := c.Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nsubjects: {declared: {minTier: sandboxed}}\n")})
		return outcome(err)
	}
	for name, do := range map[string]func() string{"raising": raise, "adding": add, "applying": apply} {
		equal(t, name+" without a passphrase", do(), setFirst)
	}
	_, err := c.SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte(daemontest.Passphrase)})
	must(t, err)
	for name, do := range map[string]func() string{"raising": raise, "adding": add, "applying": apply} {
		equal(t, name+" without a session", do(), unlockFirst)
	}
	equal(t, "the tier", tierOf(t, d, "high"), "cooperative")
	d.Authenticate()
	for name, do := range map[string]func() string{"raising": raise, "adding": add, "applying": apply} {
		equal(t, name+" with a session", do(), "ALLOWED")
	}
}

func tierOf(t *testing.T, d *daemontest.Daemon, name string) string {
	t.Helper()
	list, err := d.Operator().ListSubjects(t.Context(), &operatorv1.ListSubjectsRequest{})
	must(t, err)
	for _, s := range list.GetSubjects() {
		if s.GetName() == name {
			return s.GetMinTier()
		}
	}
	return "none"
}

// A session belongs to its connection: no other has it, and it ends with the
// connection, a lock, a change of the passphrase, its closing and by itself.
func TestSessions(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	mine := d.Operator()
	has := func(c operatorv1.OperatorServiceClient) bool {
		t.Helper()
		known, err := c.GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
		must(t, err)
		if known.GetSession() != known.GetAuthenticated() {
			t.Errorf("session %v, authenticated %v", known.GetSession(), known.GetAuthenticated())
		}
		return known.GetSession()
	}
	open := func(c operatorv1.OperatorServiceClient) string {
		t.Helper()
		opened, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
		must(t, err)
		if opened.GetUntil() == 0 || opened.GetSessionId() == "" {
			t.Errorf("the session is %v", opened)
		}
		return opened.GetSessionId()
	}
	other, conn := anotherConn(t, d)
	equal(t, "mine", has(mine), true)
	equal(t, "another connection's", has(other), false)
	id := open(other)
	equal(t, "another connection's own", has(other), true)
	equal(t, "the entry of the try", last(d, "operator.auth").SessionID, id)
	_, err := other.AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "worker"})
	must(t, err)
	equal(t, "the entry of what was done", last(d, "subject.add").SessionID, id)
	_, err = anotherOperator(t, d).AddSubject(t.Context(), &operatorv1.AddSubjectRequest{Name: "second"})
	must(t, err)
	equal(t, "the entry of what was done without", last(d, "subject.add").SessionID, "")
	sessions := func() uint32 {
		known, err := mine.GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
		must(t, err)
		return known.GetSessions()
	}
	equal(t, "sessions", sessions(), 2)
	conn.Close()
	eventually(t, "the session to end with its connection", func() bool { return sessions() == 1 })

	_, err = mine.CloseSession(t.Context(), &operatorv1.CloseSessionRequest{})
	must(t, err)
	equal(t, "after closing", has(mine), false)
	open(mine)
	clock.step(16 * time.Minute)
	equal(t, "after a long time", has(mine), false)
	open(mine)
	d.Lock()
	equal(t, "while locked", has(mine), false)
	_, err = mine.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
	equal(t, "opening one while locked", outcome(err), "VAULT_LOCKED")
	d.Unlock()
	equal(t, "after a lock", has(mine), false)
	open(mine)
	third := anotherOperator(t, d)
	_, err = third.SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Present: []byte(daemontest.Passphrase), Passphrase: []byte("something else")})
	must(t, err)
	equal(t, "after the passphrase changed", has(mine), false)
	_, err = mine.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
	equal(t, "with the old one", outcome(err), "ACCESS_DENIED WRONG_PASSPHRASE ()")
}

// The passphrase changes only for somebody who knows it, or has shown that on
// the same connection.
func TestPassphraseChanges(t *testing.T) {
	d := daemontest.Start(t)
	set := func(c operatorv1.OperatorServiceClient, present, passphrase string) string {
		_, err := c.SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Present: []byte(present), Passphrase: []byte(passphrase)})
		return outcome(err)
	}
	c := d.Operator()
	equal(t, "removing what is not there", set(c, "", ""), "INVALID_ARGUMENT")
	equal(t, "a present one that is not there", set(c, "whatever it is", "long enough"), "INVALID_ARGUMENT")
	equal(t, "too short", set(c, "", "seven77"), "INVALID_ARGUMENT")
	equal(t, "too long", set(c, "", strings.Repeat("x", 1025)), "INVALID_ARGUMENT")
	_, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("anything")})
	equal(t, "a session without one", outcome(err), "INVALID_ARGUMENT")
	equal(t, "the first", set(c, "", "first one"), "ALLOWED")
	equal(t, "the entry", last(d, "operator.passphrase").Decision, "allow")
	equal(t, "changing it unasked", set(c, "", "second one"), unlockFirst)
	equal(t, "removing it unasked", set(c, "", ""), unlockFirst)
	equal(t, "changing it with the present one", set(c, "first one", "second one"), "ALLOWED")
	_, err = c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("second one")})
	must(t, err)
	equal(t, "changing it on another connection", set(anotherOperator(t, d), "", "third one"), unlockFirst)
	equal(t, "changing it with a session", set(c, "", "third one"), "ALLOWED")
	equal(t, "and the session is over", set(c, "", ""), unlockFirst)
	d.Restart()
	c = d.Operator()
	equal(t, "removing it after a restart", set(c, "third one", ""), "ALLOWED")
	known, err := c.GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
	must(t, err)
	equal(t, "a passphrase is set", known.GetPassphrase(), false)
	var entries []string
	for _, e := range d.Entries("operator.passphrase") {
		entries = append(entries, strings.TrimSpace(e.Action+" "+e.Decision+" "+e.Cause))
	}
	const invalid, denied = "set-passphrase error", "set-passphrase deny OPERATOR_AUTH_REQUIRED"
	equal(t, "entries", strings.Join(entries, "\n"), strings.Join([]string{
		invalid, invalid, invalid, invalid, "set allow", denied, denied, "change allow", denied, "change allow", denied, "remove allow",
	}, "\n"))
}

// Wrong passphrases are entries, are counted in the vault before anybody is told,
// and make the next one wait.
func TestWrongPassphrases(t *testing.T) {
	clock := newClock()
	begin := clock.Now()
	d := daemontest.StartWith(t, daemontest.Options{
		Now: clock.Now, Boot: func() (string, time.Duration) { return "boot", time.Hour + clock.Now().Sub(begin) },
	})
	d.Authenticate()
	waits := func() time.Duration {
		t.Helper()
		known, err := d.Operator().GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
		must(t, err)
		return time.Duration(known.GetWaitMs()) * time.Millisecond
	}
	open := func(passphrase string) string {
		t.Helper()
		_, err := anotherOperator(t, d).OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(passphrase)})
		if e := wire.FromError(err); e != nil {
			return string(e.Reason) + ": " + e.Message
		}
		return "ALLOWED"
	}
	try := func(passphrase string) string {
		t.Helper()
		if wait := waits(); wait > 0 {
			clock.step(wait - time.Millisecond)
			equal(t, "a try just before the end of the wait", open(passphrase), "RATE_LIMITED: after a wrong passphrase the next try has to wait 1 second")
			clock.step(time.Millisecond)
		}
		return open(passphrase)
	}
	equal(t, "the first wrong one", try("wrong one"), "ACCESS_DENIED: the passphrase is wrong; the next try has to wait 1 second")
	equal(t, "the second", try(strings.Repeat("x", 2000)), "ACCESS_DENIED: the passphrase is wrong; the next try has to wait 2 seconds")
	d.Restart()
	equal(t, "the third, after a restart", try("wrong one"), "ACCESS_DENIED: the passphrase is wrong; the next try has to wait 4 seconds")
	// Too soon is too soon on every connection, for every verb, and for the right
	// one, too.
	for name, c := range map[string]operatorv1.OperatorServiceClient{"the same": d.Operator(), "another": anotherOperator(t, d)} {
		_, err := c.OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte(daemontest.Passphrase)})
		equal(t, name+" connection, too soon", outcome(err), "RATE_LIMITED TOO_SOON ()")
	}
	_, err := anotherOperator(t, d).SetOperatorPassphrase(t.Context(), &operatorv1.SetOperatorPassphraseRequest{Present: []byte(daemontest.Passphrase), Passphrase: []byte("something else")})
	equal(t, "changing it, too soon", outcome(err), "RATE_LIMITED TOO_SOON ()")
	equal(t, "the right one in the end", try(daemontest.Passphrase), "ALLOWED")
	equal(t, "and a wrong one begins anew", try("wrong one"), "ACCESS_DENIED: the passphrase is wrong; the next try has to wait 1 second")
	counts := map[string]int{}
	for _, e := range d.Entries("operator.auth") {
		counts[e.Decision+" "+e.Cause]++
	}
	// One session was opened at the beginning, one in the end. Three waits were tried
	// just before their end, and the last one three times more.
	if counts["deny WRONG_PASSPHRASE"] != 4 || counts["allow "] != 2 || counts["deny TOO_SOON"] != 3+3 {
		t.Errorf("the log has %v", counts)
	}
}

// Nothing that was typed stands anywhere in the log.
func TestPassphrasesAreNotInTheLog(t *testing.T) {
	d := daemontest.Start(t)
	d.Authenticate()
	_, err := d.Operator().OpenSession(t.Context(), &operatorv1.OpenSessionRequest{Passphrase: []byte("Wrong-Marker-7531")})
	equal(t, "a wrong one", outcome(err), "ACCESS_DENIED WRONG_PASSPHRASE ()")
	for _, typed := range []string{"Wrong-Marker", "battery"} {
		if strings.Contains(string(d.RawLog()), typed) || strings.Contains(d.Messages(), typed) {
			t.Errorf("the log has %s", typed)
		}
	}
}

// What a program asks by itself keeps no session open; what a person asks does.
func TestPollingKeepsNoSession(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Authenticate()
	c := d.Operator()
	has := func() bool {
		t.Helper()
		known, err := c.GetOperator(t.Context(), &operatorv1.GetOperatorRequest{})
		must(t, err)
		return known.GetSession()
	}
	for range 3 {
		clock.step(14 * time.Minute)
		_, err := c.ListSubjects(t.Context(), &operatorv1.ListSubjectsRequest{})
		must(t, err)
		equal(t, "while a person asks", has(), true)
	}
	for range 14 {
		clock.step(time.Minute)
		_, err := c.Status(t.Context(), &operatorv1.StatusRequest{})
		must(t, err)
		equal(t, "while a program asks, at first", has(), true)
		ctx, cancel := context.WithCancel(t.Context())
		_, err = c.WatchEvents(ctx, &operatorv1.WatchEventsRequest{})
		must(t, err)
		cancel()
	}
	clock.step(time.Minute)
	equal(t, "after a quarter of an hour", has(), false)
}

// Timed grants come back when the clock is confirmed.
func TestConfirmingTheClockNeedsASession(t *testing.T) {
	d := world(t)
	confirm := func(c operatorv1.OperatorServiceClient) string {
		_, err := c.ConfirmClock(t.Context(), &operatorv1.ConfirmClockRequest{})
		return outcome(err)
	}
	equal(t, "before a tier is raised", confirm(anotherOperator(t, d)), "ALLOWED")
	setTier(d, "high", "bound")
	equal(t, "without a session", confirm(anotherOperator(t, d)), unlockFirst)
	equal(t, "with one", confirm(d.Operator()), "ALLOWED")
	d.Lock()
	equal(t, "while locked", confirm(d.Operator()), "VAULT_LOCKED")
	d.Unlock()
}
