package policy

import (
	"fmt"
	"time"

	"subjectbroker/grants/rules"
)

// Decisions of an [Attempt].
const (
	TryForward = "forward"
	TryPending = "pending" // a person would be asked
	TryBlock   = "block"
	TryKill    = "kill" // blocked, and the session with it
)

// End is how a call that was forwarded in a [Trial] ended.
type End string

// Ends of a call.
const (
	EndOK        End = "ok"
	EndError     End = "error"     // an error, or a result that says isError
	EndTransport End = "transport" // no answer
)

// Trial judges calls by one policy of a document as the daemon would, counting in a
// session of its own: for trying a policy before it is applied. It looks at no
// grants and at no pins. It belongs to one goroutine.
type Trial struct {
	compiled *rules.Compiled
	meter    rules.Meter
}

// Attempt is what became of one call of a [Trial].
type Attempt struct {
	Decision string   // TryForward, TryPending, TryBlock or TryKill
	Policy   string   // that decided; empty when nothing stood against the call
	Action   string   // of that policy
	Rule     string   // id of the rule about arguments that decided
	Detail   string   // in words
	Warned   []string // policies that noted something without stopping the call
	Observed bool     // the rules only log at that time: the call is forwarded whatever Decision says
	Spent    uint64   // of the budget so far, in millionths of its unit
	End      End      // of a call that was forwarded; else empty
	Trace    []AttemptStep
}

// AttemptStep is one policy of the chain as it looked at a call.
type AttemptStep struct {
	Policy string
	Result string // pass, warn, block, kill or ask
	Detail string
}

// Try makes a policy of the document ready to be tried. resolve follows the links in
// an absolute path, in the part of it that exists; nil: paths are cleaned only. There
// is an error when there is no such policy.
func (d *Document) Try(key Pair, resolve func(path string) (string, error)) (*Trial, error) {
	one, known := d.Policies[key]
	if !known {
		return nil, fmt.Errorf("there is no policy of %s around %s", key.Subject, key.Server)
	}
	compiled, err := rules.Compile(one, resolve)
	if err != nil {
		return nil, err
	}
	return &Trial{compiled: compiled}, nil
}

// Call judges one call, and counts it when it is forwarded: it ends in an instant, as
// end says. arguments is one JSON object, or nothing; the error says what is wrong
// with it, and then nothing was judged.
func (t *Trial) Call(tool string, arguments []byte, end End, now time.Time) (Attempt, error) {
	ended, known := map[End]rules.End{EndOK: rules.EndOK, EndError: rules.EndError, EndTransport: rules.EndTransport}[end]
	if !known {
		return Attempt{}, fmt.Errorf("a call ends ok, with error or with transport, not with %q", end)
	}
	args, err := rules.ParseArgs(arguments)
	if err != nil {
		return Attempt{}, err
	}
	call := rules.Call{Tool: tool, Args: args, Now: now}
	v := t.compiled.Explain(&t.meter, call)
	a := Attempt{Policy: v.Policy, Action: string(v.Action), Rule: v.Rule, Detail: v.Detail, Warned: v.Warned, Observed: t.compiled.Observes(now)}
	for _, s := range v.Trace {
		a.Trace = append(a.Trace, AttemptStep{s.Policy, s.Result, s.Detail})
	}
	switch v.Outcome {
	case rules.Forwarded:
		a.Decision = TryForward
	case rules.Asked:
		a.Decision = TryPending
	case rules.Killed:
		a.Decision = TryKill
		if !a.Observed {
			t.meter.KilledBy = v.Policy
		}
	default:
		a.Decision = TryBlock
	}
	if a.Decision == TryForward || a.Observed {
		t.compiled.Take(&t.meter, call)
		t.compiled.Settle(&t.meter, tool, ended, now)
		a.End = end
	}
	a.Spent = t.meter.Spent
	return a, nil
}
