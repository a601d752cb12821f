package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type keyCmd struct {
	Show     keyShowCmd     `cmd:"" default:"1" help:"Show slots, terms and how far rewrapping is"`
	Rotate   keyRotateCmd   `cmd:"" help:"Seal everything with a new data key"`
	Rekey    keyRekeyCmd    `cmd:"" help:"Make a new root key and wrap it in every slot"`
	Slot     keySlotCmd     `cmd:"" aliases:"slots" help:"Manage the ways to the root key"`
	Recovery keyRecoveryCmd `cmd:"" help:"Make and test the recovery code"`
}

// Help is the manual of key.
func (keyCmd) Help() string {
	return `Three layers of keys lie one in another:

  slots     wrap the root key: keychain, file, passphrase, recovery code
  root key  seals the data keys, inside the vault
  data key  seals what is stored; each has a number, its term

"rotate" makes a new data key and seals everything with it. "rekey" makes a new
root key, so that a slot key that was seen, or a slot that was removed, opens
nothing any more. Both can be interrupted at any moment: the vault opens with
the old key or with the new one.

A backup is as old as its keys: it stays openable by the passphrase and the
recovery code that there were when it was made.`
}

type slotView struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

func viewSlots(slots []*operatorv1.KeySlot) []slotView {
	views := make([]slotView, 0, len(slots))
	for _, s := range slots {
		views = append(views, slotView{s.GetName(), s.GetKind()})
	}
	return views
}

// slotKinds are the kinds of slots in their order.
func slotKinds(slots []*operatorv1.KeySlot) []string {
	kinds := make([]string, 0, len(slots))
	for _, s := range slots {
		kinds = append(kinds, s.GetKind())
	}
	return kinds
}

func hasSlot(slots []*operatorv1.KeySlot, kind string) bool {
	return slices.Contains(slotKinds(slots), kind)
}

type keyShowCmd struct{}

// Help is the manual of key show.
func (keyShowCmd) Help() string {
	return `Shows what may be known of the keys, never a key.

Examples:
  sbctl key show
  sbctl key -o json`
}

type keysView struct {
	Vault      string      `json:"vault"`
	Schema     uint32      `json:"schema"`
	Term       uint32      `json:"term"`
	OldTerms   []uint32    `json:"oldTerms"`
	Slots      []slotView  `json:"slots"`
	UnlockedBy string      `json:"unlockedBy"`
	Rewrap     *rewrapView `json:"rewrap,omitempty"` // absent: nothing is left
	Memory     string      `json:"memory"`
}

type rewrapView struct {
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
	Cause string `json:"cause,omitempty"`
}

// Run shows the keys.
func (keyShowCmd) Run(ctx context.Context, a *app) error {
	k, err := a.keys(ctx, "asking for the keys")
	if err != nil {
		return err
	}
	old := ""
	if terms := k.GetOldTerms(); len(terms) > 0 {
		old = strings.Trim(strings.ReplaceAll(fmt.Sprint(terms), " ", ", "), "[]")
	}
	view := keysView{
		Vault: k.GetVaultId(), Schema: k.GetSchema(), Term: k.GetTerm(), OldTerms: append([]uint32{}, k.GetOldTerms()...),
		Slots: viewSlots(k.GetSlots()), UnlockedBy: k.GetUnlockedBy(), Memory: k.GetMemory(),
	}
	if k.GetRewrapTotal() > 0 {
		view.Rewrap = &rewrapView{k.GetRewrapDone(), k.GetRewrapTotal(), k.GetRewrapCause()}
	}
	return a.out.Object(ui.Object{
		ID: k.GetVaultId(),
		Fields: []ui.Field{
			{Name: "vault", Value: k.GetVaultId()},
			{Name: "schema", Value: fmt.Sprint(k.GetSchema())},
			{Name: "slots", Value: strings.Join(slotKinds(k.GetSlots()), ", ")},
			{Name: "unlocked by", Value: k.GetUnlockedBy()},
			{Name: "term", Value: fmt.Sprint(k.GetTerm())},
			{Name: "old terms", Value: old},
			{Name: "rewrap", Value: rewrapWords(k)},
			{Name: "memory", Value: k.GetMemory()},
			{Name: "recovery", Value: a.recoveryWords(k.GetSlots())},
		},
		Value: view,
	})
}

func (a *app) keys(ctx context.Context, doing string) (*operatorv1.ShowKeysResponse, error) {
	return call(ctx, a, doing, &operatorv1.ShowKeysRequest{}, operatorv1.OperatorServiceClient.ShowKeys)
}

func rewrapWords(k *operatorv1.ShowKeysResponse) string {
	if k.GetRewrapTotal() == 0 {
		return ""
	}
	return stateAndCause(fmt.Sprintf("%d of %s done", k.GetRewrapDone(), count(k.GetRewrapTotal(), "row")), k.GetRewrapCause())
}

type keyRotateCmd struct {
	NoWait bool `help:"Return at once, and let the rewrapping go on by itself."`
}

// Help is the manual of key rotate.
func (keyRotateCmd) Help() string {
	return `What is written from now on is sealed with the new key. What was written before
is opened and sealed again, row by row, while the daemon goes on serving; when
nothing of an old key is left, it is dropped. rotate waits for that and shows how
far it is; interrupting it, or a restart of the daemon, does not stop the work.

Examples:
  sbctl key rotate
  sbctl key rotate --no-wait`
}

type rotatedView struct {
	Term uint32 `json:"term"`
	Rows uint64 `json:"rows"`
	Left uint64 `json:"left"`
}

// pollEvery is how often long work of the daemon is asked after.
const pollEvery = 200 * time.Millisecond

// Run rotates.
func (c keyRotateCmd) Run(ctx context.Context, a *app) error {
	const doing = "rotating the data key"
	got, err := callWithin(ctx, a, keyPatience, doing, &operatorv1.RotateKeyRequest{}, operatorv1.OperatorServiceClient.RotateKey)
	if err != nil {
		return err
	}
	view := rotatedView{Term: got.GetTerm(), Rows: got.GetRows(), Left: got.GetRows()}
	if !c.NoWait {
		if err := a.awaitRewrap(ctx, got.GetTerm()); err != nil {
			return err
		}
		view.Left = 0
	}
	left := ""
	if view.Left > 0 {
		left = fmt.Sprintf("%s, in the background: %s", count(view.Left, "row"), a.paste("key", "show"))
	}
	return a.out.Object(ui.Object{
		ID: fmt.Sprint(view.Term),
		Fields: []ui.Field{
			{Name: "term", Value: fmt.Sprint(view.Term)},
			{Name: "rows", Value: fmt.Sprint(view.Rows)},
			{Name: "left", Value: left},
		},
		Value: view,
	})
}

// awaitRewrap waits until nothing is left of the terms before term.
func (a *app) awaitRewrap(ctx context.Context, term uint32) error {
	doing := fmt.Sprintf("waiting for the rewrapping to term %d, which goes on by itself", term)
	progress := ui.NewProgress(a.stderr, "rewrapping")
	defer progress.Done()
	for {
		k, err := a.keys(ctx, doing)
		if err != nil {
			return err
		}
		if k.GetRewrapTotal() == 0 {
			return nil
		}
		if cause := k.GetRewrapCause(); cause != "" {
			return &failure{
				code: wire.InternalError, doing: doing, exit: wire.ExitFailed, hint: "sbctl key show",
				what: "the new key is in force, but it stands still: " + cause,
			}
		}
		progress.Show(int64(k.GetRewrapDone()), int64(k.GetRewrapTotal()))
		select {
		case <-ctx.Done():
			return fail(ctx.Err(), "%s", doing)
		case <-time.After(pollEvery):
		}
	}
}

type keyRekeyCmd struct{}

// Help is the manual of key rekey.
func (keyRekeyCmd) Help() string {
	return `The new root key is wrapped in every slot in one step. Neither the passphrase nor
the recovery code is needed for that; the keychain and the key file are, and one
that does not answer refuses the rekey. Backups made before stay openable by the
slots that they were made with.

The keys that seal the rows stay: whoever had the old root key and the vault may
still read them. "key rotate" makes a new one and seals every row again. The keys
of the slots stay, too: to change the one in the keychain or in secret.key, add
another slot, remove that one, and add it again.

Examples:
  sbctl key rekey
  sbctl key rotate`
}

type slotsView struct {
	Slots []slotView `json:"slots"`
}

// Run rekeys.
func (keyRekeyCmd) Run(ctx context.Context, a *app) error {
	got, err := callWithin(ctx, a, keyPatience, "making a new root key", &operatorv1.RekeyRequest{}, operatorv1.OperatorServiceClient.Rekey)
	if err != nil {
		return err
	}
	a.done("backups that were made before stay openable by the slots of their time")
	a.done("if somebody may have had the old root key, seal the rows anew, too: %s", a.paste("key", "rotate"))
	return a.out.Object(ui.Object{
		ID:     strings.Join(slotKinds(got.GetSlots()), "\n"),
		Fields: []ui.Field{{Name: "wrapped in", Value: strings.Join(slotKinds(got.GetSlots()), ", ")}},
		Value:  slotsView{viewSlots(got.GetSlots())},
	})
}
