//go:build linux

package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// world is a daemon that faults are tried on, and what its clients do there.
type world struct {
	*daemontest.Daemon
	*score
	t    *testing.T
	disk *disk            // nil: none of its own
	tree *daemontest.Tree // of the launch that is tried; it goes with a disk that it sees
	work string           // a folder that no fault touches, for registered files
}

// newWorld starts a daemon on a disk, or on the machine's own.
func newWorld(t *testing.T, s *score, d *disk, options daemontest.Options) *world {
	t.Helper()
	if d != nil {
		options.Home = d.home()
		must(t, os.MkdirAll(options.Home, 0o700))
	}
	return &world{Daemon: daemontest.Launch(t, options), score: s, t: t, disk: d, work: t.TempDir()}
}

// populate makes what most scenarios read: a worker that may read a note.
func (w *world) populate() {
	w.t.Helper()
	w.Put("note", "hello")
	w.AddSubject("worker")
	w.Grant("worker", "read:note")
}

// crash ends the daemon at once, with its disk if cut, and starts it again.
func (w *world) crash(cut bool) {
	w.t.Helper()
	w.fall(cut)
	w.Start()
}

// fall is crash without a return.
func (w *world) fall(cut bool) {
	w.t.Helper()
	w.Kill()
	if cut {
		if w.tree != nil {
			w.tree.Kill()
		}
		w.disk.cut()
		w.disk.remount()
		w.add(cuts, 1)
	} else {
		w.add(kills, 1)
	}
}

// exists reports whether the operator sees a resource.
func (w *world) exists(name string) bool {
	w.t.Helper()
	_, err := w.Operator().GetResource(w.t.Context(), &operatorv1.GetResourceRequest{Name: name})
	if err != nil && daemontest.Reason(err) != wire.InvalidArgument {
		w.t.Fatalf("looking for %s: %s: %v", name, daemontest.Reason(err), err)
	}
	return err == nil
}

// access is what a subject gets of a resource: its content, or why not.
func (w *world) access(subject, name string) string {
	w.t.Helper()
	conn := w.Connect()
	defer conn.Close()
	broker := brokerv1.NewBrokerServiceClient(conn)
	opened, err := broker.OpenRun(w.t.Context(), daemontest.Claim(subject))
	if err != nil {
		return string(daemontest.Reason(err))
	}
	got, err := broker.Acquire(w.t.Context(), &brokerv1.AcquireRequest{RunId: opened.GetRunId(), ResourceId: name})
	if err != nil {
		return string(daemontest.Reason(err))
	}
	return string(got.GetContent())
}

// restored waits until try succeeds: the daemon looks now and then whether a
// fault has gone.
func (w *world) restored(try func() error) {
	w.t.Helper()
	until := time.Now().Add(daemontest.Patience)
	for err := try(); err != nil; err = try() {
		if time.Now().After(until) {
			w.t.Fatalf("it does not recover: %s: %v; vault %s, log %s", daemontest.Reason(err), err, w.Status().GetVaultCause(), w.Status().GetAuditCause())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			daemontest.LeaveOut(t, "faults", "needs "+name)
		}
	}
}

// programs are the other two programs, built once.
var programs built

type built struct {
	sync.Mutex
	dir string
}

// program builds sbctl or sb-mcp as it is released, and returns its path.
func program(t *testing.T, name string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "sbfaults")
		must(t, err)
		programs.dir = dir
	}
	path := filepath.Join(programs.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "subjectbroker/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("building %s: %w\n%s", name, err, out))
	}
	return path
}

func (b *built) remove() {
	b.Lock()
	defer b.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}
