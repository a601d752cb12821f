package daemon

import (
	"context"
	"slices"

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
	// whenAsked: that, and authentication wherever there is a way to it: what lifts
	// what asks a person is done by somebody who could answer. Where there is none,
	// what asks lets nothing pass, so that to lift it needs no more than to grant it.
	whenAsked
	// always: authentication, and a way to it must have been set up.
	always
)

// needs has one row, by full method name, for every RPC of the operator; a test
// fails when one is missing, and a call without a row is refused. Where the need
// depends on what is asked for, or on what is in force, the row says how. A row is
// asked before the call, and again when nothing can change any more between the
// answer and what is done. Where a call has to be understood first, its plan asks
// for more than its row does.
var needs = map[string]func(st *state, req any) need{
	operatorv1.OperatorService_Status_FullMethodName:       fixed(nothing),
	operatorv1.OperatorService_ConfirmClock_FullMethodName: fixed(whenRaised), // timed grants come back with it
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

	operatorv1.OperatorService_PutSecret_FullMethodName:      needOfPutSecret,
	operatorv1.OperatorService_GetSecret_FullMethodName:      fixed(whenRaised),
	operatorv1.OperatorService_RevertSecret_FullMethodName:   fixed(whenRaised), // another content under the same rights
	operatorv1.OperatorService_AddFile_FullMethodName:        needOfAddFile,
	operatorv1.OperatorService_CheckFiles_FullMethodName:     fixed(nothing),
	operatorv1.OperatorService_RepinFile_FullMethodName:      fixed(whenRaised), // likewise
	operatorv1.OperatorService_ListResources_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_GetResource_FullMethodName:    fixed(nothing),
	operatorv1.OperatorService_RemoveResource_FullMethodName: needOfRemoveResource,

	operatorv1.OperatorService_AddSubject_FullMethodName:    needOfAddSubject,
	operatorv1.OperatorService_SetSubject_FullMethodName:    needOfSetSubject,
	operatorv1.OperatorService_ListSubjects_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_RemoveSubject_FullMethodName: needOfRemoveSubject,

	operatorv1.OperatorService_CreateGrants_FullMethodName: fixed(nothing), // see needOfGrants
	operatorv1.OperatorService_RevokeGrants_FullMethodName: fixed(nothing), // see needOfRevoking
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

	operatorv1.OperatorService_AddServer_FullMethodName:      needOfAddServer, // runs a command with credentials
	operatorv1.OperatorService_ListServers_FullMethodName:    fixed(nothing),
	operatorv1.OperatorService_GetServer_FullMethodName:      fixed(nothing),
	operatorv1.OperatorService_TrustServer_FullMethodName:    needOfTrustServer, // lets tools through that were withheld
	operatorv1.OperatorService_RestartServer_FullMethodName:  fixed(whenRaised), // lifts what a policy has ended
	operatorv1.OperatorService_ReadServerLogs_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_RemoveServer_FullMethodName:   needOfRemoveServer, // a wrapped one of that name would be judged without its pins

	operatorv1.OperatorService_ListPolicies_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_ResetPolicy_FullMethodName:  needOfResetPolicy, // what was used up is there again
	operatorv1.OperatorService_CallStats_FullMethodName:    fixed(nothing),
	operatorv1.OperatorService_Metrics_FullMethodName:      fixed(nothing),

	operatorv1.OperatorService_MintAgentKey_FullMethodName:   fixed(whenRaised), // whoever has it is the subject
	operatorv1.OperatorService_ListAgentKeys_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_RotateAgentKey_FullMethodName: fixed(whenRaised), // likewise
	operatorv1.OperatorService_RevokeAgentKey_FullMethodName: fixed(nothing),

	operatorv1.OperatorService_AddTenant_FullMethodName:    fixed(nothing), // there is nothing in it yet
	operatorv1.OperatorService_ListTenants_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_RemoveTenant_FullMethodName: needOfRemoveTenant,

	operatorv1.OperatorService_ForgetKnowledge_FullMethodName: fixed(nothing),
	operatorv1.OperatorService_ImportKnowledge_FullMethodName: fixed(nothing), // a stream: it asks itself
	operatorv1.OperatorService_ExportKnowledge_FullMethodName: fixed(nothing), // likewise
	operatorv1.OperatorService_ListKnowledge_FullMethodName:   fixed(whenRaised),
	operatorv1.OperatorService_GetKnowledge_FullMethodName:    fixed(whenRaised),
	operatorv1.OperatorService_SearchKnowledge_FullMethodName: fixed(whenRaised),

	operatorv1.OperatorService_ListApprovals_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_DecideApproval_FullMethodName: fixed(always), // nobody approves on their own word
	operatorv1.OperatorService_RevokeConsent_FullMethodName:  fixed(nothing),
	operatorv1.OperatorService_WatchApprovals_FullMethodName: fixed(nothing),
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

func needOfPutSecret(st *state, req any) need {
	q, _ := req.(*operatorv1.PutSecretRequest)
	if f, exists := st.catalog[q.GetName()]; exists && f.version > 0 {
		return whenRaised
	}
	return st.needOfContent(q.GetName())
}

func needOfAddFile(st *state, req any) need {
	q, _ := req.(*operatorv1.AddFileRequest)
	return st.needOfContent(q.GetName())
}

// needOfContent is what content needs where there was none. Under a name that
// nobody was granted it is nobody's yet. A pattern, or a grant of what was only
// declared, hands it out as it would hand out what the name stood for before.
func (s *state) needOfContent(name string) need {
	if slices.ContainsFunc(s.set.Matching(name), func(g grants.Grant) bool { return g.Effect == grants.Allow }) {
		return whenRaised
	}
	return nothing
}

// What names a resource goes with it. Without its denials the name would be
// allowed by the patterns that stay, to whatever it stands for next.
func needOfRemoveResource(st *state, req any) need {
	q, _ := req.(*operatorv1.RemoveResourceRequest)
	return st.needOfRevoking(st.set.Exact(q.GetName()), false)
}

// Likewise a tenant.
func needOfRemoveTenant(st *state, req any) need {
	q, _ := req.(*operatorv1.RemoveTenantRequest)
	return st.needOfRevoking(st.set.ExactTenant(q.GetName()), false)
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
	if st.asksOf(q.GetName()) {
		return whenAsked
	}
	if before, ok := st.set.Subject(q.GetName()); ok && raised(before.MinTier) {
		return whenRaised
	}
	return nothing
}

// needOfGrants is what putting grants in force needs. A denial needs nothing as
// long as it takes the place of none that would have lasted longer.
func (s *state) needOfGrants(made ...grants.Grant) need {
	n := nothing
	for _, g := range made {
		if g.Effect != grants.Deny {
			n = max(n, whenRaised)
		}
		if s.grantLifts(&g) {
			return whenAsked
		}
		if old, stood := s.set.Find(g.Subject, g.Pattern, g.Effect); g.Effect == grants.Deny && stood && outlasts(old, g) {
			n = max(n, whenRaised)
		}
	}
	return n
}

// outlasts reports whether a ends later than b.
func outlasts(a, b grants.Grant) bool {
	return !b.Until.IsZero() && (a.Until.IsZero() || a.Until.After(b.Until))
}

// needOfRevoking is what taking grants out of force needs: taking away a denial
// gives what an allow grant that stays is worth. A subject that loses all of them
// has none that stays.
func (s *state) needOfRevoking(gone []grants.Grant, all bool) need {
	if s.revokingLifts(gone) {
		return whenAsked
	}
	if !all && slices.ContainsFunc(gone, func(g grants.Grant) bool { return g.Effect == grants.Deny }) {
		return whenRaised
	}
	return nothing
}

func needOfAddServer(st *state, req any) need {
	q, _ := req.(*operatorv1.AddServerRequest)
	return st.needOfServer(&grants.Server{Name: q.GetServer().GetName(), Env: q.GetServer().GetEnv(), Headers: q.GetServer().GetHeaders()})
}

func needOfTrustServer(st *state, req any) need {
	q, _ := req.(*operatorv1.TrustServerRequest)
	if q.GetDryRun() {
		return whenRaised // to look, it may be started
	}
	return st.needAround(q.GetName())
}

func needOfRemoveServer(st *state, req any) need {
	q, _ := req.(*operatorv1.RemoveServerRequest)
	return st.needAround(q.GetName())
}

// What was counted may be why a person is asked.
func needOfResetPolicy(st *state, req any) need {
	q, _ := req.(*operatorv1.ResetPolicyRequest)
	if st.policyAsksOf(q.GetSubject(), q.GetServer()) {
		return whenAsked
	}
	return whenRaised
}

// Whoever starts the first process of a launch is its subject: a tier that keeps
// out processes of this uid, the subject's own or that of one of its grants, would
// else keep out none.
func needOfOpenLaunch(st *state, req any) need {
	q, _ := req.(*operatorv1.OpenLaunchRequest)
	if subject, _ := st.set.Subject(q.GetSubject()); raised(subject.MinTier) || len(q.GetDisclose()) > 0 {
		return whenRaised
	}
	if slices.ContainsFunc(st.set.GrantsOf(q.GetSubject()), func(g grants.Grant) bool { return raised(g.Tier) }) {
		return whenRaised
	}
	return nothing
}

// needOfChanges is what applying a document needs: as much as the neediest of its
// changes. The caller holds mu or changing.mu.
func (s *state) needOfChanges(current, want *policy.Document, changes []policy.Change) need {
	n := nothing
	for _, c := range changes {
		n = max(n, s.needOfChange(current, want, c))
	}
	return n
}

func (s *state) needOfChange(current, want *policy.Document, c policy.Change) need {
	switch c.What {
	case policy.AResource:
		switch c.Verb {
		case policy.Modify: // a registered file may be another one then
			return whenRaised
		case policy.Add:
			return s.needOfContent(c.Name)
		}
		return nothing // its grants are changes of their own
	case policy.ASubject:
		var before grants.Subject
		old, exists := current.Subjects[c.Name]
		if exists {
			old.ApplyTo(&before)
		}
		if c.Verb == policy.Remove {
			if s.asksOf(c.Name) {
				return whenAsked
			}
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
		if c.Verb == policy.Remove {
			return s.needOfRevoking([]grants.Grant{c.Grant}, false)
		}
		return s.needOfGrants(c.Grant)
	case policy.AServer, policy.APolicy:
		return s.needOfPolicies(c)
	case policy.ATenant: // there is nothing in a new one, and the grants of an old one are changes of their own
		return nothing
	case policy.ATool:
		return s.needOfTool(c)
	case policy.AProfile:
		return s.needOfProfile(c)
	}
	// Whatever comes later: removing ends what was there, the rest may widen it.
	if c.Verb == policy.Remove {
		return nothing
	}
	return whenRaised
}

// asked is the call of an operator that is under way.
type asked struct {
	row func(*state, any) need
	req any
}

type askedKey struct{}

// needStill asks the row of the call again. A call that waited for others may find
// something else in force than when it came. The caller holds changing.mu, and not
// mu: the vault is read.
func (d *Daemon) needStill(ctx context.Context, st *state) error {
	a, ok := ctx.Value(askedKey{}).(asked)
	if !ok { // the daemon's own
		return nil
	}
	return d.needAuth(ctx, st, a.row(st, a.req))
}

// needAuth refuses a call whose need is not met by who makes it. The caller holds
// changing.mu, and not mu.
func (d *Daemon) needAuth(ctx context.Context, st *state, n need) error {
	return d.demand(ctx, n.now(st))
}

// demand refuses a call that needs an authenticated operator and has none.
func (d *Daemon) demand(ctx context.Context, now need) error {
	if now == nothing || d.authenticated(callerOf(ctx)) {
		return nil
	}
	if err := d.needUnlocked(); err != nil {
		return err
	}
	if now == whenAsked {
		if can, err := d.tellable(); err != nil || !can {
			return err
		}
	}
	known, err := d.recognise()
	if err != nil {
		return err
	}
	return d.unauthenticated(known.verifier != nil)
}

// onItsWord decides for what the operator is handed on its word: whether the need
// of the call is met when the content leaves.
func (d *Daemon) onItsWord(ctx context.Context) func(grants.Capability) grants.Decision {
	return func(grants.Capability) grants.Decision {
		st := d.state()
		st.mu.RLock()
		a, _ := ctx.Value(askedKey{}).(asked)
		met := a.row != nil && a.row(st, a.req).now(st) == nothing
		st.mu.RUnlock()
		if met || d.authenticated(callerOf(ctx)) {
			return grants.Decision{Outcome: grants.Allowed, Reason: grants.ReasonAllowed}
		}
		return grants.Decision{Outcome: grants.Denied, Reason: grants.ReasonAccessDenied, Cause: causeAuthRequired}
	}
}

// notHanded is why the operator was not handed content, where nothing was wrong
// with that.
func (d *Daemon) notHanded(ctx context.Context, reason wire.Reason) error {
	if reason == wire.AccessDenied { // a tier was raised, or the session ended, meanwhile
		if err := d.meets(ctx, fixed(whenRaised), nil); err != nil {
			return err
		}
	}
	return wire.Deny(reason)
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

	operatorv1.OperatorService_WatchApprovals_FullMethodName: true,
	operatorv1.OperatorService_ListApprovals_FullMethodName:  true,
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
	if who, _ := d.attest(p, nil); who.subject != "" { // not who it may claim to be
		e.SubjectID, e.ProfileID, e.Tier = who.subject, who.profile, who.tier.String()
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
	if exemptService(info.FullMethod) {
		return handler(ctx, req)
	}
	row, known := needs[info.FullMethod]
	if !known {
		return nil, wire.Deny(wire.InternalError)
	}
	if err := d.meets(ctx, row, req); err != nil {
		return nil, err
	}
	return handler(context.WithValue(ctx, askedKey{}, asked{row, req}), req)
}

// meets refuses early what will be refused anyway as things are: see needStill.
func (d *Daemon) meets(ctx context.Context, row func(*state, any) need, req any) error {
	st := d.state()
	st.mu.RLock()
	n := row(st, req).now(st)
	st.mu.RUnlock()
	return d.demand(ctx, n)
}

// now is what is left of a need as things are; all of it while the vault is
// locked, for then nobody knows. The caller holds mu or changing.mu.
func (n need) now(st *state) need {
	switch {
	case n != whenRaised && n != whenAsked, !st.open:
		return n
	case st.raised():
		return whenRaised
	case n == whenRaised:
		return nothing
	}
	return n
}
