package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// runDemo runs a demonstration with the three real programs, as a program would ask
// for it, and returns the status of each check and the exit code.
func runDemo(t *testing.T, story string, args ...string) (checks map[string]string, code int) {
	t.Helper()
	if testing.Short() {
		t.Skip("suite left out: demo: builds the three programs")
	}
	if err := realPrograms(); err != nil {
		t.Fatal(err)
	}
	temporary, err := os.MkdirTemp("", "sb") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temporary)
	demo := exec.CommandContext(t.Context(), filepath.Join(programDir, "sbctl"), append([]string{"demo", story, "-o", "json"}, args...)...)
	// Nothing of the person's own broker is touched, even when it is named.
	demo.Env = append(os.Environ(), "TMPDIR="+temporary, "SB_HOME=/nonexistent", "SB_SOCKET=/nonexistent")
	out, err := demo.Output()
	if demo.ProcessState == nil {
		t.Fatalf("demo %s: %v", story, err)
	}
	var list struct{ Items []checkView }
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	checks = map[string]string{}
	for _, check := range list.Items {
		checks[check.ID] = check.Status
		t.Logf("%s %s: %s", check.Status, check.ID, check.Summary)
	}
	return checks, demo.ProcessState.ExitCode()
}

func TestDemoTools(t *testing.T) {
	checks, code := runDemo(t, "tools")
	if code != 0 || len(checks) < 25 {
		t.Errorf("exit %d after %d checks", code, len(checks))
	}
	for id, status := range checks {
		if status != "pass" {
			t.Errorf("%s: %s", id, status)
		}
	}
}

// The control: without policy and gate the checks fail that they are there for, and
// the others hold all the same.
func TestDemoToolsUnprotected(t *testing.T) {
	checks, code := runDemo(t, "tools", "--unprotected")
	if code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	for id, want := range map[string]string{
		"list": "fail", "denied-tool": "fail", "argument": "fail", "pending": "fail", "budget-exact": "fail", "tally": "fail",
		"allowed": "pass", "used": "pass", "not-readable": "pass", "withheld": "pass", "never-seen": "pass", "verify": "pass",
	} {
		if checks[id] != want {
			t.Errorf("%s: %q, want %s", id, checks[id], want)
		}
	}
}
