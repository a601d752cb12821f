package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/cmd/sbctl/internal/screen"
	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// waitingRoom is what the live screen knows of what waits for a person: requests, as
// they come, servers that need a look, and answers that stand.
type waitingRoom struct {
	changes  chan *operatorv1.Approval // nil means that all that is pending was told
	unfed    chan error                // the stream of them has ended
	fed      bool                      // there is one
	lost     error                     // why there is none, when there was one
	pending  []*operatorv1.Approval    // oldest first
	answered map[string]bool           // here; news of them from before the answer may still come
	stale    bool                      // something about servers has changed
	servers  []*operatorv1.Server
	policies []*operatorv1.Policy

	moved   bool // something about answers has changed
	answers []*operatorv1.Consent
}

func newWaitingRoom() waitingRoom {
	return waitingRoom{changes: make(chan *operatorv1.Approval), unfed: make(chan error, 1), answered: map[string]bool{}}
}

// aboutServers says whether an entry is a reason to ask for the servers again. Asking
// writes entries itself: those are none.
func aboutServers(kind string) bool {
	switch kind {
	case "server.read":
		return false
	case "policy.set", "policy.reset", "policy.remove", "operator.apply":
		return true
	}
	return strings.HasPrefix(kind, "server.")
}

// feed opens the stream of requests where there is none. A vault that is locked has
// none: then it is tried again with the next news.
func (l *liveScreen) feed(ctx context.Context) {
	if l.fed || l.status.GetVaultState() != "unlocked" {
		return
	}
	operator, err := l.app.operator(ctx)
	if err != nil {
		return
	}
	stream, err := operator.WatchApprovals(ctx, &operatorv1.WatchApprovalsRequest{})
	if err != nil {
		return
	}
	l.fed, l.pending = true, nil
	values, ended := receive(ctx, stream.Recv, (*operatorv1.WatchApprovalsResponse).GetApproval)
	go func() {
		for {
			select {
			case m := <-values:
				select {
				case l.changes <- m:
				case <-ctx.Done():
					return
				}
			case err := <-ended:
				l.unfed <- err
				return
			case <-ctx.Done():
				return
			}
		}
	}()
}

// keep takes one change of a request.
func (l *liveScreen) keep(m *operatorv1.Approval) {
	l.lost = nil
	if m == nil {
		return
	}
	if m.GetState() != statePending {
		delete(l.answered, m.GetApprovalId())
	} else if l.answered[m.GetApprovalId()] {
		return
	}
	at := slices.IndexFunc(l.pending, func(one *operatorv1.Approval) bool { return one.GetApprovalId() == m.GetApprovalId() })
	switch {
	case m.GetState() != statePending && at >= 0:
		l.pending = slices.Delete(l.pending, at, at+1)
	case m.GetState() != statePending:
	case at >= 0:
		l.pending[at] = m
	default:
		l.pending = append(l.pending, m)
	}
}

// askServers asks what is the matter with servers, where something changed.
func (l *liveScreen) askServers(ctx context.Context) {
	if !l.stale || l.status.GetVaultState() != "unlocked" {
		return
	}
	l.stale = false
	servers, err := call(ctx, l.app, "watching", &operatorv1.ListServersRequest{}, operatorv1.OperatorServiceClient.ListServers)
	if err != nil {
		return // what is shown besides is still right
	}
	l.servers = servers.GetServers()
	if policies, err := call(ctx, l.app, "watching", &operatorv1.ListPoliciesRequest{}, operatorv1.OperatorServiceClient.ListPolicies); err == nil {
		l.policies = policies.GetPolicies()
	}
}

// askAnswers asks which answers stand, where something changed. Asking writes an entry
// itself, which is no reason to ask again.
func (l *liveScreen) askAnswers(ctx context.Context) {
	if !l.moved || l.status.GetVaultState() != "unlocked" {
		return
	}
	l.moved = false
	if got, err := call(ctx, l.app, "watching", &operatorv1.ListApprovalsRequest{}, operatorv1.OperatorServiceClient.ListApprovals); err == nil {
		l.answers = got.GetConsents()
	}
}

// standing are the answers that stand, a line for each.
func (l *liveScreen) standing(now time.Time) []string {
	var lines []string
	for _, c := range l.answers {
		ends := c.GetScope()
		switch until := time.UnixMilli(c.GetUntil()); {
		case c.GetUntil() != 0 && !now.Before(until):
			continue // the daemon says so in a moment
		case c.GetUntil() != 0:
			ends = ui.Span(until.Sub(now))
		case c.GetUsesLeft() > 0:
			ends = fmt.Sprintf("%d left", c.GetUsesLeft())
		}
		what := c.GetResource()
		if c.GetTool() != "" {
			what = c.GetServer() + "/" + c.GetTool()
		}
		lines = append(lines, fmt.Sprintf("%-16s %-28s %-8s %s", c.GetSubject(), what, ends, c.GetCovers()))
	}
	return lines
}

// items are what waits for a person: requests that end soonest first, then servers.
func (l *liveScreen) items(now time.Time) []screen.Item {
	var items []screen.Item
	pending := slices.Clone(l.pending)
	slices.SortStableFunc(pending, func(a, b *operatorv1.Approval) int { return cmp.Compare(a.GetExpires(), b.GetExpires()) })
	for _, m := range pending {
		ends := time.UnixMilli(m.GetExpires())
		if m.GetExpires() != 0 && !now.Before(ends) {
			continue // the daemon says so in a moment
		}
		items = append(items, l.app.item(m, now))
	}
	for _, s := range l.servers {
		if n := s.GetUntrustedTools(); n > 0 && s.GetTrusted() > 0 {
			items = append(items, screen.Item{
				What: s.GetName(), Text: count(n, "new or changed tool") + " withheld", Why: "look at it with " + l.app.paste("server", "diff", s.GetName()),
			})
		}
	}
	return append(items, l.killed()...)
}

// killed are subjects whose calls of a server a policy has ended.
func (l *liveScreen) killed() []screen.Item {
	type ended struct{ subject, server string }
	told := map[ended]bool{}
	var items []screen.Item
	tell := func(subject, server string, again ...string) {
		if k := (ended{subject, server}); !told[k] {
			told[k] = true
			items = append(items, screen.Item{
				Subject: subject, What: server, Text: "ended by its policy", Why: "to begin again: " + l.app.paste(again...),
			})
		}
	}
	for _, s := range l.servers {
		for _, p := range s.GetProcesses() {
			if p.GetState() == "killed" {
				tell(p.GetSubject(), s.GetName(), "server", "restart", s.GetName())
			}
		}
	}
	for _, p := range l.policies {
		if slices.ContainsFunc(p.GetMeters(), (*operatorv1.PolicyMeter).GetKilled) {
			tell(p.GetSubject(), p.GetServer(), "server", "restart", p.GetServer())
		}
	}
	return items
}

// item is a request as a line of the screen, with everything about it.
func (a *app) item(m *operatorv1.Approval, now time.Time) screen.Item {
	item := screen.Item{
		ID: m.GetApprovalId(), Subject: m.GetSubject(), What: approvalObject(m), Text: string(m.GetArguments()), Digest: m.GetArgsDigest(),
		Left: ui.Span(time.UnixMilli(m.GetExpires()).Sub(now)), Lasts: slices.Contains(m.GetScopes(), "until"),
	}
	if !item.Lasts {
		item.Why = "this can be approved only once"
		if state := m.GetPinState(); state != "" && state != "trusted" {
			item.Why += ": its description is " + state
		}
	}
	for _, field := range approvalFields(a.out, m) {
		if field.Value != "" && field.Name != "state" && field.Name != "digest" {
			item.Lines = append(item.Lines, fmt.Sprintf("%s: %s", field.Name, field.Value))
		}
	}
	return item
}

// decide answers a request with what was shown of it.
func (l *liveScreen) decide(ctx context.Context, action screen.Action) error {
	request := &operatorv1.DecideApprovalRequest{ApprovalId: action.ApprovalID}
	doing := "refusing"
	if action.Verb != screen.Refuse {
		doing = "approving"
		request.Approve, request.Scope, request.ArgsDigest = true, "once", action.Digest
	}
	if action.Verb == screen.ApproveHour {
		request.Scope, request.Until = "until", l.app.now().Add(watchGrant).UnixMilli()
	}
	got, err := call(ctx, l.app, doing, request, operatorv1.OperatorServiceClient.DecideApproval)
	if err == nil {
		l.keep(got.GetApproval())
		l.answered[action.ApprovalID] = true
	}
	return err
}
