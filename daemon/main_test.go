package daemon_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/worker/client"
)

// TestMain also is what this program does when a test starts it again.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 5 && os.Args[1] == "read":
		os.Exit(read(os.Args[2], os.Args[3], os.Args[4]))
	case len(os.Args) == 6 && os.Args[1] == "die":
		os.Exit(dieAt(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	case len(os.Args) == 3 && roles[os.Args[1]] != nil:
		os.Exit(roles[os.Args[1]](os.Args[2]))
	case len(os.Args) > 3 && os.Args[1] == "without-namespaces":
		fmt.Fprintln(os.Stderr, withoutNamespaces(os.Args[2:]))
		os.Exit(1)
	case len(os.Args) == 2 && os.Args[0] == "sb-mcp" && os.Args[1] == "host":
		os.Exit(stubHost())
	}
	os.Exit(daemontest.Main(m))
}

// read prints what a subject reads from the daemon of home.
func read(home, subject, name string) int {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	err := func() error {
		conn, err := client.Broker(ctx, client.Places{Home: home, SocketDir: filepath.Join(home, "run")})
		if err != nil {
			return err
		}
		defer conn.Close()
		broker := brokerv1.NewBrokerServiceClient(conn)
		opened, err := broker.OpenRun(ctx, daemontest.Claim(subject))
		if err != nil {
			return err
		}
		got, err := broker.Acquire(ctx, &brokerv1.AcquireRequest{RunId: opened.GetRunId(), ResourceId: name})
		fmt.Print(string(got.GetContent()))
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", daemontest.Reason(err), err)
	}
}

// equal fails the test unless got is want.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// clock is a wall clock that only the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock {
	return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// step moves the clock, back when by is negative.
func (c *clock) step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(by)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func acquire(run *daemontest.Run, name string) *brokerv1.AcquireRequest {
	return &brokerv1.AcquireRequest{RunId: run.ID, ResourceId: name}
}

// run runs a command and reports whether it succeeded.
func run(t *testing.T, name string, args ...string) bool {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Logf("%s %v: %v %s", name, args, err, out)
	}
	return err == nil
}

// ends makes sure that every intent in the log has one end.
func ends(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	open := map[uint64]bool{}
	for _, e := range d.Entries("op.intent", "op.applied", "op.not_applied") {
		switch e.Kind {
		case "op.intent":
			open[e.Generation] = true
		default:
			if !open[e.Generation] {
				t.Errorf("entry %d ends generation %d, which nobody intended", e.Seq, e.Generation)
			}
			delete(open, e.Generation)
		}
	}
	if len(open) > 0 {
		t.Errorf("intents without an end: %v", open)
	}
}
