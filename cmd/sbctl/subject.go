package main

import (
	"context"
	"fmt"
	"strings"

	"subjectbroker/cmd/sbctl/internal/nearest"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type subjectCmd struct {
	Add     subjectAddCmd     `cmd:"" help:"Create a subject"`
	Set     subjectSetCmd     `cmd:"" help:"Change a subject's minimum tier"`
	List    subjectListCmd    `cmd:"" default:"1" help:"List subjects"`
	Show    subjectShowCmd    `cmd:"" help:"Show one subject, its grants and its runs"`
	Disable subjectDisableCmd `cmd:"" help:"Deny a subject everything and end its runs"`
	Enable  subjectEnableCmd  `cmd:"" help:"Let a disabled subject ask again"`
	Rm      subjectRmCmd      `cmd:"" help:"Remove a subject, its grants and its runs"`
}

// Help is the manual of subject.
func (subjectCmd) Help() string {
	return `A subject is the configured identity that asks, usually one for each agent. It
can do nothing until it is granted something.`
}

type subjectAddCmd struct {
	Subject string  `arg:"" help:"Name: letters, digits, dot, dash, underscore."`
	UID     *uint32 `name:"uid" placeholder:"N" help:"The uid that is this subject and nothing else."`
	MinTier string  `placeholder:"TIER" help:"Minimum tier of its runs: cooperative (default), bound or sandboxed."`
}

// Help is the manual of subject add.
func (subjectAddCmd) Help() string {
	return `A run whose tier is below the minimum is refused everything, whatever it was
granted. A minimum above cooperative needs an operator's passphrase, or another uid
as operator, to be set.

With --uid every process of that uid is the subject, whatever it claims, at tier
separate. It is the uid of no operator, of no other subject and not 0, and the
daemon's sockets lie outside its home, each with a group of exactly the uids that
may use it (socketDir in its config.yaml). A document changes it later.

Examples:
  sbctl subject add worker
  sbctl subject add worker --min-tier bound
  sbctl subject add worker --uid 1001`
}

// Run creates a subject.
func (c subjectAddCmd) Run(ctx context.Context, a *app) error {
	got, err := call(ctx, a, "adding subject "+c.Subject, &operatorv1.AddSubjectRequest{Name: c.Subject, MinTier: c.MinTier, Uid: c.UID}, operatorv1.OperatorServiceClient.AddSubject)
	if err != nil {
		return err
	}
	return a.printSubject(got.GetSubject())
}

type subjectSetCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
	MinTier string `required:"" placeholder:"TIER" help:"New minimum tier: cooperative, bound or sandboxed."`
}

// Help is the manual of subject set.
func (subjectSetCmd) Help() string {
	return `Raising it above cooperative needs an operator's passphrase, or another uid as
operator, to be set.

A subject's uid is changed, or given to one that has none, by a document ("subjects:
{worker: {uid: 1001}}", with "apply"); it is taken away with the subject.

Examples:
  sbctl subject set worker --min-tier bound
  sbctl subject set worker --min-tier cooperative`
}

// Run changes a subject.
func (c subjectSetCmd) Run(ctx context.Context, a *app) error {
	return a.setSubject(ctx, "changing subject "+c.Subject, &operatorv1.SetSubjectRequest{Name: c.Subject, MinTier: c.MinTier})
}

type subjectDisableCmd struct {
	Subjects []string `arg:"" name:"subject" help:"Names of subjects."`
}

// Help is the manual of subject disable.
func (subjectDisableCmd) Help() string {
	return `Takes effect at once: open runs end, the next request is denied. Grants stay and
hold again after "subject enable". Of several names, one that does not exist
stops none of the others.

Examples:
  sbctl subject disable worker
  sbctl subject disable worker colleague`
}

// Run disables subjects.
func (c subjectDisableCmd) Run(ctx context.Context, a *app) error {
	return a.switchSubjects(ctx, "disabling subject ", c.Subjects, false)
}

type subjectEnableCmd struct {
	Subjects []string `arg:"" name:"subject" help:"Names of subjects."`
}

// Help is the manual of subject enable.
func (subjectEnableCmd) Help() string {
	return `Examples:
  sbctl subject enable worker
  sbctl subject enable worker colleague`
}

// Run enables subjects.
func (c subjectEnableCmd) Run(ctx context.Context, a *app) error {
	return a.switchSubjects(ctx, "enabling subject ", c.Subjects, true)
}

// switchSubjects enables or disables each of names; it goes on after a failure
// and returns the first. One subject is shown by itself, several as a list.
func (a *app) switchSubjects(ctx context.Context, doing string, names []string, enabled bool) error {
	if len(names) == 1 {
		return a.setSubject(ctx, doing+names[0], &operatorv1.SetSubjectRequest{Name: names[0], Enabled: &enabled})
	}
	var changed []*operatorv1.Subject
	var first error
	for _, name := range names {
		got, err := call(ctx, a, doing+name, &operatorv1.SetSubjectRequest{Name: name, Enabled: &enabled}, operatorv1.OperatorServiceClient.SetSubject)
		switch {
		case err == nil:
			changed = append(changed, got.GetSubject())
		case first == nil:
			first = err
		default:
			a.say("%v", err)
		}
	}
	if err := a.out.List(a.subjectList(changed)); err != nil {
		return err
	}
	return first
}

func (a *app) setSubject(ctx context.Context, doing string, request *operatorv1.SetSubjectRequest) error {
	got, err := call(ctx, a, doing, request, operatorv1.OperatorServiceClient.SetSubject)
	if err != nil {
		return err
	}
	if ended := got.GetEndedRuns(); ended > 0 {
		a.done("%s ended", count(ended, "run"))
	}
	return a.printSubject(got.GetSubject())
}

type subjectListCmd struct{}

// Help is the manual of subject list.
func (subjectListCmd) Help() string {
	return `Examples:
  sbctl subject list
  sbctl subjects -q`
}

// Run lists subjects.
func (subjectListCmd) Run(ctx context.Context, a *app) error {
	subjects, err := a.subjects(ctx, "listing subjects")
	if err != nil {
		return err
	}
	return a.list(a.subjectList(subjects), "there are no subjects")
}

func (a *app) subjectList(subjects []*operatorv1.Subject) ui.List {
	list := ui.List{Head: []string{"SUBJECT", "ENABLED", "MIN TIER", "UID", "GRANTS", "RUNS", "CREATED"}}
	views := make([]subjectView, 0, len(subjects))
	for _, s := range subjects {
		list.IDs = append(list.IDs, s.GetName())
		list.Rows = append(list.Rows, []string{
			s.GetName(), yesNo(s.GetEnabled()), s.GetMinTier(), uidWords(s.Uid), fmt.Sprint(s.GetGrants()), fmt.Sprint(s.GetRuns()), a.out.When(s.GetCreated()),
		})
		views = append(views, viewSubject(s))
	}
	list.Items = views
	return list
}

// subjects are all subjects, sorted by name.
func (a *app) subjects(ctx context.Context, doing string) ([]*operatorv1.Subject, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListSubjectsRequest{}, operatorv1.OperatorServiceClient.ListSubjects)
	return got.GetSubjects(), err
}

// listSubjects is the hint where no subject has nearly the name that was given.
const listSubjects = "sbctl subject list"

// subject is the subject of a name; one that does not exist is refused, with
// the nearest that does.
func (a *app) subject(ctx context.Context, doing, verb, name string) (*operatorv1.Subject, error) {
	subjects, err := a.subjects(ctx, doing)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, s := range subjects {
		if s.GetName() == name {
			return s, nil
		}
		names = append(names, s.GetName())
	}
	refused := refuse(doing, "no subject is named %s", name)
	if near, ok := nearest.Name(name, names); ok {
		return nil, refused.withHint("sbctl subject %s %s", verb, near)
	}
	return nil, refused.withHint(listSubjects)
}

type subjectShowCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
}

// Help is the manual of subject show.
func (subjectShowCmd) Help() string {
	return `Examples:
  sbctl subject show worker`
}

type subjectFullView struct {
	subjectView
	Holds        []grantView  `json:"holds"`
	OpenRuns     []runView    `json:"openRuns"`
	OpenLaunches []launchView `json:"openLaunches"`
}

// Run shows one subject.
func (c subjectShowCmd) Run(ctx context.Context, a *app) error {
	doing := "showing subject " + c.Subject
	s, err := a.subject(ctx, doing, "show", c.Subject)
	if err != nil {
		return err
	}
	held, err := call(ctx, a, doing, &operatorv1.ListGrantsRequest{Subject: c.Subject}, operatorv1.OperatorServiceClient.ListGrants)
	if err != nil {
		return err
	}
	all, err := call(ctx, a, doing, &operatorv1.ListRunsRequest{}, operatorv1.OperatorServiceClient.ListRuns)
	if err != nil {
		return err
	}
	var runs []*operatorv1.Run
	for _, r := range all.GetRuns() {
		if r.GetSubject() == c.Subject {
			runs = append(runs, r)
		}
	}
	var launches []*operatorv1.Launch
	for _, l := range all.GetLaunches() {
		if l.GetSubject() == c.Subject {
			launches = append(launches, l)
		}
	}
	err = a.out.Object(ui.Object{
		ID: s.GetName(), Fields: a.subjectFields(s),
		Value: subjectFullView{viewSubject(s), viewGrants(held.GetGrants()), viewRuns(runs), viewLaunches(launches, runs)},
	})
	if err != nil {
		return err
	}
	if err := a.out.Section("Grants", grantHead, a.grantRows(held.GetGrants())); err != nil {
		return err
	}
	return a.out.Section("Runs", runHead, a.runRows(runs, launches))
}

func (a *app) printSubject(s *operatorv1.Subject) error {
	return a.out.Object(ui.Object{ID: s.GetName(), Fields: a.subjectFields(s), Value: viewSubject(s)})
}

func (a *app) subjectFields(s *operatorv1.Subject) []ui.Field {
	return []ui.Field{
		{Name: "subject", Value: s.GetName()},
		{Name: "enabled", Value: yesNo(s.GetEnabled())},
		{Name: "min tier", Value: s.GetMinTier()},
		{Name: "uid", Value: uidWords(s.Uid)},
		{Name: "grants", Value: fmt.Sprint(s.GetGrants())},
		{Name: "runs", Value: fmt.Sprint(s.GetRuns())},
		{Name: "created", Value: a.out.When(s.GetCreated())},
		{Name: "owner", Value: s.GetOwner()},
	}
}

type subjectRmCmd struct {
	Subject string `arg:"" help:"Name of the subject."`
}

// Help is the manual of subject rm.
func (subjectRmCmd) Help() string {
	return `A new subject of the same name inherits nothing. Asks first, or needs --yes.

Examples:
  sbctl subject rm worker`
}

// Run removes a subject.
func (c subjectRmCmd) Run(ctx context.Context, a *app) error {
	doing := "removing subject " + c.Subject
	s, err := a.subject(ctx, doing, "rm", c.Subject)
	if err != nil {
		return err
	}
	question := fmt.Sprintf("Remove subject %s with %s and %s?", c.Subject, count(s.GetGrants(), "grant"), count(s.GetRuns(), "open run"))
	if err := a.confirm(ctx, doing, question); err != nil {
		return err
	}
	got, err := call(ctx, a, doing, &operatorv1.RemoveSubjectRequest{Name: c.Subject}, operatorv1.OperatorServiceClient.RemoveSubject)
	if err != nil {
		return err
	}
	ended := got.GetEndedRuns()
	return a.out.Object(ui.Object{
		ID: c.Subject,
		Fields: []ui.Field{
			{Name: "removed", Value: c.Subject},
			{Name: "revoked", Value: strings.Join(got.GetRevokedGrantIds(), ", ")},
			{Name: "runs ended", Value: fmt.Sprint(ended)},
		},
		Value: removedView{SubjectID: c.Subject, Removed: true, Revoked: append([]string{}, got.GetRevokedGrantIds()...), EndedRuns: &ended},
	})
}
