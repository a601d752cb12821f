package main

import (
	"context"
	"fmt"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type denialsCmd struct {
	Since   string `placeholder:"D" help:"Only this far back: 90m, 2h, 7d, or a time."`
	Subject string `placeholder:"S" help:"Only those of this subject."`
}

// Help is the manual of denials.
func (denialsCmd) Help() string {
	return `Denials grouped by subject, capability and true cause, newest first. The subject
itself was told ACCESS_DENIED and nothing else.

A call of a tool is call:SERVER/tool, and call:SERVER/* where it was the server as a
whole. Of those that a policy or a person refused, the agent was told so. A message
to a server that calls no tool is method:SERVER/method. A request about the memory
is memory.read: or memory.write: and the tenants that it named, with commas between;
TENANT_OUT_OF_SCOPE, which the agent was told too, is one that named others' tenants.
An agent key that was not taken is agent-key:ID, and agent-key where nobody knows it
or none was presented: for all of those there is no more than a line for each cause.

Examples:
  sbctl denials --since 1h
  sbctl denials --subject worker -o json`
}

// Run lists denials.
func (c denialsCmd) Run(ctx context.Context, a *app) error {
	const doing = "listing denials"
	since, err := pastMillis(doing, "--since", c.Since, a.now())
	if err != nil {
		return err
	}
	groups, err := a.denials(ctx, doing, c.Subject, since)
	if err != nil {
		return err
	}
	list := ui.List{Head: denialHead, Rows: a.denialRows(groups)}
	views := make([]denialView, 0, len(groups))
	for _, d := range groups {
		list.IDs = append(list.IDs, d.GetCapability())
		views = append(views, viewDenial(d))
	}
	list.Items = views
	return a.list(list, "nothing was denied")
}

var denialHead = []string{"SUBJECT", "CAPABILITY", "CAUSE", "REASON", "COUNT", "LAST"}

func (a *app) denialRows(groups []*operatorv1.DenialGroup) [][]string {
	var rows [][]string
	for _, d := range groups {
		rows = append(rows, []string{
			d.GetSubject(), d.GetCapability(), d.GetCause(), d.GetReasonCode(), fmt.Sprint(d.GetCount()), a.out.When(d.GetLast()),
		})
	}
	return rows
}

// denials are groups of denials, newest first.
func (a *app) denials(ctx context.Context, doing, subject string, since int64) ([]*operatorv1.DenialGroup, error) {
	got, err := call(ctx, a, doing, &operatorv1.ListDenialsRequest{Since: since, Subject: subject}, operatorv1.OperatorServiceClient.ListDenials)
	return got.GetGroups(), err
}
