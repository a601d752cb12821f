package daemon_test

import (
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
)

// clocks are a wall clock and a boot clock that only the test moves.
type clocks struct {
	mu    sync.Mutex
	wall  time.Time
	since time.Duration
}

func newClocks() *clocks {
	return &clocks{wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), since: time.Hour}
}

func (c *clocks) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *clocks) Boot() (string, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return "boot", c.since
}

// pass lets time pass.
func (c *clocks) pass(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.since = c.wall.Add(by), c.since+by
}

// set sets the wall clock, back when by is negative.
func (c *clocks) set(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(by)
}

// A wall clock that is set opens nothing early and keeps nothing closed: windows of
// the rate, rests of circuit breakers and how long a session may last go by the time
// that passes, also over a restart.
func TestLimitsGoByTheTimeThatPasses(t *testing.T) {
	const (
		rate    = "-32000 POLICY_BLOCKED RateLimitPolicy block"
		breaker = "-32000 POLICY_BLOCKED CircuitBreakerPolicy block"
		runtime = "-32000 POLICY_BLOCKED MaxRuntimePolicy block"
	)
	for _, step := range []struct {
		name string
		by   time.Duration
	}{{"not set", 0}, {"a day ahead", 24 * time.Hour}, {"a day back", -24 * time.Hour}} {
		for _, tc := range []struct {
			name, rules string
			end         brokerv1.RelayEnd
			closed      string // what stands against the second call, up to 60 s after the first
			opens       bool   // after 60 s; else it is the other way around
		}{
			{"rate", `{limits: {rate_limit: {calls_per_window: 1}}}`, brokerv1.RelayEnd_RELAY_END_OK, rate, true},
			{"breaker", `{limits: {circuit_breaker: {failure_threshold: 1}}}`, brokerv1.RelayEnd_RELAY_END_TRANSPORT, breaker, true},
			{"runtime", `{limits: {max_runtime_seconds: 60}}`, brokerv1.RelayEnd_RELAY_END_OK, runtime, false},
		} {
			t.Run(tc.name+" "+step.name, func(t *testing.T) {
				c := newClocks()
				d := daemontest.StartWith(t, daemontest.Options{Now: c.Now, Boot: c.Boot})
				run := worker(t, d)
				applyRules(t, d, policyDoc("", tc.rules))
				before, after := tc.closed, "forward"
				if !tc.opens {
					before, after = after, before
				}
				r := relayOf(t, run, "srv")
				id := r.ask("ok", "{}")
				equal(t, "the first", said(r.verdict(id)), "forward")
				r.end(id, tc.end)
				if tc.end == brokerv1.RelayEnd_RELAY_END_TRANSPORT {
					eventually(t, "its end", func() bool { return len(d.Entries("call.done")) == 1 })
				}
				c.set(step.by)
				equal(t, "at once", said(r.call("ok", "{}")), before)
				c.pass(58 * time.Second)
				equal(t, "after 58 s", said(r.call("ok", "{}")), before)
				d.Restart()
				r = relayOf(t, d.Open("worker"), "srv")
				equal(t, "after a restart", said(r.call("ok", "{}")), before)
				c.set(-step.by) // and once more, while nothing is counted
				d.Restart()
				r = relayOf(t, d.Open("worker"), "srv")
				equal(t, "set back", said(r.call("ok", "{}")), before)
				c.pass(3 * time.Second)
				equal(t, "after 61 s", said(r.call("ok", "{}")), after)
			})
		}
	}
}
