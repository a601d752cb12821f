package daemon

import (
	"context"
	"errors"
	"os"
	"strings"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	"subjectbroker/proto/wire"
)

// call says how an RPC is accounted for.
type call struct {
	kind   audit.Kind
	action string
}

// calls has one row for every RPC of the two services; a test fails when one is
// missing. Mutations and requests under a run write entries of their own; for
// the rest, and for whatever is refused before it gets there, the row says what
// is written.
var calls = map[string]call{
	"OpenRun": {kindRunOpen, "open-run"}, "CloseRun": {kindRunEnd, "close-run"}, "Acquire": {audit.Acquire, "read"},
	"Report": {kindRunReport, "report"}, "Watch": {kindRunWatch, "watch"},

	"Status":       {}, // the only one that writes nothing
	"ConfirmClock": {kindOperatorClock, "confirm-clock"},
	"Lock":         {kindVaultLock, "lock"}, "Unlock": {kindVaultUnlock, "unlock"}, "Panic": {kindOperatorPanic, "panic"},

	"PutSecret": {kindResourcePut, "put-secret"}, "GetSecret": {kindResourceGet, "get-secret"},
	"RevertSecret": {kindResourceRevert, "revert-secret"}, "AddFile": {kindResourceAdd, "add-file"},
	"CheckFiles": {kindOperatorRead, "check-files"}, "RepinFile": {kindResourceRepin, "repin-file"},
	"ListResources": {kindOperatorRead, "list-resources"}, "GetResource": {kindOperatorRead, "get-resource"},
	"RemoveResource": {kindResourceRemove, "remove-resource"},

	"AddSubject": {kindSubjectAdd, "add-subject"}, "SetSubject": {kindSubjectSet, "set-subject"},
	"ListSubjects": {kindOperatorRead, "list-subjects"}, "RemoveSubject": {kindSubjectRemove, "remove-subject"},

	"CreateGrants": {kindGrantCreate, "create-grants"}, "RevokeGrants": {kindGrantRevoke, "revoke-grants"},
	"ListGrants": {kindOperatorRead, "list-grants"}, "Explain": {kindOperatorRead, "explain"},

	"ListRuns": {kindOperatorRead, "list-runs"}, "EndRun": {kindRunEnd, "end-run"}, "WatchEvents": {kindOperatorWatch, "watch-events"},

	"Apply": {kindOperatorApply, "apply"}, "Export": {kindOperatorExport, "export"},
	"AuditHead": {kindOperatorRead, "audit-head"}, "ReadAudit": {kindOperatorRead, "read-audit"},
	"ListDenials": {kindOperatorRead, "list-denials"},
}

func methodName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// exempt reports whether an RPC writes no entry: status, health, reflection.
func exempt(full string) bool {
	return methodName(full) == "Status" || !strings.HasPrefix(full, "/subjectbroker.")
}

// authorise lets only plain peers with the daemon's own uid become the operator.
func (d *Daemon) authorise(ctx context.Context, full string) error {
	p := callerOf(ctx)
	if p.Class == peer.Plain && int(p.UID) == os.Geteuid() && p.Alive() {
		return nil
	}
	accountFor(ctx)
	now := d.clock.now()
	if !d.budgets.admit(p.Key(), "", now) {
		return wire.Deny(wire.RateLimited)
	}
	d.budgets.spend(p.Key(), now)
	e := audit.Entry{
		Kind: kindOperatorRefuse, Peer: peerEntry(p), Action: calls[methodName(full)].action,
		Decision: decisionDeny, ReasonCode: string(wire.AccessDenied), Cause: causeOperatorRefused,
	}
	if err := d.record(ctx, e); err != nil {
		return err
	}
	refusal := wire.Deny(wire.AccessDenied)
	refusal.Cause = causeOperatorRefused
	return refusal
}

const causeOperatorRefused = "OPERATOR_REFUSED"

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

// accountUnary writes the entry of every operator call that did not write one
// itself, and lets no answer out before it is durable.
func (d *Daemon) accountUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if exempt(info.FullMethod) || accounted(ctx) {
		return resp, err
	}
	if recordErr := d.account(ctx, info.FullMethod, err); recordErr != nil {
		return nil, recordErr
	}
	return resp, err
}

// accountStream writes the entry before the stream starts.
func (d *Daemon) accountStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if unknown := srv == nil; !unknown && !exempt(info.FullMethod) {
		if err := d.account(stream.Context(), info.FullMethod, nil); err != nil {
			return err
		}
	}
	return handler(srv, stream)
}

func (d *Daemon) account(ctx context.Context, full string, outcome error) error {
	accountFor(ctx)
	c := calls[methodName(full)]
	e := audit.Entry{Kind: c.kind, Peer: peerEntry(callerOf(ctx)), Action: c.action, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	if outcome != nil {
		e.Decision = decisionError
		e.ReasonCode = string(refusal(outcome).Reason)
		if typed, ok := errors.AsType[*wire.Error](outcome); ok && typed.Cause != "" {
			e.Cause = typed.Cause
		}
	}
	if err := d.record(ctx, e); err != nil && !d.locked() {
		return err
	}
	return nil
}
