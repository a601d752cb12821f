package main

import (
	"context"
	"fmt"
	"time"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type operatorCmd struct {
	Status        operatorStatusCmd        `cmd:"" default:"1" help:"Show how the operator is known"`
	SetPassphrase operatorSetPassphraseCmd `cmd:"" help:"Set, change or remove the operator's passphrase"`
	Unlock        operatorUnlockCmd        `cmd:"" help:"Give the passphrase: opens a session in a console, checks it elsewhere"`
	Lock          operatorLockCmd          `cmd:"" help:"End the session of this connection"`
}

// Help is the manual of operator.
func (operatorCmd) Help() string {
	return `The operator is known as the uid that calls. Agents usually run under the same
uid; a passphrase tells the operator from them.

With one set, a subject's minimum tier can be raised above cooperative, which needs
a session; and while any subject demands more, so does what discloses or grants,
or brings content under a name that is granted already, and starting a launch of
such a subject, or of one with a grant that demands more. A session is opened by the
passphrase and bound to one connection: no other process has it, on the same
terminal or not. "console" and "watch" keep theirs; any other command asks for the
passphrase itself, on the terminal, when it is needed. What takes away (revoke,
disable, lock, panic, runs end) never asks.

It is not the passphrase that opens the vault ("key slot add passphrase"). A
program of the same uid can still show a false prompt, or read the terminal.`
}

type operatorStatusCmd struct{}

// Help is the manual of operator status.
func (operatorStatusCmd) Help() string {
	return `Examples:
  sbctl operator status
  sbctl operator status -o json`
}

type operatorView struct {
	Passphrase    bool     `json:"passphrase"`
	Session       bool     `json:"session"`
	Authenticated bool     `json:"authenticated"`
	Guard         bool     `json:"guard"`
	Operators     []uint32 `json:"operators"`
	Sessions      uint32   `json:"sessions"`
	WaitMS        uint64   `json:"waitMs"`
	VaultState    string   `json:"vaultState"`
}

// Run shows how the operator is known.
func (operatorStatusCmd) Run(ctx context.Context, a *app) error {
	const doing = "asking about the operator"
	vault, err := a.status(ctx, doing)
	if err != nil {
		return err
	}
	state, err := a.operatorState(ctx, doing)
	if err != nil {
		return err
	}
	word, fields := "none", a.operatorFields(state)
	if !state.GetPassphrase() && vault.GetVaultState() == "unlocked" {
		if fields[0].Value, err = a.withoutPassphrase(ctx, doing, len(state.GetOperators()) > 0); err != nil {
			return err
		}
	}
	switch {
	case state.GetPassphrase():
		word = "passphrase"
	case vault.GetVaultState() != "unlocked":
		word = "unknown"
		fields[0].Value, fields[1].Value = "not known: the vault is "+vault.GetVaultState(), ""
	}
	return a.out.Object(ui.Object{
		ID: word, Fields: fields,
		Value: operatorView{
			Passphrase: state.GetPassphrase(), Session: state.GetSession(), Authenticated: state.GetAuthenticated(), Guard: state.GetGuard(),
			Operators: append([]uint32{}, state.GetOperators()...), Sessions: state.GetSessions(), WaitMS: state.GetWaitMs(),
			VaultState: vault.GetVaultState(),
		},
	})
}

func (a *app) operatorFields(state *operatorv1.GetOperatorResponse) []ui.Field {
	passphrase := "not set"
	if state.GetPassphrase() {
		passphrase = "set"
	}
	session := "none: a command that needs one asks for the passphrase"
	switch {
	case state.GetSession():
		session = "open, until this connection ends or rests too long"
	case state.GetAuthenticated():
		session = "not needed: this uid is an operator by itself"
	case !state.GetPassphrase():
		session = ""
	}
	guard := "off"
	if state.GetGuard() {
		guard = "on: agents with a shim, and what they start, are refused here; it stops accidents"
	}
	wait := ""
	if state.GetWaitMs() > 0 {
		wait = "in " + ui.Span(time.Duration(state.GetWaitMs())*time.Millisecond) + ", after wrong ones"
	}
	return []ui.Field{
		{Name: "passphrase", Value: passphrase},
		{Name: "session", Value: session},
		{Name: "open sessions", Value: fmt.Sprint(state.GetSessions())},
		{Name: "next try", Value: wait},
		{Name: "other operators", Value: uidList(state.GetOperators())},
		{Name: "guard", Value: guard},
	}
}

type operatorSetPassphraseCmd struct {
	Remove          bool `help:"Remove it: nobody is asked any more, and what needs a session is refused."`
	NewPassphraseFD *int `name:"new-passphrase-fd" placeholder:"N" help:"Read the new one from this open descriptor, up to its end, instead of asking for it."`
}

// Help is the manual of operator set-passphrase.
func (operatorSetPassphraseCmd) Help() string {
	return `Asks for the present passphrase, if there is one, and twice for the new one. It
ends every session, this one too. It is taken byte for byte, so letters that every
keyboard has are best.

A program gives the present one in --passphrase-fd and the new one in
--new-passphrase-fd. Where none is set yet there is no present one, and
--passphrase-fd alone holds the new one.

Nobody can tell it to you again. Who has lost it stops the daemon and runs
"sbd recover --forget-operator-passphrase", which is an entry in the log.

Examples:
  sbctl operator set-passphrase
  pass show broker/operator | sbctl operator set-passphrase --new-passphrase-fd 0
  sbctl operator set-passphrase --remove`
}

type passphraseView struct {
	Passphrase bool `json:"passphrase"`
}

// Run sets, changes or removes the passphrase.
func (c operatorSetPassphraseCmd) Run(ctx context.Context, a *app) error {
	doing := "setting the operator's passphrase"
	if c.Remove {
		doing = "removing the operator's passphrase"
	}
	if c.Remove && c.NewPassphraseFD != nil {
		return refuse(doing, "--new-passphrase-fd does not go with --remove")
	}
	state, err := a.unlockedOperator(ctx, doing)
	if err != nil {
		return err
	}
	if c.Remove && !state.GetPassphrase() {
		a.done("there is none")
		return a.printPassphrase(false)
	}
	if c.Remove {
		if err := a.confirmRemoval(ctx, doing); err != nil {
			return err
		}
	}
	option, fd := "--new-passphrase-fd", c.NewPassphraseFD
	switch {
	case state.GetPassphrase() && !state.GetAuthenticated():
		// Whoever mistypes the present one learns so before choosing a new one.
		if _, err := a.openSession(ctx, doing); err != nil {
			return err
		}
	case !state.GetPassphrase() && fd == nil && a.passphraseFD() != nil:
		option, fd = passphraseOption, a.takePassphraseFD()
	}
	request := &operatorv1.SetOperatorPassphraseRequest{}
	if !c.Remove {
		var secret content.Bytes
		secret, err = a.newPassphrase(ctx, doing, option, fd, "whoever comes to the key and the vault can try all like it")
		if err != nil {
			return err
		}
		defer secret.Wipe()
		request.Passphrase = secret
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.SetOperatorPassphrase)
	if err != nil {
		return err
	}
	if state.GetPassphrase() {
		a.done("every session has ended")
	}
	return a.printPassphrase(got.GetPassphrase())
}

func (a *app) printPassphrase(set bool) error {
	word := "none"
	if set {
		word = "set"
	}
	return a.out.Object(ui.Object{ID: word, Fields: []ui.Field{{Name: "operator's passphrase", Value: word}}, Value: passphraseView{set}})
}

type operatorUnlockCmd struct{}

// Help is the manual of operator unlock.
func (operatorUnlockCmd) Help() string {
	return `In a console it opens the session of the console's connection. Anywhere else the
connection, and the session with it, ends with this command: then it only checks
the passphrase. No unlocking is needed before another command, which asks for the
passphrase itself.

Examples:
  sbctl operator unlock
  pass show broker/operator | sbctl operator unlock --passphrase-fd 0`
}

type sessionView struct {
	SessionID string `json:"sessionId,omitempty"`
	Until     string `json:"until,omitempty"`
	Open      bool   `json:"open"`
}

// Run gives the passphrase.
func (operatorUnlockCmd) Run(ctx context.Context, a *app) error {
	const doing = "opening an operator's session"
	state, err := a.unlockedOperator(ctx, doing)
	if err != nil {
		return err
	}
	switch {
	case state.GetSession():
		a.done("this connection has a session already")
		return a.printSession(sessionView{Open: true})
	case state.GetAuthenticated():
		a.done("no session is needed: this uid is an operator by itself")
		return a.printSession(sessionView{})
	case !state.GetPassphrase():
		return refuse(doing, "no operator's passphrase is set").withHint("sbctl operator set-passphrase")
	}
	opened, err := a.openSession(ctx, doing)
	if err != nil {
		return err
	}
	view := sessionView{SessionID: opened.GetSessionId()}
	if !a.inConsole() {
		a.done("the passphrase is right. A session belongs to one connection, and this one ends with this command: " +
			"\"sbctl console\" and \"sbctl watch\" keep theirs, any other command asks when it needs one")
		return a.printSession(view)
	}
	view.Open, view.Until = true, ui.Stamp(opened.GetUntil())
	return a.printSession(view)
}

func (a *app) printSession(view sessionView) error {
	word, id := "none", ""
	if view.Open {
		word, id = "open", view.SessionID // one that is over already is for programs that read the log
	}
	return a.out.Object(ui.Object{
		ID: word, Value: view,
		Fields: []ui.Field{{Name: "session", Value: word}, {Name: "id", Value: id}, {Name: "ends without a call", Value: view.Until}},
	})
}

type operatorLockCmd struct{}

// Help is the manual of operator lock.
func (operatorLockCmd) Help() string {
	return `In a console it ends the session of the console's connection. Anywhere else there
is none to end: sessions of consoles end with them, and all of them with "lock".

Examples:
  sbctl operator lock`
}

// Run ends the session.
func (operatorLockCmd) Run(ctx context.Context, a *app) error {
	const doing = "ending the operator's session"
	state, err := a.operatorState(ctx, doing)
	if err != nil {
		return err
	}
	if !state.GetSession() {
		a.done("this connection has no session to end; those of consoles and watches end with them, or all with \"sbctl lock\"")
		return a.printSession(sessionView{})
	}
	if _, err := call(ctx, a, doing, &operatorv1.CloseSessionRequest{}, operatorv1.OperatorServiceClient.CloseSession); err != nil {
		return err
	}
	return a.printSession(sessionView{})
}
