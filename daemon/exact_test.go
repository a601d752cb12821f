package daemon_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P43: of many that race for the last uses, exactly as many get one as there
// are, and a restart in the middle gives none back.
func TestUseLimitsAreExact(t *testing.T) {
	const clients, uses = 50, 20
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.Uses(uses))

	released := 0
	for round := range 3 {
		clock.step(time.Hour) // the budget for denials is full again
		if round > 0 {
			d.Restart()
		}
		attempts := clients
		if round == 0 {
			attempts = uses / 2
		}
		for _, reason := range race(d, attempts, "readme") {
			switch reason {
			case wire.Allowed:
				released++
			case wire.AccessDenied, wire.RateLimited:
			default:
				t.Errorf("refused with %s", reason)
			}
		}
		equal(t, "uses that the operator sees", d.Grants("worker")[grant].GetUsed(), uint64(released))
	}
	equal(t, "released", released, uses)

	// Each use has a number of its own in the log.
	seen := map[uint64]bool{}
	for _, e := range d.Entries("acquire") {
		if e.Decision == "allow" {
			seen[e.Count] = true
		}
	}
	for n := uint64(1); n <= uses; n++ {
		if !seen[n] {
			t.Errorf("use %d is not in the log", n)
		}
	}
	equal(t, "numbers in the log", len(seen), uses)
}

// race lets as many runs as asked acquire at the same moment.
func race(d *daemontest.Daemon, n int, name string) []wire.Reason {
	runs := make([]*daemontest.Run, n)
	for i := range runs {
		runs[i] = d.Open("worker")
	}
	reasons := make([]wire.Reason, n)
	start := make(chan struct{})
	var done sync.WaitGroup
	for i, run := range runs {
		done.Go(func() {
			<-start
			reasons[i] = run.Refused(name)
		})
	}
	close(start)
	done.Wait()
	return reasons
}

// A use that was answered is never given back, also when the daemon dies at once.
func TestUsesSurviveACrash(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.Uses(3))
	for use := range 3 {
		equal(t, fmt.Sprintf("use %d", use+1), d.Open("worker").Refused("readme"), wire.Allowed)
		d.Kill()
		d.Start()
	}
	equal(t, "after the last use", d.Open("worker").Refused("readme"), wire.AccessDenied)
	equal(t, "its cause", last(d, "acquire").Cause, "GRANT_EXHAUSTED")
}

// Granting again counts anew; changing the note by a document does not.
func TestGrantingAgain(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	first := d.Grant("worker", "read:readme", daemontest.Uses(1))
	run := d.Open("worker")
	equal(t, "the first use", run.Refused("readme"), wire.Allowed)
	equal(t, "the second", run.Refused("readme"), wire.AccessDenied)

	apply(t, d, "version: 1\nsubjects: {worker: {}}\nresources: {readme: {kind: text}}\n"+
		"grants: [{subject: worker, capability: 'read:readme', uses: 1, note: again}]\n")
	equal(t, "after a document named it", run.Refused("readme"), wire.AccessDenied)
	d.Restart()
	run = d.Open("worker")
	equal(t, "also after a restart", run.Refused("readme"), wire.AccessDenied)

	equal(t, "the id of the same grant", d.Grant("worker", "read:readme", daemontest.Uses(1)), first)
	equal(t, "granted again", run.Refused("readme"), wire.Allowed)
	d.Restart()
	equal(t, "used up again, after a restart", d.Open("worker").Refused("readme"), wire.AccessDenied)
}

func apply(t *testing.T, d *daemontest.Daemon, document string) *operatorv1.ApplyResponse {
	t.Helper()
	done, err := d.Operator().Apply(t.Context(), &operatorv1.ApplyRequest{Document: []byte(document)})
	must(t, err)
	return done
}

// A revoke that was answered is never forgotten.
func TestRevokeSurvivesACrash(t *testing.T) {
	t.Parallel()
	d := daemontest.Launch(t, daemontest.Options{})
	d.AddSubject("worker", "gone", "disabled")
	for i := range 4 {
		name := fmt.Sprintf("doc-%d", i)
		d.Put(name, "hello")
		grant := d.Grant("worker", "read:"+name)
		equal(t, name, d.Open("worker").Refused(name), wire.Allowed)
		d.Revoke(grant)
		d.Kill()
		d.Start()
		equal(t, name+" after the crash", d.Open("worker").Refused(name), wire.AccessDenied)
		equal(t, name+" is a revoked grant", d.Grants("worker")[grant].GetState(), "revoked")
	}
	d.SetEnabled("disabled", false)
	d.RemoveSubject("gone")
	d.Kill()
	d.Start()
	for _, subject := range []string{"gone", "disabled"} {
		_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim(subject))
		equal(t, subject, daemontest.Reason(err), wire.AccessDenied)
	}
}

// P43: a grant holds until its end and not at it.
func TestExpiryIsExact(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.For(time.Hour))
	run := d.Open("worker")
	clock.step(time.Hour - time.Millisecond)
	equal(t, "a millisecond before its end", run.Refused("readme"), wire.Allowed)
	clock.step(time.Millisecond)
	equal(t, "at its end", run.Refused("readme"), wire.AccessDenied)
	equal(t, "the cause", last(d, "acquire").Cause, "GRANT_EXPIRED")
	equal(t, "the list", len(run.List()), 0)
	equal(t, "its state", d.Grants("worker")[grant].GetState(), "expired")
}

// P43: the boot clock ends a grant when the wall clock does not get there.
func TestExpiryByTheBootClock(t *testing.T) {
	t.Parallel()
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.For(50*time.Millisecond))
	run := d.Open("worker")
	for start := time.Now(); time.Since(start) <= 50*time.Millisecond; {
		time.Sleep(time.Millisecond) // the boot clock is what is tested
	}
	equal(t, "with a wall clock that stands still", run.Refused("readme"), wire.AccessDenied)
	equal(t, "the cause", last(d, "acquire").Cause, "GRANT_EXPIRED")
}

// P43: a wall clock that goes back revives nothing, and is said.
func TestClockRollback(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("timed", "until then")
	d.Put("free", "for good")
	d.AddSubject("worker")
	d.Grant("worker", "read:timed", daemontest.For(48*time.Hour))
	d.Grant("worker", "read:free")
	run := d.Open("worker")
	clock.step(time.Hour)
	equal(t, "before", run.Refused("timed"), wire.Allowed)
	equal(t, "status before", d.Status().GetClockRollback(), false)

	clock.step(-30 * time.Minute)
	equal(t, "a timed grant", run.Refused("timed"), wire.AccessDenied)
	equal(t, "a grant without an end", run.Refused("free"), wire.Allowed)
	equal(t, "status", d.Status().GetClockRollback(), true)
	d.Restart()
	run = d.Open("worker")
	equal(t, "a timed grant after a restart", run.Refused("timed"), wire.AccessDenied)
	equal(t, "status after a restart", d.Status().GetClockRollback(), true)

	_, err := d.Operator().ConfirmClock(t.Context(), &operatorv1.ConfirmClockRequest{})
	must(t, err)
	equal(t, "confirmed", run.Refused("timed"), wire.Allowed)
	equal(t, "status when confirmed", d.Status().GetClockRollback(), false)
	d.Restart()
	equal(t, "confirmed, after a restart", d.Open("worker").Refused("timed"), wire.Allowed)

	clock.step(-30 * time.Minute)
	equal(t, "back again", d.Status().GetClockRollback(), true)
	clock.step(time.Hour)
	equal(t, "caught up by itself", d.Status().GetClockRollback(), false)
}

// A step back that is too small to be reported revives nothing either, not even
// when the boot clock does not remember.
func TestSmallStepsBackReviveNothing(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme", daemontest.For(time.Hour))
	run := d.Open("worker")
	clock.step(time.Hour)
	equal(t, "at its end", run.Refused("readme"), wire.AccessDenied)
	clock.step(-time.Second)
	equal(t, "a second back", run.Refused("readme"), wire.AccessDenied)
	d.Restart()
	equal(t, "a second back, after a restart", d.Open("worker").Refused("readme"), wire.AccessDenied)
	equal(t, "status", d.Status().GetClockRollback(), false)
}

// P43: revocation ends what is being watched, and expiry is told by itself.
func TestWatchers(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.Put("other", "hello")
	d.AddSubject("worker")
	run := d.Open("worker")
	watching := run.Follow()
	expect := func(what, event string) {
		t.Helper()
		equal(t, what, watching.Next(), event)
	}

	grant := d.Grant("worker", "read:readme")
	expect("granted", "list changed")
	d.Put("readme", "changed")
	expect("changed", "readme updated")
	_, err := d.Operator().RevertSecret(t.Context(), &operatorv1.RevertSecretRequest{Name: "readme", To: 1})
	must(t, err)
	expect("reverted", "readme updated")
	d.Put("other", "changed") // no event
	d.Revoke(grant)
	expect("revoked", "list changed")
	d.Grant("worker", "read:readme", daemontest.For(2*time.Second)) // long enough to be seen
	expect("granted for a while", "list changed")
	expect("expired", "list changed")
	d.Grant("worker", "read:other", daemontest.Uses(1))
	expect("granted once", "list changed")
	equal(t, "the one use", run.Refused("other"), wire.Allowed)
	expect("used up", "list changed")
	d.Grant("worker", "read:new-*")
	d.Put("new-1", "covered")
	expect("a covered name appeared", "list changed")
	d.Remove("new-1")
	expect("it went", "list changed")
	d.Grant("worker", "read:other", daemontest.Denying) // no event: nothing was readable
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "one")
	d.AddFile("file", file, "content")
	d.Grant("worker", "read:file")
	expect("a file was granted", "list changed")
	write(t, file, "two")
	_, err = d.Operator().RepinFile(t.Context(), &operatorv1.RepinFileRequest{Name: "file"})
	must(t, err)
	expect("the file was pinned again", "file updated")
	d.Stop()
	expect("stopped", "ended BROKER_UNAVAILABLE")
}

// Whoever is told Ready misses nothing from there on.
func TestWatchersMissNothingAfterReady(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	for range 30 {
		run := d.Open("worker")
		watching := run.Follow()
		grant := d.Grant("worker", "read:readme")
		equal(t, "granted", watching.Next(), "list changed")
		d.Revoke(grant)
		equal(t, "revoked", watching.Next(), "list changed")
		must(t, run.Conn.Close())
	}
}

// While the log fails, nothing of P43 is given up: see TestFullDisk. Here: a
// client that goes away in the middle does not give its use back.
func TestAbandonedUsesCount(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	grant := d.Grant("worker", "read:readme", daemontest.Uses(100))
	for range 10 {
		run := d.Open("worker")
		ctx, cancel := context.WithCancel(t.Context())
		asking := make(chan struct{})
		go func() {
			defer close(asking)
			_, _ = run.Acquire(ctx, acquire(run, "readme"))
		}()
		cancel()
		<-asking
		must(t, run.Conn.Close())
		d.Await(0, func(e verify.Entry) bool { return e.Kind == "run.end" && e.RunID == run.ID })
	}
	allowed := 0
	for _, e := range d.Entries("acquire") {
		if e.Decision == "allow" {
			allowed++
		}
	}
	equal(t, "uses counted", d.Grants("worker")[grant].GetUsed(), uint64(allowed))
}
