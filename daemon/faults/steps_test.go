//go:build linux

package faults

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/wire"
)

// P12, P20, P43: sbd dies before each single call with which a verb changes the
// disk. The next start serves, what was answered is there, the rest is whole or
// absent.
func TestKilledAtEachStep(t *testing.T) { atEachStep(t, false) }

// The same, and with the process the power goes: what was not synced is lost.
func TestCutAtEachStep(t *testing.T) { atEachStep(t, true) }

func atEachStep(t *testing.T, cut bool) {
	t.Parallel()
	need(t)
	what := "killed before each step of each verb"
	if cut {
		what = "power cut before each step of each verb"
	}
	s := keepScore(t, what)
	d := newDisk(t, 16)
	w := newWorld(t, s, d, daemontest.Options{})
	only := os.Getenv("FAULTS_VERB") // for whoever works on one
	for _, v := range verbs() {
		if !strings.Contains(v.rpc, only) {
			continue
		}
		w.dieAtEachStep(v, cut)
		w.unlocked()
	}
}

func (w *world) dieAtEachStep(v verb, cut bool) {
	w.t.Helper()
	w.dieAtSteps(v, func(int) bool { return cut })
}

// dieAtSteps dies before each step of a verb; cut tells whether the power goes at
// the n-th, too.
func (w *world) dieAtSteps(v verb, cut func(n int) bool) {
	w.t.Helper()
	for n := 1; ; n++ {
		v.arrange(w)
		s := killAt(w.t, w.PID(), n)
		err := v.act(w)
		if err != nil {
			if reason := daemontest.Reason(err); reason != wire.BrokerUnavailable {
				w.t.Fatalf("%s: %s: %v", v.rpc, reason, err)
			}
			<-s.done // it dies
		}
		if !s.end() {
			v.judge(w, true)
			w.t.Logf("%s has %d steps: %s", v.rpc, n-1, s.story())
			if n == 1 {
				w.t.Errorf("%s never died", v.rpc)
			}
			return
		}
		w.crash(cut(n))
		v.judge(w, err == nil)
		if w.t.Failed() {
			w.t.Fatalf("%s at step %d: %s", v.rpc, n, s.story())
		}
	}
}

// P8: the first start dies at each step, mostly with its disk. There is no vault
// then, or a good one, and the next start serves.
func TestFirstStartAtEachStep(t *testing.T) {
	t.Parallel()
	need(t)
	s := keepScore(t, "first start, dying before each step")
	for n := 1; !firstStart(t, s, n, n%4 != 0); n++ {
		if t.Failed() {
			t.Fatalf("at step %d", n)
		}
	}
}

// firstStart lets a first start die at its n-th step, unless it has fewer.
func firstStart(t *testing.T, s *score, n int, cut bool) (through bool) {
	t.Run("", func(t *testing.T) {
		d := newDisk(t, 16)
		if through = startUnder(t, d.home(), n); through {
			return
		}
		if s.add(kills, 1); cut {
			s.add(cuts, 1)
			d.cut()
			d.remount()
		}
		w := newWorld(t, s, d, daemontest.Options{})
		w.populate()
		equal(t, "afterwards", w.access("worker", "note"), hello)
	})
	return through
}

// A start that has to give an interrupted change its end dies itself, at each
// step, until one gets through.
func TestRestartAtEachStep(t *testing.T) {
	t.Parallel()
	need(t)
	s := keepScore(t, "start after a crash, dying before each step")
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%v", cut), func(t *testing.T) {
			w := newWorld(t, s, newDisk(t, 16), daemontest.Options{})
			put := verbs()[0]
			for n := 1; ; n++ {
				put.arrange(w)
				dying := killAt(t, w.PID(), atCommit)
				if err := put.act(w); err == nil {
					t.Fatal("the change was answered")
				}
				<-dying.done
				w.fall(cut)
				through := startUnder(t, w.disk.home(), n)
				if !through {
					w.crash(cut)
				} else {
					w.Start()
				}
				put.judge(w, false)
				if through || t.Failed() {
					break
				}
			}
		})
	}
}

// atCommit is a step of PutSecret at which the vault is being written.
const atCommit = 5

// startUnder starts sbd in a home until it serves or dies at its n-th step. A
// daemon that serves is killed too.
func startUnder(t *testing.T, home string, n int) (served bool) {
	t.Helper()
	cmd := daemontest.Command(t, home, "--home", home, "--key-source", "file", "--log", "json")
	reader, writer, err := os.Pipe()
	must(t, err)
	defer reader.Close()
	cmd.Stderr = writer
	stepper := launchUnder(t, cmd, n)
	_ = writer.Close()
	timer := time.AfterFunc(daemontest.Patience, func() { _ = cmd.Process.Kill() })
	var said strings.Builder
	for lines := bufio.NewScanner(reader); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), `"msg":"serving"`) {
			served = true
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("it neither serves nor dies: %s", said.String())
	}
	if code := cmd.ProcessState.ExitCode(); code != -1 {
		t.Fatalf("it ended with exit %d: %s", code, said.String())
	}
	stepper.end()
	if served {
		t.Logf("%d steps: %s", n-1, stepper.story())
	}
	return served
}
