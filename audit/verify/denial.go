package verify

import (
	"cmp"
	"strings"
)

// Denial is the heading under which what a worker was refused is counted.
type Denial struct {
	Subject    string // empty where it is not known
	Capability string // action:object, or method:server/method; empty where none was asked for
	Cause      string
	Reason     string
}

// Denial reports whether e tells that a worker was refused something, under
// which heading that is counted, and how often it happened. The rule:
//
//   - of kind acquire, explain, authz, call, run.open, run.relay, suppressed, or one of
//     those of memory that agents ask for; what
//     an operator mistyped is of another kind and is none, and so is how a call ended
//     that was forwarded
//   - decided deny or error; what waits for a person is none
//   - what was asked for is the capability, with the tenants that were named, else action and resource, where an
//     action that is left out is read, else tool of a server, call:server/tool, where
//     a tool that is left out is *; a message that calls no tool is method:server/method
//   - a suppressed entry stands for as many as it counts, any other for one
func (e *Entry) Denial() (d Denial, times uint64, ok bool) {
	switch e.Kind {
	case "acquire", "explain", "authz", "call", "run.open", "run.relay", "suppressed", "auth",
		"memory.search", "memory.browse", "memory.stats", "memory.read", "memory.history", "memory.capture":
	default:
		return Denial{}, 0, false
	}
	if e.Decision != "deny" && e.Decision != "error" {
		return Denial{}, 0, false
	}
	d = Denial{Subject: e.SubjectID, Capability: e.Capability, Cause: e.Cause, Reason: e.ReasonCode}
	switch {
	case strings.HasPrefix(e.Kind, "memory.") && len(e.Tenants) > 0:
		d.Capability += ":" + strings.Join(e.Tenants, ",")
	case d.Capability != "":
	case e.Kind == "auth":
		if d.Capability = "agent-key"; e.KeyID != "" {
			d.Capability += ":" + e.KeyID
		}
	case e.ResourceID != "":
		d.Capability = cmp.Or(e.Action, "read") + ":" + e.ResourceID
	case e.Server == "" || e.Kind != "call" && e.Kind != "run.relay":
	case e.Kind == "call" && e.Tool == "" && e.Action != "":
		d.Capability = "method:" + e.Server + "/" + e.Action
	default:
		d.Capability = "call:" + e.Server + "/" + cmp.Or(e.Tool, "*")
	}
	times = 1
	if e.Kind == "suppressed" {
		times = max(e.Count, 1)
	}
	return d, times, true
}
