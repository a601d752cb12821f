package verify_test

import (
	"testing"

	"subjectbroker/audit/verify"
)

func TestDenial(t *testing.T) {
	refused := func(change func(*verify.Entry)) verify.Entry {
		e := verify.Entry{
			Kind: "acquire", SubjectID: "worker", Action: "read", ResourceID: "plan",
			Decision: "deny", ReasonCode: "ACCESS_DENIED", Cause: "NO_GRANT",
		}
		change(&e)
		return e
	}
	kind := func(kind string) verify.Entry { return refused(func(e *verify.Entry) { e.Kind = kind }) }
	decided := func(decision string) verify.Entry {
		return refused(func(e *verify.Entry) { e.Decision = decision })
	}
	called := func(change func(*verify.Entry)) verify.Entry {
		e := verify.Entry{Kind: "call", SubjectID: "worker", Server: "github", Tool: "del", Decision: "deny", ReasonCode: "ACCESS_DENIED", Cause: "NO_GRANT"}
		change(&e)
		return e
	}
	plan := verify.Denial{Subject: "worker", Capability: "read:plan", Cause: "NO_GRANT", Reason: "ACCESS_DENIED"}
	with := func(capability string) verify.Denial {
		d := plan
		d.Capability = capability
		return d
	}
	for _, test := range []struct {
		name  string
		entry verify.Entry
		want  verify.Denial
		times uint64 // 0: no denial
	}{
		{"a refused acquire", kind("acquire"), plan, 1},
		{"a refused explain", kind("explain"), plan, 1},
		{"a refused call", kind("authz"), plan, 1},
		{"a key that was not taken", refused(func(e *verify.Entry) { e.Kind, e.Action, e.ResourceID, e.KeyID = "auth", "stateful", "", "kmpx" }), with("agent-key:kmpx"), 1},
		{"one that nobody knows", refused(func(e *verify.Entry) { e.Kind, e.Action, e.ResourceID = "auth", "stateful", "" }), with("agent-key"), 1},
		{"a run that was not opened", kind("run.open"), plan, 1},
		{"an error", decided("error"), plan, 1},
		{"what was allowed", decided("allow"), plan, 0},
		{"what waits for a person", decided("pending"), plan, 0},
		{"what was not decided", decided(""), plan, 0},
		{"what an operator mistyped", kind("operator.read"), plan, 0},
		{"an operator's wrong passphrase", kind("operator.auth"), plan, 0},
		{"a list that failed", kind("list"), plan, 0},
		{"an intent", kind("op.intent"), plan, 0},
		{"an action that is left out is read", refused(func(e *verify.Entry) { e.Action = "" }), plan, 1},
		{"another action", refused(func(e *verify.Entry) { e.Action = "use" }), with("use:plan"), 1},
		{"a capability says more than action and resource", refused(func(e *verify.Entry) { e.Capability = "call:a/b" }), with("call:a/b"), 1},
		{"an action alone is no capability", refused(func(e *verify.Entry) { e.ResourceID = "" }), with(""), 1},
		{"a suppressed entry stands for many", refused(func(e *verify.Entry) { e.Kind, e.Count = "suppressed", 7 }), plan, 7},
		{"the count of another kind is no number of denials", refused(func(e *verify.Entry) { e.Count = 7 }), plan, 1},
		{"a refused call of a tool", called(func(*verify.Entry) {}), with("call:github/del"), 1},
		{"the capability of a call", called(func(e *verify.Entry) { e.Capability, e.Action = "call:github/x", "call" }), with("call:github/x"), 1},
		{"a call that could not be made", called(func(e *verify.Entry) { e.Decision = "error" }), with("call:github/del"), 1},
		{"a call that waits for a person", called(func(e *verify.Entry) { e.Decision = "pending" }), plan, 0},
		{"a call that was allowed, and what it cost", called(func(e *verify.Entry) { e.Decision, e.Count = "allow", 7 }), plan, 0},
		{"a refused call is one, whatever it counts", called(func(e *verify.Entry) { e.Count = 7 }), with("call:github/del"), 1},
		{"how a call ended", called(func(e *verify.Entry) { e.Kind, e.Decision = "call.done", "error" }), plan, 0},
		{"a message that calls no tool", called(func(e *verify.Entry) { e.Tool, e.Action = "", "roots.list" }), with("method:github/roots.list"), 1},
		{"a session that lasted too long", called(func(e *verify.Entry) { e.Tool = "" }), with("call:github/*"), 1},
		{"a server that was not reached", called(func(e *verify.Entry) { e.Kind, e.Tool = "run.relay", "" }), with("call:github/*"), 1},
		{"a server that was reached", called(func(e *verify.Entry) { e.Kind, e.Tool, e.Decision = "run.relay", "", "allow" }), plan, 0},
		{"the server of another kind is no capability", called(func(e *verify.Entry) { e.Kind = "authz" }), with(""), 1},
		{"a secret that a server needs", refused(func(e *verify.Entry) { e.Action, e.Server = "use", "github" }), with("use:plan"), 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, times, ok := test.entry.Denial()
			if ok != (test.times > 0) || times != test.times || ok && got != test.want {
				t.Errorf("%+v, %d times, %v; want %+v, %d times", got, times, ok, test.want, test.times)
			}
		})
	}
}
