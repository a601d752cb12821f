package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// asked counts how often the key was asked for.
func (k keychain) asked() int {
	raw, err := os.ReadFile(filepath.Join(k.dir, "asked"))
	must(k.t, err)
	return strings.Count(string(raw), "asked\n")
}

// Eight acquires that meet a vault without its key cause one attempt to get it,
// however long that takes.
func TestOneAttemptForAllWhoWait(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	d.Stop()

	k.refuse()
	d.Start()
	before := k.asked()
	k.hang()
	k.allow()
	conns := make([]brokerv1.BrokerServiceClient, 8)
	for i := range conns {
		conns[i] = d.Broker()
	}
	acquire := func() {
		var asking sync.WaitGroup
		for _, broker := range conns {
			asking.Go(func() {
				_, err := broker.OpenRun(t.Context(), daemontest.Claim("worker"))
				equal(t, "a run", daemontest.Reason(err), wire.VaultLocked)
				_, err = broker.Acquire(t.Context(), &brokerv1.AcquireRequest{RunId: "none", ResourceId: "readme"})
				equal(t, "an acquire", daemontest.Reason(err), wire.VaultLocked)
			})
		}
		asking.Wait()
	}
	acquire()
	k.release(func() { // the attempt is under way
		equal(t, "attempts", k.asked()-before, 1)
		_, err := conns[0].OpenRun(t.Context(), daemontest.Claim("worker"))
		if reason := daemontest.Reason(err); reason != wire.VaultLocked && reason != wire.RateLimited {
			t.Errorf("meanwhile a run gets %s", reason)
		}
		equal(t, "attempts after more requests", k.asked()-before, 1)
	})
	for until := time.Now().Add(daemontest.Patience); d.Status().GetVaultState() != "unlocked"; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the key source has answered, and the vault stays locked")
		}
	}
	equal(t, "attempts in all", k.asked()-before, 1)
}

// P65: a stop does not wait for an unlock that waits for a person.
func TestStopWhileUnlocking(t *testing.T) {
	t.Parallel()
	k := newKeychain(t)
	d := daemontest.StartWith(t, k.options())
	d.Lock()
	k.hang()
	unlocking := make(chan error, 1)
	go func() {
		_, err := d.Operator().Unlock(t.Context(), &operatorv1.UnlockRequest{})
		unlocking <- err
	}()
	k.release(func() {
		equal(t, "exit code", d.Stop(), 0)
	})
	// It was answered: not cut off when the time for the stop was over.
	equal(t, "the unlock", daemontest.Reason(<-unlocking), wire.KeyUnavailable)
}
