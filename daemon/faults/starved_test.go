//go:build linux

package faults

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"subjectbroker/daemon/daemontest"
	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// P5, P8: first starts with too little of something: files may not grow beyond
// some size, there are too few descriptors, the disk is full. Each fails in one
// line or serves, and the next start with enough of everything serves.
func TestStarvedFirstStart(t *testing.T) {
	t.Parallel()
	needPrograms(t, "prlimit")
	s := keepScore(t, "first starts with too little of something")
	limits := []string{}
	for _, size := range []int{0, 10, 100, 1000, 4096, 5000, 8192, 12288, 16384, 20000, 32768, 40960, 65536} {
		limits = append(limits, fmt.Sprintf("--fsize=%d", size))
	}
	for n := fewest; n <= 32; n += 2 {
		limits = append(limits, fmt.Sprintf("--nofile=%d", n))
	}
	failed := 0
	for _, limit := range limits {
		t.Run(strings.TrimLeft(limit, "-"), func(t *testing.T) {
			home := daemontest.NewHome(t)
			if !starved(t, home, "prlimit", limit) {
				failed++
			}
			s.add(starvedStarts, 1)
			afterStarving(t, s, nil, home)
		})
	}
	if failed == 0 {
		t.Error("no start ever failed: the limits do not bite")
	}
	if os.Geteuid() != 0 {
		return // what follows needs disks
	}
	for left := int64(0); left <= 160<<10; left += 16 << 10 {
		t.Run(fmt.Sprintf("%d bytes free", left), func(t *testing.T) {
			d := newDisk(t, 8)
			d.fill(left)
			served := starved(t, d.home())
			t.Logf("served: %v", served)
			d.free()
			s.add(starvedStarts, 1)
			afterStarving(t, s, d, d.home())
		})
	}
}

// fewest is how many descriptors the Go runtime itself needs to come up.
const fewest = 8

// starved starts sbd, under a wrapper, until it serves or ends. One that ends
// has said why in one line.
func starved(t *testing.T, home string, wrap ...string) (served bool) {
	t.Helper()
	cmd := daemontest.Command(t, home, "--home", home, "--key-source", "file", "--log", "json")
	if len(wrap) > 0 {
		path, err := exec.LookPath(wrap[0])
		must(t, err)
		cmd.Args, cmd.Path = append(wrap, cmd.Args...), path
	}
	var said daemontest.Output
	cmd.Stderr = &said
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for until := time.Now().Add(daemontest.Patience); ; {
		if strings.Contains(said.String(), `"msg":"serving"`) {
			served = true
			break
		}
		select {
		case <-ended:
		case <-time.After(time.Millisecond):
			if time.Now().After(until) {
				_ = cmd.Process.Kill()
				t.Fatalf("it neither serves nor ends: %s", said.String())
			}
			continue
		}
		break
	}
	if served {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		return true
	}
	lines := 0
	for line := range strings.Lines(said.String()) {
		if strings.HasPrefix(line, "sbd: ") {
			lines++
		}
	}
	if code := cmd.ProcessState.ExitCode(); code <= 0 || lines != 1 || strings.Contains(said.String(), "goroutine") {
		t.Errorf("exit %d, %d lines: %s", code, lines, said.String())
	}
	return false
}

// afterStarving makes sure that a home serves as if nothing had been.
func afterStarving(t *testing.T, s *score, d *disk, home string) {
	t.Helper()
	w := newWorld(t, s, d, daemontest.Options{Home: home})
	w.populate()
	equal(t, "afterwards", w.access("worker", "note"), hello)
}

// Starts of a vault that is there, with too little of something: nothing that
// was answered is lost, and nothing is released that cannot be recorded.
func TestStarvedStart(t *testing.T) {
	t.Parallel()
	needPrograms(t, "prlimit")
	s := keepScore(t, "starts of a vault with too little of something")
	w := newWorld(t, s, nil, daemontest.Options{})
	w.populate()
	for _, limit := range []string{"--fsize=0", "--fsize=1000", "--fsize=5000", "--nofile=8", "--nofile=10", "--nofile=14", "--nofile=20"} {
		equal(t, "exit code", w.Stop(), wire.ExitDone)
		starved(t, w.Home, "prlimit", limit)
		s.add(starvedStarts, 1)
		w.Start()
		equal(t, limit+": afterwards", w.access("worker", "note"), hello)
	}
}

// Contract §7: a full disk does not keep the daemon from starting. It refuses,
// says why, and goes on when there is room.
func TestFullDiskAtStart(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "starts on a full disk")
	w := newWorld(t, s, newDisk(t, 16), daemontest.Options{})
	c := gather(w)
	for round := range 4 {
		if round%2 == 0 {
			equal(t, "exit code", w.Stop(), wire.ExitDone)
		} else {
			w.fall(false)
		}
		w.disk.fill(0)
		s.add(starvedStarts, 1)
		w.Start()
		run, err := w.Broker().OpenRun(t.Context(), daemontest.Claim("crowd"))
		if err == nil {
			t.Logf("a run was opened on a full disk: %s", run.GetRunId())
		} else {
			equal(t, "a run", daemontest.Reason(err), wire.AuditFailed)
			if cause := w.Status().GetAuditCause(); !strings.Contains(cause, "no space on") {
				t.Errorf("the cause is %q", cause)
			}
		}
		w.disk.free()
		w.serves()
		c.begin(2)
		w.crash(false)
		c.end()
		c.audit()
	}
	c.close()
}

// A start on a read-only disk: refused in one line, or nothing is released; no
// byte changes; and sbd check can still look.
func TestReadOnlyStart(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "starts on a read-only disk")
	w := newWorld(t, s, newDisk(t, 16), daemontest.Options{Spoiled: true})
	w.populate()
	for _, clean := range []bool{true, false} {
		if clean {
			equal(t, "exit code", w.Stop(), wire.ExitDone)
		} else {
			w.Kill()
		}
		w.disk.remount("ro")
		before := snapshot(t, w.Home)
		s.add(starvedStarts, 1)
		t.Logf("serves: %v", starved(t, w.Home))
		code, said, stderr := daemontest.Exit(t, daemontest.Command(t, w.Home, "check", "--home", w.Home))
		if clean {
			equal(t, "sbd check: "+said+stderr, code, wire.ExitDone)
		}
		if !bytes.Equal(before, snapshot(t, w.Home)) {
			s.lost(t, "something changed on a read-only disk")
		}
		w.disk.remount()
		w.Start()
		equal(t, "afterwards", w.access("worker", "note"), hello)
	}
}

// snapshot is every file of a home with its content.
func snapshot(t *testing.T, home string) []byte {
	t.Helper()
	var all bytes.Buffer
	must(t, filepath.WalkDir(home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		fmt.Fprintf(&all, "%s %d\n%s\n", path, len(raw), raw)
		return err
	}))
	return all.Bytes()
}

// P21: no free descriptors while it runs. Who is connected is served or refused,
// nobody else gets in, and everything goes on when there are some again.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	s := keepScore(t, "running out of descriptors")
	needPrograms(t)
	w := newWorld(t, s, nil, daemontest.Options{})
	c := gather(w)
	for range 3 {
		c.begin(3)
		must(t, unix.Prlimit(w.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: 4096}, nil))
		s.add(faults, 1)
		_, err := w.Operator().PutSecret(t.Context(), &operatorv1.PutSecretRequest{Name: "other", Kind: "text", Content: []byte("x")})
		t.Logf("a change: %s", daemontest.Reason(err))
		w.Signal(syscall.SIGHUP) // a rotation cannot open its files
		time.Sleep(50 * time.Millisecond)
		must(t, unix.Prlimit(w.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 4096}, nil))
		c.end()
		w.serves()
		w.crash(false)
		c.audit()
	}
	_, err := os.Stat(place.VaultFile(w.Home))
	must(t, err)
	c.close()
}
