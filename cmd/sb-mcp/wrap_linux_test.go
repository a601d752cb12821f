package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/worker/workertest"
)

// Of a wrapper that is killed nothing is left.
func TestWrapKilled(t *testing.T) {
	d := daemontest.Start(t)
	subjectFor(d, 0)
	w := startWrap(t, d, "worker0", nil, nil)
	w.ask(callOf(1, "ok", "{}"))
	content, err := os.ReadFile(w.log + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(content))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = w.command.Wait()
	workertest.Eventually(t, "the server's end", func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(state), ") Z ")
	})
}

// A wrapper that has carried calls is small, and gives back what a large one took.
func TestWrapMemory(t *testing.T) {
	d := daemontest.Start(t)
	subjectFor(d, 0)
	built := filepath.Join(t.TempDir(), "sb-mcp")                                            // this test's own program is far larger
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", built, ".") // as make build does
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building sb-mcp: %v\n%s", err, out)
	}
	w := newWrapped(t, d, "worker0", nil, nil)
	w.command.Path = built
	var err error
	if w.in, err = w.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	w.start()
	for i := range 200 {
		w.ask(callOf(i, "ok", `{"text":"`+strings.Repeat("x", 1000)+`"}`))
	}
	workertest.Eventually(t, "less than 20 MiB", func() bool { return residentKiB(t, w.command.Process.Pid) <= 20<<10 })
	encoded, err := json.Marshal(strings.Repeat("x", 5<<20))
	if err != nil {
		t.Fatal(err)
	}
	w.ask(callOf(1, "ok", `{"text":`+string(encoded)+`}`))
	// It took 30 MiB more at least, and gives them back.
	workertest.Eventually(t, "less than 24 MiB", func() bool { return residentKiB(t, w.command.Process.Pid) <= 24<<10 })
	w.end()
}

// residentKiB is how much memory a process holds.
func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			size, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return size
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
