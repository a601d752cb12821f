package daemon_test

import (
	"os"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "keysource-child" {
		os.Exit(fakeKeychain(os.Getenv("XDG_RUNTIME_DIR")))
	}
	os.Exit(daemontest.Main(m))
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
