package main

import "testing"

func TestDemoMemory(t *testing.T) {
	checks, code := runDemo(t, "memory")
	if code != 0 || len(checks) < 28 {
		t.Errorf("exit %d after %d checks", code, len(checks))
	}
	for id, status := range checks {
		if status != "pass" {
			t.Errorf("%s: %s", id, status)
		}
	}
}

// The control: where everybody was granted everything the checks fail that scopes are
// there for, and the others hold all the same.
func TestDemoMemoryUnprotected(t *testing.T) {
	checks, code := runDemo(t, "memory", "--unprotected")
	if code != 1 {
		t.Errorf("exit %d, want 1", code)
	}
	for id, want := range map[string]string{
		"granted": "fail", "refused": "fail", "loud": "fail", "whole": "fail", "write": "fail", "entry": "fail", "scores": "fail", "never-heard": "fail",
		"current": "pass", "replaced": "pass", "matched": "pass", "history": "pass", "idempotent": "pass",
		"not-in-vault": "pass", "not-in-index": "pass", "still-forgotten": "pass", "verify": "pass", "no-content": "pass",
	} {
		if checks[id] != want {
			t.Errorf("%s: %q, want %s", id, checks[id], want)
		}
	}
}
