package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Kinds of slots.
const (
	slotKeychain   = "keychain"
	slotFile       = "file"
	slotPassphrase = "passphrase"
	slotRecovery   = "recovery"
)

// slotOpens says who opens the vault with a slot of a kind.
var slotOpens = map[string]string{
	slotKeychain:   "the daemon, when your keychain is unlocked",
	slotFile:       "the daemon, with secret.key beside the vault",
	slotPassphrase: "you, with the passphrase; backups too",
	slotRecovery:   "you, with the recovery code; backups too",
}

type keySlotCmd struct {
	List keySlotListCmd `cmd:"" default:"1" help:"List slots, in the order in which they are tried"`
	Add  keySlotAddCmd  `cmd:"" help:"Add a way to the root key"`
	Test keySlotTestCmd `cmd:"" help:"Prove that a slot opens the vault"`
	Rm   keySlotRmCmd   `cmd:"" help:"Remove a slot and rekey"`
}

// Help is the manual of key slot.
func (keySlotCmd) Help() string {
	return `Each slot wraps the same root key, so any one of them opens the vault. There is at
most one of each kind:

  keychain    a key in the keychain of your log-in; opened by the daemon itself
  file        a key in secret.key, beside the vault; opened by the daemon itself
  passphrase  what you type, made a key by Argon2id
  recovery    the recovery code, on paper

The last slot cannot be removed.`
}

type keySlotListCmd struct{}

// Help is the manual of key slot list.
func (keySlotListCmd) Help() string {
	return `Answers also while the vault is locked.

Examples:
  sbctl key slot list
  sbctl key slot -q`
}

// Run lists slots.
func (keySlotListCmd) Run(ctx context.Context, a *app) error {
	s, err := a.status(ctx, "listing slots")
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"SLOT", "KIND", "OPENED BY"}, Items: viewSlots(s.GetSlots()), IDs: slotKinds(s.GetSlots())}
	for _, slot := range s.GetSlots() {
		list.Rows = append(list.Rows, []string{slot.GetName(), slot.GetKind(), slotOpens[slot.GetKind()]})
	}
	if words := a.recoveryWords(s.GetSlots()); words != "" {
		a.done("warning: %s", words)
	}
	return a.list(list, "the daemon names no slots")
}

type keySlotAddCmd struct {
	Kind string `arg:"" enum:"keychain,file,passphrase,recovery" help:"keychain, file, passphrase or recovery."`
}

// Help is the manual of key slot add.
func (keySlotAddCmd) Help() string {
	return `A passphrase is typed twice on the terminal. It is not shown, not stored, and
nobody can tell it to you again; it is taken byte for byte, so letters that every
keyboard has are best. "recovery" is the same as "key recovery new".

To move the vault from the key file to the keychain, add the one, test it, and
remove the other.

Examples:
  sbctl key slot add passphrase
  sbctl key slot add keychain
  sbctl key slot test keychain
  sbctl key slot rm file`
}

type slotChangeView struct {
	Slot     slotView `json:"slot"`
	Replaced bool     `json:"replaced"`
}

// Run adds a slot.
func (c keySlotAddCmd) Run(ctx context.Context, a *app) error {
	doing := "adding the slot " + c.Kind
	if a.opts.PassphraseFD != nil && c.Kind != slotPassphrase {
		return refuse(doing, "--passphrase-fd goes with passphrase alone")
	}
	if c.Kind == slotRecovery {
		return a.newRecoveryCode(ctx, doing)
	}
	request := &operatorv1.AddSlotRequest{Kind: c.Kind}
	if c.Kind == slotPassphrase {
		if err := a.refuseTaken(ctx, doing, c.Kind); err != nil {
			return err
		}
		secret, err := a.newPassphrase(ctx, doing, passphraseOption, a.takePassphraseFD(), "whoever has a copy of the vault can try all like it")
		if err != nil {
			return err
		}
		defer secret.Wipe()
		request.Secret = secret
	}
	got, err := callWithin(ctx, a, keyPatience, doing, request, operatorv1.OperatorServiceClient.AddSlot)
	if err != nil {
		return err
	}
	return a.printSlotChange(got)
}

// refuseTaken refuses, before anybody types, what the daemon would refuse.
func (a *app) refuseTaken(ctx context.Context, doing, kind string) error {
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	if hasSlot(s.GetSlots(), kind) {
		return refuse(doing, "there is one already").withHint("sbctl key slot rm %s", kind)
	}
	return nil
}

func (a *app) printSlotChange(got *operatorv1.AddSlotResponse) error {
	slot := got.GetSlot()
	replaced := ""
	if got.GetReplaced() {
		replaced = "yes: the one before opens this vault no more, but backups of its time"
	}
	return a.out.Object(ui.Object{
		ID: slot.GetName(),
		Fields: []ui.Field{
			{Name: "slot", Value: slot.GetName()},
			{Name: "kind", Value: slot.GetKind()},
			{Name: "opened by", Value: slotOpens[slot.GetKind()]},
			{Name: "replaced", Value: replaced},
		},
		Value: slotChangeView{slotView{slot.GetName(), slot.GetKind()}, got.GetReplaced()},
	})
}

type keySlotTestCmd struct {
	Kind string `arg:"" enum:"keychain,file,passphrase,recovery" help:"keychain, file, passphrase or recovery."`
	codeSource
}

// Help is the manual of key slot test.
func (keySlotTestCmd) Help() string {
	return `Fetches or asks for what belongs to the slot, opens it, and compares what is in it
with the root key. Nothing is changed. The exit code is 4 when it does not open.

Examples:
  sbctl key slot test passphrase
  sbctl key slot test keychain`
}

// Run tests a slot.
func (c keySlotTestCmd) Run(ctx context.Context, a *app) error {
	doing := "testing the slot " + c.Kind
	switch {
	case a.opts.PassphraseFD != nil && c.Kind != slotPassphrase:
		return refuse(doing, "--passphrase-fd goes with passphrase alone")
	case c.RecoveryCodeFD != nil && c.Kind != slotRecovery:
		return refuse(doing, "--recovery-code-fd goes with recovery alone")
	}
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	if len(s.GetSlots()) > 0 && !hasSlot(s.GetSlots(), c.Kind) {
		return refuse(doing, "there is no such slot").withHint("sbctl key slot add %s", c.Kind)
	}
	secret, err := a.slotSecret(ctx, doing, c.Kind, c.codeSource)
	if err != nil {
		return err
	}
	defer secret.Wipe()
	got, err := callWithin(ctx, a, keyPatience, doing, &operatorv1.TestSlotRequest{Kind: c.Kind, Secret: secret}, operatorv1.OperatorServiceClient.TestSlot)
	if err != nil {
		return wrongSecret(err, c.Kind)
	}
	slot := slotView{got.GetSlot().GetName(), got.GetSlot().GetKind()}
	return a.out.Object(ui.Object{
		ID: slot.Name, Value: slotTestView{slot, true},
		Fields: []ui.Field{{Name: "slot", Value: slot.Name}, {Name: "opens", Value: "yes"}},
	})
}

type slotTestView struct {
	Slot  slotView `json:"slot"`
	Opens bool     `json:"opens"`
}

// slotSecret takes what a person opens a slot of this kind with; nothing for
// the kinds that the daemon opens itself. The caller wipes it.
func (a *app) slotSecret(ctx context.Context, doing, kind string, code codeSource) (content.Bytes, error) {
	switch kind {
	case slotPassphrase:
		return a.passphrase(ctx, doing)
	case slotRecovery:
		typed, err := a.recoveryCode(ctx, doing, code)
		if err != nil {
			return nil, err
		}
		defer typed.Wipe()
		return typed.Seed(), nil
	}
	return nil, nil
}

type keySlotRmCmd struct {
	Kind string `arg:"" enum:"keychain,file,passphrase,recovery" help:"keychain, file, passphrase or recovery."`
}

// Help is the manual of key slot rm.
func (keySlotRmCmd) Help() string {
	return `The vault gets a new root key, so that the removed slot opens nothing of what is
there from now on. Backups made before stay openable by it; they are listed.
The last slot cannot be removed. Asks first, or needs --yes.

Examples:
  sbctl key slot rm file`
}

type slotRemovedView struct {
	Removed string       `json:"removed"`
	Slots   []slotView   `json:"slots"`
	Backups []backupView `json:"backups"`
	KeyLeft bool         `json:"keyLeft"`
}

// Run removes a slot.
func (c keySlotRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing the slot " + c.Kind
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	if len(s.GetSlots()) > 0 && !hasSlot(s.GetSlots(), c.Kind) {
		return refuse(doing, "there is no such slot").withHint("sbctl key slot list")
	}
	if len(s.GetSlots()) == 1 {
		return refuse(doing, "it is the last one: nothing would open the vault any more").withHint("sbctl key slot add --help")
	}
	if err := a.confirm(ctx, doing, a.slotRemovalQuestion(c.Kind, s.GetSlots())); err != nil {
		return err
	}
	got, err := callWithin(ctx, a, keyPatience, doing, &operatorv1.RemoveSlotRequest{Kind: c.Kind}, operatorv1.OperatorServiceClient.RemoveSlot)
	if err != nil {
		return err
	}
	if got.GetKeyLeft() {
		a.say("warning: the key itself could not be removed from its store; it opens nothing any more")
	}
	left := viewSlots(got.GetSlots())
	kinds := slotKinds(got.GetSlots())
	err = a.out.Object(ui.Object{
		ID:     c.Kind,
		Fields: []ui.Field{{Name: "removed", Value: c.Kind}, {Name: "left", Value: strings.Join(kinds, ", ")}},
		Value:  slotRemovedView{c.Kind, left, viewBackups(got.GetBackups()), got.GetKeyLeft()},
	})
	if err != nil {
		return err
	}
	return a.out.Section("Backups that it still opens", backupHead, a.backupRows(got.GetBackups()))
}

// slotRemovalQuestion says what goes with a slot.
func (a *app) slotRemovalQuestion(kind string, slots []*operatorv1.KeySlot) string {
	question := fmt.Sprintf("Remove the slot %s and rekey?", kind)
	var unattended, sealed []string
	for _, other := range slotKinds(slots) {
		switch {
		case other == kind:
		case other == slotKeychain || other == slotFile:
			unattended = append(unattended, other)
		default:
			sealed = append(sealed, other)
		}
	}
	switch {
	case len(unattended) == 0:
		question += " The daemon will not open the vault by itself any more."
	case len(sealed) == 0:
		question += " Without a passphrase or a recovery code nothing opens the vault elsewhere, and no backup can be made."
	}
	return question
}
