package launch

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// A tree has no more processes than it may, whatever its processes set their own limit
// to; without a limit there are more, and the machine's own is as it was.
func TestTasks(t *testing.T) {
	// Children that wait. What cannot be started ends the shell that starts it.
	const bomb = `ulimit -u unlimited 2>/dev/null || ulimit -p unlimited 2>/dev/null; echo 4194304 2>/dev/null >/proc/sys/kernel/pid_max
		(i=0; while test $i -lt 600; do sleep 100 & i=$((i+1)); done) 2>/dev/null; set -- /proc/[0-9]*; echo "$#"; kill -9 -1`
	outside, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		t.Fatal(err)
	}
	asEach(t, func(t *testing.T, w *world) {
		count := func(tasks int) int {
			t.Helper()
			cfg := w.config()
			cfg.Tasks = tasks
			said, _ := output(t, w.launch(cfg, "sh", "-c", bomb))
			first, _, _ := strings.Cut(strings.TrimSpace(said), "\n") // who waits for the launch says that it has ended
			n, err := strconv.Atoi(first)
			if err != nil {
				t.Fatalf("%v: %s", err, said)
			}
			return n
		}
		if n := count(0); n < 600 {
			t.Fatalf("the control does not work: %d processes without a limit", n)
		}
		if n := count(400); n > 400 {
			if w.uid == 0 && !kernelIs(6, 14) || !kernelIs(5, 14) {
				t.Skip("NOT TESTED: this kernel bounds nothing here")
			}
			t.Errorf("%d processes where 400 may be", n)
		}
		if now, err := os.ReadFile("/proc/sys/kernel/pid_max"); err != nil || string(now) != string(outside) {
			t.Errorf("the machine's own: %s %v, before %s", now, err, outside)
		}
	})
}
