package daemon

import (
	"context"
	"fmt"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// GetOperator says how the operator is known. It writes no entry.
func (o operator) GetOperator(ctx context.Context, _ *operatorv1.GetOperatorRequest) (*operatorv1.GetOperatorResponse, error) {
	d, p, at := o.d, callerOf(ctx), o.d.clock.read()
	response := &operatorv1.GetOperatorResponse{
		Session: d.sessions.of(p, d.clock) != "", Authenticated: d.authenticated(p), Guard: d.guard.on(), Operators: d.doors.operators,
		Sessions: uint32(d.sessions.count(at)),
	}
	if err := d.needUnlocked(); err != nil { // what is set is not known, and nothing can be done with it
		return response, nil
	}
	known, err := d.recognise()
	if err != nil {
		return nil, err
	}
	response.Passphrase = known.verifier != nil
	response.WaitMs = uint64((known.attempts.wait(at) + time.Millisecond - 1).Milliseconds())
	return response, nil
}

// OpenSession authenticates the connection of the call.
func (o operator) OpenSession(ctx context.Context, req *operatorv1.OpenSessionRequest) (*operatorv1.OpenSessionResponse, error) {
	d, p := o.d, callerOf(ctx)
	d.trying.Lock()
	defer d.trying.Unlock()
	id := grants.NewID()
	if err := o.try(ctx, req.GetPassphrase(), id); err != nil {
		return nil, err
	}
	at := d.clock.read()
	if !d.sessions.begin(p, id, at) {
		return nil, wire.Deny(wire.BrokerUnavailable) // and nobody hears that
	}
	if err := d.needUnlocked(); err != nil || !p.Alive() { // the lock did not see this session
		d.sessions.end(p)
		return nil, wire.Deny(wire.VaultLocked)
	}
	return &operatorv1.OpenSessionResponse{SessionId: id, Until: millis(at.now.Add(sessionIdle))}, nil
}

// CloseSession ends the session of the connection; none is fine.
func (o operator) CloseSession(ctx context.Context, _ *operatorv1.CloseSessionRequest) (*operatorv1.CloseSessionResponse, error) {
	// The entry comes first: it names the session.
	if err := o.d.account(ctx, operatorv1.OperatorService_CloseSession_FullMethodName, nil); err != nil {
		return nil, err
	}
	o.d.sessions.end(callerOf(ctx))
	return &operatorv1.CloseSessionResponse{}, nil
}

// SetOperatorPassphrase sets, changes or removes the passphrase. Every session
// ends with it.
func (o operator) SetOperatorPassphrase(ctx context.Context, req *operatorv1.SetOperatorPassphraseRequest) (*operatorv1.SetOperatorPassphraseResponse, error) {
	d, p := o.d, callerOf(ctx)
	fresh := req.GetPassphrase()
	if n := len(fresh); n > 0 && n < minPassphrase || n > maxPassphrase {
		return nil, refuse("a passphrase has from %d to %d bytes", minPassphrase, maxPassphrase)
	}
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	d.trying.Lock()
	defer d.trying.Unlock()
	known, err := d.recognise()
	if err != nil {
		return nil, err
	}
	set := known.verifier != nil
	switch {
	case !set && len(fresh) == 0:
		return nil, refuse("no passphrase is set")
	case !set && len(req.GetPresent()) > 0:
		return nil, refuse("no passphrase is set that could be the present one")
	case len(req.GetPresent()) > 0:
		if err := o.try(ctx, req.GetPresent(), d.sessions.of(p, d.clock)); err != nil {
			return nil, err
		}
	case d.authenticated(p):
	case set || len(d.doors.operators) > 0: // another uid is who can be authenticated
		return nil, d.unauthenticated(set)
	}
	action, row := "set", any(nil)
	if set {
		action = "change"
	}
	if len(fresh) == 0 {
		action = "remove"
	} else {
		row = newVerifier(fresh)
	}
	err = d.mutate(ctx, func(*state) (change, error) {
		e := o.entry(ctx, kindOperatorPassphrase)
		e.Action = action
		return change{
			effects: []*audit.Entry{e},
			write: func(tx *vault.Tx) error {
				if err := putRow(tx, rowAttempts, nil); err != nil {
					return err
				}
				return putRow(tx, rowPassphrase, row)
			},
			restrict: func(*state) { d.sessions.endAll() },
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.SetOperatorPassphraseResponse{Passphrase: row != nil}, nil
}

// try judges one passphrase and records that it was tried; a wrong one is counted
// before anybody is told. The caller holds trying.
func (o operator) try(ctx context.Context, passphrase []byte, session string) error {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return err
	}
	known, err := d.recognise()
	if err != nil {
		return err
	}
	if known.verifier == nil {
		refusal := refuse("no passphrase is set")
		refusal.Hint = hintSetPassphrase
		return refusal
	}
	e := o.entry(ctx, kindOperatorAuth)
	e.Action, e.SessionID = "try", session
	if wait := known.attempts.wait(d.clock.read()); wait > 0 {
		e.Decision, e.ReasonCode, e.Cause, e.SessionID = decisionDeny, string(wire.RateLimited), causeTooSoon, ""
		accountFor(ctx)
		if err := d.recordDenial(ctx, callerOf(ctx), *e); err != nil {
			return err
		}
		return &wire.Error{Reason: wire.RateLimited, Cause: causeTooSoon, Message: "after a wrong passphrase the next try has to wait " + inSeconds(wait)}
	}
	if len(passphrase) <= maxPassphrase && known.verifier.matches(passphrase) {
		if known.attempts.Wrong > 0 {
			return d.mutate(ctx, func(*state) (change, error) {
				return change{effects: []*audit.Entry{e}, write: func(tx *vault.Tx) error { return putRow(tx, rowAttempts, nil) }}, nil
			})
		}
		accountFor(ctx)
		return d.recordWith(ctx, (*audit.Log).RecordOperator, *e)
	}
	after := known.attempts.another(d.clock.read())
	e.Decision, e.ReasonCode, e.Cause, e.SessionID = decisionDeny, string(wire.AccessDenied), causeWrongPassphrase, ""
	if err := d.mutate(ctx, func(*state) (change, error) {
		return change{effects: []*audit.Entry{e}, write: func(tx *vault.Tx) error { return putRow(tx, rowAttempts, after) }}, nil
	}); err != nil {
		return err
	}
	return &wire.Error{
		Reason: wire.AccessDenied, Cause: causeWrongPassphrase,
		Message: "the passphrase is wrong; the next try has to wait " + inSeconds(after.pause()),
	}
}

// inSeconds is a time in words, rounded up.
func inSeconds(wait time.Duration) string {
	if seconds := (wait + time.Second - 1) / time.Second; seconds != 1 {
		return fmt.Sprintf("%d seconds", seconds)
	}
	return "1 second"
}

// Causes of refusals of the operator, and commands that mend them.
const (
	causeOperatorRefused = "OPERATOR_REFUSED"
	causeAuthRequired    = "OPERATOR_AUTH_REQUIRED"
	causeWrongPassphrase = "WRONG_PASSPHRASE"
	causeTooSoon         = "TOO_SOON"

	hintSetPassphrase = "sbctl operator set-passphrase"
	hintUnlock        = "sbctl operator unlock"
)

// unauthenticated refuses a call that needs an authenticated operator. set says
// that there is a passphrase.
func (d *Daemon) unauthenticated(set bool) *wire.Error {
	refusal := &wire.Error{
		Reason: wire.AccessDenied, Cause: causeAuthRequired, Hint: hintUnlock,
		Message: "this needs the operator's passphrase on this connection",
	}
	switch {
	case set:
	case len(d.doors.operators) > 0:
		refusal.Hint = ""
		refusal.Message = fmt.Sprintf("this needs an operator of another uid than the daemon's: uid %s", joinUIDs(d.doors.operators))
	default:
		refusal.Hint = hintSetPassphrase
		refusal.Message = "this needs an operator who can be told from other processes of this uid: set a passphrase first"
	}
	return refusal
}
