package daemon

import (
	"context"
	"time"

	"subjectbroker/audit"
	"subjectbroker/proto/wire"
)

// Kinds of entries about requests to a person. None holds what was asked for beside
// names and the digest of the arguments.
const (
	kindApprovalRequest audit.Kind = "approval.request" // a card was made
	kindApprovalApprove audit.Kind = "approval.approve" // a person said yes
	kindApprovalDeny    audit.Kind = "approval.deny"    // a person said no
	kindApprovalExpire  audit.Kind = "approval.expire"  // nobody answered, or nobody used the answer, in time
	kindApprovalVoid    audit.Kind = "approval.void"    // what it was about is not so any more
	kindApprovalRun     audit.Kind = "approval.run"     // an answer is used; count: the how manieth time, where they are counted
)

// approvalLife is how long a card lives, answered or not.
const approvalLife = 15 * time.Minute

// approvalWait is how long a request waits for a person where nothing else is said:
// shorter than what agents wait for a call.
const approvalWait = 25 * time.Second

// gateAsk is a request that needs a person. Everything in it but what is for display
// is what the answer is bound to: another value is another request.
type gateAsk struct {
	run        *run
	server     string // of a call; empty for a read
	tool       string
	resource   string // of a read; empty for a call
	capability string
	args       []byte // of a call, as they will be forwarded; shown with secrets masked, and not kept
	argsDigest audit.Hash
	pin        string // of the tool; empty: it is not trusted
	policy     string // version; empty: there is none
	why        string // in words for the operator, without anything of the agent's
	// wait is how long the caller waits for an answer; 0: approvalWait. Less than 0:
	// not at all.
	wait time.Duration
	// waiting is called, at most once, when the wait begins; nil: nobody is told.
	waiting func(approvalID string)
}

// gateOutcome is what came of asking a person.
type gateOutcome int

const (
	gateNone       gateOutcome = iota // nobody was asked
	gateApproved                      // may be done once: see gateAnswer.take
	gatePending                       // a card waits; the same request attaches to it
	gateDenied                        // a person said no, or nobody is asked any more: see cause
	gateExpired                       // the card ended unanswered while the caller waited
	gateNoApprover                    // nobody could answer
	gateReplay                        // the same request was approved and done, and nobody got its answer
)

// gateAnswer is what came of asking a person. Only gateApproved lets anything be
// done, and only after take has returned true.
//
// Whoever was approved calls take under the log's mutex, in the build of the entry
// that allows, after everything else that could refuse; untake as soon as it is
// certain that nothing will be done on the strength of it, whether take was called
// or not; and settle when it is known how that ended. take, untake and settle may
// be nil for other outcomes.
type gateAnswer struct {
	outcome gateOutcome
	id      string      // of the card, or of the standing answer that was used
	reason  wire.Reason // public reason of every outcome but gateApproved and gateReplay
	cause   string      // for the log; empty for gatePending
	replay  *replay     // of gateReplay
	take    func() bool
	untake  func()
	settle  func(end string, answer []byte, isError, delivered bool)
}

// giveBack says that nothing will be done on the strength of an approval.
func (g gateAnswer) giveBack() {
	if g.untake != nil {
		g.untake()
	}
}

// replay is the answer of a call that was done already.
type replay struct {
	answer  []byte
	isError bool // it is an error object
}

// gateOn asks a person, unless a standing answer covers the request. It waits at
// most for g.wait, and as long as ctx and the run last. The error is a *wire.Error
// and means that the log could not take the request: nothing was asked.
func (d *Daemon) gateOn(ctx context.Context, g gateAsk) (gateAnswer, error) {
	return gateAnswer{outcome: gateNoApprover, reason: wire.ApprovalDenied, cause: causeNoApprover}, nil
}

// approvable reports whether anybody could answer a request: an operator of another
// uid, or one with a passphrase.
func (d *Daemon) approvable() bool {
	if len(d.doors.operators) > 0 {
		return true
	}
	if d.locked() {
		return false
	}
	known, err := d.recognise()
	return err == nil && known.verifier != nil
}
