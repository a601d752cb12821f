package daemon

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/links"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
)

// bucketConsents holds one row for each answer that stands for more than one
// request, by its id, which is that of the card that it was given to:
//
//	{"v":1,"id":…,"subject":…,"born":…,"profile":…,"tier":…,      for whom; born: when that subject was created
//	 "server":…,"tool":…,"resource":…,"capability":…,             for what
//	 "argsDigest":…,"pin":…,"policy":…,"grant":…,"outcome":…,"content":…,   and only as long as it is this
//	 "where":{…},"rest":…,"rule":…,                                         in the place of argsDigest: see consentRule
//	 "scope":…,"uses":…,"session":…,"until":…,"bootId":…,"bootUntil":…,     how long, and how often
//	 "created":…,"by":…}
//
// Times are Unix milliseconds, but born in nanoseconds. What is empty is left out.
// How often it was used is counted as for a grant: see state.uses.
const bucketConsents = "consents"

// Scopes of an answer.
const (
	scopeOnce   = "once"
	scopeUses   = "uses"
	scopeRun    = "run"
	scopeLaunch = "launch"
	scopeUntil  = "until"

	// scopeSession is how the operator says run or launch.
	scopeSession = "session"
)

// maxConsents bounds the answers that stand.
const maxConsents = 1024

// consent is one answer that stands.
type consent struct {
	id      string
	key     cardKey      // session is empty unless it ends with one; argsDigest is with a rule
	rule    *consentRule // about arguments; nil: they are exactly those of key
	scope   string
	uses    uint64   // 0: not limited
	ends    deadline // zero: not by the clock
	created time.Time
	by      uint32 // uid of the operator
}

// consentRule is the part of an answer that stands that says which other calls it
// covers: those whose named arguments are what the rule matches, and that are what a
// person was shown in everything else.
type consentRule struct {
	where *rules.Where
	rest  audit.Hash // keyed hash of what a person was shown beside what the rule names
	hash  audit.Hash // keyed hash over pin, rule and rest: what the answer is given to
}

// maxRuleArgs is how long the arguments of a call may be, in bytes, of which an answer
// covers others: as long as a person is asked, they are kept.
const maxRuleArgs = 64 << 10

// maxRule is how long such a rule may be, in bytes.
const maxRule = 16 << 10

// newRule makes the rule of an answer to a call with those arguments under a pin. Its
// errors are for the operator.
func (d *Daemon) newRule(where, args []byte, pin string) (*consentRule, error) {
	if len(where) > maxRule {
		return nil, refuse("where: a rule has at most %d KiB", maxRule>>10)
	}
	w, err := rules.ParseWhere(bytes.Clone(where)) // what the operator sent is cleared
	if err != nil {
		return nil, refuse("where: %v", err)
	}
	parsed, err := rules.ParseArgs(args)
	if err != nil { // they were parsed before
		return nil, wire.Deny(wire.InternalError)
	}
	if why := w.Stands(parsed, links.Resolve); why != "" {
		return nil, refuse("where: the rule does not cover the call that was shown: %s", why)
	}
	rest, _ := w.Rest(parsed) // what it names is there
	r := &consentRule{where: w, rest: d.keyed("sb/rest/v1", rest)}
	r.hash = d.keyed("sb/rule/v1", []byte(pin), w.Canonical(), r.rest[:])
	return r, nil
}

// covers reports whether the rule covers a call. It may look at paths.
func (r *consentRule) covers(d *Daemon, args *rules.Args) bool {
	rest, ok := r.where.Rest(*args)
	return ok && d.keyed("sb/rest/v1", rest) == r.rest && r.where.Stands(*args, links.Resolve) == ""
}

// keyed is what stands for parts where they must not stand themselves. Another label
// makes another hash of the same.
func (d *Daemon) keyed(label string, parts ...[]byte) audit.Hash {
	key := *d.correlate.Load() // of mask: this is no text that is masked
	own := hmac.New(sha256.New, key[:])
	own.Write([]byte(label))
	mac := hmac.New(sha256.New, own.Sum(nil))
	for _, part := range parts {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write(part)
	}
	return audit.Hash(mac.Sum(nil))
}

// storedConsent is its stored form.
type storedConsent struct {
	V          int             `json:"v"`
	ID         string          `json:"id"`
	Subject    string          `json:"subject"`
	Born       int64           `json:"born"`
	Profile    string          `json:"profile,omitempty"`
	Tier       string          `json:"tier"`
	Server     string          `json:"server,omitempty"`
	Tool       string          `json:"tool,omitempty"`
	Resource   string          `json:"resource,omitempty"`
	Capability string          `json:"capability"`
	ArgsDigest *audit.Hash     `json:"argsDigest,omitempty"`
	Where      json.RawMessage `json:"where,omitempty"`
	Rest       *audit.Hash     `json:"rest,omitempty"`
	Rule       *audit.Hash     `json:"rule,omitempty"`
	Pin        string          `json:"pin,omitempty"`
	Policy     string          `json:"policy,omitempty"`
	Grant      string          `json:"grant,omitempty"`
	Outcome    string          `json:"outcome"`
	Content    string          `json:"content,omitempty"`
	Scope      string          `json:"scope"`
	Uses       uint64          `json:"uses,omitempty"`
	Session    string          `json:"session,omitempty"`
	Until      int64           `json:"until,omitempty"`
	BootID     string          `json:"bootId,omitempty"`
	BootUntil  int64           `json:"bootUntil,omitempty"` // nanoseconds
	Created    int64           `json:"created"`
	By         uint32          `json:"by"`
}

func encodeConsent(c consent) ([]byte, error) {
	k := c.key
	row := storedConsent{
		V: 1, ID: c.id, Subject: k.subject, Born: k.born, Profile: k.profile, Tier: k.tier.String(), Server: k.server, Tool: k.tool,
		Resource: k.resource, Capability: k.capability, Pin: k.pin, Policy: k.policy, Grant: k.grant, Outcome: k.outcome.String(),
		Content: k.content, Scope: c.scope, Uses: c.uses, Session: k.session, Until: millis(c.ends.at), BootID: c.ends.bootID,
		BootUntil: int64(c.ends.since), Created: millis(c.created), By: c.by,
	}
	if k.argsDigest != (audit.Hash{}) {
		row.ArgsDigest = &k.argsDigest
	}
	if r := c.rule; r != nil {
		row.Where, row.Rest, row.Rule = r.where.Canonical(), &r.rest, &r.hash
	}
	return json.Marshal(row)
}

func decodeConsent(raw []byte) (consent, error) {
	var row storedConsent
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&row); err != nil {
		return consent{}, err
	}
	tier, err := grants.ParseTier(row.Tier)
	if err != nil {
		return consent{}, err
	}
	c := consent{
		id: row.ID, scope: row.Scope, uses: row.Uses, created: fromMillis(row.Created), by: row.By,
		ends: deadline{at: fromMillis(row.Until), bootID: row.BootID, since: time.Duration(row.BootUntil)},
		key: cardKey{
			subject: row.Subject, born: row.Born, profile: row.Profile, tier: tier, session: row.Session, server: row.Server, tool: row.Tool,
			resource: row.Resource, capability: row.Capability, pin: row.Pin, policy: row.Policy, grant: row.Grant, content: row.Content,
		},
	}
	if row.ArgsDigest != nil {
		c.key.argsDigest = *row.ArgsDigest
	}
	if row.Where != nil || row.Rest != nil || row.Rule != nil {
		if row.ArgsDigest != nil || row.Rest == nil || row.Rule == nil {
			return consent{}, errors.New("it does not say what it covers")
		}
		where, err := rules.ParseWhere(row.Where)
		if err != nil {
			return consent{}, err
		}
		c.rule = &consentRule{where: where, rest: *row.Rest, hash: *row.Rule}
	}
	switch row.Outcome {
	case grants.Allowed.String():
		c.key.outcome = grants.Allowed
	case grants.Pending.String():
		c.key.outcome = grants.Pending
	default:
		return consent{}, fmt.Errorf("the outcome %q is not known", row.Outcome)
	}
	ok := false
	switch row.Scope {
	case scopeUses:
		ok = row.Uses > 0
	case scopeRun, scopeLaunch:
		ok = row.Session != ""
	case scopeUntil:
		ok = row.Until > 0
	}
	if row.V != 1 || row.ID == "" || !ok {
		return consent{}, errors.New("it does not say how long it stands")
	}
	return c, nil
}

// loadConsents reads the answers that stand.
func (s *state) loadConsents(tx *vault.Tx) error {
	return tx.Each(bucketConsents, func(id string, raw []byte) error {
		c, err := decodeConsent(raw)
		if err != nil || c.id != id {
			return fmt.Errorf("%w: consent row %s: %v", vault.ErrIntegrity, id, err)
		}
		s.consents[id] = c
		return nil
	})
}

// covers reports whether an answer stands for a request: everything that it is bound
// to is the same, but that a subject may come in another run, at a tier that is no
// lower. Of a rule about arguments nothing is judged yet: see consentRule.covers.
func (c consent) covers(k cardKey) bool {
	bound := c.key
	if bound.session == "" {
		bound.session = k.session
	}
	if k.tier.Satisfies(bound.tier) {
		bound.tier = k.tier
	}
	if c.rule != nil {
		bound.argsDigest = k.argsDigest
	}
	return bound == k
}

// ended says why an answer does not stand any more, as far as clock and counter
// tell; empty: it does. used is how often it was used.
func (c consent) ended(at reading, used uint64) (cause string) {
	switch {
	case !c.ends.at.IsZero() && (at.behind || c.ends.passed(at)):
		return causeOutOfDate
	case c.uses > 0 && used >= c.uses:
		return causeUsedUp
	}
	return ""
}

// left is how many uses are left; 0 when they are not limited. The caller holds mu.
func (s *state) left(c consent) uint64 {
	if c.uses == 0 {
		return 0
	}
	return c.uses - min(c.uses, s.uses[c.id])
}

// useConsent reserves one use of an answer that covers a request. The zero answer
// says that there is none.
func (d *Daemon) useConsent(g *gateAsk, k cardKey) (gateAnswer, error) {
	for _, c := range d.state().covering(k, d.clock.read()) {
		if c.rule != nil {
			args := g.arguments()
			if args == nil || !c.rule.covers(d, args) {
				continue
			}
		}
		answer, err := d.use(g, k, c)
		if err != nil || answer.outcome != gateNone {
			return answer, err
		}
	}
	return gateAnswer{}, nil
}

// covering lists the answers that stand for a request: what is not counted first,
// then by id. It takes mu.
func (s *state) covering(k cardKey, at reading) []consent {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []consent
	for id, c := range s.consents {
		if c.covers(k) && c.ended(at, s.uses[id]) == "" {
			found = append(found, c)
		}
	}
	slices.SortFunc(found, func(a, b consent) int {
		if (a.uses == 0) != (b.uses == 0) {
			return int(min(a.uses, 1)) - int(min(b.uses, 1))
		}
		return strings.Compare(a.id, b.id)
	})
	return found
}

// use reserves one use of an answer. Its number stands in an entry before that of
// what is done on the strength of it, so a start counts every use that was made.
func (d *Daemon) use(g *gateAsk, k cardKey, c consent) (gateAnswer, error) {
	a := d.approvals
	st := d.state()
	charged := false
	_, err := d.log().Append(func(uint64, time.Time) (audit.Entry, error) {
		if d.state() != st {
			return audit.Entry{}, errNotThere
		}
		number, ok := st.chargeConsent(c.id, d.clock.read())
		if !ok {
			return audit.Entry{}, errNotThere
		}
		charged = true
		a.hold(c.id, 1)
		if c.uses == 0 {
			number = 0
		}
		return d.runEntry(g, k, c.id, number), nil
	})
	if err != nil {
		if charged {
			st.refund(c.id)
			a.hold(c.id, -1)
		}
		if errors.Is(err, errNotThere) {
			return gateAnswer{}, nil
		}
		return gateAnswer{}, wire.Deny(wire.AuditFailed)
	}
	d.charges.Add(1)
	done := make(chan struct{}, 1) // whoever puts something in first ends the use
	end := func(refund bool) {
		select {
		case done <- struct{}{}:
		default:
			return
		}
		if refund {
			st.refund(c.id)
		}
		a.hold(c.id, -1)
		a.wake()
	}
	return gateAnswer{
		outcome: gateApproved, id: c.id,
		take: func() bool {
			if d.state() != st || len(done) > 0 {
				return false
			}
			st.mu.RLock()
			_, stands := st.consents[c.id]
			st.mu.RUnlock()
			return stands && c.ended(d.clock.read(), 0) == "" && !d.sessionOver(c, g.run) && d.keyStands(k, g.run.asker(), true) == ""
		},
		untake: func() { end(true) },
		settle: func(string, []byte, bool, bool) { end(false) },
	}, nil
}

// chargeConsent reserves one use of an answer and returns its number; false: it does
// not stand. Only the log's appender calls it, as charge.
func (s *state) chargeConsent(id string, at reading) (number uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.consents[id]
	if !ok || c.ended(at, s.uses[id]) != "" {
		return 0, false
	}
	s.uses[id]++
	return s.uses[id], true
}

// hold counts the uses of an answer that are under way.
func (a *approvals) hold(id string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[id] += n; a.held[id] <= 0 {
		delete(a.held, id)
	}
}

// holds reports whether a use of an answer is under way.
func (a *approvals) holds(id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held[id] > 0
}

// sessionOver reports whether an answer ends with a launch or a run that is over. r,
// where it is given, is a run that is asked for.
func (d *Daemon) sessionOver(c consent, r *run) bool {
	switch c.scope {
	case scopeLaunch:
		if r != nil && r.launch != nil && r.launch.id == c.key.session {
			return r.launch.over()
		}
		l, ok := d.launches.get(c.key.session)
		return !ok || l.over()
	case scopeRun:
		if r != nil && r.id == c.key.session {
			return r.over()
		}
		d.runs.mu.Lock()
		defer d.runs.mu.Unlock()
		_, open := d.runs.open[c.key.session]
		return !open
	}
	return false
}

// consentVoid says why an answer does not stand any more; empty: it does.
func (d *Daemon) consentVoid(c consent) (cause string) {
	st := d.state()
	st.mu.RLock()
	used := st.uses[c.id]
	subject, known := st.set.Subject(c.key.subject)
	st.mu.RUnlock()
	if cause := c.ended(d.clock.read(), used); cause != "" {
		return cause
	}
	if d.sessionOver(c, nil) {
		return causeRunOver
	}
	if !known || subject.Disabled || subject.Created.UnixNano() != c.key.born {
		return causeSubjectChanged
	}
	// The ceiling of a profile cannot be asked for without a run: whoever comes is
	// judged under their own.
	k := c.key
	capability, err := grants.ParseCapability(k.capability)
	if err != nil {
		return causeMalformed
	}
	st.mu.RLock()
	g, stands := st.set.Grant(k.grant)
	active := stands && st.grantState(g, d.clock.read()) == grants.Active && g.Pattern.Matches(capability)
	st.mu.RUnlock()
	if !active {
		return causeGrant
	}
	return d.boundVoid(k, true)
}

// endConsents takes answers out of force that do not stand any more, one mutation
// for all. It is the daemon's own.
func (d *Daemon) endConsents() {
	st := d.state()
	st.mu.RLock()
	all := slices.Collect(maps.Values(st.consents))
	st.mu.RUnlock()
	over := map[string]string{} // cause, by id
	for _, c := range all {
		if cause := d.consentVoid(c); cause != "" && !d.approvals.holds(c.id) {
			over[c.id] = cause
		}
	}
	if len(over) == 0 || !st.open {
		return
	}
	err := d.mutate(d.life, func(st *state) (change, error) {
		var gone []consent
		var effects []*audit.Entry
		for _, id := range slices.Sorted(maps.Keys(over)) {
			c, ok := st.consents[id]
			if !ok {
				continue
			}
			e := c.entry(audit.Entry{Kind: kindApprovalVoid, Decision: decisionDeny, ReasonCode: string(wire.ApprovalDenied)})
			e.Cause = over[id]
			if e.Cause == causeOutOfDate || e.Cause == causeUsedUp {
				e.Kind, e.ReasonCode = kindApprovalExpire, string(wire.ApprovalExpired)
			}
			gone, effects = append(gone, c), append(effects, e)
		}
		return withdrawal(gone, effects), nil
	})
	if err == nil {
		d.approvals.conclude(over)
	}
	switch stuck := err != nil && refusal(err).Reason != wire.VaultLocked; {
	case !d.approvals.stick(stuck): // it is as it was a second ago
	case stuck:
		d.logger.Warn("standing approvals that are over are not removed; they cover nothing all the same", "count", len(over), "error", err)
	default:
		d.logger.Info("standing approvals that are over are removed again")
	}
}

// stick notes whether answers that are over cannot be removed, and reports whether that
// was otherwise before.
func (a *approvals) stick(stuck bool) (changed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = a.stuck != stuck
	a.stuck = stuck
	return changed
}

// entry completes an entry about an answer that stands.
func (c consent) entry(e audit.Entry) *audit.Entry {
	c.key.describe(&e)
	e.ApprovalID, e.SubjectID = c.id, c.key.subject
	if c.rule != nil {
		e.ArgsDigest = c.rule.hash
	}
	switch c.scope {
	case scopeLaunch:
		e.LaunchID = c.key.session
	case scopeRun:
		e.RunID = c.key.session
	}
	return &e
}

// withdrawal takes answers out of force.
func withdrawal(gone []consent, effects []*audit.Entry) change {
	return change{
		effects: effects,
		write: func(tx *vault.Tx) error {
			for _, c := range gone {
				if err := tx.Delete(bucketConsents, c.id); err != nil {
					return err
				}
			}
			return nil
		},
		restrict: func(st *state) {
			for _, c := range gone {
				delete(st.consents, c.id)
			}
		},
		permit: func(st *state) {
			for _, c := range gone {
				delete(st.uses, c.id)
			}
		},
	}
}

// consented puts an answer that stands in force.
func consented(c consent, e *audit.Entry) change {
	return change{
		effects: []*audit.Entry{e},
		write: func(tx *vault.Tx) error {
			row, err := encodeConsent(c)
			if err != nil {
				return err
			}
			return tx.Put(bucketConsents, c.id, row)
		},
		permit: func(st *state) { st.consents[c.id] = c },
	}
}

// consentMessage is an answer that stands as the operator sees it. The caller holds
// mu.
func (s *state) consentMessage(c consent) *operatorv1.Consent {
	m := &operatorv1.Consent{
		ConsentId: c.id, Subject: c.key.subject, Server: c.key.server, Tool: c.key.tool, Resource: c.key.resource, Pin: c.key.pin,
		Covers: "exactly these arguments", Scope: c.scope, UsesLeft: s.left(c), EndsWith: c.key.session, Until: millis(c.ends.at), Created: millis(c.created),
	}
	switch {
	case c.rule != nil:
		m.Covers = "calls where " + c.rule.where.String() + ", and all else is as it was shown"
		m.Where, m.Rule = c.rule.where.Canonical(), c.rule.hash.String()
	case c.key.resource != "":
		m.Covers = "this content"
	}
	return m
}

// consentsFor lists the answers that stand and exist for an operator, newest first.
// The caller holds mu.
func (s *state) consentsFor(uid uint32, subject string, at reading) []consent {
	var all []consent
	for id, c := range s.consents {
		if s.hidden(uid, c.key.resource) || subject != "" && c.key.subject != subject || c.ended(at, s.uses[id]) != "" {
			continue
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b consent) int {
		if n := b.created.Compare(a.created); n != 0 {
			return n
		}
		return strings.Compare(a.id, b.id)
	})
	return all
}

// RevokeConsent takes back one answer that stands.
func (o operator) RevokeConsent(ctx context.Context, req *operatorv1.RevokeConsentRequest) (*operatorv1.RevokeConsentResponse, error) {
	d := o.d
	response := &operatorv1.RevokeConsentResponse{}
	err := d.mutate(ctx, func(st *state) (change, error) {
		var found []consent
		for _, c := range st.consentsFor(callerOf(ctx).UID, "", d.clock.read()) {
			if c.id == req.GetConsentId() {
				found = []consent{c}
				break
			}
			if strings.HasPrefix(c.id, req.GetConsentId()) {
				found = append(found, c)
			}
		}
		switch {
		case req.GetConsentId() == "":
			return change{}, refuse("name the standing approval")
		case len(found) == 0:
			return change{}, refuse("no standing approval has an id that starts with %s", shown(req.GetConsentId()))
		case len(found) > 1:
			return change{}, refuse("%d standing approvals have an id that starts with %s", len(found), shown(req.GetConsentId()))
		}
		st.mu.RLock()
		response.Consent = st.consentMessage(found[0])
		st.mu.RUnlock()
		e := o.entry(ctx, kindApprovalVoid)
		e.Cause = causeRevoked
		return withdrawal(found, []*audit.Entry{found[0].entry(*e)}), nil
	})
	if err != nil {
		return nil, err
	}
	d.approvals.conclude(map[string]string{response.GetConsent().GetConsentId(): causeRevoked})
	return response, nil
}
