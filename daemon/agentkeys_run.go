package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/proto/agentkey"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Causes of what has to do with agent keys, beside those that say what is wrong with
// one.
const (
	causeKeyRevoked  = "KEY_REVOKED"
	causeKeyExpired  = "KEY_EXPIRED"
	causeKeyMismatch = "KEY_MISMATCH" // the key is good, but not the one that the run was opened with
	causeNoRun       = "NO_RUN"
	causeOtherHeader = "OTHER_HEADER" // a header that is not on the list of those that claim to say who asks
)

// maxPresented is the longest key that a gateway sends, in bytes.
const maxPresented = 256

// presentation is a key that somebody presented to a gateway, as that passes it on.
type presentation struct {
	key   []byte
	route string
	flags []string
}

// wellFormed reports whether a gateway of ours could have sent it.
func (pr presentation) wellFormed() bool {
	if len(pr.key) > maxPresented || len(pr.flags) > agentkey.MaxFlags || pr.route != agentkey.Stateful && pr.route != agentkey.Stateless {
		return false
	}
	for _, flag := range pr.flags {
		if grants.CheckName(flag) != nil {
			return false
		}
	}
	return true
}

// openKeyed opens a run for whom a key speaks, which is all that a gateway can say of
// that: subject and scope come from the key.
func (b broker) openKeyed(ctx context.Context, req *brokerv1.OpenRunRequest) (*brokerv1.OpenRunResponse, error) {
	d, p, claim := b.d, callerOf(ctx), req.GetAgentKey()
	defer clear(claim.GetKey())
	accountFor(ctx)
	pr := presentation{claim.GetKey(), claim.GetRoute(), claim.GetFlags()}
	open := audit.Entry{Kind: kindRunOpen, LaunchID: p.Launch, Peer: peerEntry(p), Tier: grants.Keyed.String(), ShimVersion: d.nameOrMask(req.GetShimVersion())}
	if !printableASCII(req.GetShimVersion(), maxShimVersion) || !pr.wellFormed() {
		open.ShimVersion = ""
		if err := d.admitAs(p.Key(), ""); err != nil {
			return nil, err
		}
		return nil, d.malformed(ctx, p, open)
	}
	who, cause := d.attest(p, nil)
	if cause == "" && who.subject != "" { // in a launch, or of a subject's uid: that decides, and nobody speaks for others
		cause = causeSubjectMismatch
	}
	refusal := wire.Deny(wire.AccessDenied)
	if req.GetApi() < wire.MinAPI || req.GetApi() > wire.API {
		cause, refusal = causeAPIUnsupported, otherProtocol()
	}
	if cause != "" {
		if err := d.admitAs(p.Key(), ""); err != nil {
			return nil, err
		}
		return nil, d.refuseRun(ctx, p, open, refusal, cause)
	}
	a, err := d.present(p, pr, "")
	if err != nil {
		return nil, err
	}
	if a.refused != nil {
		return nil, d.conclude(ctx, p, a)
	}
	r := &run{
		id: grants.NewID(), subject: a.key.Subject, born: a.key.SubjectCreated, tier: grants.Keyed, key: a.key.ID, keyName: a.key.Name, peer: p, command: p.Command(),
		shimVersion: req.GetShimVersion(), opened: d.clock.now(), done: make(chan struct{}), resources: map[string]*uint32{},
	}
	a.entry.RunID = r.id
	open.SubjectID, open.KeyID = r.subject, r.key
	if err := d.runs.add(r); err != nil {
		if err := d.conclude(ctx, p, a); err != nil {
			return nil, err
		}
		refusal := wire.FromError(err)
		cause, refusal.Cause = refusal.Cause, ""
		return nil, d.refuseRun(ctx, p, open, refusal, cause)
	}
	open.RunID, open.Decision, open.ReasonCode, open.Count = r.id, decisionAllow, string(wire.Allowed), uint64(len(d.callableServers(r)))
	err = d.conclude(ctx, p, a, open)
	if err == nil && d.over(r) { // locked, revoked, disabled, removed or ended in between
		err = wire.Deny(wire.RunEnded)
	}
	if err != nil {
		_ = d.endRuns(wire.FromError(err).Reason, "NOT_OPENED", func(other *run) bool { return other == r })
		return nil, err
	}
	return &brokerv1.OpenRunResponse{
		RunId: r.id, Subject: r.subject, Tier: r.tier.String(), Api: req.GetApi(), DaemonVersion: d.version, MaxContent: uint64(d.maxContent), KeyId: r.key,
		Offered: d.offeredTo(r),
	}, nil
}

// Authenticate judges the key of a further request of a run, of a request for which
// no run is wanted, or records one that was refused before it came here.
func (b broker) Authenticate(ctx context.Context, req *brokerv1.AuthenticateRequest) (*brokerv1.AuthenticateResponse, error) {
	d, p := b.d, callerOf(ctx)
	defer clear(req.GetKey())
	accountFor(ctx)
	pr := presentation{req.GetKey(), req.GetRoute(), req.GetFlags()}
	reports := req.GetRefused() != ""
	known := req.GetRefused() == string(wire.MissingToken) || req.GetRefused() == string(wire.MalformedToken)
	if !pr.wellFormed() || reports && (!known || len(pr.key) > 0 || req.GetRunId() != "") || !reports && len(pr.key) == 0 {
		if err := d.admitAs(p.Key(), ""); err != nil {
			return nil, err
		}
		return nil, d.malformed(ctx, p, audit.Entry{Kind: audit.Auth, LaunchID: p.Launch, Peer: peerEntry(p)})
	}
	a, err := d.present(p, pr, wire.Auth(req.GetRefused()))
	if err != nil {
		return nil, err
	}
	if reports {
		if err := d.conclude(ctx, p, a); err != nil && !errors.Is(err, a.refused) {
			return nil, err
		}
		return &brokerv1.AuthenticateResponse{}, nil
	}
	var r *run
	if req.GetRunId() != "" && a.refused == nil {
		found, open := d.runs.find(req.GetRunId(), p)
		switch {
		case !open:
			a.refuse(wire.Deny(wire.RunEnded), causeNoRun)
		case found.key != a.key.ID:
			a.entry.RunID = found.id
			a.refuse(wire.Deny(wire.RunEnded), causeKeyMismatch)
		case d.over(found):
			a.entry.RunID = found.id
			a.refuse(wire.Deny(wire.RunEnded), string(wire.RunEnded))
		default:
			r, a.entry.RunID = found, found.id
		}
	}
	if r != nil && len(a.flags) == 0 {
		// Whatever is done under the run has its entry behind this one, and waits for both.
		if going := d.noteGrouped(a.entry); going.err != nil {
			return nil, going.wait(ctx)
		}
		d.keyUse.note(a.key.ID, d.clock.now())
	} else if err := d.conclude(ctx, p, a); err != nil {
		return nil, err
	}
	if r != nil && d.over(r) { // while the entry was written
		return nil, wire.Deny(wire.RunEnded)
	}
	return &brokerv1.AuthenticateResponse{}, nil
}

// authentication is a key that was judged, before that is recorded.
type authentication struct {
	key     grants.AgentKey // no id: nobody knows it
	entry   audit.Entry
	flags   []string
	refused *wire.Error // nil: it is good
}

func (a *authentication) refuse(refusal *wire.Error, cause string) {
	a.refused = refusal
	a.entry.Decision, a.entry.ReasonCode, a.entry.Cause = decisionDeny, string(refusal.Reason), cause
}

// present judges a key. reported is what was wrong with one that does not come here.
// Its error is RATE_LIMITED: whoever is over budget is told nothing else. A key that
// is known has a budget of its own, so that nobody else can use that up, and what
// nobody knows counts against the gateway's process.
func (d *Daemon) present(p *peer.Peer, pr presentation, reported wire.Auth) (*authentication, error) {
	a := &authentication{flags: pr.flags, entry: audit.Entry{
		Kind: audit.Auth, LaunchID: p.Launch, Peer: peerEntry(p), Action: pr.route, Decision: decisionAllow, ReasonCode: string(wire.Allowed),
	}}
	locked := d.locked()
	var why badKey
	switch at := d.clock.read(); {
	case reported != "":
		why = bad(reported)
	case !locked:
		a.key, why = d.state().presented(pr.key, at)
	case agentkey.Check(pr.key) != nil: // that much is known
		why = bad(wire.MalformedToken)
	}
	if err := d.admitAs(payerOf(p, a.key.ID), a.key.Subject); err != nil {
		return nil, err
	}
	if a.key.ID != "" {
		a.entry.KeyID, a.entry.SubjectID, a.entry.Tier = a.key.ID, a.key.Subject, grants.Keyed.String()
	}
	switch {
	case why.auth != "":
		a.refuse(wire.Unauthenticated(why.auth), why.cause)
	case locked:
		d.wanted()
		a.refuse(wire.Deny(wire.VaultLocked), string(wire.VaultLocked))
	}
	return a, nil
}

// conclude records what came of a key, what was claimed beside it, and what follows,
// and returns when all of that is durable. Its error is the refusal, or says that
// nothing could be recorded.
func (d *Daemon) conclude(ctx context.Context, p *peer.Peer, a *authentication, follows ...audit.Entry) error {
	var last noted
	if a.refused != nil {
		if last = d.noteDenial(p, a.entry); last.err != nil || last.none {
			if err := last.wait(ctx); err != nil {
				return err
			}
			return a.refused
		}
	} else {
		last = d.noteEntry(a.entry)
	}
	for _, flag := range a.flags {
		e := audit.Entry{
			Kind: audit.Flag, LaunchID: a.entry.LaunchID, RunID: a.entry.RunID, SubjectID: a.entry.SubjectID, KeyID: a.entry.KeyID, Peer: a.entry.Peer,
			Action: a.entry.Action, Cause: flagWord(flag),
		}
		follows = append(follows, e)
	}
	for _, e := range follows {
		if last.err == nil {
			next := d.noteEntry(e)
			next.denial = last.denial
			last = next
		}
	}
	if err := last.wait(ctx); err != nil {
		return err
	}
	if a.refused != nil {
		return a.refused
	}
	d.keyUse.note(a.key.ID, d.clock.now())
	return nil
}

// noteEntry gives an entry its place in the log.
func (d *Daemon) noteEntry(e audit.Entry) noted { return d.noteAs((*audit.Log).Append, e) }

// noteGrouped is noteEntry for an entry that nobody waits for.
func (d *Daemon) noteGrouped(e audit.Entry) noted { return d.noteAs((*audit.Log).AppendGrouped, e) }

func (d *Daemon) noteAs(write func(*audit.Log, func(uint64, time.Time) (audit.Entry, error)) (audit.Ticket, error), e audit.Entry) noted {
	log := d.log()
	if log == nil {
		d.unrecorded.Add(1)
		return noted{err: wire.Deny(wire.AuditFailed)}
	}
	n := noted{d: d}
	n.ticket, n.err = write(log, func(uint64, time.Time) (audit.Entry, error) { return e, nil })
	return n
}

// flagWord is the name of a header as an entry spells it: one of a closed list.
func flagWord(header string) string {
	if slices.Contains(agentkey.Principals, header) {
		return strings.ToUpper(strings.ReplaceAll(strings.Trim(header, "-"), "-", "_"))
	}
	return causeOtherHeader
}

// endKeyRuns ends the runs of a key that is not good any more, and says how many.
func (d *Daemon) endKeyRuns(id, cause string) (uint32, error) {
	var ended uint32
	if id == "" {
		return 0, nil
	}
	err := d.endRuns(wire.RunEnded, cause, func(r *run) bool {
		if r.key != id || d.entitled(r) {
			return false
		}
		ended++
		return true
	})
	return ended, err
}

// untilSpent says when the first key of an open run ends; never, when that is not
// before the next tick.
func (d *Daemon) untilSpent() <-chan time.Time {
	if d.locked() {
		return nil
	}
	now, first := d.clock.read().now, tendPeriod
	for id := range d.runs.byKey() {
		if end := d.state().keyEnd(id); end.After(now) {
			first = min(first, end.Sub(now))
		}
	}
	if first == tendPeriod {
		return nil
	}
	return time.After(first + time.Millisecond) // ends are in whole milliseconds
}

// endSpent ends the runs of keys whose time is over.
func (d *Daemon) endSpent() {
	if d.locked() {
		return
	}
	at := d.clock.read()
	for id := range d.runs.byKey() {
		if !d.state().keyStands(id, at) {
			// Nobody waits for the answer; a failing log is reported by its own state.
			_, _ = d.endKeyRuns(id, causeKeyExpired)
		}
	}
}
