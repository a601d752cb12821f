package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type agentKeyCmd struct {
	Mint   agentKeyMintCmd   `cmd:"" help:"Make a key for a subject and print it once"`
	List   agentKeyListCmd   `cmd:"" default:"1" help:"List keys, without what they are"`
	Show   agentKeyShowCmd   `cmd:"" help:"Show what is known of one key"`
	Rotate agentKeyRotateCmd `cmd:"" help:"Make a key that takes the place of another one"`
	Revoke agentKeyRevokeCmd `cmd:"" help:"End a key and the runs that were opened with it"`
}

// Help is the manual of agent-key.
func (agentKeyCmd) Help() string {
	return `An agent key says for which subject somebody asks who cannot be told by a process:
whoever has it is that subject, at the tier keyed, which is worth no more than
cooperative. The vault keeps a hash of it and nothing else.

A key is named by its id, a unique beginning of it, or its name.`
}

type agentKeyMintCmd struct {
	Subject string   `required:"" placeholder:"S" help:"The subject that it speaks for."`
	Tenant  []string `placeholder:"TENANT" help:"A tenant that it may reach, as far as the subject's grants do; once for each. Without one it has no memory."`
	TTL     string   `name:"ttl" placeholder:"D" help:"How long it is good for, such as 30d; without it until it is revoked."`
	Name    string   `placeholder:"N" help:"A name for it."`
}

// Help is the manual of agent-key mint.
func (agentKeyMintCmd) Help() string {
	return `Prints the key, and nothing else, on standard output: it is shown this once and
kept nowhere. With -o json it is the member "key" of the object. Put it where the
client takes its secrets from, never on a command line.

Scanners for secrets find keys by ak_live_[0-9A-Za-z]{49}.

Examples:
  sbctl agent-key mint --subject worker
  sbctl agent-key mint --subject worker --tenant acme --ttl 30d --name laptop`
}

// Run makes a key.
func (c agentKeyMintCmd) Run(ctx context.Context, a *app) error {
	doing := "minting a key for " + c.Subject
	request := &operatorv1.MintAgentKeyRequest{Subject: c.Subject, Tenants: c.Tenant, Name: c.Name}
	if c.TTL != "" {
		span, err := policy.ParseTTL(c.TTL)
		if err != nil {
			return refuse(doing, "--ttl: %v", err)
		}
		request.TtlSeconds = uint64(max(span/time.Second, 1))
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.MintAgentKey)
	if err != nil {
		return err
	}
	defer clear(got.GetToken())
	warnings := []string{}
	if a.out.Format == ui.JSON {
		warnings = a.reach(ctx, got.GetKey())
	}
	if err := a.showKeyOnce(got.GetKey(), got.GetToken(), agentKeyMintedView{viewAgentKey(got.GetKey()), string(got.GetToken()), warnings}); err != nil {
		return err
	}
	if a.out.Format != ui.JSON {
		for _, warning := range a.reach(ctx, got.GetKey()) { // also with --quiet: they go elsewhere than the key
			a.say("%s", warning)
		}
	}
	return nil
}

// reach says what the grants of a new key's subject, or the key, are missing: the
// agent is only told that it may not. What cannot be known is not said.
func (a *app) reach(ctx context.Context, k *operatorv1.AgentKey) (warnings []string) {
	warnings = []string{}
	tenants, err := a.tenants(ctx, "")
	if err != nil {
		return warnings
	}
	reaches := false
	for _, t := range tenants {
		granted := slices.Contains(t.GetReaders(), k.GetSubject()) || slices.Contains(t.GetWriters(), k.GetSubject())
		reaches = reaches || granted
		if !granted && slices.Contains(k.GetTenants(), t.GetName()) {
			warnings = append(warnings, fmt.Sprintf("%s may not reach %s yet: %s", k.GetSubject(), t.GetName(), a.paste("grant", k.GetSubject(), "memory.read:"+t.GetName())))
		}
	}
	if reaches && len(k.GetTenants()) == 0 {
		warnings = append(warnings, fmt.Sprintf("it has no memory, although %s does: a key reaches the tenants that it is minted with, by --tenant", k.GetSubject()))
	}
	return warnings
}

// showKeyOnce prints a key: it is all that goes to standard output, but for programs.
func (a *app) showKeyOnce(k *operatorv1.AgentKey, token []byte, value any) error {
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{ID: k.GetKeyId(), Value: value})
	}
	if _, err := fmt.Fprintf(a.stdout, "%s\n", token); err != nil {
		return err
	}
	ends := "until it is revoked"
	if k.GetExpires() > 0 {
		ends = "until " + a.out.When(k.GetExpires())
	}
	a.done("key %s speaks for %s, %s; it is shown this once", k.GetKeyId(), k.GetSubject(), ends)
	return nil
}

type agentKeyListCmd struct {
	Subject string `placeholder:"S" help:"Only keys of this subject."`
	All     bool   `help:"List keys that expired or were revoked, too."`
}

// Help is the manual of agent-key list.
func (agentKeyListCmd) Help() string {
	return `The last use is told to the minute. A key in overlap was rotated and is good until
it expires; one that is disabled belongs to a subject that is.

Examples:
  sbctl agent-key list
  sbctl agent-key list --subject worker --all`
}

// Run lists keys.
func (c agentKeyListCmd) Run(ctx context.Context, a *app) error {
	request := &operatorv1.ListAgentKeysRequest{Subject: c.Subject, All: c.All}
	got, err := call(ctx, a, "listing agent keys", request, operatorv1.OperatorServiceClient.ListAgentKeys)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"KEY", "NAME", "SUBJECT", "TENANTS", "STATE", "EXPIRES", "LAST USED", "RUNS"}}
	views := make([]agentKeyView, 0, len(got.GetKeys()))
	for _, k := range got.GetKeys() {
		list.IDs = append(list.IDs, k.GetKeyId())
		list.Rows = append(list.Rows, []string{
			k.GetKeyId(), k.GetName(), k.GetSubject(), strings.Join(k.GetTenants(), " "), k.GetState(), a.out.When(k.GetExpires()), a.out.When(k.GetLastUsed()), fmt.Sprint(k.GetRuns()),
		})
		views = append(views, viewAgentKey(k))
	}
	list.Items = views
	return a.list(list, "there are no agent keys")
}

type agentKeyShowCmd struct {
	ID string `arg:"" help:"Id or name of the key."`
}

// Help is the manual of agent-key show.
func (agentKeyShowCmd) Help() string {
	return `Examples:
  sbctl agent-key show laptop`
}

// Run shows one key.
func (c agentKeyShowCmd) Run(ctx context.Context, a *app) error {
	k, err := a.agentKey(ctx, "showing agent key "+c.ID, c.ID)
	if err != nil {
		return err
	}
	return a.printAgentKey(k)
}

// agentKey is what is known of one key.
func (a *app) agentKey(ctx context.Context, doing, word string) (*operatorv1.AgentKey, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListAgentKeysRequest{Key: word}, operatorv1.OperatorServiceClient.ListAgentKeys)
	if err != nil {
		return nil, err
	}
	if len(got.GetKeys()) != 1 {
		return nil, refuse(doing, "no agent key is meant by that")
	}
	return got.GetKeys()[0], nil
}

func (a *app) printAgentKey(k *operatorv1.AgentKey) error {
	return a.out.Object(ui.Object{ID: k.GetKeyId(), Fields: []ui.Field{
		{Name: "key", Value: k.GetKeyId()},
		{Name: "name", Value: k.GetName()},
		{Name: "subject", Value: k.GetSubject()},
		{Name: "tenants", Value: cmp.Or(strings.Join(k.GetTenants(), ", "), "none, so it has no memory")},
		{Name: "state", Value: k.GetState()},
		{Name: "minted", Value: a.out.When(k.GetCreated())},
		{Name: "expires", Value: a.out.When(k.GetExpires())},
		{Name: "revoked", Value: a.out.When(k.GetRevoked())},
		{Name: "last used", Value: a.out.When(k.GetLastUsed())},
		{Name: "runs", Value: fmt.Sprint(k.GetRuns())},
		{Name: "rotated from", Value: k.GetRotatedFrom()},
		{Name: "rotated to", Value: k.GetRotatedTo()},
	}, Value: viewAgentKey(k)})
}

type agentKeyRotateCmd struct {
	ID      string `arg:"" help:"Id or name of the key."`
	Overlap string `default:"24h" placeholder:"D" help:"How long the old key stays good, at most 30d; 24h when left out; none ends it at once."`
}

// Help is the manual of agent-key rotate.
func (agentKeyRotateCmd) Help() string {
	return `Prints a new key of the same subject, name, tenants and life, once, as "agent-key
mint" does. The old one stays good for a while, so that clients can be changed over
one after the other; the list shows when each was used last. With --overlap none the
old one and its runs end at once: that asks first, or needs --yes.

Examples:
  sbctl agent-key rotate laptop
  sbctl agent-key rotate laptop --overlap 1h
  sbctl agent-key rotate laptop --overlap none`
}

// Run rotates a key.
func (c agentKeyRotateCmd) Run(ctx context.Context, a *app) error {
	doing := "rotating agent key " + c.ID
	request := &operatorv1.RotateAgentKeyRequest{Key: c.ID}
	if c.Overlap != noLimit {
		span, err := policy.ParseTTL(c.Overlap)
		if err != nil {
			return refuse(doing, "--overlap: %v", err)
		}
		request.OverlapSeconds = uint64(max(span/time.Second, 1))
	} else {
		k, err := a.agentKey(ctx, doing, c.ID)
		if err != nil {
			return err
		}
		request.Key = k.GetKeyId()
		if err := a.confirm(ctx, doing, fmt.Sprintf("End key %s of %s and its %s at once?", k.GetKeyId(), k.GetSubject(), count(k.GetRuns(), "open run"))); err != nil {
			return err
		}
	}
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.RotateAgentKey)
	if err != nil {
		return err
	}
	defer clear(got.GetToken())
	view := agentKeyRotatedView{agentKeyMintedView{viewAgentKey(got.GetKey()), string(got.GetToken()), []string{}}, viewAgentKey(got.GetOld())}
	if err := a.showKeyOnce(got.GetKey(), got.GetToken(), view); err != nil {
		return err
	}
	a.done("the old key %s ends %s", got.GetOld().GetKeyId(), a.out.When(got.GetOld().GetExpires()))
	return nil
}

type agentKeyRevokeCmd struct {
	ID string `arg:"" help:"Id or name of the key."`
}

// Help is the manual of agent-key revoke.
func (agentKeyRevokeCmd) Help() string {
	return `Takes effect at once: the runs that were opened with it end, and whoever presents it
is told that it was revoked. Those that it was rotated from, and that are still in
their overlap, are revoked with it. Asks first, or needs --yes.

Examples:
  sbctl agent-key revoke laptop`
}

// Run revokes a key.
func (c agentKeyRevokeCmd) Run(ctx context.Context, a *app) error {
	doing := "revoking agent key " + c.ID
	k, err := a.agentKey(ctx, doing, c.ID)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("Revoke key %s of %s and end its %s?", k.GetKeyId(), k.GetSubject(), count(k.GetRuns(), "open run"))
	if k.GetRotatedFrom() != "" {
		question = fmt.Sprintf("Revoke key %s of %s, and those that it was rotated from, and end their runs?", k.GetKeyId(), k.GetSubject())
	}
	if err := a.confirm(ctx, doing, question); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.RevokeAgentKeyRequest{Key: k.GetKeyId()}, operatorv1.OperatorServiceClient.RevokeAgentKey)
	if err != nil {
		return err
	}
	if ended := got.GetRuns(); ended > 0 {
		a.done("%s ended", count(ended, "run"))
	}
	return a.printAgentKey(got.GetKey())
}

// agentKeyView is a key for programs.
type agentKeyView struct {
	KeyID       string   `json:"keyId"`
	Name        string   `json:"name,omitempty"`
	SubjectID   string   `json:"subjectId"`
	Tenants     []string `json:"tenants"`
	State       string   `json:"state"`
	Created     string   `json:"created"`
	Expires     string   `json:"expires,omitempty"`
	Revoked     string   `json:"revoked,omitempty"`
	LastUsed    string   `json:"lastUsed,omitempty"`
	RotatedFrom string   `json:"rotatedFrom,omitempty"`
	RotatedTo   string   `json:"rotatedTo,omitempty"`
	Runs        uint32   `json:"runs"`
}

type agentKeyMintedView struct {
	agentKeyView
	Key      string   `json:"key"`      // itself, this once
	Warnings []string `json:"warnings"` // why it reaches less than it could
}

type agentKeyRotatedView struct {
	agentKeyMintedView
	Old agentKeyView `json:"old"`
}

func viewAgentKey(k *operatorv1.AgentKey) agentKeyView {
	return agentKeyView{
		KeyID: k.GetKeyId(), Name: k.GetName(), SubjectID: k.GetSubject(), Tenants: append([]string{}, k.GetTenants()...), State: k.GetState(),
		Created: ui.Stamp(k.GetCreated()), Expires: ui.Stamp(k.GetExpires()), Revoked: ui.Stamp(k.GetRevoked()), LastUsed: ui.Stamp(k.GetLastUsed()),
		RotatedFrom: k.GetRotatedFrom(), RotatedTo: k.GetRotatedTo(), Runs: k.GetRuns(),
	}
}
