package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// call says how an RPC is accounted for.
type call struct {
	kind   audit.Kind
	action string
}

// calls has one row, by full method name, for every RPC of the two services; a
// test fails when one is missing. Mutations and requests under a run write entries of their own; for
// the rest, and for whatever is refused before it gets there, the row says what
// is written.
var calls = map[string]call{
	brokerv1.BrokerService_OpenRun_FullMethodName:       {kindRunOpen, "open-run"},
	brokerv1.BrokerService_CloseRun_FullMethodName:      {kindRunEnd, "close-run"},
	brokerv1.BrokerService_ListResources_FullMethodName: {audit.List, "list"},
	brokerv1.BrokerService_Acquire_FullMethodName:       {audit.Acquire, "read"},
	brokerv1.BrokerService_Explain_FullMethodName:       {audit.Explain, "explain"},
	brokerv1.BrokerService_Can_FullMethodName:           {audit.Explain, "can"},
	brokerv1.BrokerService_Report_FullMethodName:        {kindRunReport, "report"},
	brokerv1.BrokerService_Watch_FullMethodName:         {kindRunWatch, "watch"},
	brokerv1.BrokerService_ListServers_FullMethodName:   {audit.List, "list-servers"},
	brokerv1.BrokerService_Relay_FullMethodName:         {kindRunRelay, "relay"},
	brokerv1.BrokerService_Authenticate_FullMethodName:  {audit.Auth, "authenticate"},

	brokerv1.BrokerService_SearchKnowledge_FullMethodName:  {kindMemorySearch, "search-knowledge"},
	brokerv1.BrokerService_CaptureKnowledge_FullMethodName: {kindMemoryCapture, "capture-knowledge"},
	brokerv1.BrokerService_BrowseRecent_FullMethodName:     {kindMemoryBrowse, "browse-recent"},
	brokerv1.BrokerService_KnowledgeStats_FullMethodName:   {kindMemoryStats, "knowledge-stats"},
	brokerv1.BrokerService_ReadEntry_FullMethodName:        {kindMemoryRead, "read-entry"},
	brokerv1.BrokerService_EntryHistory_FullMethodName:     {kindMemoryHistory, "entry-history"},

	operatorv1.OperatorService_Status_FullMethodName:         {}, // writes nothing
	operatorv1.OperatorService_ConfirmClock_FullMethodName:   {kindOperatorClock, "confirm-clock"},
	operatorv1.OperatorService_Lock_FullMethodName:           {kindVaultLock, "lock"},
	operatorv1.OperatorService_Unlock_FullMethodName:         {kindVaultUnlock, "unlock"},
	operatorv1.OperatorService_Panic_FullMethodName:          {kindOperatorPanic, "panic"},
	operatorv1.OperatorService_ShowKeys_FullMethodName:       {kindOperatorRead, "show-keys"},
	operatorv1.OperatorService_RotateKey_FullMethodName:      {kindKeyRotate, "rotate-key"},
	operatorv1.OperatorService_Rekey_FullMethodName:          {kindKeyRekey, "rekey"},
	operatorv1.OperatorService_AddSlot_FullMethodName:        {kindKeySlotAdd, "add-slot"},
	operatorv1.OperatorService_TestSlot_FullMethodName:       {kindKeySlotTest, "test-slot"},
	operatorv1.OperatorService_RemoveSlot_FullMethodName:     {kindKeySlotRemove, "remove-slot"},
	operatorv1.OperatorService_Backup_FullMethodName:         {kindOperatorRead, "backup"},
	operatorv1.OperatorService_VerifyBackup_FullMethodName:   {kindOperatorRead, "verify-backup"},
	operatorv1.OperatorService_ListBackups_FullMethodName:    {kindOperatorRead, "list-backups"},
	operatorv1.OperatorService_PutSecret_FullMethodName:      {kindResourcePut, "put-secret"},
	operatorv1.OperatorService_GetSecret_FullMethodName:      {kindResourceGet, "get-secret"},
	operatorv1.OperatorService_RevertSecret_FullMethodName:   {kindResourceRevert, "revert-secret"},
	operatorv1.OperatorService_AddFile_FullMethodName:        {kindResourceAdd, "add-file"},
	operatorv1.OperatorService_CheckFiles_FullMethodName:     {kindOperatorRead, "check-files"},
	operatorv1.OperatorService_RepinFile_FullMethodName:      {kindResourceRepin, "repin-file"},
	operatorv1.OperatorService_ListResources_FullMethodName:  {kindOperatorRead, "list-resources"},
	operatorv1.OperatorService_GetResource_FullMethodName:    {kindOperatorRead, "get-resource"},
	operatorv1.OperatorService_RemoveResource_FullMethodName: {kindResourceRemove, "remove-resource"},
	operatorv1.OperatorService_AddSubject_FullMethodName:     {kindSubjectAdd, "add-subject"},
	operatorv1.OperatorService_SetSubject_FullMethodName:     {kindSubjectSet, "set-subject"},
	operatorv1.OperatorService_ListSubjects_FullMethodName:   {kindOperatorRead, "list-subjects"},
	operatorv1.OperatorService_RemoveSubject_FullMethodName:  {kindSubjectRemove, "remove-subject"},
	operatorv1.OperatorService_CreateGrants_FullMethodName:   {kindGrantCreate, "create-grants"},
	operatorv1.OperatorService_RevokeGrants_FullMethodName:   {kindGrantRevoke, "revoke-grants"},
	operatorv1.OperatorService_ListGrants_FullMethodName:     {kindOperatorRead, "list-grants"},
	operatorv1.OperatorService_Explain_FullMethodName:        {kindOperatorRead, "explain"},
	operatorv1.OperatorService_ListRuns_FullMethodName:       {kindOperatorRead, "list-runs"},
	operatorv1.OperatorService_EndRun_FullMethodName:         {kindRunEnd, "end-run"},
	operatorv1.OperatorService_OpenLaunch_FullMethodName:     {kindLaunchOpen, "open-launch"},
	operatorv1.OperatorService_GetOperator_FullMethodName:    {}, // nor does it
	operatorv1.OperatorService_OpenSession_FullMethodName:    {kindOperatorAuth, "open-session"},
	operatorv1.OperatorService_CloseSession_FullMethodName:   {kindOperatorAuth, "close-session"},

	operatorv1.OperatorService_SetOperatorPassphrase_FullMethodName: {kindOperatorPassphrase, "set-passphrase"},

	operatorv1.OperatorService_WatchEvents_FullMethodName: {kindOperatorWatch, "watch-events"},
	operatorv1.OperatorService_Apply_FullMethodName:       {kindOperatorApply, "apply"},
	operatorv1.OperatorService_Export_FullMethodName:      {kindOperatorExport, "export"},
	operatorv1.OperatorService_AuditHead_FullMethodName:   {kindOperatorRead, "audit-head"},
	operatorv1.OperatorService_ReadAudit_FullMethodName:   {kindOperatorRead, "read-audit"},
	operatorv1.OperatorService_ListDenials_FullMethodName: {kindOperatorRead, "list-denials"},
	operatorv1.OperatorService_PruneAudit_FullMethodName:  {kindOperatorPrune, "prune-audit"},

	operatorv1.OperatorService_AddServer_FullMethodName:      {kindServerAdd, "add-server"},
	operatorv1.OperatorService_ListServers_FullMethodName:    {kindServerRead, "list-servers"},
	operatorv1.OperatorService_GetServer_FullMethodName:      {kindServerRead, "get-server"},
	operatorv1.OperatorService_TrustServer_FullMethodName:    {kindServerTrust, "trust-server"},
	operatorv1.OperatorService_RestartServer_FullMethodName:  {kindServerRestart, "restart-server"},
	operatorv1.OperatorService_ReadServerLogs_FullMethodName: {kindServerRead, "read-server-logs"},
	operatorv1.OperatorService_RemoveServer_FullMethodName:   {kindServerRemove, "remove-server"},

	operatorv1.OperatorService_ListPolicies_FullMethodName: {kindOperatorRead, "list-policies"},
	operatorv1.OperatorService_ResetPolicy_FullMethodName:  {kindPolicyReset, "reset-policy"},

	operatorv1.OperatorService_CallStats_FullMethodName: {kindOperatorRead, "call-stats"},
	operatorv1.OperatorService_Metrics_FullMethodName:   {}, // nor does it

	operatorv1.OperatorService_MintAgentKey_FullMethodName:   {kindAgentKeyMint, "mint-agent-key"},
	operatorv1.OperatorService_ListAgentKeys_FullMethodName:  {kindOperatorRead, "list-agent-keys"},
	operatorv1.OperatorService_RotateAgentKey_FullMethodName: {kindAgentKeyRotate, "rotate-agent-key"},
	operatorv1.OperatorService_RevokeAgentKey_FullMethodName: {kindAgentKeyRevoke, "revoke-agent-key"},

	operatorv1.OperatorService_AddTenant_FullMethodName:    {kindTenantAdd, "add-tenant"},
	operatorv1.OperatorService_ListTenants_FullMethodName:  {kindOperatorRead, "list-tenants"},
	operatorv1.OperatorService_RemoveTenant_FullMethodName: {kindTenantRemove, "remove-tenant"},

	operatorv1.OperatorService_ForgetKnowledge_FullMethodName: {kindMemoryForget, "forget-knowledge"},
	operatorv1.OperatorService_ImportKnowledge_FullMethodName: {kindMemoryImport, "import-knowledge"},
	operatorv1.OperatorService_ExportKnowledge_FullMethodName: {kindMemoryExport, "export-knowledge"},
	operatorv1.OperatorService_ListKnowledge_FullMethodName:   {kindMemoryLook, "list"},
	operatorv1.OperatorService_GetKnowledge_FullMethodName:    {kindMemoryLook, "show"},
	operatorv1.OperatorService_SearchKnowledge_FullMethodName: {kindMemoryLook, "search"},

	operatorv1.OperatorService_ListApprovals_FullMethodName:  {kindOperatorRead, "list-approvals"},
	operatorv1.OperatorService_DecideApproval_FullMethodName: {kindApprovalApprove, "decide-approval"},
	operatorv1.OperatorService_RevokeConsent_FullMethodName:  {kindApprovalVoid, "revoke-consent"},
	operatorv1.OperatorService_WatchApprovals_FullMethodName: {kindOperatorWatch, "watch-approvals"},
}

// exempt reports whether an RPC writes no entry: status, also the operator's own, the
// metrics, health, reflection.
func exempt(full string) bool {
	switch full {
	case operatorv1.OperatorService_Status_FullMethodName, operatorv1.OperatorService_GetOperator_FullMethodName, operatorv1.OperatorService_Metrics_FullMethodName:
		return true
	}
	return exemptService(full)
}

// exemptService reports whether an RPC is not ours: health, reflection.
func exemptService(full string) bool { return !strings.HasPrefix(full, "/subjectbroker.") }

// accountUnary writes the entry of every operator call that did not write one
// itself, and lets no answer out before it is durable.
func (d *Daemon) accountUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if exempt(info.FullMethod) {
		return resp, err
	}
	d.heads.wait(ctx) // for a change that this call may have made
	if accounted(ctx) {
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
	c, p := calls[full], callerOf(ctx)
	e := audit.Entry{Kind: c.kind, SessionID: d.sessions.of(p, d.clock), Peer: peerEntry(p), Action: c.action, Decision: decisionAllow, ReasonCode: string(wire.Allowed)}
	if outcome != nil {
		e.Decision = decisionError
		e.ReasonCode = string(refusal(outcome).Reason)
		if typed, ok := errors.AsType[*wire.Error](outcome); ok && typed.Cause != "" {
			e.Cause = typed.Cause
		}
		if e.Cause == causeAuthRequired {
			e.Decision = decisionDeny
		}
	}
	write := (*audit.Log).Record
	if strings.HasPrefix(full, "/"+operatorv1.OperatorService_ServiceDesc.ServiceName+"/") {
		write = (*audit.Log).RecordOperator
	}
	if err := d.recordWith(ctx, write, e); err != nil && d.log() != nil {
		return err
	}
	return nil
}

// account follows one call: whether an entry was written for it.
type account struct {
	method  string
	peer    *peer.Peer
	unknown bool        // there is no such method
	done    atomic.Bool // set also by calls of one stream at once
	share   share       // what its answer holds
}

type accountKey struct{}

// accountFor says that this call is accounted for: its entry is written, or it
// is over budget and counted.
func accountFor(ctx context.Context) {
	if a, ok := ctx.Value(accountKey{}).(*account); ok {
		a.done.Store(true)
	}
}

func accounted(ctx context.Context) bool {
	a, ok := ctx.Value(accountKey{}).(*account)
	return ok && a.done.Load()
}

// flag records a call that no handler saw, within its peer's budget.
func (d *Daemon) flag(a *account) {
	if !d.budgets.spend(a.peer.Key(), "", d.clock.now()) {
		return
	}
	log := d.log()
	if log == nil {
		d.unrecorded.Add(1)
		return
	}
	e := audit.Entry{Kind: audit.Flag, Peer: peerEntry(a.peer), Decision: decisionDeny, ReasonCode: string(wire.InvalidArgument), Cause: causeMalformed}
	if call, known := calls[a.method]; known && !a.unknown {
		e.Action = call.action
	} else {
		e.Action = d.mask(a.method)
	}
	// Nobody waits: the client has its error already.
	_, _ = log.Append(func(uint64, time.Time) (audit.Entry, error) { return e, nil })
}
