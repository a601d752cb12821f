package daemon

import (
	"context"

	"subjectbroker/grants"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// Explain runs the evaluator for the operator.
func (o operator) Explain(ctx context.Context, req *operatorv1.ExplainRequest) (*operatorv1.ExplainResponse, error) {
	d := o.d
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	capability, err := grants.ParseCapability(req.GetCapability())
	if err != nil {
		return nil, refuse("capability: %v", err)
	}
	if err := checkName("subject", req.GetSubject()); err != nil {
		return nil, err
	}
	if req.GetProfile() != "" {
		if err := checkName("profile", req.GetProfile()); err != nil {
			return nil, err
		}
	}
	tier := grants.Cooperative
	if req.GetTier() != "" {
		if tier, err = grants.ParseTier(req.GetTier()); err != nil {
			return nil, refuse("tier: %v", err)
		}
	}
	st, at := d.state(), d.clock.read()
	st.mu.RLock()
	defer st.mu.RUnlock()
	who := asker{subject: req.GetSubject(), tier: tier, profile: req.GetProfile()}
	_, who.ceiling, _ = st.profileFor(who.subject, who.profile) // without one the evaluator says why
	uid := callerOf(ctx).UID
	q := st.explained(uid, who, capability, at)
	decision, steps := grants.Explain(st.setFor(uid, who.subject, capability), &q)
	response := &operatorv1.ExplainResponse{
		Decision: decision.Outcome.String(), ReasonCode: string(decision.Reason), Cause: string(decision.Cause), GrantId: decision.GrantID,
	}
	for _, s := range steps {
		response.Steps = append(response.Steps, &operatorv1.TraceStep{Check: string(s.Check), Result: string(s.Result), Detail: s.Detail, GrantId: s.GrantID})
	}
	return response, nil
}
