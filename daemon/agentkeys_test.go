package daemon_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/agentkey"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// mint makes a key, with tenants.
func mint(t testing.TB, d *daemontest.Daemon, subject, name string, ttl time.Duration, tenants ...string) (id string, key []byte) {
	t.Helper()
	minted, err := d.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{
		Subject: subject, Name: name, TtlSeconds: uint64(ttl / time.Second), Tenants: tenants,
	})
	if err != nil {
		t.Fatal(err)
	}
	return minted.GetKey().GetKeyId(), minted.GetToken()
}

// withKey asks for a run by a key. The key is copied: a client wipes its own.
func withKey(key []byte, flags ...string) *brokerv1.OpenRunRequest {
	return &brokerv1.OpenRunRequest{Api: wire.API, ShimVersion: daemontest.Version, Claim: &brokerv1.OpenRunRequest_AgentKey{
		AgentKey: &brokerv1.AgentKeyClaim{Key: bytes.Clone(key), Route: "stateful", Flags: flags},
	}}
}

// openKeyed opens a run by a key on a connection.
func openKeyed(t testing.TB, d *daemontest.Daemon, conn *grpc.ClientConn, key []byte) *daemontest.Run {
	t.Helper()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(t.Context(), withKey(key))
	if err != nil {
		t.Fatal(err)
	}
	if opened.GetTier() != "keyed" || opened.GetKeyId() == "" {
		t.Fatalf("the run is %v", opened)
	}
	return d.RunOf(broker, conn, opened.GetRunId())
}

// again presents a key for a further request of a run.
func again(ctx context.Context, run *daemontest.Run, key []byte) *wire.Error {
	_, err := run.Authenticate(ctx, &brokerv1.AuthenticateRequest{RunId: run.ID, Key: bytes.Clone(key), Route: "stateful"})
	return wire.FromError(err)
}

// told is what a client learns of a key, in one word.
func told(err error) string {
	e := wire.FromError(err)
	switch {
	case e == nil:
		return "good"
	case e.Auth != "":
		return string(e.Auth)
	}
	return string(e.Reason)
}

// Everything that can be wrong with a key, as it is told when a run is opened, for a
// run that is open, and without one; and as the log has it.
func TestWhatIsWrongWithAKey(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker", "disabled", "removed", "again", "raised")
	foreign := agentkey.New()
	_, good := mint(t, d, "worker", "", 0)
	revoked, revokedKey := mint(t, d, "worker", "", 0)
	_, expired := mint(t, d, "worker", "", time.Minute)
	rotated, overlapped := mint(t, d, "worker", "rotated", 0)
	_, disabled := mint(t, d, "disabled", "", 0)
	_, removed := mint(t, d, "removed", "", 0)
	_, recreated := mint(t, d, "again", "", 0)
	_, raised := mint(t, d, "raised", "", 0)

	_, err := d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: revoked})
	must(t, err)
	turned, err := d.Operator().RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: rotated, OverlapSeconds: 3600})
	must(t, err)
	d.SetEnabled("disabled", false)
	d.RemoveSubject("removed")
	d.RemoveSubject("again")
	d.AddSubject("again")
	clock.step(time.Minute)
	d.Authenticate()
	_, err = d.Operator().SetSubject(t.Context(), &operatorv1.SetSubjectRequest{Name: "raised", MinTier: "bound"})
	must(t, err)

	typo := bytes.Clone(good)
	typo[20] ^= 1
	for _, tt := range []struct {
		name  string
		key   []byte
		told  string
		cause string
	}{
		{"nothing", nil, "missing_token", "MISSING_TOKEN"},
		{"prose", []byte("Bearer of bad news"), "malformed_token", "MALFORMED_TOKEN"},
		{"a typo", typo, "malformed_token", "MALFORMED_TOKEN"},
		{"forty zeros", []byte("ak_live_" + strings.Repeat("0", 40)), "unknown_key", "UNKNOWN_KEY"},
		{"a foreign one", foreign, "unknown_key", "UNKNOWN_KEY"},
		{"a revoked one", revokedKey, "revoked_key", "REVOKED_KEY"},
		{"an expired one", expired, "expired_key", "EXPIRED_KEY"},
		{"of a disabled subject", disabled, "revoked_key", "SUBJECT_DISABLED"},
		{"of a removed subject", removed, "revoked_key", "REVOKED_KEY"},
		{"of a subject of the same name", recreated, "revoked_key", "REVOKED_KEY"},
		{"of a subject that asks for more", raised, "revoked_key", "TIER_TOO_LOW"},
		{"a good one", good, "good", ""},
		{"a rotated one, in its overlap", overlapped, "good", ""},
		{"what it was rotated into", turned.GetToken(), "good", ""},
	} {
		for how, ask := range map[string]func(brokerv1.BrokerServiceClient) error{
			"for a run": func(b brokerv1.BrokerServiceClient) error {
				_, err := b.OpenRun(t.Context(), withKey(tt.key))
				return err
			},
			"for no run": func(b brokerv1.BrokerServiceClient) error {
				if tt.key == nil {
					return wire.Unauthenticated(wire.MissingToken) // that is a report
				}
				_, err := b.Authenticate(t.Context(), &brokerv1.AuthenticateRequest{Key: bytes.Clone(tt.key), Route: "stateless"})
				return err
			},
		} {
			clock.step(time.Minute / 2) // budgets fill again
			seq := d.Seq()
			err := ask(d.Broker())
			if got := told(err); got != tt.told {
				t.Errorf("%s, %s: %s, want %s", tt.name, how, got, tt.told)
			}
			if e := wire.FromError(err); e != nil && (e.Reason != wire.AccessDenied || e.Cause != "" || e.Message != wire.Deny(wire.AccessDenied).Message) {
				t.Errorf("%s, %s: the error says %+v", tt.name, how, e)
			}
			if how == "for no run" && tt.key == nil {
				continue
			}
			auth := d.Since(seq, "auth")
			if len(auth) != 1 || auth[0].Cause != tt.cause || (auth[0].Decision == "allow") != (tt.told == "good") {
				t.Errorf("%s, %s: the log has %+v", tt.name, how, auth)
			}
			known := tt.told == "good" || tt.told == "revoked_key" || tt.told == "expired_key"
			if len(auth) == 1 && ((auth[0].KeyID != "") != known || (auth[0].SubjectID != "") != known) {
				t.Errorf("%s, %s: the entry names %q of %q", tt.name, how, auth[0].KeyID, auth[0].SubjectID)
			}
			if opened := len(d.Since(seq, "run.open")); (opened == 1) != (how == "for a run" && tt.told == "good") {
				t.Errorf("%s, %s: %d entries of a run", tt.name, how, opened)
			}
		}
	}
	// A rotated key ends with its overlap.
	clock.step(time.Hour)
	_, err = d.Broker().OpenRun(t.Context(), withKey(overlapped))
	equal(t, "after the overlap", told(err), "expired_key")
	d.Lock()
	_, err = d.Broker().OpenRun(t.Context(), withKey(good))
	equal(t, "while the vault is locked", told(err), string(wire.VaultLocked))
	_, err = d.Broker().Authenticate(t.Context(), &brokerv1.AuthenticateRequest{Key: typo, Route: "stateful"})
	equal(t, "a typo while the vault is locked", told(err), "malformed_token")
}

// A refusal is the same bytes whatever the key was, but for the one word of the list
// that is told.
func TestRefusedKeysLookAlike(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker", "other")
	d.Put("plan", "x")
	a, first := mint(t, d, "worker", "", 0)
	_, second := mint(t, d, "other", "", 0)
	_, err := d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: a})
	must(t, err)
	d.SetEnabled("other", false)
	_, one := d.Broker().OpenRun(t.Context(), withKey(first))
	_, two := d.Broker().OpenRun(t.Context(), withKey(second))
	if !bytes.Equal(statusBytes(t, one), statusBytes(t, two)) {
		t.Errorf("%q differs from %q", statusBytes(t, one), statusBytes(t, two))
	}
}

// One connection carries runs of many keys, each on its own; and no run of a subject
// that is only claimed.
func TestManyRunsOnOneConnection(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("one", "two")
	d.Put("first", "1")
	d.Put("second", "2")
	d.Grant("one", "read:first")
	d.Grant("two", "read:second")
	firstID, firstKey := mint(t, d, "one", "", 0)
	_, secondKey := mint(t, d, "two", "", 0)
	conn := d.Connect()
	one, two, third := openKeyed(t, d, conn, firstKey), openKeyed(t, d, conn, secondKey), openKeyed(t, d, conn, firstKey)
	for _, tt := range []struct {
		name     string
		run      *daemontest.Run
		resource string
		want     wire.Reason
	}{
		{"its own", one, "first", wire.Allowed},
		{"another's", one, "second", wire.AccessDenied},
		{"the other's own", two, "second", wire.Allowed},
		{"the other's", two, "first", wire.AccessDenied},
		{"again", third, "first", wire.Allowed},
	} {
		equal(t, tt.name, tt.run.Refused(tt.resource), tt.want)
	}
	entry := last(d, "acquire")
	equal(t, "the entry's key", entry.KeyID, firstID)
	equal(t, "the entry's tier", entry.Tier, "keyed")

	if e := again(t.Context(), one, firstKey); e != nil {
		t.Errorf("its own key: %v", e)
	}
	eventually(t, "the entry of that is its run's", func() bool { return last(d, "auth").RunID == one.ID })
	e := again(t.Context(), one, secondKey)
	equal(t, "the key of another subject", told(e), string(wire.RunEnded))
	equal(t, "and its entry", last(d, "auth").Cause, "KEY_MISMATCH")
	equal(t, "the run that it was for", last(d, "auth").RunID, one.ID)
	elsewhere := d.RunOf(d.Broker(), conn, one.ID)
	equal(t, "on another connection", told(again(t.Context(), elsewhere, firstKey)), string(wire.RunEnded))
	equal(t, "the run goes on", one.Refused("first"), wire.Allowed)

	one.Close()
	equal(t, "a closed run", one.Refused("first"), wire.RunEnded)
	equal(t, "another run of the key", third.Refused("first"), wire.Allowed)
	_, err := brokerv1.NewBrokerServiceClient(conn).OpenRun(t.Context(), daemontest.Claim("one"))
	equal(t, "a claim beside keys", told(err), string(wire.AccessDenied))
	equal(t, "its cause", last(d, "run.open").Cause, "SUBJECT_MISMATCH")
	plain := d.Open("one")
	_, err = plain.OpenRun(t.Context(), withKey(firstKey))
	equal(t, "a key beside a claim", told(err), string(wire.AccessDenied))
}

// What ends a key ends its runs and their streams, and no others.
func TestWhatEndsAKeyEndsItsRuns(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, d *daemontest.Daemon, clock *clock, id string){
		"revoked": func(t *testing.T, d *daemontest.Daemon, _ *clock, id string) {
			revoked, err := d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: id})
			must(t, err)
			equal(t, "runs that ended", revoked.GetRuns(), 2)
		},
		"rotated without overlap": func(t *testing.T, d *daemontest.Daemon, _ *clock, id string) {
			_, err := d.Operator().RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: id})
			must(t, err)
		},
		"its subject disabled": func(_ *testing.T, d *daemontest.Daemon, _ *clock, _ string) { d.SetEnabled("worker", false) },
		"its subject removed":  func(_ *testing.T, d *daemontest.Daemon, _ *clock, _ string) { d.RemoveSubject("worker") },
		"expired":              func(_ *testing.T, _ *daemontest.Daemon, clock *clock, _ string) { clock.step(time.Hour) },
		"locked":               func(_ *testing.T, d *daemontest.Daemon, _ *clock, _ string) { d.Lock() },
	} {
		t.Run(name, func(t *testing.T) {
			clock := newClock()
			d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
			d.AddSubject("worker", "other")
			d.Put("plan", "x")
			d.Grant("worker", "read:plan")
			d.Grant("other", "read:plan")
			id, key := mint(t, d, "worker", "", time.Hour)
			_, otherKey := mint(t, d, "other", "", 0)
			conn := d.Connect()
			run, second, other := openKeyed(t, d, conn, key), openKeyed(t, d, conn, key), openKeyed(t, d, conn, otherKey)
			watching := run.Follow()
			equal(t, "before", run.Refused("plan"), wire.Allowed)
			end(t, d, clock, id)
			for { // what comes before it may be a change of the list
				event := watching.Next()
				if event == "list changed" {
					continue
				}
				want := "ended RUN_ENDED"
				if name == "locked" {
					want = "ended VAULT_LOCKED"
				}
				equal(t, "the stream", event, want)
				break
			}
			if name == "locked" {
				return
			}
			equal(t, "the run", run.Refused("plan"), wire.RunEnded)
			equal(t, "another run of the key", second.Refused("plan"), wire.RunEnded)
			equal(t, "of another key", other.Refused("plan"), wire.Allowed)
			if e := again(t.Context(), run, key); e == nil {
				t.Error("the key is still good")
			}
		})
	}
}

// Whoever uses up the budget of one key keeps neither other keys nor the gateway out;
// and what nobody knows counts against the gateway's process alone.
func TestDenialsOfKeysAreBudgetedApart(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.AddSubject("worker")
	d.Put("plan", "x")
	d.Grant("worker", "read:plan")
	bad, badKey := mint(t, d, "worker", "", 0)
	_, good := mint(t, d, "worker", "", 0)
	conn := d.Connect()
	broker := brokerv1.NewBrokerServiceClient(conn)
	noisy, quiet := openKeyed(t, d, conn, badKey), openKeyed(t, d, conn, good)
	until := func(what string, ask func() string) {
		t.Helper()
		for range 100 {
			if ask() == string(wire.RateLimited) {
				return
			}
		}
		t.Fatalf("%s is never too much", what)
	}
	until("what a run is denied", func() string { return string(noisy.Refused("other")) })
	equal(t, "what it may read", noisy.Refused("plan"), wire.RateLimited)
	equal(t, "a run of another key", quiet.Refused("plan"), wire.Allowed)
	foreign := agentkey.New()
	until("what is unknown", func() string {
		_, err := broker.OpenRun(t.Context(), withKey(foreign))
		return told(err)
	})
	equal(t, "a run of a good key", quiet.Refused("plan"), wire.Allowed)
	openKeyed(t, d, conn, good)
	clock.step(time.Minute)
	e := d.Await(0, func(e verify.Entry) bool { return e.Kind == "suppressed" && e.KeyID == bad })
	equal(t, "whose it is", e.SubjectID, "worker")
}

// Headers that claim to say who asks are in the log, by name, and change nothing.
func TestFlags(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	id, key := mint(t, d, "worker", "", 0)
	conn := d.Connect()
	broker := brokerv1.NewBrokerServiceClient(conn)
	seq := d.Seq()
	opened, err := broker.OpenRun(t.Context(), withKey(key, "x-forwarded-user", "x-sb-", "x-made-up"))
	must(t, err)
	var causes []string
	for _, e := range d.Since(seq, "flag") {
		causes = append(causes, e.Cause)
		if e.KeyID != id || e.RunID != opened.GetRunId() || e.Decision != "" {
			t.Errorf("the entry is %+v", e)
		}
	}
	if diff := cmp.Diff([]string{"X_FORWARDED_USER", "X_SB", "OTHER_HEADER"}, causes); diff != "" {
		t.Error(diff)
	}
	seq = d.Seq()
	_, err = broker.Authenticate(t.Context(), &brokerv1.AuthenticateRequest{Refused: "missing_token", Route: "stateless", Flags: []string{"x-sb-"}})
	must(t, err)
	kinds := []string{}
	for _, e := range d.Since(seq) {
		kinds = append(kinds, e.Kind+" "+e.Cause)
	}
	if diff := cmp.Diff([]string{"auth MISSING_TOKEN", "flag X_SB"}, kinds); diff != "" {
		t.Error(diff)
	}
	for name, req := range map[string]*brokerv1.AuthenticateRequest{
		"nothing":                {Route: "stateful"},
		"a report with a key":    {Refused: "missing_token", Key: key, Route: "stateful"},
		"another reason":         {Refused: "unknown_key", Route: "stateful"},
		"a report of a run":      {Refused: "missing_token", RunId: opened.GetRunId(), Route: "stateful"},
		"no route":               {Key: key},
		"a flag that is no name": {Key: key, Route: "stateful", Flags: []string{"a b"}},
		"many flags":             {Key: key, Route: "stateful", Flags: make([]string, 17)},
		"a long key":             {Key: make([]byte, 257), Route: "stateful"},
	} {
		_, err := broker.Authenticate(t.Context(), req)
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
}

// The operator's side: what can be minted, found, rotated and revoked.
func TestOperatorsKeys(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	o := d.Operator()
	d.AddSubject("worker")
	addTenants(t, d, "acme", "initech")
	for name, req := range map[string]*operatorv1.MintAgentKeyRequest{
		"nobody":            {Subject: "nobody"},
		"no name":           {Subject: ""},
		"an unknown tenant": {Subject: "worker", Tenants: []string{"acme", "nope"}},
		"a tenant twice":    {Subject: "worker", Tenants: []string{"acme", "acme"}},
		"a bad name":        {Subject: "worker", Name: "a b"},
		"for ever and more": {Subject: "worker", TtlSeconds: 1 << 62},
	} {
		_, err := o.MintAgentKey(t.Context(), req)
		equal(t, name, daemontest.Reason(err), wire.InvalidArgument)
	}
	id, key := mint(t, d, "worker", "laptop", time.Hour, "initech", "acme")
	_, err := o.MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "worker", Name: "laptop"})
	equal(t, "the same name", daemontest.Reason(err), wire.InvalidArgument)
	show := func(word string) *operatorv1.AgentKey {
		t.Helper()
		list, err := o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{Key: word})
		must(t, err)
		return list.GetKeys()[0]
	}
	k := show("laptop")
	equal(t, "its id", k.GetKeyId(), id)
	equal(t, "by a prefix", show(id[:4]).GetKeyId(), id)
	equal(t, "its tenants", strings.Join(k.GetTenants(), " "), "acme initech")
	equal(t, "its state", k.GetState(), "active")
	equal(t, "its last use", k.GetLastUsed(), 0)
	run := openKeyed(t, d, d.Connect(), key)
	equal(t, "its runs", show(id).GetRuns(), 1)
	equal(t, "used", show(id).GetLastUsed(), clock.Now().Truncate(time.Minute).UnixMilli())
	run.Close()

	rotated, err := o.RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: "laptop", OverlapSeconds: 600})
	must(t, err)
	equal(t, "the old one", rotated.GetOld().GetState(), "overlap")
	equal(t, "the new one", rotated.GetKey().GetState(), "active")
	equal(t, "where it comes from", rotated.GetKey().GetRotatedFrom(), id)
	equal(t, "its name", rotated.GetKey().GetName(), "laptop")
	equal(t, "its life", rotated.GetKey().GetExpires(), clock.Now().Add(time.Hour).UnixMilli())
	equal(t, "the name means the new one", show("laptop").GetKeyId(), rotated.GetKey().GetKeyId())
	_, err = o.RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: id})
	equal(t, "rotated again", daemontest.Reason(err), wire.InvalidArgument)
	_, err = o.RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: "laptop", OverlapSeconds: 1 << 40})
	equal(t, "a long overlap", daemontest.Reason(err), wire.InvalidArgument)

	clock.step(10 * time.Minute)
	equal(t, "after the overlap", show(id).GetState(), "expired")
	names := func(all bool) (ids []string) {
		list, err := o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{All: all})
		must(t, err)
		for _, k := range list.GetKeys() {
			ids = append(ids, k.GetKeyId())
		}
		return ids
	}
	if diff := cmp.Diff([]string{rotated.GetKey().GetKeyId()}, names(false)); diff != "" {
		t.Error(diff)
	}
	equal(t, "all", len(names(true)), 2)

	d.Restart()
	o = d.Operator()
	equal(t, "after a restart", show(id).GetLastUsed(), clock.Now().Add(-10*time.Minute).Truncate(time.Minute).UnixMilli())
	_, err = o.RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: "laptop"})
	must(t, err)
	equal(t, "revoked", show(rotated.GetKey().GetKeyId()).GetState(), "revoked")
	_, err = o.RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: rotated.GetKey().GetKeyId()})
	must(t, err) // once more changes nothing
	_, err = o.RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: "nope"})
	equal(t, "an unknown one", daemontest.Reason(err), wire.InvalidArgument)
}

// Who revokes a key that was rotated means the ones before it too, while they are
// good; an old one goes alone.
func TestRevokeInOverlap(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	o := d.Operator()
	d.AddSubject("worker")
	state := func(id string) string {
		t.Helper()
		list, err := o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{Key: id})
		must(t, err)
		return list.GetKeys()[0].GetState()
	}
	for _, tt := range []struct {
		name     string
		revoke   int // which of the three; -1: their name
		overlaps [2]uint64
		states   string
		runs     uint32
	}{
		{"by-name", -1, [2]uint64{3600, 3600}, "revoked revoked revoked", 3},
		{"newest", 2, [2]uint64{3600, 3600}, "revoked revoked revoked", 3},
		{"second", 1, [2]uint64{3600, 3600}, "revoked revoked active", 2},
		{"oldest", 0, [2]uint64{3600, 3600}, "revoked overlap active", 1},
		{"over", -1, [2]uint64{0, 3600}, "expired revoked revoked", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			id, key := mint(t, d, "worker", tt.name, 0)
			ids := []string{id}
			openKeyed(t, d, d.Connect(), key)
			for _, overlap := range tt.overlaps {
				rotated, err := o.RotateAgentKey(t.Context(), &operatorv1.RotateAgentKeyRequest{Key: tt.name, OverlapSeconds: overlap})
				must(t, err)
				ids = append(ids, rotated.GetKey().GetKeyId())
				openKeyed(t, d, d.Connect(), rotated.GetToken())
			}
			word := tt.name
			if tt.revoke >= 0 {
				word = ids[tt.revoke]
			}
			revoked, err := o.RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: word})
			must(t, err)
			equal(t, "runs that ended", revoked.GetRuns(), tt.runs)
			equal(t, "states", strings.Join([]string{state(ids[0]), state(ids[1]), state(ids[2])}, " "), tt.states)
		})
	}
}

// No key is in anything that is kept: not in the vault, the log, or what the daemon
// says. The control finds what is in clear.
func TestNoKeyIsKept(t *testing.T) {
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker")
	_, key := mint(t, d, "worker", "visible-name", 0)
	run := openKeyed(t, d, d.Connect(), key)
	if e := again(t.Context(), run, key); e != nil {
		t.Fatal(e)
	}
	typo := bytes.Clone(key)
	typo[len(typo)-1] ^= 1
	foreign := agentkey.New()
	for _, wrong := range [][]byte{typo, foreign, []byte("ak_live_zyxw0987654321zyxw")} {
		_, _ = d.Broker().OpenRun(t.Context(), withKey(wrong))
		_ = again(t.Context(), run, wrong)
	}
	d.Stop()
	hash := agentkey.Hash(key)
	forms := map[string][]byte{
		"the key": key, "its body": key[8:], "half of it": key[8:30], "a typo": typo[8:40], "a foreign one": foreign[8:30], "a made up one": []byte("zyxw0987654321"),
		"its hash": hash[:], "its hash in hex": fmt.Appendf(nil, "%x", hash),
	}
	seen := false
	must(t, filepath.WalkDir(d.Home, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		seen = seen || bytes.Contains(raw, []byte("agentkey.mint")) && bytes.Contains(raw, []byte("MALFORMED_TOKEN"))
		for what, form := range forms {
			if bytes.Contains(raw, form) {
				t.Errorf("%s is in %s", what, path)
			}
		}
		return err
	}))
	if !seen {
		t.Error("not even the entries are found: this test shows nothing")
	}
	for what, form := range forms {
		if strings.Contains(d.Messages(), string(form)) {
			t.Errorf("the daemon said %s", what)
		}
	}
}

// P44: a tenant of the same name is in nobody's key and in nobody's exact grant.
func TestATenantOfTheSameName(t *testing.T) {
	d := daemontest.Start(t)
	o := d.Operator()
	d.AddSubject("worker", "wide")
	addTenants(t, d, "acme", "initech")
	d.Grant("worker", "memory.read:acme")
	d.Grant("worker", "memory.write:acme", daemontest.Denying)
	d.Grant("wide", "memory.read:*")
	d.Grant("worker", "memory.read:initech")
	id, _ := mint(t, d, "worker", "", 0, "acme", "initech")
	list, err := o.ListTenants(t.Context(), &operatorv1.ListTenantsRequest{})
	must(t, err)
	equal(t, "who may read it", strings.Join(list.GetTenants()[0].GetReaders(), " "), "wide worker")
	removed, err := o.RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "acme"})
	must(t, err)
	equal(t, "grants that went with it", removed.GetRevoked(), 2)
	explain := func(subject string) string {
		got, err := o.Explain(t.Context(), &operatorv1.ExplainRequest{Subject: subject, Capability: "memory.read:acme"})
		must(t, err)
		return got.GetDecision() + " " + got.GetCause()
	}
	equal(t, "while it is away", explain("wide"), "deny UNKNOWN_TENANT")
	added, err := o.AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: "acme"})
	must(t, err)
	if diff := cmp.Diff([]string{"wide"}, added.GetTenant().GetReaders()); diff != "" {
		t.Error(diff)
	}
	equal(t, "an exact grant", explain("worker"), "deny NO_GRANT")
	equal(t, "a pattern", explain("wide"), "allow ")
	keys, err := o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{Key: id})
	must(t, err)
	if diff := cmp.Diff([]string{"initech"}, keys.GetKeys()[0].GetTenants()); diff != "" {
		t.Error(diff)
	}
	d.Restart()
	o = d.Operator()
	keys, err = o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{Key: id})
	must(t, err)
	equal(t, "after a restart", strings.Join(keys.GetKeys()[0].GetTenants(), " "), "initech")
}

func TestTenantsAndTheirGrants(t *testing.T) {
	d := daemontest.Start(t)
	o := d.Operator()
	d.AddSubject("worker")
	addTenants(t, d, "acme")
	_, err := o.AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: "acme"})
	equal(t, "a second one", daemontest.Reason(err), wire.InvalidArgument)
	_, err = o.RemoveTenant(t.Context(), &operatorv1.RemoveTenantRequest{Name: "nope"})
	equal(t, "what is not named", wire.FromError(err).Unknown, wire.UnknownTenant)
	for capability, want := range map[string]wire.Reason{
		"memory.read:acme": wire.Allowed, "memory.write:*": wire.Allowed, "memory.read:nope": wire.InvalidArgument,
	} {
		_, err := o.CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{capability}})
		equal(t, capability, daemontest.Reason(err), want)
	}
	_, err = o.CreateGrants(t.Context(), &operatorv1.CreateGrantsRequest{Subject: "worker", Capabilities: []string{"memory.read:acme"}, RequireApproval: true})
	equal(t, "with a person's approval", daemontest.Reason(err), wire.InvalidArgument)

	apply := func(document string, prune, dry bool) []string {
		t.Helper()
		got, err := o.Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte("version: 1\nowner: laptop\n" + document), Prune: prune, DryRun: dry})
		must(t, err)
		var changes []string
		for _, c := range got.GetChanges() {
			changes = append(changes, c.GetVerb()+" "+c.GetWhat()+" "+c.GetName())
		}
		return changes
	}
	const document = "tenants: [acme, globex]\ngrants: [{subject: worker, capability: \"memory.write:globex\"}]\n"
	want := []string{"add tenant globex", "add grant worker allow memory.write:globex"}
	for _, dry := range []bool{true, false} {
		if diff := cmp.Diff(want, apply(document, false, dry)); diff != "" {
			t.Errorf("dry run %v:\n%s", dry, diff)
		}
	}
	if changes := apply(document, false, false); len(changes) > 0 {
		t.Errorf("applied again: %v", changes)
	}
	exported, err := o.Export(t.Context(), &operatorv1.ExportRequest{})
	must(t, err)
	if !strings.Contains(string(exported.GetDocument()), "tenants: [acme, globex]\n") {
		t.Errorf("the export is\n%s", exported.GetDocument())
	}
	id, _ := mint(t, d, "worker", "", 0, "globex", "acme")
	apply("tenants: []\n", true, false) // acme was added by hand, and has no owner
	list, err := o.ListTenants(t.Context(), &operatorv1.ListTenantsRequest{})
	must(t, err)
	equal(t, "tenants that are left", len(list.GetTenants()), 1)
	keys, err := o.ListAgentKeys(t.Context(), &operatorv1.ListAgentKeysRequest{Key: id})
	must(t, err)
	equal(t, "the key reaches", strings.Join(keys.GetKeys()[0].GetTenants(), " "), "acme")
	equal(t, "grants", len(slices.Collect(func(yield func(string) bool) {
		for _, g := range d.Grants("worker") {
			if g.GetCapability() == "memory.write:globex" && g.GetState() == "active" && !yield(g.GetGrantId()) {
				return
			}
		}
	})), 0)
}

func addTenants(t testing.TB, d *daemontest.Daemon, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
}
