package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// fakeCards are requests for approval in memory, and who watches them.
type fakeCards struct {
	mu       sync.Mutex
	all      []*operatorv1.Approval
	consents []*operatorv1.Consent
	watchers []chan *operatorv1.Approval
	decided  []*operatorv1.DecideApprovalRequest
}

func newFakeCards() *fakeCards { return &fakeCards{} }

// fakeApproval is a request that lives for a while from now: sbctl shows no other.
func fakeApproval(args ...string) *operatorv1.Approval {
	m := &operatorv1.Approval{
		ApprovalId: args[0], State: "pending", Subject: args[1], RunId: "run", Tier: "cooperative", Server: args[2], Tool: args[3],
		Capability: "call:" + args[2] + "/" + args[3], ArgsDigest: strings.Repeat("ab", 32), Pin: strings.Repeat("cd", 32), PinState: "trusted",
		Why: "the tool's gate", Discloses: []string{"the use of desk.token by the server " + args[2]}, Asked: 2, Waiting: 1,
		Created: fakeNow, Expires: time.Now().Add(14 * time.Minute).UnixMilli(), Scopes: []string{"once", "uses", "session", "until"},
	}
	if len(args) > 4 {
		m.Arguments = []byte(args[4])
	}
	if len(args) > 6 {
		m.State, m.Outcome = args[5], args[6]
	}
	return m
}

func fakeConsent(id, subject, server, tool string) *operatorv1.Consent {
	return &operatorv1.Consent{
		ConsentId: id, Subject: subject, Server: server, Tool: tool, Pin: strings.Repeat("cd", 32), Covers: "exactly these arguments",
		Scope: "uses", UsesLeft: 3, Created: fakeNow,
	}
}

// ask adds a request and tells who watches.
func (f *fakeCards) ask(m *operatorv1.Approval) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, m)
	f.tell(m)
}

func (f *fakeCards) tell(m *operatorv1.Approval) {
	for _, watcher := range f.watchers {
		watcher <- m
	}
}

func (f *fakeCards) pending() []*operatorv1.Approval {
	f.mu.Lock()
	defer f.mu.Unlock()
	var open []*operatorv1.Approval
	for _, m := range f.all {
		if m.GetState() == "pending" {
			open = append(open, m)
		}
	}
	return open
}

func (f *fakeOperator) ListApprovals(_ context.Context, q *operatorv1.ListApprovalsRequest) (*operatorv1.ListApprovalsResponse, error) {
	f.cards.mu.Lock()
	defer f.cards.mu.Unlock()
	response := &operatorv1.ListApprovalsResponse{}
	for _, m := range slices.Backward(f.cards.all) {
		if (q.GetAll() || q.GetApprovalId() != "" || m.GetState() == "pending" || m.GetState() == "running") && strings.HasPrefix(m.GetApprovalId(), q.GetApprovalId()) &&
			(q.GetSubject() == "" || q.GetSubject() == m.GetSubject()) {
			response.Approvals = append(response.Approvals, proto.CloneOf(m)) // it is written while that one changes
		}
	}
	for _, c := range f.cards.consents {
		if strings.HasPrefix(c.GetConsentId(), q.GetApprovalId()) {
			response.Consents = append(response.Consents, proto.CloneOf(c))
		}
	}
	return response, nil
}

func (f *fakeOperator) DecideApproval(_ context.Context, q *operatorv1.DecideApprovalRequest) (*operatorv1.DecideApprovalResponse, error) {
	f.cards.mu.Lock()
	defer f.cards.mu.Unlock()
	for i, m := range f.cards.all {
		if m.GetApprovalId() != q.GetApprovalId() {
			continue
		}
		if q.GetArgsDigest() != "" && q.GetArgsDigest() != m.GetArgsDigest() {
			return nil, invalid("", "the arguments are not those that were shown")
		}
		answered := fakeApproval(m.GetApprovalId(), m.GetSubject(), m.GetServer(), m.GetTool(), string(m.GetArguments()))
		answered.Decided, answered.Scope, answered.State = fakeNow, "", "denied"
		response := &operatorv1.DecideApprovalResponse{Approval: answered}
		if q.GetApprove() {
			answered.Scope, answered.State = q.GetScope(), "approved"
			if q.GetScope() != "once" {
				response.Consent = fakeConsent("stands", m.GetSubject(), m.GetServer(), m.GetTool())
				response.Consent.Scope, response.Consent.UsesLeft, response.Consent.Until = q.GetScope(), uint64(q.GetUses()), q.GetUntil()
				if response.Consent.Where = q.GetWhere(); len(q.GetWhere()) > 0 {
					response.Consent.Covers, response.Consent.Rule = "calls where the rule matches", strings.Repeat("ef", 32)
				}
			}
		}
		f.cards.all[i] = answered
		f.cards.decided = append(f.cards.decided, q)
		f.cards.tell(answered)
		return response, nil
	}
	return nil, invalid("", "no approval has that id")
}

func (f *fakeOperator) RevokeConsent(_ context.Context, q *operatorv1.RevokeConsentRequest) (*operatorv1.RevokeConsentResponse, error) {
	for i, c := range f.cards.consents {
		if strings.HasPrefix(c.GetConsentId(), q.GetConsentId()) {
			f.cards.consents = slices.Delete(f.cards.consents, i, i+1)
			return &operatorv1.RevokeConsentResponse{Consent: c}, nil
		}
	}
	return nil, invalid("", "there is no such approval that stands")
}

// WatchApprovals tells what is pending and what changes, until f.follow says that
// there is no more.
func (f *fakeOperator) WatchApprovals(_ *operatorv1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[operatorv1.WatchApprovalsResponse]) error {
	f.mu.Lock()
	follow := f.follow
	f.mu.Unlock()
	open := f.cards.pending()
	watcher := make(chan *operatorv1.Approval, 64)
	f.cards.mu.Lock()
	f.cards.watchers = append(f.cards.watchers, watcher)
	f.cards.mu.Unlock()
	for _, m := range open {
		if err := stream.Send(&operatorv1.WatchApprovalsResponse{Approval: m}); err != nil {
			return err
		}
	}
	if err := stream.Send(&operatorv1.WatchApprovalsResponse{}); err != nil || !follow {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case m := <-watcher:
			if err := stream.Send(&operatorv1.WatchApprovalsResponse{Approval: m}); err != nil {
				return err
			}
		}
	}
}

func (f *fakeOperator) CallStats(_ context.Context, q *operatorv1.CallStatsRequest) (*operatorv1.CallStatsResponse, error) {
	response := &operatorv1.CallStatsResponse{Since: fakeNow}
	for _, s := range []*operatorv1.CallStat{
		{Subject: "worker", Server: "desk", Tool: "publish", Allowed: 3, Denied: 1, Waited: 2, Failed: 1, P50Us: 1200, P99Us: 2_500_000, Last: fakeNow},
		{Subject: "worker", Server: "desk", Denied: 4, Last: fakeNow},
	} {
		if q.GetSubject() == "" || q.GetSubject() == s.GetSubject() {
			response.Stats = append(response.Stats, s)
		}
	}
	return response, nil
}

func (f *fakeOperator) Metrics(context.Context, *operatorv1.MetricsRequest) (*operatorv1.MetricsResponse, error) {
	return &operatorv1.MetricsResponse{Text: []byte("# TYPE subjectbroker_runs gauge\nsubjectbroker_runs{subject=\"worker\"} 1\n")}, nil
}
