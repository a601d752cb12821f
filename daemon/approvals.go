package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/grants"
	"subjectbroker/grants/rules"
	"subjectbroker/proto/wire"
	"subjectbroker/vault/regfile"
)

// Kinds of entries about requests to a person. None holds what was asked for beside
// names and the digest of the arguments.
const (
	kindApprovalRequest audit.Kind = "approval.request" // a card was made
	kindApprovalApprove audit.Kind = "approval.approve" // a person said yes
	kindApprovalDeny    audit.Kind = "approval.deny"    // a person said no
	kindApprovalExpire  audit.Kind = "approval.expire"  // nobody answered, or nobody used the answer, in time
	kindApprovalVoid    audit.Kind = "approval.void"    // what it was about is not so any more
	kindApprovalRun     audit.Kind = "approval.run"     // an answer is used; count: the how manieth time, where they are counted
	kindApprovalReplay  audit.Kind = "approval.replay"  // what an approved call has answered is given to a retry
)

// approvalLife is how long a card lives, answered or not.
const approvalLife = 15 * time.Minute

// approvalWait is how long a request waits for a person where nothing else is said:
// shorter than what agents wait for a call.
const approvalWait = 25 * time.Second

// gateAsk is a request that needs a person. Everything in it but what is for display
// is what the answer is bound to: another value is another request.
type gateAsk struct {
	run        *run
	server     string // of a call; empty for a read
	tool       string
	resource   string // of a read; empty for a call
	capability string
	args       []byte // of a call, as they will be forwarded; shown with secrets masked, and kept while a person is asked, where they are short
	argsDigest audit.Hash
	pin        string // of the tool; empty: it is not trusted
	policy     string // version; empty: there is none
	why        string // in words for the operator, without anything of the agent's
	// wait is how long the caller waits for an answer; 0: approvalWait. Less than 0:
	// not at all.
	wait time.Duration
	// share says that identical calls that wait at the same time share a card.
	share bool
	// waiting is called, at most once, when the wait begins; nil: nobody is told.
	waiting func(approvalID string)

	parsed *rules.Args // see arguments
}

// arguments are those of a call, parsed once; nil: they are none.
func (g *gateAsk) arguments() *rules.Args {
	if g.parsed == nil && g.resource == "" {
		if args, err := rules.ParseArgs(g.args); err == nil {
			g.parsed = &args
		}
	}
	return g.parsed
}

// outcomeOK is how a read ends that was approved; the other words are those of calls.
const outcomeOK = "ok"

// gateOutcome is what came of asking a person.
type gateOutcome int

const (
	gateNone       gateOutcome = iota // nobody was asked
	gateApproved                      // may be done once: see gateAnswer.take
	gatePending                       // a card waits; the same request attaches to it
	gateDenied                        // a person said no, or nobody is asked any more: see cause
	gateExpired                       // the card ended unanswered while the caller waited
	gateNoApprover                    // nobody could answer
	gateReplay                        // the same request was approved and done, and nobody got its answer
)

// gateAnswer is what came of asking a person. Only gateApproved lets anything be
// done, and only after take has returned true.
//
// Whoever was approved calls take under the log's mutex, in the build of the entry
// that allows, after everything else that could refuse; untake as soon as it is
// certain that nothing will be done on the strength of it, whether take was called
// or not; and settle when it is known how that ended. take, untake and settle may
// be nil for other outcomes.
type gateAnswer struct {
	outcome gateOutcome
	id      string      // of the card, or of the standing answer that was used
	reason  wire.Reason // public reason of every outcome but gateApproved and gateReplay
	cause   string      // for the log; empty for gatePending
	replay  *replay     // of gateReplay
	take    func() bool
	untake  func()
	settle  func(end string, answer []byte, isError, delivered bool)
}

// giveBack says that nothing will be done on the strength of an approval.
func (g gateAnswer) giveBack() {
	if g.untake != nil {
		g.untake()
	}
}

// replay is the answer of a call that was done already.
type replay struct {
	answer  []byte
	isError bool // it is an error object
}

// Causes of requests for approval that came to nothing.
const (
	causeRefused     = "APPROVAL_REFUSED"
	causeQuiet       = "REFUSED_TOO_OFTEN"
	causeTooMany     = "TOO_MANY_APPROVALS"
	causeUnanswered  = "UNANSWERED"
	causeUnused      = "NOT_USED"
	causeVoid        = "APPROVAL_VOID"
	causeGatedUse    = "GATED_USE"
	causeGrant       = "GRANT_CHANGED"
	causePin         = "PIN_CHANGED"
	causePolicy      = "POLICY_CHANGED"
	causeContent     = "CONTENT_CHANGED"
	causeStopped     = "DAEMON_STOPPED"
	causeVaultLocked = "LOCKED"
	causeRunOver     = "RUN_ENDED"
	causeUsedUp      = "USED_UP"
	causeRevoked     = "REVOKED"
	causeOutOfDate   = "EXPIRED"
	causeTierChanged = "TIER_TOO_LOW"
)

// gateOn asks a person, unless a standing answer covers the request. It waits at
// most for g.wait, and as long as ctx and the run last. The error is a *wire.Error
// and means that the log could not take the request: nothing was asked.
//
// The same request attaches to the same card, from the same launch or, outside of
// any, the same run. An answer for once lets one of those who wait through; the
// others wait for how that ends: whoever comes to it when nobody got its answer gets
// that, and otherwise a person is asked anew.
func (d *Daemon) gateOn(ctx context.Context, g gateAsk) (gateAnswer, error) {
	if !d.approvable() {
		return gateAnswer{outcome: gateNoApprover, reason: wire.ApprovalDenied, cause: causeNoApprover}, nil
	}
	wait := g.wait
	if wait == 0 {
		wait = d.approvalWait
	}
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	var attached *card
	told := false
	defer func() { d.approvals.leave(attached) }()
	for {
		key, denied := d.cardKey(&g)
		if denied != nil {
			return *denied, nil
		}
		answer, err := d.useConsent(&g, key)
		if err != nil || answer.outcome != gateNone {
			return answer, err
		}
		c, answer, err := d.cardFor(&g, key, attached)
		if err != nil || c == nil {
			return answer, err
		}
		attached = c
		for again := false; !again; {
			state, changed, answer := d.approvals.look(c)
			switch {
			case answer.outcome != gateNone:
				return answer, nil
			case state == cardApproved:
				answer, err := d.useCard(&g, c)
				if err != nil || answer.outcome != gateNone {
					return answer, err
				}
				// Somebody else has used it, or it is void: what it has become is looked
				// at again, unless a standing answer was given.
				again = d.approvals.detached(c)
				continue
			case state == cardSettled:
				again = true // it was used by somebody else, who has its answer
				continue
			}
			if !told && g.waiting != nil && state != cardMaking && wait > 0 {
				g.waiting(c.id)
				told = true
			}
			pending := gateAnswer{outcome: gatePending, id: c.id, reason: wire.ApprovalPending}
			select {
			case <-changed:
			case <-timer.C:
				return pending, nil
			case <-ctx.Done():
				return pending, nil
			case <-g.run.done:
				return pending, nil
			case <-d.life.Done():
				return pending, nil
			}
		}
	}
}

// cardKey is what an answer to a request would be bound to as things are, or why
// nobody is asked: what is not allowed never becomes a card.
func (d *Daemon) cardKey(g *gateAsk) (cardKey, *gateAnswer) {
	capability, err := grants.ParseCapability(g.capability)
	if err != nil {
		return cardKey{}, &gateAnswer{outcome: gateDenied, reason: wire.AccessDenied, cause: causeMalformed}
	}
	decision := d.state().decide(g.run.asker(), capability, d.clock.read())
	if d.over(g.run) {
		return cardKey{}, &gateAnswer{outcome: gateDenied, reason: wire.RunEnded, cause: causeRunOver}
	}
	if decision.Outcome == grants.Denied {
		return cardKey{}, &gateAnswer{outcome: gateDenied, reason: wire.Reason(decision.Reason), cause: string(decision.Cause)}
	}
	r := g.run
	k := cardKey{
		subject: r.subject, born: r.born.UnixNano(), profile: r.profile.Name, tier: r.tier, session: r.id,
		server: g.server, tool: g.tool, resource: g.resource, capability: g.capability, argsDigest: g.argsDigest,
		pin: g.pin, policy: g.policy, grant: decision.GrantID, outcome: decision.Outcome,
	}
	if r.launch != nil {
		k.session = r.launch.id
	}
	if g.resource != "" {
		k.content = d.state().contentOf(g.resource)
	} else {
		k.content = d.state().definitionOf(g.server)
	}
	return k, nil
}

// definitionOf says how a server is run that was added, without what that is; empty:
// it was not, and whoever wraps it runs what they like. It takes mu.
func (s *state) definitionOf(name string) string {
	server, ok := s.server(name)
	if !ok {
		return ""
	}
	// Who observes and who declared it is not how it is run.
	row, err := json.Marshal([]any{server.Command, server.Cwd, server.URL, server.Env, server.Headers, server.Hosted, server.Created.UnixNano()})
	if err != nil {
		return "?" // such values always encode
	}
	sum := sha256.Sum256(row)
	return hex.EncodeToString(sum[:])
}

// contentOf says which content a resource has, as far as is known without opening
// it. It takes mu.
func (s *state) contentOf(name string) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, ok := s.catalog[name]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d/%d/%s", f.created.UnixNano(), f.version, f.pinned)
}

// approved reports whether what was opened is the content that a resource has as far
// as is in force: a person has approved that, and not what may have come since. It
// takes mu.
func (s *state) approved(name string, out *opened) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, ok := s.catalog[name]
	if !ok || f.version != out.version {
		return false
	}
	pinned := strings.HasPrefix(f.pinned, regfile.Content+" ")
	return !pinned || f.pinned == regfile.Content+" "+out.sha256.String()
}

// cardFor is the card of a request, which may be a new one. Without one, the answer
// says why nobody is asked.
func (d *Daemon) cardFor(g *gateAsk, k cardKey, attached *card) (*card, gateAnswer, error) {
	a := d.approvals
	at := d.clock.read()
	a.mu.Lock()
	if slices.ContainsFunc(a.byKey[k], func(c *card) bool { return c.expires.passed(at) }) {
		a.mu.Unlock()
		d.sweep()
		a.mu.Lock()
	}
	if c := a.cardOf(g, k, attached); c != nil {
		if c != attached {
			c.asked = a.note(k.topic(), at)
			c.waiting++
			a.release(attached)
			a.tell(c)
		}
		a.mu.Unlock()
		return c, gateAnswer{}, nil
	}
	if a.quiet(k.topic(), at) {
		a.mu.Unlock()
		return nil, gateAnswer{outcome: gateDenied, reason: wire.ApprovalDenied, cause: causeQuiet}, nil
	}
	if of, all := a.waits(k.subject); of >= maxCardsPerSubject || all >= maxCards || a.leaves(k.asker(), at) {
		a.mu.Unlock()
		return nil, gateAnswer{outcome: gateDenied, reason: wire.RateLimited, cause: causeTooMany}, nil
	}
	c := &card{
		id: d.newCardID(), key: k, run: g.run, why: g.why, created: at.now, expires: at.in(approvalLife), changed: make(chan struct{}), waiting: 1,
	}
	c.asked = a.note(k.topic(), at)
	a.cards[c.id], a.byKey[k] = c, append(a.byKey[k], c)
	a.release(attached)
	a.mu.Unlock()

	d.show(c, g) // nobody sees it yet
	_, err := d.log().Append(func(uint64, time.Time) (audit.Entry, error) {
		e := c.entry(kindApprovalRequest)
		e.Decision, e.ReasonCode = decisionPending, string(wire.ApprovalPending)
		return e, nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != cardMaking { // a lock came first
		return c, gateAnswer{}, nil
	}
	if err != nil {
		c.cause = causeStorage
		a.set(c, cardVoid)
		return nil, gateAnswer{}, wire.Deny(wire.AuditFailed)
	}
	a.set(c, cardPending)
	a.wake() // what it is about may have changed meanwhile
	return c, gateAnswer{}, nil
}

// cardOf is the card that a request attaches to; nil: a new one. A retry attaches to
// the card of the call that it repeats, for which nobody waits any more; of identical
// requests that wait at the same time each has a card of its own, unless the operator
// chose that they share one, or they are reads of the same content. One that does not
// wait cannot be told from a retry. The caller holds mu.
func (a *approvals) cardOf(g *gateAsk, k cardKey, attached *card) (found *card) {
	for _, c := range a.byKey[k] {
		if c == attached {
			return c
		}
		if c.waiting == 0 || g.wait < 0 || g.share || g.resource != "" {
			if found == nil || c.state == cardApproved && found.state != cardApproved {
				found = c
			}
		}
	}
	return found
}

// newCardID returns an id that neither a card nor a grant nor a standing answer has.
// The caller holds approvals.mu.
func (d *Daemon) newCardID() string {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	for {
		id := st.newGrantID()
		_, stands := st.consents[id]
		if _, taken := d.approvals.cards[id]; !taken && !stands {
			return id
		}
	}
}

// leave ends a wait.
func (a *approvals) leave(c *card) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.release(c)
}

// release ends a wait for a card; nil: there was none. The caller holds mu.
func (a *approvals) release(c *card) {
	if c != nil {
		c.waiting--
		a.tell(c)
	}
}

// look is how far a card has come, what tells of a change, and the answer where the
// card has one for whoever waits for it.
func (a *approvals) look(c *card) (cardState, <-chan struct{}, gateAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := gateAnswer{id: c.id}
	switch c.state {
	case cardDenied:
		answer.outcome, answer.reason, answer.cause = gateDenied, wire.ApprovalDenied, causeRefused
	case cardExpired:
		answer.outcome, answer.reason, answer.cause = gateExpired, wire.ApprovalExpired, causeUnanswered
	case cardVoid:
		answer.outcome, answer.reason, answer.cause = gateDenied, wire.ApprovalDenied, causeVoid
	case cardSettled:
		if c.answer != nil {
			if c.replaying { // somebody else is about to get it
				return cardRunning, c.changed, gateAnswer{}
			}
			c.replaying = true
			answer.outcome, answer.replay = gateReplay, c.answer
			answer.untake = func() { a.replayed(c, false) }
			answer.settle = func(string, []byte, bool, bool) { a.replayed(c, true) }
		}
	default: // it goes on
	}
	return c.state, c.changed, answer
}

// replayed ends that the answer of a card is being given to a retry.
func (a *approvals) replayed(c *card, given bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.replaying {
		return
	}
	c.replaying = false
	if given {
		a.forget(c)
	}
	a.set(c, c.state) // whoever waits for it looks again
}

// detached reports whether requests of its key attach to a card no more.
func (a *approvals) detached(c *card) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !slices.Contains(a.byKey[c.key], c) && !c.state.over()
}

// errNotThere stops an entry that would tell of what did not happen.
var errNotThere = errors.New("somebody else was first")

// useCard reserves the one use of an approved card. The zero answer says that
// somebody else was first, or that a standing answer was given.
func (d *Daemon) useCard(g *gateAsk, c *card) (gateAnswer, error) {
	a := d.approvals
	var turn uint64 // which reservation of the card this is
	mine := func() bool { return c.state == cardRunning && c.turn == turn }
	_, err := d.log().Append(func(uint64, time.Time) (audit.Entry, error) {
		cause := d.standing(c)
		a.mu.Lock()
		defer a.mu.Unlock()
		if c.state != cardApproved || c.scope != scopeOnce || cause != "" || c.expires.passed(d.clock.read()) {
			return audit.Entry{}, errNotThere
		}
		c.turn++
		turn = c.turn
		a.set(c, cardRunning)
		return d.runEntry(g, c.key, c.id, 0), nil
	})
	if errors.Is(err, errNotThere) {
		d.sweep() // it may be void, or over
		return gateAnswer{}, nil
	}
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if mine() {
			a.set(c, cardApproved)
		}
		return gateAnswer{}, wire.Deny(wire.AuditFailed)
	}
	return gateAnswer{
		outcome: gateApproved, id: c.id,
		take: func() bool {
			cause := d.standing(c)
			a.mu.Lock()
			defer a.mu.Unlock()
			return mine() && cause == ""
		},
		untake: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if mine() {
				a.set(c, cardApproved)
			}
			a.wake()
		},
		settle: func(end string, answer []byte, isError, delivered bool) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if mine() {
				a.settle(c, end, answer, isError, delivered)
			}
		},
	}, nil
}

// runEntry tells that an answer is used; number: the how manieth time, where uses
// are counted.
func (d *Daemon) runEntry(g *gateAsk, k cardKey, id string, number uint64) audit.Entry {
	e := g.run.entry(kindApprovalRun)
	k.describe(&e)
	e.ApprovalID, e.Count, e.Decision, e.ReasonCode = id, number, decisionAllow, string(wire.Allowed)
	return e
}

// settle ends a card that was used. An answer that nobody got is kept for a retry as
// long as the card would have lived. The caller holds mu.
func (a *approvals) settle(c *card, end string, answer []byte, isError, delivered bool) {
	c.outcome = end
	if !delivered && len(answer) > 0 && len(answer) <= maxKeptAnswer && a.kept+len(answer) <= maxKeptAnswers {
		c.answer = &replay{answer: answer, isError: isError}
		a.kept += len(answer)
	}
	a.set(c, cardSettled)
}

// standing says why a card, or what was approved, is void; empty: it stands. It
// looks at what is in force, and may be called under the log's mutex.
func (d *Daemon) standing(c *card) (cause string) {
	if c.over() || !d.entitled(c.run) {
		cause = causeRunOver
	} else {
		cause = d.keyStands(c.key, c.run.asker(), c.pinState == pinTrusted)
	}
	if cause == "" && c.key.tool != "" {
		cause = policyWords[d.killedBy(c.run, c.key.server)]
	}
	if cause != "" && !d.state().open { // a lock takes everything away, at any moment
		return causeVaultLocked
	}
	return cause
}

// killedBy is the policy that killed the session of a run around a server, or stopped
// that for its subject; empty: none did, or its rules only log. It may be called under
// the log's mutex.
func (d *Daemon) killedBy(r *run, server string) string {
	st := d.state()
	if known, ok := st.server(server); ok && known.Hosted {
		if by := st.meters.stoppedBy(r.subject, server); by != "" {
			return by
		}
	}
	policy := st.policyOf(r.subject, server)
	if policy == nil || st.observes(policy, d.clock.reached()) {
		return ""
	}
	return st.meters.killedBy(r.subject, server, r.launchID())
}

// keyStands says why what a key binds an answer to is not so any more; empty: it is.
func (d *Daemon) keyStands(k cardKey, who asker, trusted bool) (cause string) {
	st := d.state()
	if !st.open {
		return causeVaultLocked
	}
	capability, err := grants.ParseCapability(k.capability)
	if err != nil {
		return causeMalformed
	}
	decision := st.decide(who, capability, d.clock.read())
	switch {
	case decision.Outcome == grants.Denied:
		return string(decision.Cause)
	case decision.GrantID != k.grant || decision.Outcome != k.outcome:
		return causeGrant
	}
	return d.boundVoid(k, trusted)
}

// boundVoid is keyStands without the grants.
func (d *Daemon) boundVoid(k cardKey, trusted bool) (cause string) {
	st := d.state()
	if k.resource != "" {
		if st.contentOf(k.resource) != k.content {
			return causeContent
		}
		return ""
	}
	if st.definitionOf(k.server) != k.content {
		return causeServerSet
	}
	if pin, now := st.pinOf(k.server, k.tool); now != trusted || now && pin != k.pin {
		return causePin
	}
	version := ""
	if p := st.policyOf(k.subject, k.server); p != nil {
		version = p.Version()
	}
	if version != k.policy {
		return causePolicy
	}
	return ""
}

// gateRead asks a person for content that a run may have then, once for each answer.
func (d *Daemon) gateRead(r *run, name string) func(context.Context, grants.Capability, verdict) (gateAnswer, error) {
	return func(ctx context.Context, capability grants.Capability, v verdict) (gateAnswer, error) {
		g := gateAsk{run: r, resource: name, capability: capability.String(), why: d.whyGated(r, v.grant, "")}
		if d.approvals.waitRead(r) {
			defer d.approvals.waitedRead(r)
		} else {
			g.wait = -1
		}
		return d.gateOn(ctx, g)
	}
}

// whyGated says in words what wants a person before what the grants allow. tool is
// that of a call, SERVER/tool, and empty for a read.
func (d *Daemon) whyGated(r *run, grant, tool string) string {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	if g, ok := st.set.Grant(grant); ok && g.RequireApproval {
		return "the grant " + g.Pattern.String() + " needs an approval each time"
	}
	if declared, ok := st.set.Tool(tool); ok && declared.Gate {
		return "the tool " + tool + " is declared with gate: always"
	}
	if r.profile.Name != "" {
		return "the profile " + r.profile.Name + " has a person approve this (approval: " + r.profile.Approval.String() + ")"
	}
	return "a grant or a tool needs an approval"
}

// approvable reports whether anybody could answer a request: an operator of another
// uid, or one with a passphrase.
func (d *Daemon) approvable() bool {
	if len(d.doors.operators) > 0 {
		return true
	}
	if d.locked() {
		return false
	}
	known, err := d.recognise()
	return err == nil && known.verifier != nil
}
