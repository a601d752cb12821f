package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type vaultStateView struct {
	VaultState string `json:"vaultState"`
}

func (a *app) printVaultState(state string) error {
	return a.out.Object(ui.Object{ID: state, Fields: []ui.Field{{Name: "vault", Value: state}}, Value: vaultStateView{state}})
}

type lockCmd struct{}

// Help is the manual of lock.
func (lockCmd) Help() string {
	return `Runs end, and every request is refused with VAULT_LOCKED until "unlock".

Examples:
  sbctl lock`
}

// Run locks.
func (lockCmd) Run(ctx context.Context, a *app) error {
	if _, err := call(ctx, a, "locking the vault", &operatorv1.LockRequest{}, operatorv1.OperatorServiceClient.Lock); err != nil {
		return err
	}
	return a.printVaultState("locked")
}

type unlockCmd struct {
	Passphrase   bool `xor:"with" help:"Open it with its passphrase, asked for on the terminal or read from --passphrase-fd."`
	RecoveryCode bool `xor:"with" help:"Open it with the recovery code, asked for on the terminal or read from --recovery-code-fd."`

	RecoveryCodeFD *int `name:"recovery-code-fd" placeholder:"N" help:"Open it with the recovery code that this open descriptor holds."`
}

// Help is the manual of unlock.
func (unlockCmd) Help() string {
	return `Asks the keychain and the key file, in the order of the slots. A keychain may ask
you to unlock it first.

When they do not answer, a passphrase or the recovery code opens the vault too,
if there is such a slot; over ssh as well. They are asked for on the terminal, or
read from a descriptor that a program opened for it; never from the command line
or the environment. The vault's passphrase is not the operator's, which
"operator set-passphrase" sets.

Examples:
  sbctl unlock
  sbctl unlock --passphrase
  sbctl unlock --recovery-code
  pass show broker | sbctl unlock --passphrase-fd 0`
}

// request says what opens the vault, after asking for it. The caller wipes its
// secret.
func (c unlockCmd) request(ctx context.Context, a *app, doing string) (*operatorv1.UnlockRequest, error) {
	request := &operatorv1.UnlockRequest{}
	passphrase, code := c.Passphrase || a.opts.PassphraseFD != nil, c.RecoveryCode || c.RecoveryCodeFD != nil
	switch {
	case passphrase && code:
		return nil, refuse(doing, "it is opened with the passphrase or with the recovery code, not with both")
	case passphrase:
		request.Slot = slotPassphrase
	case code:
		request.Slot = slotRecovery
	default:
		return request, nil
	}
	s, err := a.status(ctx, doing) // before anybody types
	if err != nil {
		return nil, err
	}
	if len(s.GetSlots()) > 0 && !hasSlot(s.GetSlots(), request.GetSlot()) {
		return nil, refuse(doing, "the vault has no slot of kind %s", request.GetSlot()).withHint("sbctl key slot list")
	}
	request.Secret, err = a.slotSecret(ctx, doing, request.GetSlot(), codeSource{c.RecoveryCodeFD})
	return request, err
}

// Run unlocks.
func (c unlockCmd) Run(ctx context.Context, a *app) error {
	const doing = "unlocking the vault"
	request, err := c.request(ctx, a, doing)
	if err != nil {
		return err
	}
	defer clear(request.GetSecret())
	if _, err := callWithin(ctx, a, keyPatience, doing, request, operatorv1.OperatorServiceClient.Unlock); err != nil {
		return a.otherSlot(ctx, wrongSecret(err, request.GetSlot()), request.GetSlot())
	}
	return a.printVaultState("unlocked")
}

// otherSlot names what a person may open the vault with, when the daemon's own
// key sources did not.
func (a *app) otherSlot(ctx context.Context, err error, tried string) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok || tried != "" || failed.exit != wire.ExitUnavailable || failed.code == wire.BrokerUnavailable {
		return err
	}
	s, statusErr := a.status(ctx, "")
	if statusErr != nil {
		return err
	}
	switch {
	case hasSlot(s.GetSlots(), slotPassphrase):
		failed.hint = "sbctl unlock --passphrase"
	case hasSlot(s.GetSlots(), slotRecovery):
		failed.hint = "sbctl unlock --recovery-code"
	}
	return failed
}

type panicCmd struct{}

// Help is the manual of panic.
func (panicCmd) Help() string {
	return `Does not ask. Every subject is disabled and every run ended; "unlock" and then
"subject enable" with their names take it back.

Examples:
  sbctl panic`
}

type panicView struct {
	Subjects   []string `json:"subjects"`
	Runs       uint32   `json:"runs"`
	VaultState string   `json:"vaultState"`
}

// Run stops everything.
func (panicCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "stopping everything", &operatorv1.PanicRequest{}, operatorv1.OperatorServiceClient.Panic)
	if err != nil {
		return err
	}
	again := []string{a.paste("unlock")}
	if len(got.GetSubjects()) > 0 {
		again = append(again, a.paste(append([]string{"subject", "enable"}, got.GetSubjects()...)...))
	}
	a.done("to take it back: %s", strings.Join(again, " && "))
	return a.out.Object(ui.Object{
		ID: "locked",
		Fields: []ui.Field{
			{Name: "disabled", Value: strings.Join(got.GetSubjects(), ", ")},
			{Name: "runs ended", Value: fmt.Sprint(got.GetRuns())},
			{Name: "vault", Value: "locked"},
		},
		Value: panicView{append([]string{}, got.GetSubjects()...), got.GetRuns(), "locked"},
	})
}
