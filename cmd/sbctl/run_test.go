package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"subjectbroker/worker/launch"
)

// What the daemon keeps for people fits its limit, whatever the arguments are.
func TestCommandForPeople(t *testing.T) {
	for _, test := range []struct {
		argv []string
		want string
	}{
		{[]string{"make", "test"}, "make test"},
		{[]string{"sh", "-c", "echo 'x' y"}, `sh -c 'echo '\''x'\'' y'`},
		{[]string{"a\xffb"}, "'a\uFFFDb'"},
	} {
		if got := commandForPeople(test.argv); got != test.want {
			t.Errorf("%q: %s, want %s", test.argv, got, test.want)
		}
	}
	for length := maxLaunchCommand - 8; length < maxLaunchCommand+8; length++ {
		got := commandForPeople([]string{strings.Repeat("ä", length/2) + strings.Repeat("x", length%2)})
		if len(got) > maxLaunchCommand || !utf8.ValidString(got) {
			t.Errorf("of %d bytes it makes %d: %q", length, len(got), got)
		}
	}
}

// A command that was told to stop has ended as it says; that somebody pressed
// Ctrl-C meanwhile makes no failure of it.
func TestResultIsNoInterruption(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if interrupted(ctx, exitCode(130)) {
		t.Error("exit code 130 is taken for an interruption of sbctl")
	}
	if !interrupted(ctx, errors.New("cancelled")) {
		t.Error("an error is not")
	}
}

func TestNotStarted(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{&exec.Error{Name: "x", Err: exec.ErrNotFound}, 127},
		{fs.ErrNotExist, 127},
		{fs.ErrPermission, 126},
		{errors.New("exec format error"), 126},
	} {
		if got := notStarted("starting x", test.err).exit; got != test.want {
			t.Errorf("%v: exit code %d, want %d", test.err, got, test.want)
		}
	}
}

// What a machine lacks, and what must not be, have exit codes and words of their own.
func TestNotLaunched(t *testing.T) {
	missing, _ := errors.AsType[*failure](notLaunched("starting x", &launch.Unsupported{Piece: "user namespaces", Hint: "ask somebody"}))
	if missing == nil || missing.exit != 1 || missing.what != "PLATFORM_UNSUPPORTED: this machine does not provide user namespaces; ask somebody" {
		t.Errorf("%+v", missing)
	}
	refused, _ := errors.AsType[*failure](notLaunched("starting x", launch.ErrRefused))
	if refused == nil || refused.exit != 2 {
		t.Errorf("%+v", refused)
	}
}

// A daemon of another uid cannot look at a launch, and that is said before one
// is started.
func TestLaunchNeedsOneUID(t *testing.T) {
	dir := t.TempDir()
	operator := filepath.Join(dir, "operator")
	if err := os.Mkdir(operator, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkOneUID("starting x", dir); err != nil {
		t.Errorf("of this uid: %v", err)
	}
	if os.Geteuid() != 0 {
		return // only root gives a directory away
	}
	if err := os.Chown(operator, 65534, -1); err != nil {
		t.Fatal(err)
	}
	refused, _ := errors.AsType[*failure](checkOneUID("starting x", dir))
	if refused == nil || refused.exit != 1 || refused.what != "PLATFORM_UNSUPPORTED: launches need sbctl run and sbd under one uid, and sbd has uid 65534" {
		t.Errorf("%+v", refused)
	}
}
