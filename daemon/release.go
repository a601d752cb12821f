package daemon

import (
	"context"
	"errors"
	"slices"
	"time"
	"unicode/utf8"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
	"subjectbroker/vault"
	"subjectbroker/vault/regfile"
)

// ask is one request after identify: who asks is settled and cannot be named
// by the request.
type ask struct {
	entry      audit.Entry // who asks, and the kind of request
	peer       *peer.Peer
	capability string // action:object, as asked for
	// decide judges the capability for whoever asks.
	decide func(grants.Capability) grants.Decision
	// over reports that whoever asked is not entitled to an answer any more.
	over func() bool
	// open fetches what would be released, or sees to it that what is allowed can be
	// done; nil for requests that release nothing, such as explain. Its error may be
	// a *wire.Error.
	open func(*opened) error
	// stale reports, under the log's mutex, that what was opened is not what it would
	// be now: it is opened again, a few times. Nil: it never is.
	stale func() bool
	// gate asks a person for what the decision leaves to one; nil: nobody is asked,
	// and what is gated is refused.
	gate func(context.Context, grants.Capability, verdict) (gateAnswer, error)
	// also judges what the grants do not, as the policy of a call; nil: nothing does.
	also alsoJudges
}

// alsoJudges is what a request brings along that is judged beside the grants: on
// the same path, in the same places.
type alsoJudges interface {
	// judge comes after the grants, and may be stricter, or know another cause of a
	// denial. It takes nothing and is called again under the log's mutex.
	judge(v *verdict)
	// at is called first of all under the log's mutex: the entry will have this seq
	// and this time, unless there will be none.
	at(seq uint64, now time.Time)
	// take is called under the log's mutex for what is allowed, after everything
	// else was rechecked and before a person's answer and a use are taken. It takes
	// what the request costs, or is stricter.
	take(v *verdict)
	// tell completes the entry. It is called once, under the log's mutex.
	tell(e *audit.Entry, v verdict)
	// giveBack returns what was taken: nothing will be done.
	giveBack()
	// strict reports whether the entry of what is allowed has to be durable before
	// anything is done.
	strict() bool
}

// acts reports whether something is done, or leaves, when the request is allowed.
func (a ask) acts() bool { return a.open != nil || a.also != nil }

// payer is whose budget a denial is taken from.
func (a ask) payer() payer { return payerOf(a.peer, a.entry.KeyID) }

// ask is a request under the run.
func (d *Daemon) ask(r *run, kind audit.Kind, capability string) ask {
	return ask{
		entry: r.entry(kind), peer: r.peer, capability: capability,
		decide: func(c grants.Capability) grants.Decision {
			return d.state().decide(r.asker(), c, d.clock.read())
		},
		over: func() bool { return d.over(r) },
	}
}

// use is a use of a limited grant that was reserved; the zero value is none.
type use struct {
	number uint64
	last   bool
	refund func()
}

// opened is content on its way out, not yet accounted for.
type opened struct {
	content []byte
	kind    string
	version uint32
	sha256  audit.Hash // of a registered file's content
	created time.Time  // of the resource that it was opened from
	owner   *uint32    // whose that is; nil: every operator's
}

func (o *opened) wipe() {
	clear(o.content)
	o.content = nil
}

// answer is what came of an ask: the entry's sequence number always, content
// only when the decision allows.
type answer struct {
	opened
	seq      uint64
	decision grants.Outcome
	reason   wire.Reason
	gate     gateAnswer // what a person said; its zero value: nobody was asked
}

// refusal is what who asked is told of an answer that is no release.
func (a answer) refusal() *wire.Error {
	if a.reason == wire.ApprovalPending {
		return wire.Pending(a.gate.id)
	}
	return wire.Deny(a.reason)
}

// verdict is how an ask ends, as the log will say it.
type verdict struct {
	outcome grants.Outcome
	failed  bool // the decision allowed, but opening did not succeed
	reason  wire.Reason
	cause   string
	grant   string
	limited bool
	// approval is the card, or the standing answer, that this is about; replayed: what
	// it was given for was done already, and its answer is given again.
	approval string
	replayed bool
}

// gated is the verdict after a person was asked.
func (v verdict) gated(g gateAnswer) verdict {
	v.approval = g.id
	switch g.outcome {
	case gateApproved:
		v.outcome, v.reason, v.cause = grants.Allowed, wire.Allowed, ""
	case gateReplay:
		v.outcome, v.reason, v.cause, v.replayed = grants.Allowed, wire.Allowed, "", true
	case gatePending:
		v.outcome, v.reason, v.cause = grants.Pending, wire.ApprovalPending, g.cause
	default:
		v.outcome, v.reason, v.cause = grants.Denied, g.reason, g.cause
	}
	return v
}

// release is the one path on which content leaves the trusted plane, and on
// which it is refused. Its steps are those of the architecture, in order:
// parse, decide, gate, open, append, wait, release. A denial walks the same
// path, waits for the same fsync and is recorded by the same code.
//
// The error, if any, is a *wire.Error in public words. When it is nil the
// decision is in the answer, and the caller wipes the content.
func (d *Daemon) release(ctx context.Context, a ask) (answer, error) {
	capability, err := grants.ParseCapability(a.capability)
	if err != nil {
		a.entry.ResourceID = d.mask(a.capability)
		return answer{}, d.malformed(ctx, a.peer, a.entry)
	}
	return d.walk(ctx, a, capability)
}

// walk is the path behind the parsing.
func (d *Daemon) walk(ctx context.Context, a ask, capability grants.Capability) (answer, error) {
	p := d.consider(a, capability)
	if p.asks() {
		if err := p.person(ctx); err != nil {
			return answer{}, err
		}
	}
	if err := p.place(); err != nil {
		return answer{}, err
	}
	return p.finish(ctx)
}

// passage is an ask on that path. Calls that come one after the other walk it in
// two parts: up to their places in the log in their order, and from there, or from
// a person, each by itself.
type passage struct {
	d          *Daemon
	a          ask
	capability grants.Capability
	v          verdict
	gate       gateAnswer
	out        opened
	reserved   use
	spent      bool // a denial of the peer's budget
	acts       bool // something is done on the strength of the entry
	ticket     audit.Ticket
	err        error // why there is no entry
}

// consider decides.
func (d *Daemon) consider(a ask, capability grants.Capability) *passage {
	return &passage{d: d, a: a, capability: capability, v: a.judge(capability)}
}

// asks reports whether a person comes next.
func (p *passage) asks() bool { return p.v.outcome == grants.Pending && p.a.acts() }

// person asks one, and may wait for long.
func (p *passage) person(ctx context.Context) error {
	gate, err := p.a.gate(ctx, p.capability, p.v)
	if err != nil {
		return err
	}
	p.gate, p.v = gate, p.v.gated(gate)
	return nil
}

// place opens what is allowed and gives the ask its place in the log, where it is
// judged for good. An error of the log is told by finish.
func (p *passage) place() error {
	for try := 1; ; try++ {
		err := p.placeOnce(try < maxTries)
		if err != nil || !errors.Is(p.err, errStale) {
			return err
		}
		p.out.wipe()
	}
}

// maxTries is how often what is stale by then is opened, before it is refused as
// something that changes all the time.
const maxTries = 8

// errStale keeps what has to be opened again out of the log.
var errStale = errors.New("it is not what is there any more")

// placeOnce is place; with again it is left at errStale where what was opened is stale.
func (p *passage) placeOnce(again bool) error {
	d, a := p.d, p.a
	if a.open != nil && p.v.outcome == grants.Allowed && !p.v.replayed {
		switch err := a.open(&p.out); {
		case errors.Is(err, errUnread):
			d.budgets.suppress(a.payer(), d.clock.now())
			p.gate.giveBack()
			return wire.Deny(wire.RateLimited)
		case errors.Is(err, errLeft):
			p.v.failed, p.v.reason, p.v.cause = true, "", causeCancelled
		case err != nil:
			p.v.failed, p.v.reason, p.v.cause = true, openReason(err), openCause(err)
			p.out.wipe()
		}
	}
	write := (*audit.Log).Append
	if a.also != nil && p.v.outcome == grants.Allowed && !a.also.strict() { // if it is refused in the end, finish waits for it
		write = (*audit.Log).AppendGrouped
	}
	p.ticket, p.err = write(d.log(), func(seq uint64, now time.Time) (audit.Entry, error) {
		if again && a.stale != nil && p.v.outcome == grants.Allowed && !p.v.failed && a.stale() {
			return audit.Entry{}, errStale
		}
		if a.also != nil {
			a.also.at(seq, now)
		}
		p.v, p.reserved = d.recheck(a, p.capability, p.v, &p.out, p.gate)
		if p.v.outcome == grants.Denied || p.v.outcome == grants.Pending && a.acts() { // retries fill the disk as well
			if p.spent = d.budgets.spend(a.payer(), a.entry.SubjectID, d.clock.now()); !p.spent {
				return audit.Entry{}, errOverBudget
			}
		}
		return a.result(p.capability, p.v, &p.out, p.reserved.number), nil
	})
	if errors.Is(p.err, errOverBudget) {
		p.out.wipe()
		p.gate.giveBack()
		return wire.Deny(wire.RateLimited)
	}
	p.acts = a.acts() && p.v.outcome == grants.Allowed && !p.v.failed && !p.v.replayed
	return nil
}

// waits reports whether the entry has to be durable before anything is said.
func (p *passage) waits() bool {
	return p.err == nil && (!p.acts || p.a.also == nil || p.a.also.strict())
}

// finish waits for the log where that is due, and releases.
func (p *passage) finish(ctx context.Context) (answer, error) {
	d, a, v := p.d, p.a, p.v
	err := p.err
	absent := err != nil // the entry is certainly not in the log
	if p.waits() {
		p.ticket.Release = p.acts
		err = p.ticket.Wait(ctx)
		absent = errors.Is(err, audit.ErrFailed)
	}
	if !p.acts && !v.replayed || err != nil { // nothing will be done, whatever the log says of it
		p.gate.giveBack()
		if p.gate.outcome == gateReplay {
			p.gate.outcome, p.gate.replay = gateNone, nil
		}
	}
	if err != nil {
		p.out.wipe()
		if p.acts && a.also != nil && absent {
			a.also.giveBack()
		}
		if p.reserved.number > 0 && absent {
			p.reserved.refund()
		}
		if p.spent && absent {
			d.budgets.refund(a.payer(), d.clock.now())
		}
		return answer{}, wire.Deny(wire.AuditFailed)
	}
	if v.outcome != grants.Allowed || v.failed {
		p.out.wipe()
	}
	if (v.replayed || p.acts && p.capability.Action.NamesResource()) && p.gate.settle != nil { // what leaves is on its way
		p.gate.settle(outcomeOK, nil, false, true)
	}
	if p.reserved.number > 0 {
		d.charges.Add(1)
	}
	if p.reserved.last {
		d.hub.listChanged(a.entry.SubjectID)
	}
	if p.acts && a.also == nil {
		d.asks.released()
	}
	return answer{opened: p.out, seq: p.ticket.Seq(), decision: v.outcome, reason: v.reason, gate: p.gate}, nil
}

// errLeft is the error of an open that nobody waits for any more: nothing was refused.
var errLeft = errors.New("nobody waits for it any more")

// errOverBudget stops a denial on its way into the log.
var errOverBudget = errors.New("the peer's budget for denials is used up")

// judge decides. What is gated is refused where nobody is asked; an explain says
// that it is.
func (a ask) judge(capability grants.Capability) verdict {
	decision := a.decide(capability)
	v := verdict{
		outcome: decision.Outcome,
		reason:  wire.Reason(decision.Reason),
		cause:   string(decision.Cause),
		grant:   decision.GrantID,
		limited: decision.Limited,
	}
	if a.also != nil {
		a.also.judge(&v)
	}
	if v.outcome == grants.Pending && a.acts() && a.gate == nil {
		v.outcome, v.reason, v.cause = grants.Denied, wire.ApprovalDenied, causeNoApprover
	}
	return v
}

// recheck runs under the log's mutex, the one place where every decision and
// every restriction is in order: it judges again, ends with the run, makes sure
// that the name still means the resource that was opened, takes a person's answer
// and what else there is to take, and reserves the use.
func (d *Daemon) recheck(a ask, capability grants.Capability, before verdict, out *opened, gate gateAnswer) (verdict, use) {
	if a.over() {
		return verdict{outcome: grants.Denied, reason: wire.RunEnded, cause: string(wire.RunEnded)}, use{}
	}
	now := a.judge(capability)
	if now.outcome == grants.Denied && a.over() { // all of it was taken out of force just now
		return verdict{outcome: grants.Denied, reason: wire.RunEnded, cause: string(wire.RunEnded)}, use{}
	}
	if (gate.outcome == gateApproved || gate.outcome == gateReplay) && now.outcome == grants.Pending {
		now = now.gated(gate)
	}
	if now.outcome != grants.Allowed || before.outcome != grants.Allowed {
		// Whichever was stricter stands: what was not opened cannot be released.
		if before.outcome != grants.Allowed {
			return before, use{}
		}
		return now, use{}
	}
	if before.failed {
		return before, use{}
	}
	if before.replayed != now.replayed { // it needs nobody any more, and would be done again
		return verdict{outcome: grants.Denied, reason: wire.ApprovalDenied, cause: causeWithdrawn, grant: now.grant, approval: gate.id}, use{}
	}
	if !a.acts() || now.replayed { // it was paid for when it was done
		return now, use{}
	}
	st := d.state()
	if a.open != nil && capability.Action.NamesResource() && !(st.same(capability.Object, out.created) && (gate.outcome != gateApproved || st.approved(capability.Object, out))) {
		return verdict{outcome: grants.Allowed, failed: true, reason: wire.ResourceChanged, cause: causeReplaced, grant: now.grant}, use{}
	}
	if a.also != nil {
		if a.also.take(&now); now.outcome != grants.Allowed {
			return now, use{}
		}
	}
	if gate.outcome == gateApproved && !gate.take() { // it was withdrawn in the meantime
		if a.also != nil {
			a.also.giveBack()
		}
		return verdict{outcome: grants.Denied, reason: wire.ApprovalDenied, cause: causeWithdrawn, grant: now.grant, approval: gate.id}, use{}
	}
	if !now.limited {
		return now, use{}
	}
	number, last := st.charge(now.grant)
	return now, use{number: number, last: last, refund: func() { st.refund(now.grant) }}
}

// result is the entry of an ask that was judged.
func (a ask) result(capability grants.Capability, v verdict, out *opened, uses uint64) (e audit.Entry) {
	e = a.entry
	e.Action = capability.Action.String()
	if capability.Action.NamesResource() {
		e.ResourceID = capability.Object
	} else {
		e.Capability = a.capability
	}
	e.GrantID, e.ApprovalID = v.grant, v.approval
	e.Decision = decisionWord(v)
	e.ReasonCode = string(v.reason)
	e.Count = uses
	if v.replayed {
		e.Kind = kindApprovalReplay
		return e
	}
	if a.also != nil {
		defer func() { a.also.tell(&e, v) }()
	}
	if v.outcome != grants.Allowed || v.failed {
		e.Cause = v.cause
		return e
	}
	if a.open != nil && capability.Action.NamesResource() {
		e.Disclosed = disclosedYes
		n := int64(len(out.content))
		e.Bytes = &n
		e.Version = out.version
		e.ContentSHA256 = out.sha256
	}
	return e
}

func decisionWord(v verdict) string {
	switch {
	case v.failed && v.reason == "": // nobody waited for a decision
		return ""
	case v.failed:
		return decisionError
	case v.outcome == grants.Allowed:
		return decisionAllow
	case v.outcome == grants.Pending:
		return decisionPending
	}
	return decisionDeny
}

// Causes that the evaluator does not know.
const (
	causeNoApprover  = "NO_APPROVER"
	causePeerChanged = "PEER_CHANGED"
	causeMalformed   = "MALFORMED"
	causeStorage     = "STORAGE"
	causeReplaced    = "RESOURCE_REPLACED"
	causeWithdrawn   = "APPROVAL_WITHDRAWN"
	causeCancelled   = "CANCELLED"

	causeSubjectChanged = "SUBJECT_CHANGED"
)

// openContent fetches one version of a resource; 0 is the newest, and the only
// one that a registered file has. The call's share of unread answers grows first.
func (d *Daemon) openContent(ctx context.Context, name string, n uint32) func(*opened) error {
	return func(out *opened) error {
		var record vault.Record
		err := d.vault.View(func(tx *vault.Tx) error {
			var err error
			record, err = tx.Record(name)
			out.created, out.owner = record.Created, ownerOf(record)
			if err != nil {
				return err
			}
			if !shareOf(ctx).grow(d.sizeOf(record, n)) {
				return errUnread
			}
			if record.File != nil {
				return nil
			}
			var version vault.Version
			out.content, version, err = tx.ContentOf(record, n)
			out.kind, out.version = record.Kind, version.N
			return err
		})
		if err != nil {
			return err
		}
		if record.File == nil {
			return checkEncoding(out)
		}
		content, sum, err := regfile.Read(*record.File, int64(d.maxContent))
		if err != nil {
			return err
		}
		out.content, out.kind, out.sha256 = content, vault.KindFile, sum
		return nil
	}
}

// sizeOf is at least the size of what would be opened, in bytes.
func (d *Daemon) sizeOf(record vault.Record, n uint32) int64 {
	if record.File != nil {
		return int64(d.maxContent)
	}
	for _, version := range slices.Backward(record.Versions) {
		if n == 0 || version.N == n {
			return int64(version.Size)
		}
	}
	return 0 // there is none, and it will not be opened
}

// checkEncoding makes sure that content of kind text still is what it was
// declared to be.
func checkEncoding(out *opened) error {
	if out.kind == vault.KindText && !utf8.Valid(out.content) {
		return errEncoding
	}
	return nil
}

var errEncoding = errors.New("content of kind text is not UTF-8")

// openReason is the public reason for content that could not be opened.
func openReason(err error) wire.Reason {
	switch {
	case errors.Is(err, regfile.ErrChanged), errors.Is(err, regfile.ErrMissing), errors.Is(err, regfile.ErrUnsafe):
		return wire.ResourceChanged
	case errors.Is(err, regfile.ErrTooLarge):
		return wire.ResourceTooLarge
	case errors.Is(err, errEncoding):
		return wire.ResourceEncodingInvalid
	}
	return refusal(err).Reason
}

// openCause is the operator's word for it.
func openCause(err error) string {
	if typed, ok := errors.AsType[*wire.Error](err); ok && typed.Cause != "" {
		return typed.Cause
	}
	switch {
	case errors.Is(err, regfile.ErrMissing):
		return "FILE_MISSING"
	case errors.Is(err, regfile.ErrUnsafe):
		return "FILE_UNSAFE"
	case errors.Is(err, regfile.ErrChanged):
		return "FILE_CHANGED"
	}
	return causeStorage
}

// malformed records a request whose names or values break the rules and returns
// the error for the client. The entry holds the text only through mask.
func (d *Daemon) malformed(ctx context.Context, p *peer.Peer, e audit.Entry) error {
	n := d.noteMalformed(p, e)
	if err := n.wait(ctx); err != nil {
		return err
	}
	return wire.Deny(wire.InvalidArgument)
}

// noteMalformed is malformed without the wait.
func (d *Daemon) noteMalformed(p *peer.Peer, e audit.Entry) noted {
	e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(wire.InvalidArgument), causeMalformed
	return d.noteDenial(p, e)
}

// mask stands in for text that must not stand in the log.
func (d *Daemon) mask(text string) string {
	key := *d.correlate.Load()
	return audit.Mask(key[:], text)
}

// record writes one entry and waits until it is durable.
func (d *Daemon) record(ctx context.Context, e audit.Entry) error {
	return d.recordWith(ctx, (*audit.Log).Record, e)
}

// recordWith is record by another method of the log: what the operator does may
// use the reserve of a full disk.
func (d *Daemon) recordWith(ctx context.Context, write func(*audit.Log, context.Context, audit.Entry) (audit.Position, error), e audit.Entry) error {
	log := d.log()
	if log == nil {
		d.unrecorded.Add(1)
		return wire.Deny(wire.AuditFailed)
	}
	if _, err := write(log, ctx, e); err != nil {
		return wire.Deny(wire.AuditFailed)
	}
	return nil
}
