package vault_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"subjectbroker/vault"
)

// In a child process these name the home to compact, and the step to die at; "" is none.
const (
	compactDir  = "VAULT_TEST_COMPACT_DIR"
	compactStep = "VAULT_TEST_COMPACT_STEP"
)

// compactSteps of a vault whose migration left a copy, in their order.
var compactSteps = []string{
	"copy made", "copied", "copy synced", "copy compared", "exchanged", "exchange synced", "switched", "overwritten", "removed",
}

// child runs one test of this file in a process of its own.
func child(t *testing.T, test, dir, step string, before ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(slices.Clone(before), self, "-test.run=^"+test+"$", "-test.v=false")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), compactDir+"="+dir, compactStep+"="+step)
	return cmd
}

// TestChildCompacts is no test but what child processes run.
func TestChildCompacts(t *testing.T) {
	dir := os.Getenv(compactDir)
	if dir == "" {
		return
	}
	runtime.LockOSThread() // strace counts calls by thread
	cfg := homeConfig(dir)
	vault.OnStep(&cfg, func(step string) {
		if step == os.Getenv(compactStep) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	v := open(t, cfg)
	overwritten, err := v.Compact()
	fmt.Printf("\nsaid: overwritten %v, %v\n", overwritten, err)
	if errors.Is(err, vault.ErrFailed) {
		fmt.Println("said: stopped")
		if err := v.View(func(*vault.Tx) error { return nil }); !errors.Is(err, vault.ErrFailed) {
			t.Errorf("a view says %v", err)
		}
		if err := v.Reopen(); err != nil {
			t.Errorf("reopening: %v", err)
		}
	}
	if err := v.Verify(true, nil); err != nil {
		t.Error(err)
	}
}

func killed(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// P12: a kill between any two steps leaves a vault that opens, the same one, and the next unlock finishes the work.
func TestCompactKilled(t *testing.T) {
	for i, step := range compactSteps {
		t.Run(step, func(t *testing.T) {
			p := newPurged(t)
			out, err := child(t, "TestChildCompacts", p.dir, step).CombinedOutput()
			if !killed(err) {
				t.Fatalf("the child ended with %v: %s", err, out)
			}
			t.Logf("left: %v", listing(t, p.dir))
			exchanged := i >= slices.Index(compactSteps, "exchanged")
			if left := p.found(t); (len(left) == 0) != (i >= slices.Index(compactSteps, "overwritten")) {
				t.Errorf("killed after %q, there is %v", step, left)
			}
			p.check(t)
			if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
				t.Errorf("home (-want +got):\n%s", diff)
			}
			if left := p.found(t); (len(left) == 0) != exchanged {
				t.Errorf("after the next unlock there is %v", left)
			}
			v := open(t, p.cfg)
			if _, err := v.Compact(); err != nil {
				t.Error(err)
			}
			if left := p.found(t); len(left) != 0 {
				t.Errorf("after the next try there is %v", left)
			}
			p.compare(t, v)
		})
	}
}

// A home that lost power in the middle: the new file is a piece, or the old one half overwritten.
func TestCompactCut(t *testing.T) {
	for _, size := range []int{0, 1, 4096, 10000, 1 << 20} {
		p := newPurged(t)
		spit(t, p.cfg.File+".compact", bytes.Repeat([]byte{0xA5}, size))
		p.check(t)
		if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
			t.Errorf("%d bytes (-want +got):\n%s", size, diff)
		}
	}
}

// TestChildChanges is no test but what child processes run: changes that are acknowledged on stdout, and compacting in between.
func TestChildChanges(t *testing.T) {
	dir := os.Getenv(compactDir)
	if dir == "" {
		return
	}
	v := open(t, homeConfig(dir))
	for {
		generation := v.State().Generation + 1
		mutate(t, v, func(tx *vault.Tx) error {
			name := fmt.Sprintf("r%d", generation%5)
			if generation%10 >= 5 {
				if err := tx.Remove(name); !errors.Is(err, vault.ErrNotFound) {
					return err
				}
				return nil
			}
			return put(name, vault.KindText, strings.Repeat(fmt.Sprintln(generation), 200))(tx)
		})
		fmt.Printf("\nacknowledged %d\n", generation)
		if generation%3 == 0 {
			if _, err := v.Compact(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// P12: kill -9 at any moment; the oracle is what was acknowledged.
func TestCompactKillLoop(t *testing.T) {
	rounds := 12
	if os.Getenv("TEST_ALL") == "1" {
		rounds = 60
	}
	dir := t.TempDir()
	v, err := vault.Create(t.Context(), homeConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	var acknowledged uint64
	interrupted := 0
	for range rounds {
		cmd := child(t, "TestChildChanges", dir, "")
		acks, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		first := true
		for lines := bufio.NewScanner(acks); lines.Scan(); {
			number, ok := strings.CutPrefix(lines.Text(), "acknowledged ")
			if !ok {
				continue
			}
			if acknowledged, err = strconv.ParseUint(number, 10, 64); err != nil {
				t.Fatal(err)
			}
			if first {
				first = false
				kill.Reset(time.Duration(rand.IntN(60_000)) * time.Microsecond)
			}
		}
		if err := cmd.Wait(); !killed(err) || first {
			t.Fatalf("the child ended with %v: %s", err, said.String())
		}
		kill.Stop()
		if names := listing(t, dir); len(names) > len(wholeHome) {
			interrupted++
		}
		v, err := vault.Open(t.Context(), homeConfig(dir))
		if err != nil {
			t.Fatalf("after generation %d: %v", acknowledged, err)
		}
		if err := v.Verify(true, nil); err != nil {
			t.Errorf("after generation %d: %v", acknowledged, err)
		}
		got := v.State().Generation
		if got != acknowledged && got != acknowledged+1 {
			t.Errorf("generation %d, though %d was acknowledged", got, acknowledged)
		}
		// The newest generation that wrote or removed a name says what it is now.
		for n := got; n > 0 && n+5 > got; n-- {
			content, err := read(t, v, fmt.Sprintf("r%d", n%5), 0)
			switch want := strings.Repeat(fmt.Sprintln(n), 200); {
			case n%10 >= 5 && !errors.Is(err, vault.ErrNotFound):
				t.Errorf("removed in %d: %.20q, %v", n, content, err)
			case n%10 < 5 && (err != nil || content != want):
				t.Errorf("put in %d: %.20q, %v", n, content, err)
			}
		}
		if err := v.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wholeHome, listing(t, dir)); diff != "" {
			t.Errorf("home (-want +got):\n%s", diff)
		}
	}
	t.Logf("%d kills, %d of them while compacting, %d generations acknowledged, none lost", rounds, interrupted, acknowledged)
}

// injected runs TestChildCompacts with a system call that fails, and tells what it said and whether the fault bit.
func injected(t *testing.T, dir, inject string) (said string, bit bool) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("suite left out: injected faults: no strace")
	}
	call, _, _ := strings.Cut(inject, ":")
	log := filepath.Join(t.TempDir(), "strace")
	cmd := child(t, "TestChildCompacts", dir, "", strace, "-f", "-qq", "-o", log, "-e", "trace="+call, "-e", "inject="+inject)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the child ended with %v: %s", err, out)
	}
	return string(out), bytes.Contains(slurp(t, log), []byte("INJECTED"))
}

// Where names cannot be exchanged, the new file replaces the old one, which is overwritten all the same.
func TestCompactWithoutExchange(t *testing.T) {
	p := newPurged(t)
	// The old file's bytes are looked for through a second descriptor: it has no name afterwards.
	old, err := os.Open(p.cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	said, bit := injected(t, p.dir, "renameat2:error=EINVAL")
	if !bit {
		t.Fatal("the fault did not bite")
	}
	if !strings.Contains(said, "said: overwritten") || !strings.Contains(said, "<nil>") {
		t.Errorf("says %s", said)
	}
	if left := p.found(t); len(left) != 0 {
		t.Errorf("still there: %v", left)
	}
	whole, err := io.ReadAll(old)
	if err != nil || len(whole) == 0 || bytes.Count(whole, []byte{0}) != len(whole) {
		t.Errorf("the old file is not overwritten: %d bytes, %v", len(whole), err)
	}
	if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
		t.Errorf("home (-want +got):\n%s", diff)
	}
	p.check(t)
}

// Every call that fails is an error, and none of them costs a row. Only the sync that makes the exchange durable stops the vault.
func TestCompactWithFailingCalls(t *testing.T) {
	for call, test := range map[string]struct {
		step    int // of how many calls one fails
		least   int // faults that must have bitten
		stopped int
	}{
		"fsync":     {1, 5, 1},
		"fdatasync": {1, 1, 0},
		"pwrite64":  {4, 5, 0},
		"renameat2": {1, 1, 0},
		"unlinkat":  {1, 1, 0},
	} {
		t.Run(call, func(t *testing.T) {
			bitten, stopped := 0, 0
			for at := 1; at < 200; at += test.step {
				p := newPurged(t)
				said, bit := injected(t, p.dir, fmt.Sprintf("%s:error=EIO:when=%d", call, at))
				if !bit {
					if !strings.Contains(said, "<nil>") {
						t.Errorf("without a fault it says %s", said)
					}
					break
				}
				bitten++
				if !strings.Contains(said, "input/output error") || !strings.Contains(said, "overwritten false") {
					t.Errorf("call %d failed, and it says %s", at, said)
				}
				if strings.Contains(said, "said: stopped") {
					stopped++
				}
				p.check(t)
				if diff := cmp.Diff(wholeHome, listing(t, p.dir)); diff != "" {
					t.Errorf("home (-want +got):\n%s", diff)
				}
			}
			if bitten < test.least || stopped != test.stopped {
				t.Errorf("%d faults, %d of them stop the vault", bitten, stopped)
			}
			t.Logf("%d faults", bitten)
		})
	}
}
