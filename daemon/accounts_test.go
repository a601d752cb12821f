package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"subjectbroker/audit/verify"
	"subjectbroker/daemon"
	"subjectbroker/daemon/daemontest"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// services are everything that can be asked of the daemon.
var services = []protoreflect.ServiceDescriptor{
	brokerv1.File_subjectbroker_broker_v1_broker_proto.Services().Get(0),
	operatorv1.File_subjectbroker_operator_v1_operator_proto.Services().Get(0),
}

// methods calls fn for each RPC of both services.
func methods(fn func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor)) {
	for _, service := range services {
		for i := range service.Methods().Len() {
			fn(service, service.Methods().Get(i))
		}
	}
}

func isBroker(service protoreflect.ServiceDescriptor) bool { return service == services[0] }

// P29: a new RPC needs a row.
func TestEveryCallHasARow(t *testing.T) {
	rows := daemon.AccountedCalls()
	named := map[string]bool{}
	methods(func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		full := fmt.Sprintf("/%s/%s", service.FullName(), method.Name())
		named[full] = true
		if !rows[full] {
			t.Errorf("%s has no row in calls", method.FullName())
		}
	})
	for name := range rows {
		if !named[name] {
			t.Errorf("calls has a row for %s, which is no RPC", name)
		}
	}
}

// allowed are requests that succeed in the world of TestEveryCallIsAccountedFor,
// in an order in which each still can. The entry of each has the given kind. Those
// without a request are made when it is their turn.
func allowed(files, run string, backup []byte, closed *operatorv1.SegmentCopy, launch *operatorv1.OpenLaunchRequest) []struct {
	method, kind string
	request      proto.Message
} {
	enabled := true
	return []struct {
		method, kind string
		request      proto.Message
	}{
		{"OpenRun", "run.open", daemontest.Claim("worker")},
		{"ListResources", "list", &brokerv1.ListResourcesRequest{RunId: run}},
		{"Acquire", "acquire", &brokerv1.AcquireRequest{RunId: run, ResourceId: "readme"}},
		{"Explain", "explain", &brokerv1.ExplainRequest{RunId: run, ResourceId: "readme"}},
		{"Can", "explain", &brokerv1.CanRequest{RunId: run, Capability: "read:readme"}},
		{"Report", "run.report", &brokerv1.ReportRequest{RunId: run}},
		{"Watch", "run.watch", &brokerv1.WatchRequest{RunId: run}},
		{"ListServers", "list", &brokerv1.ListServersRequest{RunId: run}},
		{"Relay", "run.relay", &brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Open{Open: &brokerv1.RelayOpen{
			RunId: run, Server: "wrapped", Mode: brokerv1.RelayMode_RELAY_MODE_WRAPPED,
		}}}},
		{"Authenticate", "auth", nil},
		{"CaptureKnowledge", "memory.capture", nil},
		{"SearchKnowledge", "memory.search", &brokerv1.SearchKnowledgeRequest{RunId: run, Query: "hello"}},
		{"BrowseRecent", "memory.browse", &brokerv1.BrowseRecentRequest{RunId: run}},
		{"KnowledgeStats", "memory.stats", &brokerv1.KnowledgeStatsRequest{RunId: run}},
		{"ReadEntry", "memory.read", nil},
		{"EntryHistory", "memory.history", nil},
		{"CloseRun", "run.end", &brokerv1.CloseRunRequest{RunId: run}},

		{"ConfirmClock", "operator.clock", &operatorv1.ConfirmClockRequest{}},
		{"PutSecret", "resource.put", &operatorv1.PutSecretRequest{Name: "more", Kind: "text", Content: []byte("one")}},
		{"PutSecret", "resource.put", &operatorv1.PutSecretRequest{Name: "more", Kind: "text", Content: []byte("two")}},
		{"GetSecret", "resource.get", &operatorv1.GetSecretRequest{Name: "more"}},
		{"RevertSecret", "resource.revert", &operatorv1.RevertSecretRequest{Name: "more", To: 1}},
		{"AddFile", "resource.add", &operatorv1.AddFileRequest{Name: "file", Path: filepath.Join(files, "file")}},
		{"CheckFiles", "operator.read", &operatorv1.CheckFilesRequest{}},
		{"RepinFile", "resource.repin", &operatorv1.RepinFileRequest{Name: "file"}},
		{"ListResources", "operator.read", &operatorv1.ListResourcesRequest{}},
		{"GetResource", "operator.read", &operatorv1.GetResourceRequest{Name: "readme"}},
		{"SetOperatorPassphrase", "operator.passphrase", &operatorv1.SetOperatorPassphraseRequest{Passphrase: []byte("a passphrase")}},
		{"OpenSession", "operator.auth", &operatorv1.OpenSessionRequest{Passphrase: []byte("a passphrase")}},
		{"AddSubject", "subject.add", &operatorv1.AddSubjectRequest{Name: "other"}},
		{"SetSubject", "subject.set", &operatorv1.SetSubjectRequest{Name: "other", MinTier: "bound", Enabled: &enabled}},
		{"ListSubjects", "operator.read", &operatorv1.ListSubjectsRequest{}},
		{"CreateGrants", "grant.create", &operatorv1.CreateGrantsRequest{Subject: "other", Capabilities: []string{"read:more"}}},
		{"ListGrants", "operator.read", &operatorv1.ListGrantsRequest{}},
		{"Explain", "operator.read", &operatorv1.ExplainRequest{Subject: "other", Capability: "read:more"}},
		{"RevokeGrants", "grant.revoke", &operatorv1.RevokeGrantsRequest{Subject: "other", All: true}},
		{"RemoveSubject", "subject.remove", &operatorv1.RemoveSubjectRequest{Name: "other"}},
		{"WatchApprovals", "operator.watch", nil},
		{"ListApprovals", "operator.read", &operatorv1.ListApprovalsRequest{}},
		{"DecideApproval", "approval.approve", nil},
		{"RevokeConsent", "approval.void", nil},
		{"CloseSession", "operator.auth", &operatorv1.CloseSessionRequest{}},
		{"AddTenant", "memory.tenant_add", &operatorv1.AddTenantRequest{Name: "acme"}},
		{"ListTenants", "operator.read", &operatorv1.ListTenantsRequest{}},
		{"MintAgentKey", "agentkey.mint", &operatorv1.MintAgentKeyRequest{Subject: "worker", Name: "laptop", Tenants: []string{"acme"}}},
		{"ListAgentKeys", "operator.read", &operatorv1.ListAgentKeysRequest{}},
		{"RotateAgentKey", "agentkey.rotate", &operatorv1.RotateAgentKeyRequest{Key: "laptop"}},
		{"RevokeAgentKey", "agentkey.revoke", &operatorv1.RevokeAgentKeyRequest{Key: "laptop"}},
		{"ImportKnowledge", "memory.import", &operatorv1.ImportKnowledgeRequest{Tenant: "team", Lines: []byte(`{"kind":"note","title":"imported"}`)}},
		{"ExportKnowledge", "memory.export", &operatorv1.ExportKnowledgeRequest{}},
		{"ListKnowledge", "memory.look", &operatorv1.ListKnowledgeRequest{}},
		{"GetKnowledge", "memory.look", nil},
		{"SearchKnowledge", "memory.look", &operatorv1.SearchKnowledgeRequest{Query: "imported"}},
		{"ForgetKnowledge", "memory.forget", nil},
		{"RemoveTenant", "memory.tenant_remove", &operatorv1.RemoveTenantRequest{Name: "acme"}},
		{"AddServer", "server.add", &operatorv1.AddServerRequest{Server: &operatorv1.Server{Name: "hosted", Command: []string{"/bin/false"}}}},
		{"TrustServer", "server.trust", &operatorv1.TrustServerRequest{Name: "wrapped"}},
		{"ListServers", "server.read", &operatorv1.ListServersRequest{}},
		{"GetServer", "server.read", &operatorv1.GetServerRequest{Name: "hosted"}},
		{"ReadServerLogs", "server.read", &operatorv1.ReadServerLogsRequest{Name: "hosted"}},
		{"RestartServer", "server.restart", &operatorv1.RestartServerRequest{Name: "hosted"}},
		{"RemoveServer", "server.remove", &operatorv1.RemoveServerRequest{Name: "hosted"}},
		{"ListPolicies", "operator.read", &operatorv1.ListPoliciesRequest{}},
		{"ResetPolicy", "policy.reset", &operatorv1.ResetPolicyRequest{Subject: "worker", Server: "wrapped"}},
		{"CallStats", "operator.read", &operatorv1.CallStatsRequest{}},
		{"RemoveResource", "resource.remove", &operatorv1.RemoveResourceRequest{Name: "more"}},
		{"ListRuns", "operator.read", &operatorv1.ListRunsRequest{}},
		{"EndRun", "run.end", nil},
		{"OpenLaunch", "launch.open", launch},
		{"WatchEvents", "operator.watch", &operatorv1.WatchEventsRequest{}},
		{"Apply", "subject.add", &operatorv1.ApplyRequest{Document: []byte("version: 1\nsubjects: {third: {}}\n")}},
		{"Export", "operator.export", &operatorv1.ExportRequest{}},
		{"AuditHead", "operator.read", &operatorv1.AuditHeadRequest{}},
		{"ReadAudit", "operator.read", &operatorv1.ReadAuditRequest{}},
		{"ListDenials", "operator.read", &operatorv1.ListDenialsRequest{}},
		{"PruneAudit", "operator.prune", &operatorv1.PruneAuditRequest{Copies: []*operatorv1.SegmentCopy{closed}}},
		{"AddSlot", "key.slot_add", &operatorv1.AddSlotRequest{Kind: "passphrase", Secret: []byte("a passphrase")}},
		{"TestSlot", "key.slot_test", &operatorv1.TestSlotRequest{Kind: "passphrase", Secret: []byte("a passphrase")}},
		{"RemoveSlot", "key.slot_remove", &operatorv1.RemoveSlotRequest{Kind: "passphrase"}},
		{"RotateKey", "key.rotate", &operatorv1.RotateKeyRequest{}},
		{"Rekey", "key.rekey", &operatorv1.RekeyRequest{}},
		{"ShowKeys", "operator.read", &operatorv1.ShowKeysRequest{}},
		{"Backup", "vault.backup", &operatorv1.BackupRequest{}},
		{"VerifyBackup", "operator.read", &operatorv1.VerifyBackupRequest{Chunk: backup}},
		{"ListBackups", "operator.read", &operatorv1.ListBackupsRequest{}},
		{"Lock", "vault.lock", &operatorv1.LockRequest{}},
		{"Unlock", "vault.unlock", &operatorv1.UnlockRequest{}},
		{"Panic", "operator.panic", &operatorv1.PanicRequest{}},
	}
}

// silent are the RPCs that write nothing.
var silent = map[protoreflect.Name]bool{"Status": true, "GetOperator": true, "Metrics": true}

// P29: every RPC is accounted for when it is allowed.
func TestEveryAllowedCallIsAccountedFor(t *testing.T) {
	d := daemontest.StartWith(t, daemontest.Options{ApprovalWait: time.Millisecond})
	files := t.TempDir()
	must(t, os.WriteFile(filepath.Join(files, "file"), []byte("in a file"), 0o600))
	d.Put("readme", "hello")
	d.Put("gated", "hello")
	d.AddSubject("worker")
	d.Grant("worker", "read:readme")
	run := d.Open("worker")
	spare := d.Open("worker")
	addRecovery(t, d)
	backup, _, err := backupOf(t, d, &operatorv1.BackupRequest{})
	must(t, err)
	d.Signal(syscall.SIGHUP)
	eventually(t, "a second segment", func() bool { return len(segments(t, d.Home)) == 2 })

	d.Grant("worker", "read:gated", daemontest.Gated)
	applyRules(t, d, "version: 1\npolicies: [{subject: worker, server: wrapped, rules: {}}]\n")
	wrapped := relayOf(t, spare, "wrapped")
	try(t, wrapped.send(&brokerv1.RelayRequest{Message: &brokerv1.RelayRequest_Listed{Listed: &brokerv1.RelayListed{
		Tools: []*brokerv1.ServerTool{{Name: "tool", Object: []byte("{}")}},
	}}}))
	try(t, wrapped.stream.CloseSend())
	wrapped.over()
	_, err = d.Operator().AddTenant(t.Context(), &operatorv1.AddTenantRequest{Name: "team"})
	must(t, err)
	d.Grant("worker", "memory.read:team")
	d.Grant("worker", "memory.write:team")
	entry := func() string {
		t.Helper()
		recent, err := run.BrowseRecent(t.Context(), &brokerv1.BrowseRecentRequest{RunId: run.ID})
		must(t, err)
		return recent.GetEntries()[0].GetEntryId()
	}
	newest := func() string {
		t.Helper()
		list, err := d.Operator().ListKnowledge(t.Context(), &operatorv1.ListKnowledgeRequest{Limit: 1})
		must(t, err)
		return list.GetEntries()[0].GetEntryId()
	}
	later := map[string]func() proto.Message{
		"CaptureKnowledge": func() proto.Message {
			awaitMemory(t, d)
			return &brokerv1.CaptureKnowledgeRequest{RunId: run.ID, Tenant: "team", Kind: "note", Title: "hello"}
		},
		"ReadEntry":       func() proto.Message { return &brokerv1.ReadEntryRequest{RunId: run.ID, EntryId: entry()} },
		"EntryHistory":    func() proto.Message { return &brokerv1.EntryHistoryRequest{RunId: run.ID, EntryId: entry()} },
		"GetKnowledge":    func() proto.Message { return &operatorv1.GetKnowledgeRequest{EntryId: newest()} },
		"ForgetKnowledge": func() proto.Message { return &operatorv1.ForgetKnowledgeRequest{EntryIds: []string{newest()}} },
		"Authenticate": func() proto.Message {
			minted, err := d.Operator().MintAgentKey(t.Context(), &operatorv1.MintAgentKeyRequest{Subject: "worker"})
			must(t, err)
			return &brokerv1.AuthenticateRequest{Key: minted.GetToken(), Route: "stateless"}
		},
		"EndRun": func() proto.Message { return &operatorv1.EndRunRequest{RunId: spare.ID} },
		"WatchApprovals": func() proto.Message {
			equal(t, "a gated read", spare.Refused("gated"), wire.ApprovalPending)
			return &operatorv1.WatchApprovalsRequest{}
		},
		"DecideApproval": func() proto.Message {
			for id := range approvals(t, d, false) {
				until := time.Now().Add(time.Hour).UnixMilli()
				return &operatorv1.DecideApprovalRequest{ApprovalId: id, Approve: true, Scope: "until", Until: until}
			}
			t.Fatal("nobody is asked")
			return nil
		},
		"RevokeConsent": func() proto.Message {
			return &operatorv1.RevokeConsentRequest{ConsentId: consents(t, d)[0].GetConsentId()}
		},
	}

	seen := map[protoreflect.FullName]bool{}
	for _, call := range allowed(files, run.ID, backup, firstSegment(t, d), waitingTree(t, d)) {
		if call.request == nil {
			call.request = later[call.method]()
		}
		conn, service := run.Conn, services[0]
		if parent := call.request.ProtoReflect().Descriptor().ParentFile(); parent.Package() != service.ParentFile().Package() {
			conn, service = d.OperatorConn(), services[1]
		}
		method := service.Methods().ByName(protoreflect.Name(call.method))
		seen[method.FullName()] = true
		t.Log(method.FullName())
		seq := d.Seq()
		if err := invoke(conn, method, call.request); err != nil {
			t.Errorf("%s: %s: %v", method.FullName(), daemontest.Reason(err), err)
			continue
		}
		e := d.Await(seq, func(e verify.Entry) bool { return e.Kind == call.kind })
		if e.Decision != "" && e.Decision != "allow" || !e.HasPeer && e.RunID == "" {
			t.Errorf("%s: the entry does not say that somebody was allowed: %+v", method.FullName(), e)
		}
	}
	methods(func(_ protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		if !seen[method.FullName()] && !silent[method.Name()] {
			t.Errorf("%s is not in the table", method.FullName())
		}
	})
}

// P29: so is every RPC that cannot succeed, whatever is wrong with it.
func TestEveryRefusedCallIsAccountedFor(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	broker := d.Connect()
	ways := []struct {
		name string
		call func(conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error
	}{
		{"empty", func(conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
			return invoke(conn, method, dynamicpb.NewMessage(method.Input()))
		}},
		{"garbage", func(conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
			return invokeRaw(conn, path(method), []byte{0xff, 0xff, 0xff})
		}},
		{"over-size", func(conn *grpc.ClientConn, method protoreflect.MethodDescriptor) error {
			return invokeRaw(conn, path(method), make([]byte, wire.MaxMessage+1))
		}},
	}
	// What an empty request is allowed to do.
	harmless := map[protoreflect.Name]bool{
		"Status": true, "ConfirmClock": true, "ListSubjects": true, "ListGrants": true, "ListRuns": true, "WatchEvents": true,
		"CheckFiles": true, "AuditHead": true, "ReadAudit": true, "ListDenials": true, "Export": true, "Lock": true, "Unlock": true, "Panic": true,
		"CloseSession": true, "ListPolicies": true, "CallStats": true, "ListApprovals": true, "WatchApprovals": true,
		"ListAgentKeys": true, "ListTenants": true, "ImportKnowledge": true, "ExportKnowledge": true, "ListKnowledge": true,
	}
	methods(func(service protoreflect.ServiceDescriptor, method protoreflect.MethodDescriptor) {
		conn := broker
		if !isBroker(service) {
			conn = d.OperatorConn()
		}
		for _, way := range ways {
			clock.step(time.Minute) // the budget for denials is full again
			t.Log(method.FullName(), way.name)
			seq := d.Seq()
			err := way.call(conn, method)
			if silent[method.Name()] {
				continue
			}
			if succeeded := err == nil; succeeded && !(way.name == "empty" && (harmless[method.Name()] || !isBroker(service) && (method.Name() == "ListResources" || method.Name() == "ListServers"))) {
				t.Errorf("%s, %s: succeeded", method.FullName(), way.name)
			}
			d.Await(seq, nil)
		}
	})
}

// P29: what is no RPC at all is accounted for on both sockets.
func TestUnknownMethodsAreAccountedFor(t *testing.T) {
	clock := newClock()
	d := daemontest.StartWith(t, daemontest.Options{Now: clock.Now})
	for _, name := range []string{
		"/subjectbroker.broker.v1.BrokerService/Nope",
		"/subjectbroker.broker.v1.BrokerService/Status",
		"/subjectbroker.operator.v1.OperatorService/Nope",
		"/subjectbroker.broker.v2.BrokerService/Acquire",
		"/somebody.Else/Call",
		"/x/../y",
	} {
		for socket, conn := range map[string]*grpc.ClientConn{"broker": d.Connect(), "operator": d.OperatorConn()} {
			clock.step(time.Minute)
			t.Log(name, socket)
			seq := d.Seq()
			if err := invokeRaw(conn, name, nil); err == nil {
				t.Errorf("%s on the %s socket succeeded", name, socket)
			}
			e := d.Await(seq, nil)
			if e.Kind != "flag" || e.Decision != "deny" || bytes.Contains(d.RawLog(), []byte("Nope")) {
				t.Errorf("%s on the %s socket: %+v", name, socket, e)
			}
		}
	}
	// The operator's verbs do not exist on the worker's socket.
	clock.step(time.Minute)
	if err := invokeRaw(d.Connect(), "/subjectbroker.operator.v1.OperatorService/Status", nil); err == nil {
		t.Error("the worker plane reached an operator's verb")
	}
}

func path(method protoreflect.MethodDescriptor) string {
	return "/" + string(method.Parent().FullName()) + "/" + string(method.Name())
}

// invoke calls any RPC, with metadata as pairs. Of a stream it takes the first
// answer.
func invoke(conn *grpc.ClientConn, method protoreflect.MethodDescriptor, request proto.Message, pairs ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	answer := dynamicpb.NewMessage(method.Output())
	if !method.IsStreamingServer() {
		return conn.Invoke(ctx, path(method), request, answer)
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path(method))
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(request), stream.CloseSend()); err != nil {
		return err
	}
	if method.Name() == "WatchEvents" { // its first line comes with the next entry
		if _, err := stream.Header(); err != nil { // events from here on are reported
			return err
		}
		if _, err := operatorv1.NewOperatorServiceClient(conn).AuditHead(ctx, &operatorv1.AuditHeadRequest{}); err != nil {
			return err
		}
	}
	if err := stream.RecvMsg(answer); err != nil && (err != io.EOF || method.Name() != "ReadServerLogs") { // which may be empty
		return err
	}
	return nil
}

// invokeRaw calls a method with bytes in place of a message.
func invokeRaw(conn *grpc.ClientConn, path string, raw []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), daemontest.Patience)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path,
		grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(grpcproto.Name)}), grpc.MaxCallSendMsgSize(len(raw)+1))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(raw); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	_ = stream.CloseSend()
	return stream.RecvMsg(new([]byte))
}

// rawCodec sends bytes as they are.
type rawCodec struct{ encoding.CodecV2 }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
