package daemon

import (
	"context"
	"time"

	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	"subjectbroker/grants/rules"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// ListPolicies lists policies with what they have counted.
func (o operator) ListPolicies(_ context.Context, req *operatorv1.ListPoliciesRequest) (*operatorv1.ListPoliciesResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	if name := req.GetSubject(); name != "" {
		if _, err := st.knownSubject(name); err != nil {
			return nil, err
		}
	}
	if err := checkServerName(req.GetServer()); req.GetServer() != "" && err != nil {
		return nil, err
	}
	response := &operatorv1.ListPoliciesResponse{}
	for _, p := range st.sortedPolicies() {
		if req.GetSubject() != "" && p.Subject != req.GetSubject() || req.GetServer() != "" && p.Server != req.GetServer() {
			continue
		}
		message, err := st.policyMessage(&p)
		if err != nil {
			return nil, err
		}
		response.Policies = append(response.Policies, message)
	}
	return response, nil
}

// ResetPolicy sets what one policy has counted to nothing, or removes it.
func (o operator) ResetPolicy(ctx context.Context, req *operatorv1.ResetPolicyRequest) (*operatorv1.ResetPolicyResponse, error) {
	d := o.d
	if err := checkName("subject", req.GetSubject()); err != nil {
		return nil, err
	}
	if err := checkServerName(req.GetServer()); err != nil {
		return nil, err
	}
	response := &operatorv1.ResetPolicyResponse{}
	err := d.mutate(ctx, func(st *state) (change, error) {
		response.Warnings = d.liftedHere(ctx, st)
		compiled := st.policyLocked(req.GetSubject(), req.GetServer())
		switch {
		case compiled == nil:
			return change{}, refuse("%s has no policy around %s", req.GetSubject(), req.GetServer())
		case !req.GetRemove():
			return o.policyReset(ctx, compiled), nil
		}
		c := o.policyRemoval(ctx, *compiled.Policy())
		c.after = func() { d.hub.listChanged(req.GetSubject()) }
		return c, nil
	})
	if err != nil || req.GetRemove() {
		return response, err
	}
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	if compiled := st.policyLocked(req.GetSubject(), req.GetServer()); compiled != nil {
		response.Policy, err = st.policyMessage(compiled.Policy())
	}
	return response, err
}

// policyMessage is a policy as the operator sees it. The caller holds mu.
func (s *state) policyMessage(p *rules.Policy) (*operatorv1.Policy, error) {
	text, err := policy.MarshalRules(p.Rules)
	if err != nil {
		return nil, err
	}
	observe := p.ObserveUntil
	if until := s.servers[p.Server].ObserveUntil; until.After(observe) {
		observe = until
	}
	return &operatorv1.Policy{
		Subject: p.Subject, Server: p.Server, Audit: string(p.Audit), ApprovalWaitMs: uint64(p.ApprovalWait / time.Millisecond), ShareApprovals: p.ShareApprovals,
		Version: p.Version(), Rules: text, Owner: p.Owner, Meters: s.meters.of(p.Subject, p.Server), ObserveUntil: millis(observe),
	}, nil
}

// checkServerName refuses a malformed name in words.
func checkServerName(name string) error {
	if err := grants.CheckServer(name); err != nil {
		return refuse("server: %v", err)
	}
	return nil
}
