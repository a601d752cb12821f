package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type meterView struct {
	LaunchID     string   `json:"launchId,omitempty"`
	Calls        uint64   `json:"calls"`
	SpentMicros  uint64   `json:"spentMicros"`
	Began        string   `json:"began,omitempty"`
	OpenBreakers []string `json:"openBreakers"`
	Killed       bool     `json:"killed"`
}

type policyView struct {
	SubjectID      string      `json:"subjectId"`
	Server         string      `json:"server"`
	Audit          string      `json:"audit"`
	ApprovalWaitMs uint64      `json:"approvalWaitMs"`
	ShareApprovals bool        `json:"shareApprovals,omitempty"`
	Policy         string      `json:"policy"` // its version, as entries name it
	ObserveUntil   string      `json:"observeUntil,omitempty"`
	Owner          string      `json:"owner,omitempty"`
	Meters         []meterView `json:"meters"`
	Rules          string      `json:"rules"`
}

func viewPolicy(p *operatorv1.Policy) policyView {
	view := policyView{
		SubjectID: p.GetSubject(), Server: p.GetServer(), Audit: p.GetAudit(), ApprovalWaitMs: p.GetApprovalWaitMs(), ShareApprovals: p.GetShareApprovals(), Policy: p.GetVersion(),
		ObserveUntil: ui.Stamp(p.GetObserveUntil()), Owner: p.GetOwner(), Meters: []meterView{}, Rules: string(p.GetRules()),
	}
	for _, m := range p.GetMeters() {
		view.Meters = append(view.Meters, meterView{
			m.GetLaunchId(), m.GetCalls(), m.GetSpentMicros(), ui.Stamp(m.GetBegan()), append([]string{}, m.GetOpenBreakers()...), m.GetKilled(),
		})
	}
	return view
}

// policies are the policies of a subject around a server; empty means all.
func (a *app) policies(ctx context.Context, doing, subject, server string) ([]*operatorv1.Policy, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListPoliciesRequest{Subject: subject, Server: server}, operatorv1.OperatorServiceClient.ListPolicies)
	return got.GetPolicies(), err
}

type policyListCmd struct {
	Subject string `placeholder:"S" help:"Only those of this subject."`
	Server  string `placeholder:"SERVER" help:"Only those around this server."`
}

// Help is the manual of policy list.
func (policyListCmd) Help() string {
	return `CALLS and SPENT are of all sessions that are counted now; a budget is over all
launches, other limits are of one. VERSION is what entries of the log name.

Examples:
  sbctl policy list
  sbctl policy list --server github -o json`
}

// Run lists policies.
func (c policyListCmd) Run(ctx context.Context, a *app) error {
	policies, err := a.policies(ctx, "listing policies", c.Subject, c.Server)
	if err != nil {
		return err
	}
	list := ui.List{Head: []string{"SUBJECT", "SERVER", "AUDIT", "VERSION", "CALLS", "SPENT", "STATE", "RULES", "OWNER"}}
	views := make([]policyView, 0, len(policies))
	for _, p := range policies {
		var calls, spent uint64
		for _, m := range p.GetMeters() {
			calls, spent = calls+m.GetCalls(), max(spent, m.GetSpentMicros())
		}
		list.IDs = append(list.IDs, p.GetSubject()+" "+p.GetServer())
		list.Rows = append(list.Rows, []string{
			p.GetSubject(), p.GetServer(), p.GetAudit(), p.GetVersion(), fmt.Sprint(calls), micros(spent), meterStates(p), a.observing(p.GetObserveUntil()), p.GetOwner(),
		})
		views = append(views, viewPolicy(p))
	}
	list.Items = views
	return a.list(list, "there are no policies: calls have no limits but their grants")
}

// meterStates is what stops calls now.
func meterStates(p *operatorv1.Policy) string {
	var words []string
	for _, m := range p.GetMeters() {
		if m.GetKilled() {
			words = append(words, "killed")
		}
		for _, tool := range m.GetOpenBreakers() {
			words = append(words, "breaker open: "+tool)
		}
	}
	return strings.Join(words, ", ")
}

type policyShowCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
	Server  string `arg:"" help:"Name of the server."`
}

// Help is the manual of policy show.
func (policyShowCmd) Help() string {
	return `Rules are as "export" writes them.

Examples:
  sbctl policy show coder github`
}

// Run shows one policy.
func (c policyShowCmd) Run(ctx context.Context, a *app) error {
	p, err := a.policy(ctx, "showing the policy of "+c.Subject+" around "+c.Server, c.Subject, c.Server)
	if err != nil {
		return err
	}
	return a.printPolicy(p)
}

// policy is the policy of a subject around a server; none is refused.
func (a *app) policy(ctx context.Context, doing, subject, server string) (*operatorv1.Policy, error) {
	policies, err := a.policies(ctx, doing, subject, server)
	if err != nil {
		return nil, err
	}
	if len(policies) == 0 {
		return nil, refuse(doing, "%s has no policy around %s", subject, server).withHint("sbctl policy list")
	}
	return policies[0], nil
}

func (a *app) printPolicy(p *operatorv1.Policy) error {
	err := a.out.Object(ui.Object{
		ID: p.GetSubject() + " " + p.GetServer(),
		Fields: []ui.Field{
			{Name: "subject", Value: p.GetSubject()},
			{Name: "server", Value: p.GetServer()},
			{Name: "audit", Value: p.GetAudit()},
			{Name: "waits for a person", Value: (time.Duration(p.GetApprovalWaitMs()) * time.Millisecond).String()},
			{Name: "version", Value: p.GetVersion()},
			{Name: "rules", Value: a.observing(p.GetObserveUntil())},
			{Name: "owner", Value: p.GetOwner()},
		},
		Value: viewPolicy(p),
	})
	if err != nil {
		return err
	}
	var rows [][]string
	for _, m := range p.GetMeters() {
		state := ""
		if m.GetKilled() {
			state = "killed"
		}
		rows = append(rows, []string{
			orWord(m.GetLaunchId(), "(outside launches)"), fmt.Sprint(m.GetCalls()), micros(m.GetSpentMicros()), a.out.When(m.GetBegan()),
			strings.Join(m.GetOpenBreakers(), ", "), state,
		})
	}
	if err := a.out.Section("Counted", []string{"LAUNCH", "CALLS", "SPENT", "BEGAN", "OPEN BREAKERS", "STATE"}, rows); err != nil {
		return err
	}
	if a.out.Format == ui.JSON || a.out.Quiet {
		return nil
	}
	rules := string(p.GetRules())
	if strings.TrimSpace(rules) == "" {
		rules = "{} # limits nothing\n"
	}
	_, err = fmt.Fprint(a.stdout, "\nRules\n"+ui.SafeText(rules))
	return err
}

type policyResetCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
	Server  string `arg:"" help:"Name of the server."`
}

// Help is the manual of policy reset.
func (policyResetCmd) Help() string {
	return `Calls, runtime, rate, circuit breakers and the budget begin anew, in every launch; a
session that the policy killed may call again. Asks first, or needs --yes.

Examples:
  sbctl policy reset coder github`
}

// Run resets.
func (c policyResetCmd) Run(ctx context.Context, a *app) error {
	doing := "resetting the policy of " + c.Subject + " around " + c.Server
	if _, err := a.policy(ctx, doing, c.Subject, c.Server); err != nil {
		return err
	}
	if err := a.confirm(ctx, doing, fmt.Sprintf("Forget what %s has used up around %s?", c.Subject, c.Server)); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.ResetPolicyRequest{Subject: c.Subject, Server: c.Server}, operatorv1.OperatorServiceClient.ResetPolicy)
	if err != nil {
		return err
	}
	a.warn(got.GetWarnings())
	return a.printPolicy(got.GetPolicy())
}

type policyRmCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
	Server  string `arg:"" help:"Name of the server."`
}

// Help is the manual of policy rm.
func (policyRmCmd) Help() string {
	return `Calls have then no limits but their grants, and what the policy has counted is gone.
Asks first, or needs --yes. A document that still holds the policy brings it back.
Where a rule of it asks a person, whoever removes or resets it needs the operator's
passphrase, or to be another operator's uid.

Examples:
  sbctl policy rm coder github`
}

type policyRemovedView struct {
	SubjectID string `json:"subjectId"`
	Server    string `json:"server"`
	Removed   bool   `json:"removed"`
}

// Run removes.
func (c policyRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing the policy of " + c.Subject + " around " + c.Server
	if _, err := a.policy(ctx, doing, c.Subject, c.Server); err != nil {
		return err
	}
	if err := a.confirm(ctx, doing, fmt.Sprintf("Remove the policy of %s around %s, so that nothing limits its calls?", c.Subject, c.Server)); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.ResetPolicyRequest{Subject: c.Subject, Server: c.Server, Remove: true}, operatorv1.OperatorServiceClient.ResetPolicy)
	if err != nil {
		return err
	}
	a.warn(got.GetWarnings())
	return a.out.Object(ui.Object{
		ID:     c.Subject + " " + c.Server,
		Fields: []ui.Field{{Name: "removed", Value: c.Subject + " around " + c.Server}},
		Value:  policyRemovedView{c.Subject, c.Server, true},
	})
}
