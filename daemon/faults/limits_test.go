//go:build linux

package faults

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// lastUnit are rules under which the budget lets one call pass.
const lastUnit = "rules: {limits: {budget: {max_cost: 0.01}}}"

// manyAtOnce is how many calls are made at once for the last unit.
const manyAtOnce = 100

// storm makes many calls at once, over several agents of a subject, kills the daemon
// meanwhile, makes them again after its return, and reports how many were made, by
// the server's own record, and how many of them the agents were answered.
func (w *toolWorld) storm(subject, server string, agents int) (made, answered int) {
	w.t.Helper()
	var all []*caller
	for range agents {
		c := w.call(subject, server)
		c.started(server)
		all = append(all, c)
	}
	var open []func()
	burst := func() {
		for i := range manyAtOnce {
			c := all[i%agents]
			answer := c.tool("hit", fmt.Sprintf(`{"id":%q}`, subject))
			open = append(open, func() {
				if strings.Contains(c.wait(answer), "did hit") {
					answered++
				}
			})
		}
	}
	burst()
	time.Sleep(rand.N(20 * time.Millisecond))
	w.crash(false)
	w.Authenticate()
	burst()
	for _, done := range open {
		done()
	}
	for _, c := range all {
		c.close()
	}
	w.add(calls, len(open))
	return w.done(subject), answered
}

// started returns when calls reach the daemon: the tools are listed then. It costs
// nothing of a budget.
func (c *caller) started(server string) {
	c.t.Helper()
	eventually(c.t, "the tools of "+server+" are listed", func() bool {
		return strings.Contains(c.wait(c.send("tools/list", "{}")), `"`+c.prefix+`hit"`)
	})
}

// A hundred calls at once for the last unit of a budget, with kill -9 of the daemon
// among them and a hundred more after its return: one is made at most, and it is
// the one that is answered.
func TestKilledOverTheLastUnit(t *testing.T) {
	t.Parallel()
	w := newToolWorld(t, keepScore(t, "killed while a hundred calls are after the last unit of a budget"))
	made := 0
	for round := range 8 {
		server, agents := "hosted", 1
		if round%2 == 1 {
			server, agents = "wrapped", 4
		}
		subject := fmt.Sprintf("spender%d", round)
		w.admit(lastUnit, subject)
		done, answered := w.storm(subject, server, agents)
		made += done
		if done > 1 || answered > done {
			w.lost(t, "round %d, %s: the budget is one call, and %d were made, %d answered", round, server, done, answered)
		}
		w.add(answers, answered)
	}
	if made == 0 {
		t.Error("nothing was made")
	}
	// The control.
	w.admit("", "rich")
	if done, _ := w.storm("rich", "hosted", 1); done <= 1 {
		t.Errorf("without a budget %d calls were made", done)
	}
}

// Bounds of what ten thousand calls may leave in a process that served them.
const (
	moreDescriptors = 4
	moreThreads     = 8
	moreKilobytes   = 16 << 10
)

// sizes are what each process holds that has to do with calls.
type sizes struct {
	of        map[string]size
	processes int
}

func (w *toolWorld) measure(subject, server string, c *caller) (s sizes) {
	w.t.Helper()
	pids := map[string]int{"sbd": w.PID(), "sb-mcp": c.cmd.Process.Pid, "the server": w.server(subject, server, c)}
	if server == "hosted" {
		pids["the host"] = w.host(subject)
	}
	s.of = map[string]size{}
	for name, pid := range pids {
		s.of[name] = sizeOf(w.t, pid)
	}
	s.processes = len(family(w.t, w.PID())) + len(family(w.t, c.cmd.Process.Pid))
	return s
}

// grown are the bounds that were crossed.
func grown(before, after sizes) (what []string) {
	for name, now := range after.of {
		was := before.of[name]
		if n := now.descriptors - was.descriptors; n > moreDescriptors {
			what = append(what, fmt.Sprintf("%s has %d more descriptors", name, n))
		}
		if n := now.threads - was.threads; n > moreThreads {
			what = append(what, fmt.Sprintf("%s has %d more threads", name, n))
		}
		if n := now.kilobytes - was.kilobytes; n > moreKilobytes {
			what = append(what, fmt.Sprintf("%s has %d KiB more", name, n))
		}
	}
	if n := after.processes - before.processes; n > 0 {
		what = append(what, fmt.Sprintf("there are %d more processes", n))
	}
	return what
}

// many makes calls, some at once, each of which has to be answered.
func (c *caller) many(tool string, n int) {
	c.t.Helper()
	const atOnce = 16
	check := func(answer <-chan string) {
		c.t.Helper()
		if text := c.wait(answer); !strings.Contains(text, "did "+tool) {
			c.t.Fatalf("a call was answered %s", text)
		}
	}
	var open []<-chan string
	for range n {
		if len(open) == atOnce {
			check(open[0])
			open = open[1:]
		}
		open = append(open, c.tool(tool, "{}"))
	}
	for _, answer := range open {
		check(answer)
	}
}

// Ten thousand calls, hosted and wrapped, leave nothing in any of the processes that
// served them; a server that does keep something is noticed, and so is a process.
func TestManyCallsLeaveNothing(t *testing.T) {
	t.Parallel()
	need(t) // processes that closed their memory hide their descriptors, too
	w := newToolWorld(t, keepScore(t, "ten thousand calls, and what is left of them"))
	w.admit("audit: grouped, rules: {limits: {max_tool_calls: 1000000}}", "busy")
	for _, server := range []string{"hosted", "wrapped"} {
		eventually(t, "no process of the server is left", func() bool { return len(w.servers()) == 0 })
		c := w.call("busy", server)
		c.warm()
		c.many("ok", 2000) // until memory is what it will be
		before := w.measure("busy", server, c)
		c.many("ok", 10_000)
		w.add(calls, 12_000)
		after := w.measure("busy", server, c)
		for _, what := range grown(before, after) {
			w.lost(t, "after ten thousand calls, %s: %s", server, what)
		}
		t.Logf("%s: before %+v, after %+v", server, before, after)

		// The control.
		c.many("leak", 500)
		other := w.call("busy", "wrapped")
		other.warm()
		leaked := w.measure("busy", server, c)
		leaked.processes += len(family(t, other.cmd.Process.Pid))
		said := strings.Join(grown(after, leaked), "; ")
		for _, want := range []string{"the server has 500 more descriptors", "KiB more", "more processes"} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: of what a server keeps and a process it is said: %q, and not %q", server, said, want)
			}
		}
		other.close()
		c.close()
	}
	eventually(t, "all processes of the server are gone", func() bool { return len(w.servers()) == 0 })
	equal(t, "processes of the daemon", len(family(t, w.PID())), 1)
}
