package daemon

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/grants"
	"subjectbroker/grants/policy"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// need is what a call asks of the operator beside being one.
type need int

const (
	// nothing: the socket, the class and the guard are all.
	nothing need = iota
	// whenRaised: authentication while a subject asks for more than cooperative:
	// what hands out contents or rights would else undo that tier.
	whenRaised
	// always: authentication, and a way to it must have been set up.
	always
)

// needs has one row, by full method name, for every RPC of the operator; a test
// fails when one is missing, and a call without a row is refused. Where the need
// depends on what is asked for, or on what is in force, the row says how; Apply
// is judged by what its document changes, in needOfChanges.
var needs = map[string]func(st *state, req any) need{
	operatorv1.OperatorService_Status_FullMethodName:       fixed(nothing),
	operatorv1.OperatorService_ConfirmClock_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_Lock_FullMethodName:         fixed(nothing),
	operatorv1.OperatorService_Unlock_FullMethodName:       fixed(nothing), // and while it is locked nobody can be authenticated
	operatorv1.OperatorService_Panic_FullMethodName:        fixed(nothing),

	operatorv1.OperatorService_ShowKeys_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_RotateKey_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_Rekey_FullMethodName:      fixed(nothing),
	operatorv1.OperatorService_AddSlot_FullMethodName:    fixed(whenRaised), // with a backup it discloses everything
	operatorv1.OperatorService_TestSlot_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_RemoveSlot_FullMethodName: fixed(nothing),

	operatorv1.OperatorService_Backup_FullMethodName:       fixed(nothing), // sealed
	operatorv1.OperatorService_VerifyBackup_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_ListBackups_FullMethodName:  fixed(nothing),

	operatorv1.OperatorService_PutSecret_FullMethodName:      fixed(nothing),
	operatorv1.OperatorService_GetSecret_FullMethodName:      fixed(whenRaised),
	operatorv1.OperatorService_RevertSecret_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_AddFile_FullMethodName:        fixed(nothing),
	operatorv1.OperatorService_CheckFiles_FullMethodName:     fixed(nothing),
	operatorv1.OperatorService_RepinFile_FullMethodName:      fixed(nothing),
	operatorv1.OperatorService_ListResources_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_GetResource_FullMethodName:    fixed(nothing),
	operatorv1.OperatorService_RemoveResource_FullMethodName: fixed(nothing),

	operatorv1.OperatorService_AddSubject_FullMethodName:    needOfAddSubject,
	operatorv1.OperatorService_SetSubject_FullMethodName:    needOfSetSubject,
	operatorv1.OperatorService_ListSubjects_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_RemoveSubject_FullMethodName: needOfRemoveSubject,

	operatorv1.OperatorService_CreateGrants_FullMethodName: needOfCreateGrants,
	operatorv1.OperatorService_RevokeGrants_FullMethodName: needOfRevokeGrants,
	operatorv1.OperatorService_ListGrants_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_Explain_FullMethodName:      fixed(nothing),

	operatorv1.OperatorService_ListRuns_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_EndRun_FullMethodName:     fixed(nothing),
	operatorv1.OperatorService_OpenLaunch_FullMethodName: needOfOpenLaunch,

	operatorv1.OperatorService_GetOperator_FullMethodName:           fixed(nothing),
	operatorv1.OperatorService_SetOperatorPassphrase_FullMethodName: fixed(nothing), // asks for the present one itself
	operatorv1.OperatorService_OpenSession_FullMethodName:           fixed(nothing),
	operatorv1.OperatorService_CloseSession_FullMethodName:          fixed(nothing),

	operatorv1.OperatorService_WatchEvents_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_Apply_FullMethodName:       fixed(nothing), // see needOfChanges
	operatorv1.OperatorService_Export_FullMethodName:      fixed(nothing),
	operatorv1.OperatorService_AuditHead_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_ReadAudit_FullMethodName:   fixed(nothing),
	operatorv1.OperatorService_ListDenials_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_PruneAudit_FullMethodName:  fixed(nothing),
}

func fixed(n need) func(*state, any) need { return func(*state, any) need { return n } }

// raised reports that a tier is more than every process of this uid has.
func raised(tier grants.Tier) bool { return tier != 0 && !grants.Cooperative.Satisfies(tier) }

// raised reports that a subject asks for more than cooperative. The caller holds
// mu or changing.mu.
func (s *state) raised() bool {
	for _, subject := range s.set.Subjects() {
		if raised(subject.MinTier) {
			return true
		}
	}
	return false
}

// A subject is a right to be asked for; one with a raised tier promises what only
// an operator who can be told from others can keep.
func needOfAddSubject(_ *state, req any) need {
	q, _ := req.(*operatorv1.AddSubjectRequest)
	if tier, err := parseMinTier(q.GetMinTier()); err == nil && raised(tier) {
		return always
	}
	return whenRaised
}

func needOfSetSubject(st *state, req any) need {
	q, _ := req.(*operatorv1.SetSubjectRequest)
	before, ok := st.set.Subject(q.GetName())
	if !ok {
		return nothing // it is refused for that
	}
	after := before
	if q.GetMinTier() != "" {
		tier, err := parseMinTier(q.GetMinTier())
		if err != nil {
			return nothing // likewise
		}
		after.MinTier = tier
	}
	if q.Enabled != nil {
		after.Disabled = !q.GetEnabled()
	}
	return needOfSubject(before, after)
}

// needOfSubject is what changing a subject needs. Disabling alone never needs
// anything. Raising a tier needs a way to authenticate, or the next process of
// this uid could lower it again.
func needOfSubject(before, after grants.Subject) need {
	n := nothing
	if before.MinTier != after.MinTier && (raised(before.MinTier) || raised(after.MinTier)) {
		n = always
	}
	if before.Disabled && !after.Disabled {
		n = max(n, whenRaised)
	}
	if after.UID != nil && (before.UID == nil || *before.UID != *after.UID) {
		n = max(n, whenRaised)
	}
	return n
}

// Removing the only subject with a raised tier would be a way to need nothing.
func needOfRemoveSubject(st *state, req any) need {
	q, _ := req.(*operatorv1.RemoveSubjectRequest)
	if before, ok := st.set.Subject(q.GetName()); ok && raised(before.MinTier) {
		return whenRaised
	}
	return nothing
}

func needOfCreateGrants(_ *state, req any) need {
	if q, _ := req.(*operatorv1.CreateGrantsRequest); q.GetDeny() {
		return nothing
	}
	return whenRaised
}

// Taking away a right needs nothing; taking away a denial gives what an allow
// grant that stays is worth.
func needOfRevokeGrants(st *state, req any) need {
	q, _ := req.(*operatorv1.RevokeGrantsRequest)
	if q.GetAll() {
		return nothing
	}
	for g := range st.set.Each() {
		if g.Effect == grants.Deny && meant(q, g) {
			return whenRaised
		}
	}
	return nothing
}

// meant reports that a request may be about a grant.
func meant(q *operatorv1.RevokeGrantsRequest, g grants.Grant) bool {
	if id := q.GetGrantId(); id != "" {
		return strings.HasPrefix(g.ID, id)
	}
	return g.Subject == q.GetSubject() && g.Pattern.String() == q.GetCapability()
}

func needOfOpenLaunch(_ *state, req any) need {
	if q, _ := req.(*operatorv1.OpenLaunchRequest); len(q.GetDisclose()) > 0 {
		return whenRaised
	}
	return nothing
}

// needOfChanges is what applying a document needs: as much as the neediest of its
// changes.
func needOfChanges(current, want *policy.Document, changes []policy.Change) need {
	n := nothing
	for _, c := range changes {
		n = max(n, needOfChange(current, want, c))
	}
	return n
}

func needOfChange(current, want *policy.Document, c policy.Change) need {
	switch c.What {
	case policy.AResource:
		return nothing
	case policy.ASubject:
		var before grants.Subject
		old, exists := current.Subjects[c.Name]
		if exists {
			old.ApplyTo(&before)
		}
		if c.Verb == policy.Remove {
			if raised(before.MinTier) {
				return whenRaised
			}
			return nothing
		}
		after := before
		wanted := want.Subjects[c.Name]
		wanted.ApplyTo(&after)
		if !exists {
			if raised(after.MinTier) {
				return always
			}
			return whenRaised
		}
		return needOfSubject(before, after)
	case policy.AGrant:
		if (c.Verb == policy.Remove) == (c.Grant.Effect == grants.Deny) {
			return whenRaised
		}
		return nothing
	}
	// Profiles and tools, and whatever comes later: removing ends runs, the rest
	// may widen what they reach.
	if c.Verb == policy.Remove {
		return nothing
	}
	return whenRaised
}

// needAuth refuses a call whose need is not met by who makes it. The caller holds
// changing.mu, and not mu: the vault is read.
func (o operator) needAuth(ctx context.Context, st *state, n need) error {
	d := o.d
	if n.now(st) == nothing || d.authenticated(callerOf(ctx)) {
		return nil
	}
	return d.demand()
}

// authenticated reports whether whoever is at the other end of a connection was
// told from the other processes of the daemon's uid: by a passphrase, or because
// it is an operator of another uid.
func (d *Daemon) authenticated(p *peer.Peer) bool {
	return p.UID != d.doors.own && d.isOperator(p.UID) || d.sessions.of(p, d.clock) != ""
}

// polls are calls that a program makes by itself, as watch does: a session that
// nobody else uses ends all the same.
var polls = map[string]bool{
	operatorv1.OperatorService_Status_FullMethodName:      true,
	operatorv1.OperatorService_GetOperator_FullMethodName: true,
	operatorv1.OperatorService_WatchEvents_FullMethodName: true,
}

// authorise lets only plain peers of operators' uids become the operator, and of
// them only those that the guard lets pass.
func (d *Daemon) authorise(ctx context.Context, full string) error {
	p := callerOf(ctx)
	if p.Class == peer.Plain && d.isOperator(p.UID) && p.Alive() && d.guard.passes(p) {
		if !polls[full] && !exemptService(full) {
			d.sessions.use(p, d.clock)
		}
		return nil
	}
	accountFor(ctx)
	e := audit.Entry{
		Kind: audit.Authz, LaunchID: p.Launch, Peer: peerEntry(p), Action: calls[full].action,
		Decision: decisionDeny, ReasonCode: string(wire.AccessDenied), Cause: causeOperatorRefused,
	}
	if err := d.recordDenial(ctx, p, e); err != nil {
		return err
	}
	refusal := wire.Deny(wire.AccessDenied)
	refusal.Cause = causeOperatorRefused
	return refusal
}

func (d *Daemon) authoriseUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := d.authorise(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (d *Daemon) authoriseStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := d.authorise(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	return handler(srv, stream)
}

// needUnary refuses calls that need an authenticated operator and have none. It
// stands after the account, so that the refusal is an entry.
func (d *Daemon) needUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !exemptService(info.FullMethod) {
		if err := d.meets(ctx, info.FullMethod, req); err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

func (d *Daemon) meets(ctx context.Context, full string, req any) error {
	row, known := needs[full]
	if !known {
		return wire.Deny(wire.InternalError)
	}
	st := d.state()
	st.mu.RLock()
	n := row(st, req)
	if st.open { // else nobody knows, and nothing can be done
		n = n.now(st)
	}
	st.mu.RUnlock()
	if n == nothing || d.authenticated(callerOf(ctx)) {
		return nil
	}
	if err := d.needUnlocked(); err != nil {
		return err
	}
	return d.demand()
}

// demand refuses a call for want of an authenticated operator.
func (d *Daemon) demand() error {
	known, err := d.recognise()
	if err != nil {
		return err
	}
	return d.unauthenticated(known.verifier != nil)
}

// now is what is left of a need as things are. The caller holds mu or
// changing.mu.
func (n need) now(st *state) need {
	if n == whenRaised && !st.raised() {
		return nothing
	}
	return n
}
