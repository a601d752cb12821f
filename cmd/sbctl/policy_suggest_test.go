package main

import (
	"strings"
	"testing"
	"time"

	"subjectbroker/audit/verify"
	"subjectbroker/grants/policy"
)

// A suggested policy forwards what was called, and nothing more.
func TestSuggestedPolicy(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	h := &callHistory{tools: map[string]int{}, approved: map[string]int{}, refused: map[string]int{}, sessions: map[string]uint64{}}
	call := func(after time.Duration, run, launch, tool, decision string) {
		h.add(&verify.Entry{Kind: kindCall, Timestamp: start.Add(after), RunID: run, LaunchID: launch, Server: "n", Tool: tool, Decision: decision})
	}
	call(0, "r1", "l1", "search", "allow")
	call(30*time.Second, "r2", "l1", "search", "allow")
	call(59*time.Second, "r1", "l1", "no: a tool", "allow")
	call(61*time.Second, "r3", "", "search", "allow")
	call(62*time.Second, "r3", "", "del", "deny")
	call(10*time.Minute, "r3", "", "search", "allow")
	h.add(&verify.Entry{Kind: kindCall, Timestamp: start.Add(20 * time.Minute), RunID: "r4", Server: "n", Tool: "merge", Decision: "allow", ApprovalID: "abcdefghjk"})
	h.add(&verify.Entry{Kind: "call.done", Timestamp: start, Tool: "other", Decision: "allow"})
	h.add(&verify.Entry{Kind: kindCall, Timestamp: start, Decision: "allow"}) // a name that was not kept

	text := h.document("s", "n")
	for _, want := range []string{"max_tool_calls: 3 ", "calls_per_window: 3,", "- \"no: a tool\" # 1 call\n", "- \"search\" # 4 calls\n", "# refused, and not in it: del, 1 call\n", "12:00:00Z to 2026-01-01T12:20:00Z", "require_approval:\n          - \"merge\" # 1 call approved\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in it:\n%s", want, text)
		}
	}
	warnings, err := policy.Lint([]byte(text), policy.Env{})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v %v\n%s", err, warnings, text)
	}
	d, err := policy.Parse([]byte(text), policy.Env{})
	if err != nil {
		t.Fatal(err)
	}
	trial, err := d.Try(policy.Pair{Subject: "s", Server: "n"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := trial.Call("merge", nil, policy.EndOK, start); err != nil || a.Decision != "pending" {
		t.Errorf("what a person approved: %s %v", a.Decision, err)
	}
	for i, want := range []string{"forward", "forward", "forward", "block"} {
		if a, err := trial.Call("search", nil, policy.EndOK, start.Add(time.Duration(i)*time.Minute)); err != nil || a.Decision != want {
			t.Errorf("call %d: %s %v, want %s", i+1, a.Decision, err, want)
		}
	}
	if a, err := trial.Call("del", nil, policy.EndOK, start); err != nil || a.Decision != "block" {
		t.Errorf("what was refused: %s %v", a.Decision, err)
	}
}
