package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/content"
	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

type whyCmd struct {
	Subject    string `arg:"" optional:"" help:"Only denials of this subject."`
	Capability string `arg:"" optional:"" name:"cap" help:"Only denials of this capability; without an action it is read:."`
}

// Help is the manual of why.
func (whyCmd) Help() string {
	return `Shows the newest denial: when, its true cause, the name that was probably meant,
and commands that would mend it, ready to paste. Nothing is changed; whether the
subject should have it is yours to say.

"now" is how the same would be judged now; it is left out where that depends on the
arguments of a call, on what was called before, or on a person.

An agent key that was not taken is agent-key:ID. One that nobody knows, or none at
all, is told only to whoever asks for it: anybody on the network can send that.

A request about the memory that names tenants is refused whole where one of them is
not granted; all that it named are told, and what would let the whole through.

Examples:
  sbctl why
  sbctl why worker design-doc
  sbctl why coder call:github/search
  sbctl why worker memory.read:acme
  sbctl why "" agent-key`
}

type whyView struct {
	Timestamp  string   `json:"timestamp"`
	SubjectID  string   `json:"subjectId,omitempty"`
	Capability string   `json:"capability,omitempty"`
	ResourceID string   `json:"resourceId,omitempty"`
	Decision   string   `json:"decision"`
	ReasonCode string   `json:"reasonCode"`
	Cause      string   `json:"cause,omitempty"`
	Count      uint64   `json:"count"`
	Now        string   `json:"now,omitempty"`
	Tool       string   `json:"tool,omitempty"`    // of the memory
	Tenants    []string `json:"tenants,omitempty"` // that were named
	KeyID      string   `json:"keyId,omitempty"`   // agent key that it came with
	Nearest    string   `json:"nearest,omitempty"`
	Document   string   `json:"document,omitempty"`
	Fix        []string `json:"fix"`
}

// Run explains the newest denial.
func (c whyCmd) Run(ctx context.Context, a *app) error {
	const doing = "looking for the newest denial"
	groups, err := a.denials(ctx, doing, c.Subject, 0)
	if err != nil {
		return err
	}
	strangers := false
	for _, d := range groups {
		switch {
		case c.Capability == "" && d.GetCapability() == agentKeyDenied:
			strangers = true
		case c.Capability == "" || asksFor(d.GetCapability(), c.Capability):
			return a.explainDenial(ctx, doing, d)
		}
	}
	if strangers {
		a.done("nothing was denied to anybody who is known; agent keys that are not: %s", a.paste("why", "", agentKeyDenied))
	} else {
		a.done("%s", a.nothingDenied(ctx, doing, c.Subject))
	}
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{Value: struct{}{}})
	}
	return nil
}

// nothingDenied says that there is no denial, and that subject, when there is
// one, does not exist.
func (a *app) nothingDenied(ctx context.Context, doing, subject string) string {
	const nothing = "nothing was denied"
	if subject == "" {
		return nothing
	}
	subjects, err := a.subjects(ctx, doing)
	if err != nil {
		return nothing // what was asked for is answered all the same
	}
	for _, s := range subjects {
		if s.GetName() == subject {
			return nothing
		}
	}
	return fmt.Sprintf("%s, and no subject is named %s", nothing, subject)
}

func (a *app) explainDenial(ctx context.Context, doing string, d *operatorv1.DenialGroup) error {
	known, err := a.knowledge(ctx, doing)
	if failed, ok := errors.AsType[*failure](err); ok && failed.code == wire.VaultLocked {
		known, err = nil, nil // what was denied is told all the same
	}
	if err != nil {
		return err
	}
	view := whyView{
		Timestamp: ui.Stamp(d.GetLast()), SubjectID: d.GetSubject(), Capability: d.GetCapability(), ResourceID: resourceOf(d.GetCapability()),
		Decision: "deny", ReasonCode: d.GetReasonCode(), Cause: d.GetCause(), Count: d.GetCount(), Fix: []string{},
	}
	advice := [][]string{{"unlock"}}
	if known != nil {
		a.learnProfiles(ctx, known, d)
		a.learnCall(ctx, known, d)
		a.learnMemory(ctx, known, d)
		if r := known.recalled; r != nil {
			view.Tool, view.Tenants, view.KeyID = r.tool, r.tenants, r.key
		}
		a.learnKey(ctx, known, d)
		if cause(d.GetCause()) == causeUnknownTenant {
			known.tenantNames = a.namesOf(ctx, wire.UnknownTenant)
		}
		view.Now, view.Document = a.judgeNow(ctx, known, d), known.document(d)
		view.Nearest, advice = known.mend(d, view.Now)
	}
	for _, words := range advice {
		view.Fix = append(view.Fix, a.paste(words...))
	}
	if err := a.out.Object(ui.Object{ID: view.Capability, Fields: a.whyFields(d, view), Value: view}); err != nil {
		return err
	}
	if a.out.Quiet || a.out.Format == ui.JSON {
		return nil
	}
	var text strings.Builder
	for _, fix := range view.Fix {
		text.WriteString("fix: " + ui.Safe(fix) + "\n")
	}
	_, err = fmt.Fprint(a.stdout, text.String())
	return err
}

func (a *app) whyFields(d *operatorv1.DenialGroup, view whyView) []ui.Field {
	return []ui.Field{
		{Name: "time", Value: a.out.When(d.GetLast())},
		{Name: "subject", Value: view.SubjectID},
		{Name: "capability", Value: view.Capability},
		{Name: "tool", Value: view.Tool},
		{Name: "tenants", Value: strings.Join(view.Tenants, ", ")},
		{Name: "agent key", Value: view.KeyID},
		{Name: "reason", Value: view.ReasonCode},
		{Name: "cause", Value: withMask(withMeaning(view.Cause), d.GetCapability())},
		{Name: "times", Value: fmt.Sprint(view.Count)},
		{Name: "nearest", Value: view.Nearest},
		{Name: "document", Value: view.Document},
		{Name: "now", Value: view.Now},
	}
}

// judgeNow is the decision that the same request would get now, and empty when
// the daemon cannot judge it.
func (a *app) judgeNow(ctx context.Context, known *knowledge, d *operatorv1.DenialGroup) string {
	if _, ok := known.subjects[d.GetSubject()]; !ok || d.GetCapability() == "" {
		return ""
	}
	switch cause(d.GetCause()) {
	case causeUnknownProfile, causeSubjectMismatch, causeOperatorRefused, causeAuthRequired, causeWrappedHosted,
		causeRevokedKey, causeExpiredKey, causeUnknownKey, causeMissingToken, causeMalformedToken, causeKeyMismatch:
		return "" // how it was asked was wrong, not what
	case causeToolNotListed, causeCapsNarrowed:
		if len(known.stops) > 0 {
			return "deny"
		}
	default:
	}
	switch wire.Reason(d.GetReasonCode()) {
	case wire.TenantOutOfScope:
	case wire.AccessDenied:
	case wire.PolicyBlocked:
		if !byList(cause(d.GetCause())) {
			return "" // that depends on the arguments, or on what was called before
		}
	case wire.ResourceChanged: // the evaluator does not look at files
		files, err := a.checkFiles(ctx, "", []string{resourceOf(d.GetCapability())})
		if err != nil || len(files) != 1 || files[0].GetState() != fileOK {
			return ""
		}
	default:
		return "" // what was refused for the state of things is not judged by the evaluator
	}
	if known.recalled != nil {
		return a.recallNow(ctx, known.recalled, d.GetSubject())
	}
	got, err := call(ctx, a, "", &operatorv1.ExplainRequest{Subject: d.GetSubject(), Capability: d.GetCapability()}, operatorv1.OperatorServiceClient.Explain)
	if err != nil {
		return "" // the denial is told all the same
	}
	if after := a.afterGrants(ctx, d.GetSubject(), d.GetCapability()); after != nil && after.stopped() {
		return "deny"
	}
	return got.GetDecision()
}

// knowledge is what exists, to compare a denied request with.
type knowledge struct {
	resources     map[string]*operatorv1.Resource
	resourceNames []string
	subjects      map[string]*operatorv1.Subject
	subjectNames  []string
	tenantNames   []string // asked for only where one is why
	grants        []*operatorv1.Grant
	profiles      []string // of the denied subject; asked for only where one is why
	stops         []stop
	called        *called   // what a denied call was about; nil: it was none
	recalled      *recalled // what was denied of the memory; nil: nothing of it
	keyTenants    []string  // of the key that was not taken; none: it had none, or there was no such key
	deaf          bool      // nobody can approve
}

func (a *app) knowledge(ctx context.Context, doing string) (*knowledge, error) {
	known := &knowledge{resources: map[string]*operatorv1.Resource{}, subjects: map[string]*operatorv1.Subject{}}
	resources, err := a.resources(ctx, doing)
	if err != nil {
		return nil, err
	}
	for _, r := range resources {
		known.resources[r.GetName()] = r
		known.resourceNames = append(known.resourceNames, r.GetName())
	}
	subjects, err := a.subjects(ctx, doing)
	if err != nil {
		return nil, err
	}
	for _, s := range subjects {
		known.subjects[s.GetName()] = s
		known.subjectNames = append(known.subjectNames, s.GetName())
	}
	grants, err := call(ctx, a, doing, &operatorv1.ListGrantsRequest{}, operatorv1.OperatorServiceClient.ListGrants)
	if err != nil {
		return nil, err
	}
	known.grants = grants.GetGrants()
	return known, nil
}

// mend finds the name that was probably meant and the commands that would let
// the same request through. It is pure.
func (k *knowledge) mend(d *operatorv1.DenialGroup, now string) (near string, commands [][]string) {
	if now == decisionAllow {
		return "", nil // mended since
	}
	if near, commands, ok := k.mendCall(d); ok {
		return near, commands
	}
	if near, commands, ok := k.mendMemory(d); ok {
		return near, commands
	}
	if commands, ok := k.mendKey(d); ok {
		return "", commands
	}
	subject, capability := d.GetSubject(), d.GetCapability()
	resource := resourceOf(capability)
	switch cause(d.GetCause()) {
	case causeUnknownSubject:
		if k.subjects[subject] != nil {
			return "", nil // mended since
		}
		if near, ok := nearest.Name(subject, k.subjectNames); ok && near != subject {
			return near, [][]string{{"subject", "add", subject}}
		}
		return "", [][]string{{"subject", "add", subject}}
	case causeSubjectDisabled:
		if k.subjects[subject].GetEnabled() {
			return "", nil // mended since
		}
		return "", [][]string{{"subject", "enable", subject}}
	case causeUnknownResource:
		near, _ := nearest.Name(resource, k.resourceNames)
		if near != "" && near != resource {
			commands = k.grant(subject, strings.TrimSuffix(capability, resource)+near)
		}
		return near, append(commands, []string{"secret", "put", resource})
	case causeUnknownTenant:
		_, tenant, _ := strings.Cut(capability, ":")
		near, _ := nearest.Name(tenant, k.tenantNames)
		if near == tenant {
			return "", nil // mended since
		}
		if near != "" {
			commands = k.grant(subject, strings.TrimSuffix(capability, tenant)+near)
		}
		return near, append(commands, []string{"tenant", "add", tenant})
	case causeNoContent:
		return "", [][]string{{"secret", "put", resource}}
	case causeExplicitDeny:
		for _, g := range k.grants {
			if g.GetSubject() == subject && g.GetEffect() == "deny" && matches(g.GetCapability(), capability) {
				commands = append(commands, []string{"revoke", g.GetGrantId()})
			}
		}
		return "", commands
	case causeTierTooLow:
		return "", k.raiseTier(subject, capability)
	case causePersonal: // its own operator's grant takes the place of the present one
		return "", [][]string{k.grantWords(subject, capability)}
	case causeToolNotListed, causeCapsNarrowed, causeUnknownProfile:
		return "", k.mendProfile(d)
	case causeSubjectMismatch:
		return "", [][]string{{"runs", "list"}, {"connect", "--list"}}
	case causeOperatorRefused:
		return "", [][]string{{"operator", "status"}}
	case causeAuthRequired:
		return "", [][]string{{"console"}}
	case causeNoGrant, causeGrantExpired, causeGrantExhausted, causeNoDisclosure:
		return "", k.grant(subject, capability)
	default:
		if commands, ok := k.mendApproval(d); ok {
			return "", commands
		}
		return "", k.mendState(d)
	}
}

// mendState is for what was refused for the state of things, not by policy.
func (k *knowledge) mendState(d *operatorv1.DenialGroup) [][]string {
	resource := resourceOf(d.GetCapability())
	switch wire.Reason(d.GetReasonCode()) {
	case wire.ResourceChanged:
		commands := [][]string{{"resource", "status", resource}}
		if cause(d.GetCause()) == causeFileChanged {
			commands = append(commands, []string{"resource", "repin", resource})
		}
		return commands
	case wire.ResourceTooLarge, wire.ResourceEncodingInvalid:
		return [][]string{{"resource", "show", resource}}
	case wire.VaultLocked:
		return nil // mended since: what k knows, an unlocked vault told
	case wire.AuditFailed, wire.IntegrityFailed, wire.PolicyUnavailable, wire.InternalError:
		return [][]string{{"status"}}
	case wire.RunEnded, wire.RateLimited:
		return [][]string{{"runs", "list"}}
	case wire.AccessDenied, wire.ApprovalDenied:
		if d.GetSubject() != "" && d.GetCapability() != "" {
			return [][]string{{"explain", d.GetSubject(), d.GetCapability()}}
		}
		return nil
	default:
		return nil
	}
}

// agentKeyDenied is what was denied to whoever presented no key, or one that nobody
// knows; with a colon and the id it is a key that is known.
const agentKeyDenied = "agent-key"

// learnKey finds out which tenants a key reached that was not taken.
func (a *app) learnKey(ctx context.Context, known *knowledge, d *operatorv1.DenialGroup) {
	if id, ok := strings.CutPrefix(d.GetCapability(), agentKeyDenied+":"); ok {
		known.keyTenants = a.keyTenants(ctx, id)
	}
}

// mendKey are the commands that give the client a key that is good again; ok says
// whether it was a key that was not taken.
func (k *knowledge) mendKey(d *operatorv1.DenialGroup) (commands [][]string, ok bool) {
	rest, ok := strings.CutPrefix(d.GetCapability(), agentKeyDenied)
	id, known := strings.CutPrefix(rest, ":")
	switch subject := k.subjects[d.GetSubject()]; {
	case !ok || rest != "" && !known:
		return nil, false
	case !known:
		return [][]string{{"agent-key", "list"}}, true
	case subject == nil:
		return [][]string{{"agent-key", "show", id}}, true
	case !subject.GetEnabled():
		return [][]string{{"subject", "enable", subject.GetName()}}, true
	}
	switch cause(d.GetCause()) {
	case causeRevokedKey, causeExpiredKey, causeUnknownSubject:
		mint := []string{"agent-key", "mint", "--subject", d.GetSubject()}
		for _, tenant := range k.keyTenants {
			mint = append(mint, "--tenant", tenant)
		}
		return [][]string{{"agent-key", "show", id}, mint}, true
	default:
		return [][]string{{"agent-key", "show", id}}, true
	}
}

// grant is the command that grants capability; none when it is held already.
func (k *knowledge) grant(subject, capability string) [][]string {
	secret := k.readsSecret(capability)
	for _, g := range k.grants {
		held := g.GetSubject() == subject && g.GetEffect() == decisionAllow && g.GetState() == "active" && g.GetCapability() == capability
		if held && (g.GetDisclose() || !secret) {
			return nil
		}
	}
	return [][]string{k.grantWords(subject, capability)}
}

// readsSecret says whether capability is to see content of kind secret.
func (k *knowledge) readsSecret(capability string) bool {
	return strings.HasPrefix(capability, "read:") && k.resources[resourceOf(capability)].GetKind() == content.Secret
}

func (k *knowledge) grantWords(subject, capability string) []string {
	words := []string{"grant", subject, capability}
	if k.readsSecret(capability) {
		words = append(words, "--disclose")
	}
	return words
}

// matches says whether a pattern covers a capability.
func matches(pattern, capability string) bool {
	prefix, wild := strings.CutSuffix(pattern, "*")
	return pattern == capability || wild && strings.HasPrefix(capability, prefix)
}
