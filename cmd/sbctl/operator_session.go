package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// A session is bound to its connection, and so to this process: no other process
// on the same terminal has it. A verb that needs one asks for the passphrase when
// the daemon says so and not before; console and watch keep theirs.

// causeAuthRequired is the cause of a refusal that a session would lift.
const causeAuthRequired cause = "OPERATOR_AUTH_REQUIRED"

// longWait is how long after a wrong passphrase a command waits for the next try;
// where the daemon wants more it ends.
const longWait = 8 * time.Second

// wantsPassphrase says whether err is the daemon's demand for a session.
func wantsPassphrase(err error) bool {
	refusal := fromSocket(err)
	return refusal != nil && cause(refusal.Cause) == causeAuthRequired
}

// operatorState is how the daemon knows the operator.
func (a *app) operatorState(ctx context.Context, doing string) (*operatorv1.GetOperatorResponse, error) {
	return call(ctx, a, doing, &operatorv1.GetOperatorRequest{}, operatorv1.OperatorServiceClient.GetOperator)
}

// unlockedOperator is operatorState where a passphrase is to be used: while the
// vault is locked the daemon does not know of any.
func (a *app) unlockedOperator(ctx context.Context, doing string) (*operatorv1.GetOperatorResponse, error) {
	if _, err := a.unlockedStatus(ctx, doing); err != nil {
		return nil, err
	}
	return a.operatorState(ctx, doing)
}

// authenticate opens a session on the connection of a, because of a refusal. The
// failure is the refusal where a session cannot be opened or would not help.
func (a *app) authenticate(ctx context.Context, doing string, refusal error) error {
	a.asking = true
	defer func() { a.asking = false }()
	state, err := a.operatorState(ctx, doing)
	if err != nil || state.GetAuthenticated() || !state.GetPassphrase() {
		return fail(refusal, "%s", doing)
	}
	if a.passphraseFD() == nil {
		tty, err := a.tty()
		if err != nil {
			return &failure{
				code: wire.AccessDenied, doing: doing, exit: wire.ExitDenied, cause: refusal, hint: "sbctl console",
				what: fmt.Sprintf("the operator's passphrase is needed, and there is no terminal to ask on: add %s N (%s)", passphraseOption, causeAuthRequired),
			}
		}
		_ = tty.Close()
	}
	_, err = a.openSession(ctx, doing)
	return err
}

// openSession takes the operator's passphrase and opens a session on the
// connection of a. A person may mistype it a few times, a program may not.
func (a *app) openSession(ctx context.Context, doing string) (opened *operatorv1.OpenSessionResponse, err error) {
	if a.aside == nil {
		return a.askSession(ctx, doing)
	}
	err = a.aside(func() (err error) {
		opened, err = a.askSession(ctx, doing)
		return err
	})
	return opened, err
}

func (a *app) askSession(ctx context.Context, doing string) (*operatorv1.OpenSessionResponse, error) {
	left := tries
	if a.passphraseFD() != nil {
		left = 1
	}
	for {
		if _, err := a.nextTry(ctx, doing); err != nil { // before anybody types
			return nil, err
		}
		secret, err := a.passphraseOr(ctx, doing, "Operator's passphrase")
		if err != nil {
			return nil, err
		}
		left--
		opened, err := a.trySession(ctx, doing, secret)
		secret.Wipe()
		if err == nil {
			a.idle = time.UnixMilli(opened.GetUntil()).Sub(a.now())
		}
		if err == nil || left == 0 || !wrongPassphrase(err) {
			return opened, err
		}
		a.say("this is not the operator's passphrase; try again")
	}
}

// trySession tries a passphrase as soon as the daemon lets one be tried.
func (a *app) trySession(ctx context.Context, doing string, secret content.Bytes) (*operatorv1.OpenSessionResponse, error) {
	wait, err := a.nextTry(ctx, doing)
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	opened, err := call(ctx, a, doing, &operatorv1.OpenSessionRequest{Passphrase: secret}, operatorv1.OperatorServiceClient.OpenSession)
	return opened, notTheOperators(err)
}

// wrongPassphrase says whether err means that a passphrase was tried and is not
// the operator's: to a try there is no other denial for who is the operator.
func wrongPassphrase(err error) bool {
	failed, ok := errors.AsType[*failure](err)
	if !ok || failed.code != wire.AccessDenied {
		return false
	}
	refusal := fromSocket(failed.cause)
	return refusal != nil && cause(refusal.Cause) != causeOperatorRefused
}

// notTheOperators says which passphrase is wrong: there is the vault's, too.
func notTheOperators(err error) error {
	if !wrongPassphrase(err) {
		return err
	}
	failed, _ := errors.AsType[*failure](err)
	_, waits, _ := strings.Cut(fromSocket(failed.cause).Message, ";")
	failed.what, failed.hint = "this is not the operator's passphrase", ""
	if waits != "" {
		failed.what += ";" + waits
	}
	return failed
}

// nextTry is how long after wrong passphrases nobody may try one. A wait that is
// too long to stand in front of is a failure.
func (a *app) nextTry(ctx context.Context, doing string) (time.Duration, error) {
	state, err := a.operatorState(ctx, doing)
	if err != nil {
		return 0, err
	}
	wait := time.Duration(state.GetWaitMs()) * time.Millisecond
	if wait > longWait {
		return 0, &failure{
			code: wire.RateLimited, doing: doing, exit: wire.Exit(wire.RateLimited),
			what: fmt.Sprintf("after so many wrong passphrases the next can be tried in %s", ui.Span(wait)),
		}
	}
	return wait, nil
}
