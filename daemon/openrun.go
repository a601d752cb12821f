package daemon

import (
	"context"
	"time"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// maxShimVersion is the longest version of a shim, in bytes.
const maxShimVersion = 64

// causeSubjectMismatch: a peer claimed to be somebody else than it is.
const causeSubjectMismatch = "SUBJECT_MISMATCH"

// OpenRun binds a subject to the connection: who the peer is counts, and only
// what may be anybody is asked who it claims to be.
func (b broker) OpenRun(ctx context.Context, req *brokerv1.OpenRunRequest) (*brokerv1.OpenRunResponse, error) {
	if req.GetAgentKey() != nil {
		return b.openKeyed(ctx, req)
	}
	d, p := b.d, callerOf(ctx)
	if err := d.admit(ctx, p, ""); err != nil {
		return nil, err
	}
	e := audit.Entry{Kind: kindRunOpen, LaunchID: p.Launch, Peer: peerEntry(p)}
	claim := req.GetSubject()
	switch {
	case req.GetApi() < wire.MinAPI || req.GetApi() > wire.API:
		return nil, d.refuseRun(ctx, p, e, otherProtocol(), causeAPIUnsupported)
	case claim == nil || grants.CheckName(claim.GetSubject()) != nil || !printableASCII(req.GetShimVersion(), maxShimVersion),
		claim.GetProfile() != "" && grants.CheckName(claim.GetProfile()) != nil:
		e.SubjectID = d.mask(claim.GetSubject())
		return nil, d.malformed(ctx, p, e)
	}
	e.ShimVersion = d.nameOrMask(req.GetShimVersion())
	who, cause := d.attest(p, claim)
	e.SubjectID, e.ProfileID, e.Tier = who.subject, who.profile, who.tier.String()
	if who.launch != nil {
		e.LaunchID = who.launch.id
	}
	if !d.guard.joins(p) {
		return nil, d.refuseRun(ctx, p, e, &wire.Error{
			Reason:  wire.PlatformUnsupported,
			Message: "the daemon cannot see which process started this one, and its guard must know",
		}, "STARTER_UNKNOWN")
	}
	if d.locked() {
		d.wanted()
		return nil, d.refuseRun(ctx, p, e, wire.Deny(wire.VaultLocked), string(wire.VaultLocked))
	}
	if cause != "" {
		return nil, d.refuseRun(ctx, p, e, wire.Deny(wire.AccessDenied), cause)
	}
	r := &run{
		id: grants.NewID(), subject: who.subject, tier: who.tier, launch: who.launch, peer: p, command: p.Command(),
		shimVersion: req.GetShimVersion(), opened: d.clock.now(), done: make(chan struct{}), resources: map[string]*uint32{},
	}
	if r.born, cause = d.mayOpen(r); cause == "" && !who.is(r.born) {
		cause = causeSubjectChanged
	}
	if cause == "" {
		r.profile, r.ceiling, cause = d.profileFor(r.subject, who.profile)
	}
	if cause != "" {
		return nil, d.refuseRun(ctx, p, e, wire.Deny(wire.AccessDenied), cause)
	}
	if err := d.runs.add(r); err != nil {
		refusal := wire.FromError(err)
		cause, refusal.Cause = refusal.Cause, ""
		return nil, d.refuseRun(ctx, p, e, refusal, cause)
	}
	e.RunID = r.id
	e.Decision, e.ReasonCode, e.Cause, e.Count = decisionAllow, string(wire.Allowed), who.mismatch(claim), uint64(len(d.callableServers(r)))
	err := d.record(ctx, e)
	if err == nil && d.over(r) { // locked, disabled, removed or ended in between
		err = wire.Deny(wire.RunEnded)
	}
	if err != nil {
		_ = d.endRuns(refusal(err).Reason, "NOT_OPENED", func(other *run) bool { return other == r })
		return nil, err
	}
	return &brokerv1.OpenRunResponse{
		RunId: r.id, Subject: r.subject, Tier: r.tier.String(), Api: req.GetApi(), DaemonVersion: d.version, MaxContent: uint64(d.maxContent),
		Profile: r.profile.Name, Offered: d.offeredTo(r),
	}, nil
}

// causeAPIUnsupported: a client speaks an API number that is not served.
const causeAPIUnsupported = "API_UNSUPPORTED"

// otherProtocol is what such a client is told.
func otherProtocol() *wire.Error {
	return &wire.Error{
		Reason:  wire.PlatformUnsupported,
		Message: "this connection speaks another version of the protocol: the agent must be restarted",
	}
}

// attested is who a peer is, as far as the daemon can tell.
type attested struct {
	subject string
	born    time.Time // when that subject was created; zero: any
	profile string
	tier    grants.Tier
	launch  *launch
}

// is reports whether a subject created then is the one that is meant.
func (a attested) is(born time.Time) bool { return a.born.IsZero() || a.born.Equal(born) }

// in says that it is whoever everything in a launch is.
func (a *attested) in(l *launch) {
	a.subject, a.born, a.tier, a.launch = l.subject, l.born, l.tier, l
	if l.profile != "" {
		a.profile = l.profile
	}
}

// mismatch is the cause to record when a claim said something else; empty
// otherwise. The claim is ignored then, not refused: arguments prove nothing
// either way.
func (a attested) mismatch(claim *brokerv1.SubjectClaim) string {
	if claim.GetSubject() != a.subject || claim.GetProfile() != "" && claim.GetProfile() != a.profile {
		return causeSubjectMismatch
	}
	return ""
}

// attest says who a peer is: the subject of its launch, the subject of its uid,
// or, at the lowest tier, whoever it claims to be. With a cause it is not enough
// for a run, and says whose the refusal is: nobody's where only the claim is left
// of one who cannot be just anybody.
func (d *Daemon) attest(p *peer.Peer, claim *brokerv1.SubjectClaim) (who attested, cause string) {
	who = attested{subject: claim.GetSubject(), profile: claim.GetProfile(), tier: grants.Cooperative}
	switch p.Class {
	case peer.Plain:
	case peer.Launch:
		l, ok := d.launches.get(p.Launch)
		if !ok {
			l, ok = d.launches.past(p.Launch)
		}
		if !ok {
			return attested{}, causeLaunchEnded
		}
		who.in(l)
		if l.over() {
			return who, causeLaunchEnded
		}
	case peer.Mapped:
		subject, ok := d.subjectOf(p.UID)
		if !ok {
			return attested{tier: grants.Separate}, string(grants.CauseUnknownSubject)
		}
		who.subject, who.tier = subject, grants.Separate
	case peer.Hosted:
		return attested{}, causeInHost
	case peer.Unattributed:
		// Since it connected its tree may have become a launch, or been found to be
		// one. It is nobody else then, and has to connect again.
		if l, is := d.launches.of(p); is {
			who.in(l)
			return who, causePeerChanged
		}
	}
	return who, ""
}
