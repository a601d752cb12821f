package daemon

import (
	"context"
	"errors"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/wire"
)

// mayOpen says why a run may not open, or stay open; the cause is empty when it may.
// born is when its subject was created.
func (d *Daemon) mayOpen(r *run) (born time.Time, cause string) {
	st := d.state()
	st.mu.RLock()
	defer st.mu.RUnlock()
	return st.mayRun(r.subject, st.worth(r.asker()))
}

// worth is the tier that counts for one who asks. While a subject asks for more than
// cooperative, a launch that any process of the uid could have started, maybe before
// that was asked for, is worth no more than such a process. The caller holds mu or
// changing.mu.
func (s *state) worth(who asker) grants.Tier {
	if who.anyone && s.raised() {
		return grants.Cooperative
	}
	return who.tier
}

// mayRun says why a subject may not open a run at tier. The caller holds mu or
// changing.mu.
func (s *state) mayRun(name string, tier grants.Tier) (born time.Time, cause string) {
	subject, ok := s.set.Subject(name)
	switch {
	case !ok:
		return born, string(grants.CauseUnknownSubject)
	case subject.Disabled:
		return born, string(grants.CauseSubjectDisabled)
	case !tier.Satisfies(subject.MinTier):
		return born, string(grants.CauseTierTooLow)
	}
	return subject.Created, ""
}

// entitled reports whether an open run could be opened now, by the same subject.
func (d *Daemon) entitled(r *run) bool {
	if r.peer.Class == peer.Mapped {
		if name, ok := d.subjectOf(r.peer.UID); !ok || name != r.subject {
			return false
		}
	}
	if r.key != "" && !d.state().keyStands(r.key, d.clock.read()) {
		return false
	}
	born, cause := d.mayOpen(r)
	return cause == "" && born.Equal(r.born) && d.state().stands(r.profile)
}

// refuseRun records that no run was opened. To the client every reason that is
// about the subject is the same.
func (d *Daemon) refuseRun(ctx context.Context, p *peer.Peer, e audit.Entry, refusal *wire.Error, cause string) error {
	e.Decision, e.ReasonCode, e.Cause = decisionDeny, string(refusal.Reason), cause
	if err := d.recordDenial(ctx, p, e); err != nil {
		return err
	}
	return refusal
}

// identify is the first step of every request under a run: the connection's
// budget, the vault, the run.
func (d *Daemon) identify(ctx context.Context, id string) (*run, error) {
	p := callerOf(ctx)
	r, ok := d.runs.find(id, p)
	subject, key := "", ""
	if ok {
		subject, key = r.subject, r.key
	}
	accountFor(ctx)
	if err := d.admitAs(payerOf(p, key), subject); err != nil {
		return nil, err
	}
	e := audit.Entry{Kind: audit.Authz}
	if ok {
		e = r.entry(audit.Authz)
	}
	e.LaunchID, e.Peer, e.Decision = p.Launch, peerEntry(p), decisionDeny
	refusal := wire.RunEnded
	switch {
	case d.locked():
		d.wanted()
		refusal = wire.VaultLocked
	case ok && p.Alive() && r.launch != nil && r.launch.over():
		e.Cause = causeLaunchEnded
	case ok && p.Alive() && d.entitled(r):
		return r, nil
	case ok && p.Alive():
		e.Cause = causeSubjectChanged
	case ok:
		e.Cause = causePeerChanged
	case !p.Alive(): // its runs have ended with it
		e.Cause = causePeerChanged
	default:
		e.Cause = causeNoRun
	}
	e.ReasonCode = string(refusal)
	if e.Cause == "" {
		e.Cause = e.ReasonCode
	}
	if err := d.recordDenial(ctx, p, e); err != nil {
		return nil, err
	}
	return nil, wire.Deny(refusal)
}

// admit refuses a peer over its denial budget before anything is looked up.
func (d *Daemon) admit(ctx context.Context, p *peer.Peer, subject string) error {
	accountFor(ctx)
	return d.admitAs(p.Key(), subject)
}

// admitAs is admit where it is known who pays.
func (d *Daemon) admitAs(by payer, subject string) error {
	if d.budgets.admit(by, subject, d.clock.now()) {
		return nil
	}
	return wire.Deny(wire.RateLimited)
}

// recordDenial writes the entry of a refusal within its peer's budget, and waits
// until it is durable. While there is no log to write it to, it succeeds.
func (d *Daemon) recordDenial(ctx context.Context, p *peer.Peer, e audit.Entry) error {
	n := d.noteDenial(p, e)
	return n.wait(ctx)
}

// noted is an entry that has its place in the log, or the reason why it has none.
type noted struct {
	d      *Daemon
	denial payer // whose budget it was taken from; nil: it is no denial
	ticket audit.Ticket
	none   bool // there is no log
	err    error
}

// noteDenial is recordDenial without the wait.
func (d *Daemon) noteDenial(p *peer.Peer, e audit.Entry) noted {
	subject := ""
	if e.RunID != "" {
		subject = e.SubjectID
	}
	by := payerOf(p, e.KeyID)
	if !d.budgets.spend(by, subject, d.clock.now()) {
		return noted{err: wire.Deny(wire.RateLimited)}
	}
	log := d.log()
	if log == nil {
		d.unrecorded.Add(1)
		return noted{none: true}
	}
	n := noted{d: d, denial: by}
	n.ticket, n.err = log.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil })
	return n
}

// wait waits until the entry is durable. Its errors are public.
func (n noted) wait(ctx context.Context) error {
	err := n.err
	if _, public := errors.AsType[*wire.Error](err); public || n.none {
		return err
	}
	if err == nil {
		err = n.ticket.Wait(ctx)
	}
	if n.denial != nil && errors.Is(err, audit.ErrFailed) { // certainly not in the log
		n.d.budgets.refund(n.denial, n.d.clock.now())
	}
	if err != nil {
		return wire.Deny(wire.AuditFailed)
	}
	return nil
}

// callerOf is the peer of a call; the credentials guarantee that there is one.
func callerOf(ctx context.Context) *peer.Peer {
	p, ok := peer.FromContext(ctx)
	if !ok {
		panic("a call without a peer")
	}
	return p
}

// nameOrMask is text as it may stand in the log.
func (d *Daemon) nameOrMask(text string) string {
	if text == "" || grants.CheckName(text) == nil {
		return text
	}
	return d.mask(text)
}

func peerEntry(p *peer.Peer) *audit.Peer { return &audit.Peer{UID: p.UID, PID: p.PID} }

func printableASCII(s string, limit int) bool {
	if len(s) > limit {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
