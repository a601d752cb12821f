package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Limits of what one answer may stand for.
const (
	minConsentUses = 2
	maxConsentUses = 10_000
)

// sees reports whether a card exists for an operator: that of a personal resource is
// its operator's alone.
func sees(uid uint32) func(*card) bool {
	return func(c *card) bool { return !hiddenFrom(uid, c.owner) }
}

// cardMessage is a card as an operator sees it.
func (a *approvals) cardMessage(c *card, uid uint32) *operatorv1.Approval {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := &operatorv1.Approval{
		ApprovalId: c.id, State: c.word(), Subject: c.key.subject, RunId: c.run.id, Tier: c.key.tier.String(),
		Server: c.key.server, Tool: c.key.tool, Resource: c.key.resource, Capability: c.key.capability,
		Arguments: slices.Clone(c.arguments), Cut: c.cut, Pin: c.key.pin, Policy: c.key.policy, Why: c.why, Asked: c.asked,
		Created: millis(c.created), Expires: millis(c.expires.at), Decided: millis(c.decided), Scope: c.scope, Waiting: c.waiting,
		Outcome: c.came(), PinState: c.pinState, Scopes: slices.Clone(c.scopes),
	}
	if c.key.argsDigest != (audit.Hash{}) {
		m.ArgsDigest = c.key.argsDigest.String()
	}
	if c.run.launch != nil {
		m.LaunchId = c.run.launch.id
	}
	for _, one := range c.discloses {
		if !hiddenFrom(uid, one.owner) {
			m.Discloses = append(m.Discloses, one.words)
		}
	}
	return m
}

// messages are cards as an operator sees them, without those that do not
// exist for them.
func (a *approvals) messages(uid uint32, cards []*card) []*operatorv1.Approval {
	see := sees(uid)
	var all []*operatorv1.Approval
	for _, c := range cards {
		if see(c) {
			all = append(all, a.cardMessage(c, uid))
		}
	}
	return all
}

// ListApprovals lists requests and the answers that stand.
func (o operator) ListApprovals(ctx context.Context, req *operatorv1.ListApprovalsRequest) (*operatorv1.ListApprovalsResponse, error) {
	d, uid := o.d, callerOf(ctx).UID
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	d.sweep()
	id := req.GetApprovalId()
	cards := slices.DeleteFunc(d.approvals.list(req.GetAll() || id != ""), func(c *card) bool {
		return req.GetSubject() != "" && c.key.subject != req.GetSubject() || !strings.HasPrefix(c.id, id)
	})
	response := &operatorv1.ListApprovalsResponse{Approvals: d.approvals.messages(uid, cards)}
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for _, c := range st.consentsFor(uid, req.GetSubject(), d.clock.read()) {
		if strings.HasPrefix(c.id, id) {
			response.Consents = append(response.Consents, st.consentMessage(c))
		}
	}
	return response, nil
}

// WatchApprovals streams what is open and then what changes.
func (o operator) WatchApprovals(_ *operatorv1.WatchApprovalsRequest, stream grpc.ServerStreamingServer[operatorv1.WatchApprovalsResponse]) error {
	d, uid := o.d, callerOf(stream.Context()).UID
	if err := d.needUnlocked(); err != nil {
		return err
	}
	w := d.approvals.watch()
	defer d.approvals.unwatch(w)
	send := func(cards []*card) error {
		for _, m := range d.approvals.messages(uid, cards) {
			if err := stream.Send(&operatorv1.WatchApprovalsResponse{Approval: m}); err != nil {
				return err
			}
		}
		return nil
	}
	open := d.approvals.list(false)
	slices.Reverse(open) // oldest first, as changes come
	if err := send(open); err != nil {
		return err
	}
	if err := stream.Send(&operatorv1.WatchApprovalsResponse{}); err != nil {
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case <-d.life.Done():
			return nil
		case <-w.dirty:
		}
		if err := send(w.take()); err != nil {
			return err
		}
	}
}

// DecideApproval answers one request, once. The row of the call has seen to it that
// the operator is authenticated, and it is looked at again at the moment of the
// answer.
func (o operator) DecideApproval(ctx context.Context, req *operatorv1.DecideApprovalRequest) (*operatorv1.DecideApprovalResponse, error) {
	d, uid := o.d, callerOf(ctx).UID
	if err := d.needUnlocked(); err != nil {
		return nil, err
	}
	d.sweep()
	c, err := d.findCard(uid, req.GetApprovalId())
	if err != nil {
		return nil, err
	}
	if want := req.GetArgsDigest(); want != "" && want != c.key.argsDigest.String() {
		return nil, refuse("the arguments are not those that were shown")
	}
	var stands *consent
	scope := scopeOnce
	if req.GetApprove() {
		if stands, err = d.newConsent(ctx, c, req); err != nil {
			return nil, err
		}
		if stands != nil {
			scope = stands.scope
		}
	} else if req.GetScope() != "" || req.GetUses() != 0 || req.GetUntil() != 0 || len(req.GetWhere()) > 0 {
		return nil, refuse("only an approval has a scope, and covers something")
	}
	if err := d.beginAnswer(c); err != nil {
		return nil, err
	}
	if req.GetApprove() {
		err = o.approve(ctx, c, scope, stands)
	} else {
		err = o.deny(ctx, c)
	}
	if err != nil {
		d.sweep()
		return nil, err
	}
	response := &operatorv1.DecideApprovalResponse{}
	if messages := d.approvals.messages(uid, []*card{c}); len(messages) == 1 {
		response.Approval = messages[0]
	}
	if stands != nil {
		st := d.state()
		st.mu.RLock()
		response.Consent = st.consentMessage(*stands)
		st.mu.RUnlock()
	}
	return response, nil
}

// findCard finds the one request whose id starts with prefix; an empty prefix means
// the only one that waits for an answer.
func (d *Daemon) findCard(uid uint32, prefix string) (*card, error) {
	see := sees(uid)
	var found []*card
	for _, c := range d.approvals.list(true) {
		switch {
		case !see(c):
		case prefix == "":
			if d.approvals.stateOf(c) <= cardDeciding {
				found = append(found, c)
			}
		case c.id == prefix:
			return c, nil
		case strings.HasPrefix(c.id, prefix):
			found = append(found, c)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && prefix == "":
		return nil, refuse("nothing waits for an approval")
	case len(found) == 0:
		return nil, refuse("no approval has an id that starts with %s", shown(prefix))
	case prefix == "":
		return nil, refuse("%d requests wait for an approval: name one", len(found))
	}
	return nil, refuse("%d approvals have an id that starts with %s", len(found), shown(prefix))
}

func (a *approvals) stateOf(c *card) cardState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return c.state
}

// newConsent is the answer that would stand; nil: it is for once.
func (d *Daemon) newConsent(ctx context.Context, c *card, req *operatorv1.DecideApprovalRequest) (*consent, error) {
	at := d.clock.read()
	made := consent{id: c.id, key: c.key, scope: req.GetScope(), created: at.now.UTC().Truncate(time.Millisecond), by: callerOf(ctx).UID}
	made.key.session = ""
	if made.scope == "" {
		made.scope = scopeOnce
	}
	if made.scope != scopeUses && req.GetUses() != 0 || made.scope != scopeUntil && req.GetUntil() != 0 {
		return nil, refuse("that goes with another scope than %s", shown(made.scope))
	}
	switch made.scope {
	case scopeOnce:
		if len(req.GetWhere()) > 0 {
			return nil, refuse("an approval for once is for the call that was shown: other arguments need another scope")
		}
		return nil, nil //nolint:nilnil // no answer that stands, and nothing wrong
	case scopeUses:
		if made.uses = uint64(req.GetUses()); made.uses < minConsentUses || made.uses > maxConsentUses {
			return nil, refuse("an approval for several uses is for %d to %d", minConsentUses, maxConsentUses)
		}
	case scopeSession:
		made.key.session, made.scope = c.key.session, scopeRun
		if c.run.launch != nil {
			made.scope = scopeLaunch
		}
	case scopeUntil:
		until := fromMillis(req.GetUntil())
		if !until.After(at.now) || until.After(at.now.Add(maxConsentLife)) {
			return nil, refuse("an approval can end in at most 7 days, and not in the past")
		}
		made.ends = deadline{at: until, bootID: at.bootID, since: at.since + until.Sub(at.now)}
	default:
		return nil, refuse("the scope of an approval is once, uses, session or until")
	}
	if !slices.Contains(c.scopes, req.GetScope()) {
		return nil, refuse("%s/%s is not trusted, so an approval is for once: see its description first", c.key.server, c.key.tool)
	}
	if len(req.GetWhere()) > 0 {
		if err := d.widen(c, &made, req.GetWhere()); err != nil {
			return nil, err
		}
	}
	return &made, nil
}

// widen lets an answer that would stand cover other arguments.
func (d *Daemon) widen(c *card, made *consent, where []byte) (err error) {
	if c.key.tool == "" {
		return refuse("only a call of a tool has arguments")
	}
	a := d.approvals
	a.mu.Lock()
	args, state := c.args, c.state
	a.mu.Unlock()
	switch {
	case state != cardPending:
		return refuse("%s is %s already", c.id, state)
	case args == nil:
		return refuse("an approval covers other arguments only where they are not longer than %d KiB", maxRuleArgs>>10)
	}
	made.rule, err = d.newRule(where, args, made.key.pin)
	made.key.argsDigest = audit.Hash{}
	return err
}

// beginAnswer lets one answer be given, to what still stands.
func (d *Daemon) beginAnswer(c *card) error {
	cause := d.standing(c)
	at := d.clock.read()
	a := d.approvals
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.state == cardDeciding:
		return refuse("%s is being answered", c.id)
	case c.state != cardPending:
		return refuse("%s is %s already", c.id, c.state)
	case cause != "" || c.expires.passed(at):
		return refuse("%s is over: what it was about is not so any more", c.id)
	}
	a.set(c, cardDeciding)
	return nil
}

// approve puts an answer in force once it is durable.
func (o operator) approve(ctx context.Context, c *card, scope string, stands *consent) (err error) {
	d := o.d
	a := d.approvals
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case c.state != cardDeciding: // a lock came between
			if err == nil {
				err = refuse("%s is %s", c.id, c.state)
			}
		case err != nil:
			a.set(c, cardPending)
		default:
			c.scope, c.decided = scope, d.clock.read().now
			to := cardApproved
			if stands != nil { // the next request, and who waits, meet the answer that stands
				a.detach(c)
				to = cardSettled
			}
			a.set(c, to)
			a.wake()
		}
	}()
	e := o.answerEntry(ctx, c, kindApprovalApprove)
	e.Decision, e.ReasonCode, e.Cause = decisionAllow, string(wire.Allowed), strings.ToUpper(scope)
	if stands != nil {
		if stands.rule != nil {
			e.ArgsDigest = stands.rule.hash
		}
		return d.mutate(ctx, func(st *state) (change, error) {
			if len(st.consents) >= maxConsents {
				return change{}, refuse("%d approvals stand already: revoke some first", len(st.consents))
			}
			if cause := d.standing(c); cause != "" {
				return change{}, refuse("%s is over: what it was about is not so any more", c.id)
			}
			return consented(*stands, e), nil
		})
	}
	accountFor(ctx)
	ticket, err := d.log().AppendOperator(func(uint64, time.Time) (audit.Entry, error) {
		if !d.authenticated(callerOf(ctx)) {
			return audit.Entry{}, errNotThere
		}
		return *e, nil
	})
	if errors.Is(err, errNotThere) {
		return d.demand(ctx, always)
	}
	if err == nil {
		err = ticket.Wait(context.Background())
	}
	if err != nil {
		return wire.Deny(wire.AuditFailed)
	}
	return nil
}

// deny refuses at once, whatever becomes of the entry.
func (o operator) deny(ctx context.Context, c *card) error {
	d := o.d
	a := d.approvals
	a.mu.Lock()
	if c.state != cardDeciding {
		a.mu.Unlock()
		return refuse("%s is %s", c.id, c.state)
	}
	at := d.clock.read()
	c.decided = at.now
	a.refused(c.key.topic(), at)
	a.set(c, cardDenied)
	a.mu.Unlock()
	e := o.answerEntry(ctx, c, kindApprovalDeny)
	e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.ApprovalDenied), causeRefused
	accountFor(ctx)
	return d.recordWith(ctx, (*audit.Log).RecordOperator, *e)
}

// answerEntry is the part of an entry that every answer has: what it is about, and
// who gave it.
func (o operator) answerEntry(ctx context.Context, c *card, kind audit.Kind) *audit.Entry {
	e := c.entry(kind)
	who := o.entry(ctx, kind)
	e.SessionID, e.Peer = who.SessionID, who.Peer
	return &e
}
