package main

import (
	"context"
	"errors"
	"fmt"

	"subjectbroker/proto/recovery"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
)

type keyRecoveryCmd struct {
	New  keyRecoveryNewCmd  `cmd:"" help:"Make a recovery code and show it once"`
	Test keyRecoveryTestCmd `cmd:"" help:"Prove that a recovery code opens the vault"`
}

// Help is the manual of key recovery.
func (keyRecoveryCmd) Help() string {
	return `The recovery code opens the vault and its backups when the keychain, the key file
and the passphrase are lost. It is made here and shown once; the daemon gets only
a public key that belongs to it, and does not see the code before it is used.

The code has eight groups of five characters; the last of each group checks the
others, so that a slip is found and the group is named. It may be typed in lower
case, without the dashes, and with O for 0, I or L for 1.`
}

type keyRecoveryNewCmd struct{}

// Help is the manual of key recovery new.
func (keyRecoveryNewCmd) Help() string {
	return `Shows the code on the terminal and nowhere else: not on standard output, not in
JSON, not in a log. Write it down, and keep it away from this machine. A code
that was there before is replaced, after asking, and the vault is rekeyed;
backups made before stay openable by the old code.

Examples:
  sbctl key recovery new`
}

// Run makes a code.
func (keyRecoveryNewCmd) Run(ctx context.Context, a *app) error {
	return a.newRecoveryCode(ctx, "making a recovery code")
}

// newRecoveryCode makes a code, shows it, and puts it in force.
func (a *app) newRecoveryCode(ctx context.Context, doing string) error {
	s, err := a.unlockedStatus(ctx, doing)
	if err != nil {
		return err
	}
	tty, err := a.tty()
	if err != nil {
		return refuse(doing, "the code is shown on a terminal only, and there is none")
	}
	defer func() { _ = tty.Close() }()
	if hasSlot(s.GetSlots(), slotRecovery) {
		const question = "Replace the recovery code? The old one opens nothing any more but backups of its time."
		if err := a.confirm(ctx, doing, question); err != nil {
			return err
		}
	}
	got, err := a.addRecoveryCode(ctx, doing, tty)
	if err != nil {
		return err
	}
	return a.printSlotChange(got)
}

// addRecoveryCode shows a new code and then puts it in force. In this order
// there is never a code in force that nobody has seen.
func (a *app) addRecoveryCode(ctx context.Context, doing string, tty *terminal.TTY) (*operatorv1.AddSlotResponse, error) {
	code := recovery.New()
	defer code.Wipe()
	_, err := fmt.Fprintf(tty, "\nRecovery code, shown this once:\n\n    %s\n\n%s\n\n", code.Text(), keepCode)
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	got, err := callWithin(ctx, a, keyPatience, doing, &operatorv1.AddSlotRequest{Kind: slotRecovery, Secret: code.PublicKey()},
		operatorv1.OperatorServiceClient.AddSlot)
	if failed, ok := errors.AsType[*failure](err); ok {
		failed.what += "; do not rely on the code above"
		return nil, failed
	}
	if err == nil {
		a.done("the recovery code is in force; prove that you can read it: %s", a.paste("key", "recovery", "test"))
	}
	return got, err
}

// keepCode says what to do with a code.
const keepCode = `Write it on paper and keep it away from this machine: a safe, another house, a
person you trust. Whoever has it and a copy of the vault, or a backup, can read
everything. Without it, a lost keychain or disk means that everything is lost.`

type keyRecoveryTestCmd struct {
	codeSource
}

// Help is the manual of key recovery test.
func (keyRecoveryTestCmd) Help() string {
	return `Asks for the code and opens the root key with it. Nothing is changed. The exit
code is 2 when a group is mistyped, 4 when it is another code.

Examples:
  sbctl key recovery test`
}

// Run tests a code.
func (c keyRecoveryTestCmd) Run(ctx context.Context, a *app) error {
	return keySlotTestCmd{Kind: slotRecovery, codeSource: c.codeSource}.Run(ctx, a)
}

// recoveryWords is the warning that stands until a recovery code exists; empty
// when one does, or when the daemon names no slots at all.
func (a *app) recoveryWords(slots []*operatorv1.KeySlot) string {
	if len(slots) == 0 || hasSlot(slots, slotRecovery) {
		return ""
	}
	return "there is no recovery code: if its key is lost, so is everything in the vault; make one with " + a.paste("key", "recovery", "new")
}
