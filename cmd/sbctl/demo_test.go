package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestDemo runs the demonstration with the three real programs, as a program
// would ask for it, and then as a person.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("suite left out: demo: builds the three programs")
	}
	dir := t.TempDir()
	if err := realPrograms(); err != nil {
		t.Fatal(err)
	}
	temporary := filepath.Join(dir, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	demo := exec.CommandContext(t.Context(), filepath.Join(programDir, "sbctl"), "demo", "-o", "json")
	demo.Dir = dir
	// Nothing of the person's own broker is touched, even when it is named.
	demo.Env = append(os.Environ(), "TMPDIR="+temporary, "SB_HOME=/nonexistent", "SB_SOCKET=/nonexistent")
	out, err := demo.Output()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	var list struct{ Items []checkView }
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(list.Items) < 15 {
		t.Errorf("only %d checks", len(list.Items))
	}
	for _, check := range list.Items {
		if check.Status != "pass" {
			t.Errorf("%s: %s", check.ID, check.Summary)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
