package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
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

type unlockCmd struct{}

// Help is the manual of unlock.
func (unlockCmd) Help() string {
	return `Asks the key source that was chosen when the vault was made. A keychain may ask
you to unlock it first.

Examples:
  sbctl unlock`
}

// Run unlocks.
func (unlockCmd) Run(ctx context.Context, a *app) error {
	if _, err := callWithin(ctx, a, keyPatience, "unlocking the vault", &operatorv1.UnlockRequest{}, operatorv1.OperatorServiceClient.Unlock); err != nil {
		return err
	}
	return a.printVaultState("unlocked")
}

type panicCmd struct{}

// Help is the manual of panic.
func (panicCmd) Help() string {
	return `Does not ask. Every subject is disabled and every run ended; "unlock" and then
"subject enable" for each take it back.

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
	for _, subject := range got.GetSubjects() {
		again = append(again, a.paste("subject", "enable", subject))
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
