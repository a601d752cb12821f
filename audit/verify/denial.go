package verify

// Denial is the heading under which what a worker was refused is counted.
type Denial struct {
	Subject    string // empty where it is not known
	Capability string // action:object, empty where none was asked for
	Cause      string
	Reason     string
}

// Denial reports whether e tells that a worker was refused something, under
// which heading that is counted, and how often it happened. The rule:
//
//   - of kind acquire, explain, authz, run.open or suppressed; what an operator
//     mistyped is of another kind and is none
//   - decided deny or error; what waits for a person is none
//   - what was asked for is the capability, else action and resource, where an
//     action that is left out is read
//   - a suppressed entry stands for as many as it counts, any other for one
func (e *Entry) Denial() (d Denial, times uint64, ok bool) {
	switch e.Kind {
	case "acquire", "explain", "authz", "run.open", "suppressed":
	default:
		return Denial{}, 0, false
	}
	if e.Decision != "deny" && e.Decision != "error" {
		return Denial{}, 0, false
	}
	d = Denial{Subject: e.SubjectID, Capability: e.Capability, Cause: e.Cause, Reason: e.ReasonCode}
	if d.Capability == "" && e.ResourceID != "" {
		action := e.Action
		if action == "" {
			action = "read"
		}
		d.Capability = action + ":" + e.ResourceID
	}
	times = 1
	if e.Kind == "suppressed" {
		times = max(e.Count, 1)
	}
	return d, times, true
}
