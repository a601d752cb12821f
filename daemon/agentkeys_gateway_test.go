package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/agentkey"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	gatekeeper "subjectbroker/worker"
)

// gatewayKeys is a gateway's side of the socket.
func gatewayKeys(t *testing.T, d *daemontest.Daemon) *gatekeeper.Keys {
	keys := gatekeeper.NewKeys(gatekeeper.Config{Places: d.Places, Version: "test"})
	t.Cleanup(keys.Close)
	return keys
}

// A gateway's side of the socket, over a real daemon: many runs on few connections,
// each of which ends by itself and alone.
func TestGatewaysRuns(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("one", "two")
	d.Put("first", "1")
	d.Put("second", "2")
	d.Grant("one", "read:first")
	d.Grant("two", "read:second")
	oneID, oneKey := mint(t, d, "one", "", 0)
	_, twoKey := mint(t, d, "two", "", 0)
	keys := gatewayKeys(t, d)
	p := gatekeeper.Presented{Route: "stateful"}
	open := func(key []byte) *gatekeeper.Run {
		t.Helper()
		run, err := keys.Open(t.Context(), bytes.Clone(key), p)
		must(t, err)
		return run
	}
	var ones, twos []*gatekeeper.Run
	for range 10 {
		ones, twos = append(ones, open(oneKey)), append(twos, open(twoKey))
	}
	reads := func(run *gatekeeper.Run, name string) wire.Reason {
		_, err := run.Acquire(t.Context(), name)
		return daemontest.Reason(err)
	}
	for i := range ones {
		equal(t, "its own", reads(ones[i], "first"), wire.Allowed)
		equal(t, "the other's own", reads(twos[i], "second"), wire.Allowed)
	}
	equal(t, "the other's", reads(ones[0], "second"), wire.AccessDenied)
	equal(t, "its key", ones[0].KeyID, oneID)
	must(t, ones[0].Authenticate(t.Context(), bytes.Clone(oneKey), p))
	equal(t, "another's key", daemontest.Reason(ones[0].Authenticate(t.Context(), bytes.Clone(twoKey), p)), wire.RunEnded)
	select {
	case <-ones[0].Over():
		t.Error("another's key ended the run")
	default:
	}
	must(t, keys.Check(t.Context(), bytes.Clone(oneKey), p))
	equal(t, "an unknown key", told(keys.Check(t.Context(), agentkey.New(), p)), "unknown_key")
	must(t, keys.Report(t.Context(), wire.MissingToken, p))
	_, err := keys.Open(t.Context(), agentkey.New(), p)
	equal(t, "a run of an unknown key", told(err), "unknown_key")
	if _, typed := errors.AsType[*wire.Error](err); !typed {
		t.Errorf("the error is %T", err)
	}

	_, err = d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: oneID})
	must(t, err)
	for _, run := range ones {
		<-run.Over()
	}
	for _, run := range twos {
		equal(t, "of the other key", reads(run, "second"), wire.Allowed)
		run.Close()
		<-run.Over()
	}
	for _, run := range ones {
		run.Close()
	}
	run := open(twoKey) // places were given back
	d.Restart()
	<-run.Over()
	run.Close()
	again := open(twoKey)
	equal(t, "after a restart", reads(again, "second"), wire.Allowed)
	keys.Close()
	<-again.Over()
	again.Close()
	_, err = keys.Open(t.Context(), bytes.Clone(twoKey), p)
	equal(t, "after it was closed", daemontest.Reason(err), wire.BrokerUnavailable)
}

// As many clients as a gateway may have behind it get their runs at once, and a process
// without a good key does not get as many calls.
func TestManySessionsOfAGateway(t *testing.T) {
	const sessions = 200
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Put("plan", "x")
	d.Grant("worker", "read:plan")
	_, key := mint(t, d, "worker", "", 0)
	keys := gatewayKeys(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	failed := make(chan error, sessions)
	var all, opened sync.WaitGroup
	opened.Add(sessions)
	for range sessions {
		all.Go(func() {
			run, err := keys.Open(ctx, bytes.Clone(key), gatekeeper.Presented{Route: "stateful"})
			opened.Done()
			opened.Wait() // all of them are there at once
			if err == nil {
				_, err = run.Acquire(ctx, "plan")
				run.Close()
			}
			failed <- err
		})
	}
	all.Wait()
	for range sessions {
		if err := <-failed; err != nil {
			t.Fatal(told(err), err)
		}
	}
}

// However many keys are judged at once, there is room for the runs of good ones.
func TestManyKeysAreJudgedBesideRuns(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	_, key := mint(t, d, "worker", "", 0)
	keys := gatewayKeys(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), daemontest.Patience)
	defer cancel()
	p := gatekeeper.Presented{Route: "stateful"}
	run, err := keys.Open(ctx, bytes.Clone(key), p)
	must(t, err)
	var all sync.WaitGroup
	for i := range 500 {
		all.Go(func() {
			if i%50 == 0 {
				run, err := keys.Open(ctx, bytes.Clone(key), p)
				if err != nil {
					t.Errorf("a run: %v", err)
					return
				}
				run.Close()
				return
			}
			err := keys.Check(ctx, agentkey.New(), p)
			if typed := wire.FromError(err); typed.Auth != wire.UnknownKey && typed.Reason != wire.RateLimited {
				t.Errorf("a key that nobody knows: %v", err)
			}
		})
	}
	all.Wait()
	run.Close()
}

// The operator sees which key a run was opened with, and what was not taken: of keys
// that are known one line each, of all others one for each cause, however many come.
func TestKeysAsTheOperatorSeesThem(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	id, key := mint(t, d, "worker", "laptop", 0)
	keys := gatewayKeys(t, d)
	p := gatekeeper.Presented{Route: "stateful"}
	run, err := keys.Open(t.Context(), bytes.Clone(key), p)
	must(t, err)
	report, err := run.Report(t.Context())
	must(t, err)
	said := strings.Join(append(report.Covered, report.NotProvided...), "\n")
	equal(t, "its report", fmt.Sprint(report.Tier, strings.Contains(said, "judged again at each request"), strings.Contains(said, "whoever holds the agent key"), strings.Contains(said, "launch")), "keyedtrue true false")
	listed, err := d.Operator().ListRuns(t.Context(), &operatorv1.ListRunsRequest{})
	must(t, err)
	r := listed.GetRuns()[0]
	equal(t, "the run", r.GetAttested()+" "+r.GetKeyId()+" "+r.GetKeyName()+" "+r.GetTier(), "key "+id+" laptop keyed")
	_, err = d.Operator().RevokeAgentKey(t.Context(), &operatorv1.RevokeAgentKeyRequest{Key: id})
	must(t, err)
	for range 2 {
		equal(t, "revoked", told(keys.Check(t.Context(), bytes.Clone(key), p)), "revoked_key")
		equal(t, "unknown", told(keys.Check(t.Context(), agentkey.New(), p)), "unknown_key")
		must(t, keys.Report(t.Context(), wire.MissingToken, p))
	}
	denied, err := d.Operator().ListDenials(t.Context(), &operatorv1.ListDenialsRequest{})
	must(t, err)
	got := map[string]uint64{}
	for _, g := range denied.GetGroups() {
		got[g.GetSubject()+" "+g.GetCapability()+" "+g.GetCause()] = g.GetCount()
	}
	want := map[string]uint64{"worker agent-key:" + id + " REVOKED_KEY": 2, " agent-key UNKNOWN_KEY": 2, " agent-key MISSING_TOKEN": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The entry of a key for an open run waits for company: whatever is done under the run
// is behind it and durable no sooner, and alone it is durable soon.
func TestAuthBeforeWhatFollows(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	d.Put("plan", "x")
	d.Grant("worker", "read:plan")
	_, key := mint(t, d, "worker", "", 0)
	p := gatekeeper.Presented{Route: "stateful"}
	run, err := gatewayKeys(t, d).Open(t.Context(), bytes.Clone(key), p)
	must(t, err)
	defer run.Close()
	before := d.Seq()
	for range 20 {
		must(t, run.Authenticate(t.Context(), bytes.Clone(key), p))
		_, err := run.Acquire(t.Context(), "plan")
		must(t, err)
		var kinds []string
		for _, e := range d.Since(before, "auth", "acquire") {
			kinds = append(kinds, e.Kind)
			before = e.Seq
		}
		equal(t, "after the answer", strings.Join(kinds, " "), "auth acquire")
	}
	must(t, run.Authenticate(t.Context(), bytes.Clone(key), p))
	eventually(t, "it is durable without more", func() bool { return len(d.Since(before, "auth")) == 1 })
}
