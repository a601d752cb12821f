package daemon_test

import (
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// P64: denials are rationed, counted, and nobody else pays for them.
func TestDenialsAreRationed(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")

	answers := map[wire.Reason]int{}
	for range 100 {
		answers[run.Refused("no-such-thing")]++
	}
	equal(t, "denied", answers[wire.AccessDenied], 20)
	equal(t, "refused unheard", answers[wire.RateLimited], 80)
	equal(t, "entries", len(d.Entries("acquire")), 20)
	equal(t, "even what is allowed", run.Refused("readme"), wire.RateLimited)
	_, err := d.Broker().OpenRun(t.Context(), daemontest.Claim("nobody"))
	equal(t, "another connection of the process", daemontest.Reason(err), wire.RateLimited)

	// The operator is served, also from the same process.
	equal(t, "operator reading", d.Content("readme"), "hello")
	d.Put("readme", "hello again")

	// Two a second come back.
	clock.step(time.Second)
	equal(t, "a second later", run.Refused("readme"), wire.Allowed)
	equal(t, "allowed costs nothing", run.Refused("readme"), wire.Allowed)
	equal(t, "first", run.Refused("no-such-thing"), wire.AccessDenied)
	equal(t, "second", run.Refused("no-such-thing"), wire.AccessDenied)
	equal(t, "third", run.Refused("no-such-thing"), wire.RateLimited)

	// One entry accounts for what was refused unheard.
	clock.step(time.Minute)
	entry := d.Await(0, func(e verify.Entry) bool { return e.Kind == "suppressed" })
	equal(t, "its cause", entry.Cause, "OVER_BUDGET")
	equal(t, "the count", entry.Count, 83)
	equal(t, "the reason", entry.ReasonCode, "RATE_LIMITED")
	equal(t, "the subject", entry.SubjectID, "worker")
	equal(t, "the process", int(entry.PeerPID), os.Getpid())
	equal(t, "entries of that kind", len(d.Entries("suppressed")), 1)
}

// What is refused over budget is accounted for at the latest by a stop.
func TestSuppressedIsAccountedForAtTheEnd(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	for range 25 {
		_, _ = d.Broker().OpenRun(t.Context(), daemontest.Claim("nobody"))
	}
	d.Stop()
	equal(t, "the count", last(d, "suppressed").Count, 5)
}

// Another process has a budget of its own.
func TestBudgetsArePerProcess(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")
	for range 30 {
		run.Refused("no-such-thing")
	}
	equal(t, "this process", run.Refused("readme"), wire.RateLimited)
	equal(t, "another process", another(t, d, "worker", "readme"), "hello")
}

// another reads a resource from a process of its own: see TestMain.
func another(t *testing.T, d *daemontest.Daemon, subject, name string) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, "read", d.Home, subject, name)
	code, stdout, stderr := daemontest.Exit(t, cmd)
	if code != 0 {
		t.Errorf("another process: exit %d: %s", code, stderr)
	}
	return stdout
}

// P64: connections that come and go, or come and stay silent, keep nobody out.
func TestConnectionFloods(t *testing.T) {
	d := daemontest.Start(t)
	d.Put("readme", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	for _, socket := range []string{place.BrokerSocket(d.SocketDir), place.OperatorSocket(d.SocketDir)} {
		for range 1100 { // more than there may be at once
			conn, err := net.Dial("unix", socket)
			must(t, err)
			must(t, conn.Close())
		}
	}
	equal(t, "the operator, after connections that came and went", d.Content("readme"), "hello")
	makeRoom(t, d)
	equal(t, "a worker", d.Open("worker").Refused("readme"), wire.Allowed)

	var silent []net.Conn
	for range 200 { // more than one process may have
		conn, err := net.Dial("unix", place.BrokerSocket(d.SocketDir))
		must(t, err)
		silent = append(silent, conn)
	}
	equal(t, "the operator, while many are silent", d.Content("readme"), "hello")
	equal(t, "another process, meanwhile", another(t, d, "worker", "readme"), "hello")
	for _, conn := range silent {
		_ = conn.Close()
	}
	makeRoom(t, d)
}

// makeRoom waits until the daemon has seen that connections of this process are
// gone, which takes it a moment for so many, and has room for others: it takes two
// itself, so that a third is not refused because the first one filled up.
func makeRoom(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	for taken, until := 0, time.Now().Add(daemontest.Patience); taken < 2; {
		conn := d.Connect()
		_, err := brokerv1.NewBrokerServiceClient(conn).OpenRun(t.Context(), daemontest.Claim("worker"))
		if err == nil {
			taken++
		} else if time.Now().After(until) {
			t.Fatalf("when they have gone, there still is no room: %v", err)
		}
	}
}

// One connection has a limited number of runs.
func TestRunsPerConnection(t *testing.T) {
	d := daemontest.Start(t)
	d.AddSubject("worker")
	conn := d.Connect()
	opened := 0
	for ; opened < 1000; opened++ {
		_, err := brokerv1.NewBrokerServiceClient(conn).OpenRun(t.Context(), daemontest.Claim("worker"))
		if err != nil {
			equal(t, "the refusal", daemontest.Reason(err), wire.RateLimited)
			break
		}
	}
	equal(t, "runs that the operator sees", len(d.Status().GetRuns()), opened)
	if opened == 0 || opened == 1000 {
		t.Errorf("%d runs on one connection", opened)
	}
	must(t, conn.Close())
	for until := time.Now().Add(daemontest.Patience); len(d.Status().GetRuns()) > 0; {
		if time.Now().After(until) {
			t.Fatal("they outlive their connection")
		}
	}
}
