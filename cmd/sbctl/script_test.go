package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/launch"
)

// TestMain runs the tests with sbctl on the PATH or, under that name, is sbctl.
func TestMain(m *testing.M) {
	if handled, code := launch.Main(os.Args); handled {
		os.Exit(code)
	}
	// An agent that conformance poses as is a copy under another name.
	if filepath.Base(os.Args[0]) == "sbctl" || len(os.Args) > 1 && os.Args[1] == "__attempt" {
		if err := worker.Harden(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		// The terminal of whoever runs the tests is not ours to ask on. A script
		// that gives one (ttyin) has made this process a session leader already.
		_, _ = syscall.Setsid()
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		a := newApp(os.Stdin, os.Stdout, os.Stderr)
		code := a.run(ctx, os.Args[1:])
		a.die()
		os.Exit(code)
	}
	os.Exit(withProgram(m))
}

// programDir holds sbctl, and the two other programs once realPrograms built them.
var programDir string

// realPrograms builds sbd and sb-mcp beside sbctl.
var realPrograms = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-o", programDir, "subjectbroker/cmd/sbd", "subjectbroker/cmd/sb-mcp")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	return nil
})

// withProgram builds sbctl, as this test binary without the race detector: the
// scripts start it hundreds of times, and each start with it costs a second.
func withProgram(m *testing.M) int {
	dir, err := os.MkdirTemp("", "sbctl")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	programDir = dir
	if out, err := exec.Command("go", "test", "-c", "-o", filepath.Join(dir, "sbctl"), ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building sbctl: %v\n%s", err, out)
		return 1
	}
	if err := os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestScripts runs sbctl against a fake operator on a real socket.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/fake",
		Setup: func(env *testscript.Env) error {
			// A socket's path is short; $WORK is not always.
			home, err := os.MkdirTemp("", "sb")
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(home) })
			fake, stop, err := serveFake(home)
			if err != nil {
				return err
			}
			env.Defer(stop)
			env.Values["fake"] = fake
			env.Setenv("SB_HOME", home)
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TZ", "UTC")
			return nil
		},
		Cmds: commands(map[string]scriptCommand{"fake": fakeCommand}),
	})
}

// TestPrograms runs the three programs together, as they are installed.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("suite left out: programs: builds the three programs")
	}
	if err := realPrograms(); err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/programs",
		Setup: func(env *testscript.Env) error {
			home, err := os.MkdirTemp("", "sb") // a socket's path is short
			if err != nil {
				return err
			}
			env.Defer(func() { _ = os.RemoveAll(home) })
			env.Setenv("SB_HOME", filepath.Join(home, "h"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("TZ", "UTC")
			return os.Chmod(env.WorkDir, 0o700)
		},
		Cmds:      commands(map[string]scriptCommand{"serves": servesCommand, "launched": launchedCommand}),
		Condition: launchCondition,
	})
}

// servesCommand waits until a daemon answers; negated, until none does.
func servesCommand(ts *testscript.TestScript, neg bool, _ []string) {
	for range 200 {
		if err := ts.Exec("sbctl", "status", "-q"); (err != nil) == neg {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	ts.Fatalf("waited in vain (negated: %v)", neg)
}

type scriptCommand = func(ts *testscript.TestScript, neg bool, args []string)

// commands are those that every script has, and more.
func commands(more map[string]scriptCommand) map[string]scriptCommand {
	all := map[string]scriptCommand{"json": jsonCommand, "mode": modeCommand, "exits": exitsCommand}
	maps.Copy(all, more)
	return all
}

// fakeCommand puts the fake into a state:
//
//	fake denial SUBJECT CAPABILITY CAUSE [REASON]
//	fake run ID SUBJECT [LAUNCH]
//	fake launch ID SUBJECT [STATE]
//	fake line FILE         adds the lines of an audit log
//	fake refuse REASON [CAUSE]
//	fake clock             puts the clock behind
//	fake head CAUSE        the head cannot be kept outside the home
//	fake stuck CAUSE       rewrapping stands still
//	fake document FILE     is what export writes
//	fake passphrase WORD   is the operator's
//	fake wait MILLISECONDS must pass before the next try
//	fake uid               the caller is an operator by itself
//	fake approval ID SUBJECT SERVER TOOL [ARGUMENTS]
//	fake consent ID SUBJECT SERVER TOOL
func fakeCommand(ts *testscript.TestScript, _ bool, args []string) {
	fake, ok := ts.Value("fake").(*fakeOperator)
	if !ok || len(args) == 0 {
		ts.Fatalf("usage: fake denial|run|line|refuse|clock …")
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	switch args[0] {
	case "denial":
		reason := "ACCESS_DENIED"
		if len(args) > 4 {
			reason = args[4]
		}
		fake.denials = append(fake.denials, &operatorv1.DenialGroup{
			Subject: args[1], Capability: args[2], Cause: args[3], ReasonCode: reason, Count: 2, First: fakeNow, Last: fakeNow,
		})
	case "run":
		fake.runs = append(fake.runs, fakeRun(args[1:]...))
	case "launch":
		fake.launches = append(fake.launches, fakeLaunch(args[1:]...))
	case "line":
		for line := range strings.Lines(ts.ReadFile(args[1])) {
			fake.lines = append(fake.lines, []byte(line))
		}
	case "refuse":
		if len(args) == 1 {
			fake.refusal = nil
			break
		}
		fake.refusal = &wire.Error{Reason: wire.Reason(args[1]), Message: "refused for a test"}
		if len(args) > 2 {
			fake.refusal.Cause = args[2]
		}
	case "head":
		fake.keys.headCause = args[1]
	case "stuck":
		fake.keys.stuck = args[1]
	case "document":
		fake.document = []byte(ts.ReadFile(args[1]))
	case "passphrase":
		fake.auth.passphrase = []byte(args[1])
	case "wait":
		wait, err := strconv.ParseUint(args[1], 10, 64)
		ts.Check(err)
		fake.auth.wait = wait
	case "uid":
		fake.auth.uid = true
	case "approval":
		fake.cards.ask(fakeApproval(args[1:]...))
	case "consent":
		fake.cards.mu.Lock()
		fake.cards.consents = append(fake.cards.consents, fakeConsent(args[1], args[2], args[3], args[4]))
		fake.cards.mu.Unlock()
	case "clock":
		fake.behind = true
	default:
		ts.Fatalf("fake %s: unknown", args[0])
	}
}

// jsonCommand compares a value in a JSON document: json FILE PATH WANT, where
// PATH is names and indexes joined by dots, and WANT is JSON or a plain string.
func jsonCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH WANT")
	}
	var value any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &value); err != nil {
		ts.Fatalf("%s is no JSON: %v", args[0], err)
	}
	for step := range strings.SplitSeq(args[1], ".") {
		switch container := value.(type) {
		case map[string]any:
			value = container[step]
		case []any:
			index := 0
			if err := json.Unmarshal([]byte(step), &index); err != nil || index >= len(container) {
				ts.Fatalf("%s: no %s", args[0], args[1])
			}
			value = container[index]
		default:
			value = nil
		}
	}
	text, _ := json.Marshal(value)
	plain, _ := value.(string)
	if (string(text) == args[2] || plain == args[2] && plain != "") == neg {
		ts.Fatalf("%s: %s is %s, want %s (negated: %v)", args[0], args[1], text, args[2], neg)
	}
}

// modeCommand checks the mode of a file: mode FILE 0600.
func modeCommand(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", info.Mode().Perm()); got != args[1] {
		ts.Fatalf("%s has mode %s, want %s", args[0], got, args[1])
	}
}

// exitsCommand runs a program that must end with an exit code: exits CODE PROGRAM ARG…
func exitsCommand(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if fmt.Sprint(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}
