package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/workertest"
)

func TestMain(m *testing.M) {
	if os.Getenv("WORKER_TEST_HARDEN") != "" {
		if err := worker.Harden(); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString(strings.Join(os.Environ(), "\n") + "\n" + dumpable())
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func config(b *workertest.Broker, subject string) worker.Config {
	return worker.Config{Places: b.Places, Subject: subject, Version: "test"}
}

func TestRun(t *testing.T) {
	b := workertest.Start(t)
	b.Put("plan", "text", []byte("the plan"))
	b.Put("other", "text", []byte("not yours"))
	b.Allow("worker", "plan")

	run, err := worker.Open(t.Context(), config(b, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	if run.Subject != "worker" || run.Tier != "cooperative" || run.API != wire.API {
		t.Errorf("opened %+v", run)
	}
	listed, err := run.List(t.Context())
	if diff := cmp.Diff([]worker.Resource{{Name: "plan", Kind: "text", Size: 8}}, listed); err != nil || diff != "" {
		t.Errorf("list: %v\n%s", err, diff)
	}
	got, err := run.Acquire(t.Context(), "plan")
	if err != nil || string(got.Bytes) != "the plan" || got.Kind != "text" {
		t.Errorf("acquire: %+v, %v", got, err)
	}
	for _, name := range []string{"other", "absent"} {
		if _, err := run.Acquire(t.Context(), name); reason(err) != wire.AccessDenied {
			t.Errorf("acquire %s: %v", name, err)
		}
	}
	verdict, err := run.Explain(t.Context(), "other", "read")
	if diff := cmp.Diff(worker.Verdict{Decision: "deny", Reason: wire.AccessDenied}, verdict); err != nil || diff != "" {
		t.Errorf("explain: %v\n%s", err, diff)
	}
	if report, err := run.Report(t.Context()); err != nil || report.Subject != "worker" || report.KeySource != "file" {
		t.Errorf("report: %+v, %v", report, err)
	}
	run.Close()
	<-run.Over()
	if _, err := run.List(t.Context()); reason(err) != wire.BrokerUnavailable {
		t.Errorf("list after close: %v", err)
	}
	if n := b.Runs(); n != 0 {
		t.Errorf("%d runs are open after close", n)
	}
}

func TestOpenRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		arrange func(b *workertest.Broker)
		config  func(c *worker.Config)
		want    wire.Reason
	}{
		{"unknown subject", nil, func(c *worker.Config) { c.Subject = "nobody" }, wire.AccessDenied},
		{"locked", func(b *workertest.Broker) { b.Refuse(wire.VaultLocked) }, nil, wire.VaultLocked},
		{"no daemon", func(b *workertest.Broker) { b.Stop() }, nil, wire.BrokerUnavailable},
		{"newer daemon", func(b *workertest.Broker) { b.SpeakAPI(wire.API + 1) }, nil, wire.PlatformUnsupported},
		{"older daemon", func(b *workertest.Broker) { b.SpeakAPI(wire.MinAPI - 1) }, nil, wire.PlatformUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := workertest.Start(t)
			b.Allow("worker")
			c := config(b, "worker")
			if tc.arrange != nil {
				tc.arrange(b)
			}
			if tc.config != nil {
				tc.config(&c)
			}
			if _, err := worker.Open(t.Context(), c); reason(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// The daemon's end of the run is known without asking.
func TestRunIsOverWhenTheDaemonGoes(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	run, err := worker.Open(t.Context(), config(b, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	b.Stop()
	<-run.Over()
}

// events collects what a keeper tells.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(event worker.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	word := map[worker.ChangeKind]string{worker.Watching: "watching", worker.ListChanged: "list", worker.ResourceUpdated: "updated " + event.Resource, worker.RunEnded: "ended"}[event.Kind]
	if event.Err != nil {
		word = string(event.Err.Reason)
	}
	if event.Again {
		word += " again"
	}
	if n := len(e.all); n == 0 || e.all[n-1] != word { // failed attempts repeat
		e.all = append(e.all, word)
	}
}

func (e *events) get() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

func (e *events) wait(t *testing.T, want ...string) {
	t.Helper()
	workertest.Eventually(t, strings.Join(want, ", "), func() bool { return len(e.get()) >= len(want) })
	if diff := cmp.Diff(want, e.get()); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
}

func keep(t *testing.T, c worker.Config, seen *events) *worker.Keeper {
	t.Helper()
	keeper, err := worker.NewKeeper(c, seen.add)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		keeper.Keep(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if _, err := keeper.Run(context.Background()); reason(err) != wire.BrokerUnavailable {
			t.Errorf("a run after the keeper ended: %v", err)
		}
	})
	return keeper
}

func TestKeeper(t *testing.T) {
	b := workertest.New(t)
	b.Put("plan", "text", []byte("1"))
	b.Allow("worker")
	var seen events
	keeper := keep(t, config(b, "worker"), &seen)

	if _, err := keeper.Run(t.Context()); reason(err) != wire.BrokerUnavailable {
		t.Fatalf("a run without a daemon: %v", err)
	}
	b.Start()
	first, err := keeper.Run(t.Context()) // asks at once, without waiting for the back-off
	if err != nil {
		t.Fatal(err)
	}
	seen.wait(t, "BROKER_UNAVAILABLE", "watching again")

	b.Allow("worker", "plan")
	b.Put("plan", "text", []byte("2"))
	seen.wait(t, "BROKER_UNAVAILABLE", "watching again", "list", "updated plan")

	b.Stop()
	<-first.Over()
	b.Start()
	workertest.Eventually(t, "another run", func() bool {
		run, err := keeper.Run(t.Context())
		return err == nil && run.ID != first.ID
	})
	workertest.Eventually(t, "the new run is watched", func() bool {
		got := seen.get()
		return got[len(got)-1] == "watching again"
	})
}

// A run that somebody ended is replaced, and its end is told.
func TestKeeperAfterTheRunEnded(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	var seen events
	keeper := keep(t, config(b, "worker"), &seen)
	if _, err := keeper.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen.wait(t, "watching")
	b.EndRuns(wire.RunEnded)
	seen.wait(t, "watching", "ended", "watching again")
	if b.Opened() != 2 {
		t.Errorf("%d runs were opened, want 2", b.Opened())
	}
}

// A refusal is the daemon's answer, not a reason to hammer it.
func TestKeeperRefused(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	b.Refuse(wire.VaultLocked)
	var seen events
	keeper := keep(t, config(b, "worker"), &seen)
	for range 2 {
		if _, err := keeper.Run(t.Context()); reason(err) != wire.VaultLocked {
			t.Fatalf("got %v", err)
		}
	}
	b.Refuse("")
	if _, err := keeper.Run(t.Context()); err != nil {
		t.Fatalf("after the refusal ended: %v", err)
	}
}

func TestConcurrentRuns(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	keeper := keep(t, config(b, "worker"), &events{})
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := keeper.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if b.Opened() != 1 {
		t.Errorf("%d runs were opened for 50 askers", b.Opened())
	}
}

func TestCleanEnviron(t *testing.T) {
	clean, changed := worker.CleanEnviron([]string{"PATH=/bin", "GODEBUG=http2debug=2", "GRPC_GO_LOG_SEVERITY_LEVEL=info", "LD_PRELOAD=x", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=/x", "GOTRACEBACK=crash", "MCPGODEBUG=a=1", "SB_HOME=/h", "LDX=1"})
	if diff := cmp.Diff([]string{"PATH=/bin", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=/x", "SB_HOME=/h", "LDX=1"}, clean); diff != "" || !changed {
		t.Errorf("changed %v\n%s", changed, diff)
	}
	if _, changed := worker.CleanEnviron([]string{"PATH=/bin"}); changed {
		t.Error("a clean environment was changed")
	}
}

// The process that goes on has never seen the variables, and cannot be read.
func TestHardenStartsAgain(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-test.run=^$")
	child.Env = []string{"WORKER_TEST_HARDEN=1", "GODEBUG=http2debug=2", "GRPC_GO_LOG_VERBOSITY_LEVEL=99", "KEPT=yes"}
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := fmt.Sprintf("WORKER_TEST_HARDEN=1\nKEPT=yes\ndumpable 0, core 0 of %d", coreAllowed())
	if diff := cmp.Diff(want, string(out)); diff != "" {
		t.Errorf("environment:\n%s", diff)
	}
}

func reason(err error) wire.Reason {
	if typed, ok := errors.AsType[*wire.Error](err); ok {
		return typed.Reason
	}
	return ""
}

// A run that was handed out before it was watched may have changed in between: whoever
// follows it is told so.
func TestKeeperTellsWhatItCouldNotSee(t *testing.T) {
	b := workertest.Start(t)
	b.Allow("worker")
	release := b.HoldWatches()
	defer release()
	events := make(chan worker.Event, 10)
	k, err := worker.NewKeeper(config(b, "worker"), func(e worker.Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		k.Keep(ctx)
	}()
	defer func() {
		cancel()
		<-kept
	}()
	if _, err := k.Run(ctx); err != nil {
		t.Fatal(err)
	}
	release()
	if event := <-events; event.Kind != worker.Watching || !event.Again {
		t.Errorf("told %+v", event)
	}
}
