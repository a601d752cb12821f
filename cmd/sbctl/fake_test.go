package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/proto/place"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// fakeOperator is an operator service in memory. It judges as little as it can
// get away with: how the real one behaves is tested with the real one.
type fakeOperator struct {
	operatorv1.UnimplementedOperatorServiceServer

	home string
	stop func() // its server; nil where nobody stops it before the end

	mu        sync.Mutex
	locked    bool
	behind    bool // the clock
	resources map[string]*fakeResource
	subjects  map[string]*operatorv1.Subject
	grants    []*operatorv1.Grant
	runs      []*operatorv1.Run
	launches  []*operatorv1.Launch
	denials   []*operatorv1.DenialGroup
	lines     [][]byte
	document  []byte // that Export writes; empty: one that says nothing
	follow    bool   // WatchEvents goes on after the last line
	keys      *fakeKeys
	auth      *fakeAuth
	hosting   fakeServers
	cards     *fakeCards
	refusal   *wire.Error // what every call but Status answers
	changed   chan struct{}
}

type fakeResource struct {
	*operatorv1.Resource
	contents [][]byte
	versions []*operatorv1.Version
}

// fakeNow is when everything in the fake happens.
const fakeNow = int64(1767225600000) // 2026-01-01T00:00:00Z

// serveFake starts a fake operator for home, and returns it with what stops it.
func serveFake(home string) (*fakeOperator, func(), error) {
	socket := place.OperatorSocket(filepath.Join(home, "run"))
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		return nil, nil, err
	}
	// Clients compare who listens with who holds the home.
	if err := os.WriteFile(place.LockFile(home), fmt.Appendf(nil, "%d\n", os.Getpid()), 0o600); err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(place.KeyFile(home), make([]byte, 32), 0o600); err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, nil, err
	}
	fake := &fakeOperator{
		home: home, resources: map[string]*fakeResource{}, subjects: map[string]*operatorv1.Subject{}, keys: newFakeKeys(), auth: newFakeAuth(),
		cards:   newFakeCards(),
		changed: make(chan struct{}),
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage), grpc.UnaryInterceptor(fake.refuse), grpc.StatsHandler(&connections{}))
	operatorv1.RegisterOperatorServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	return fake, server.Stop, nil
}

func (f *fakeOperator) refuse(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	always := strings.HasSuffix(info.FullMethod, "/Status") || strings.HasSuffix(info.FullMethod, "/Unlock")
	if f.refusal != nil && !always {
		return nil, f.refusal
	}
	if f.locked && !always {
		return nil, wire.Deny(wire.VaultLocked)
	}
	if err := f.auth.judge(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

func invalid(cause, format string, args ...any) error {
	return &wire.Error{Reason: wire.InvalidArgument, Message: fmt.Sprintf(format, args...), Cause: cause}
}

func (f *fakeOperator) Status(context.Context, *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	state := "unlocked"
	if f.locked {
		state = "locked"
	}
	return &operatorv1.StatusResponse{
		Version: "dev", Api: 1, Pid: int32(os.Getpid()), Started: fakeNow, Home: f.home, SocketDir: filepath.Join(f.home, "run"),
		VaultState: state, KeySource: "file", VaultId: "00112233445566778899aabbccddeeff", Generation: 7, Rows: 3,
		AuditState: "ok", AuditSeq: 42, AuditGenesis: strings.Repeat("ab", 32), AuditDir: filepath.Join(f.home, "audit"),
		ClockRollback: f.behind, Resources: uint32(len(f.resources)), Subjects: uint32(len(f.subjects)), Grants: uint32(len(f.grants)),
		Runs: f.runs, Launches: f.launches, MaxContent: wire.DefaultMaxContent, Platform: "linux/amd64",
		Probes: []*operatorv1.Probe{{Name: "core dumps", Status: "ok", Summary: "off"}},
		Slots:  f.keys.slots, RewrapLeft: f.keys.rewrap, HeadCause: f.keys.headCause, HeadSeq: f.keys.headSeq,
		Approvals: uint32(len(f.cards.pending())), Approvable: len(f.auth.passphrase) > 0 || f.auth.uid,
	}, nil
}

func (f *fakeOperator) ConfirmClock(context.Context, *operatorv1.ConfirmClockRequest) (*operatorv1.ConfirmClockResponse, error) {
	f.behind = false
	return &operatorv1.ConfirmClockResponse{Now: fakeNow}, nil
}

func (f *fakeOperator) Lock(context.Context, *operatorv1.LockRequest) (*operatorv1.LockResponse, error) {
	f.locked = true
	return &operatorv1.LockResponse{}, nil
}

func (f *fakeOperator) Unlock(_ context.Context, q *operatorv1.UnlockRequest) (*operatorv1.UnlockResponse, error) {
	if q.GetSlot() != "" {
		if err := f.keys.opens(q.GetSlot(), q.GetSecret()); err != nil {
			return nil, err
		}
	}
	f.locked = false
	return &operatorv1.UnlockResponse{}, nil
}

func (f *fakeOperator) Panic(context.Context, *operatorv1.PanicRequest) (*operatorv1.PanicResponse, error) {
	response := &operatorv1.PanicResponse{Runs: uint32(len(f.runs))}
	for _, name := range sortedKeys(f.subjects) {
		if f.subjects[name].Enabled {
			f.subjects[name].Enabled = false
			response.Subjects = append(response.Subjects, name)
		}
	}
	f.runs, f.locked = nil, true
	return response, nil
}

func (f *fakeOperator) PutSecret(_ context.Context, q *operatorv1.PutSecretRequest) (*operatorv1.PutSecretResponse, error) {
	r, exists := f.resources[q.GetName()]
	switch {
	case exists && q.GetIfAbsent():
		return nil, invalid("", "%s exists already", q.GetName())
	case exists && r.GetKind() != q.GetKind():
		return nil, invalid("", "the kind of %s is %s and never changes", q.GetName(), r.GetKind())
	case !exists:
		r = &fakeResource{Resource: &operatorv1.Resource{Name: q.GetName(), Type: "sealed", Kind: q.GetKind(), Created: fakeNow, Domain: q.GetDomain()}}
		f.resources[q.GetName()] = r
	}
	r.add(slices.Clone(q.GetContent()), 0)
	if q.GetNote() != "" {
		r.Note = q.GetNote()
	}
	response := &operatorv1.PutSecretResponse{Resource: r.Resource}
	for _, g := range f.grants {
		if resourceOf(g.GetCapability()) == q.GetName() {
			response.Readers = append(response.Readers, g.GetSubject())
		}
	}
	return response, nil
}

func (r *fakeResource) add(content []byte, from uint32) {
	r.contents = append(r.contents, content)
	r.Version, r.Size, r.Updated = uint32(len(r.contents)), uint64(len(content)), fakeNow
	r.versions = append([]*operatorv1.Version{{Version: r.Version, Size: r.Size, Created: fakeNow, RevertedFrom: from}}, r.versions...)
}

func (f *fakeOperator) resource(name string) (*fakeResource, error) {
	if r, ok := f.resources[name]; ok {
		return r, nil
	}
	return nil, invalid("UNKNOWN_RESOURCE", "there is no resource %s", name)
}

func (f *fakeOperator) GetSecret(_ context.Context, q *operatorv1.GetSecretRequest) (*operatorv1.GetSecretResponse, error) {
	r, err := f.resource(q.GetName())
	if err != nil {
		return nil, err
	}
	n := q.GetVersion()
	if n == 0 {
		n = r.GetVersion()
	}
	if n == 0 || int(n) > len(r.contents) {
		return nil, invalid("", "%s has no version %d", q.GetName(), n)
	}
	return &operatorv1.GetSecretResponse{Name: q.GetName(), Content: r.contents[n-1], Kind: r.GetKind(), Version: n}, nil
}

func (f *fakeOperator) RevertSecret(_ context.Context, q *operatorv1.RevertSecretRequest) (*operatorv1.RevertSecretResponse, error) {
	r, err := f.resource(q.GetName())
	if err != nil {
		return nil, err
	}
	r.add(r.contents[q.GetTo()-1], q.GetTo())
	return &operatorv1.RevertSecretResponse{Resource: r.Resource}, nil
}

func (f *fakeOperator) AddFile(_ context.Context, q *operatorv1.AddFileRequest) (*operatorv1.AddFileResponse, error) {
	content, err := os.ReadFile(q.GetPath())
	if err != nil {
		return nil, invalid("", "%v", err)
	}
	sum := fmt.Sprintf("%064x", len(content))
	r := &fakeResource{Resource: &operatorv1.Resource{
		Name: q.GetName(), Type: "file", Kind: "file", Path: q.GetPath(), Pin: q.GetPin(), Sha256: sum, Size: uint64(len(content)),
		Note: q.GetNote(), Created: fakeNow, Updated: fakeNow, Domain: q.GetDomain(),
	}}
	f.resources[q.GetName()] = r
	return &operatorv1.AddFileResponse{Resource: r.Resource}, nil
}

// checkFile compares sizes: a fake pin.
func (r *fakeResource) checkFile() *operatorv1.FileCheck {
	check := &operatorv1.FileCheck{Name: r.GetName(), Path: r.GetPath(), State: "ok", PinnedSha256: r.GetSha256(), PinnedSize: r.GetSize()}
	content, err := os.ReadFile(r.GetPath())
	if err != nil {
		check.State, check.Detail = "missing", "no such file"
		return check
	}
	check.CurrentSha256, check.CurrentSize = fmt.Sprintf("%064x", len(content)), uint64(len(content))
	if check.CurrentSha256 != check.PinnedSha256 {
		check.State, check.Detail = "changed", "the content is different"
	}
	return check
}

func (f *fakeOperator) CheckFiles(_ context.Context, q *operatorv1.CheckFilesRequest) (*operatorv1.CheckFilesResponse, error) {
	response := &operatorv1.CheckFilesResponse{}
	for _, name := range sortedKeys(f.resources) {
		r := f.resources[name]
		if r.GetType() == "file" && (len(q.GetNames()) == 0 || slices.Contains(q.GetNames(), name)) {
			response.Files = append(response.Files, r.checkFile())
		}
	}
	return response, nil
}

func (f *fakeOperator) RepinFile(_ context.Context, q *operatorv1.RepinFileRequest) (*operatorv1.RepinFileResponse, error) {
	r, err := f.resource(q.GetName())
	if err != nil {
		return nil, err
	}
	before := r.checkFile()
	if before.GetCurrentSha256() != q.GetExpectSha256() {
		return nil, &wire.Error{Reason: wire.ResourceChanged, Message: "it changed once more"}
	}
	r.Sha256, r.Size = before.GetCurrentSha256(), before.GetCurrentSize()
	return &operatorv1.RepinFileResponse{Before: before, Resource: r.Resource}, nil
}

func (f *fakeOperator) ListResources(context.Context, *operatorv1.ListResourcesRequest) (*operatorv1.ListResourcesResponse, error) {
	response := &operatorv1.ListResourcesResponse{}
	for _, name := range sortedKeys(f.resources) {
		response.Resources = append(response.Resources, f.resources[name].Resource)
	}
	return response, nil
}

func (f *fakeOperator) GetResource(_ context.Context, q *operatorv1.GetResourceRequest) (*operatorv1.GetResourceResponse, error) {
	r, err := f.resource(q.GetName())
	if err != nil {
		return nil, err
	}
	response := &operatorv1.GetResourceResponse{Resource: r.Resource, Versions: r.versions}
	for _, g := range f.grants {
		if matches(g.GetCapability(), "read:"+q.GetName()) {
			response.Grants = append(response.Grants, g)
		}
	}
	return response, nil
}

func (f *fakeOperator) RemoveResource(_ context.Context, q *operatorv1.RemoveResourceRequest) (*operatorv1.RemoveResourceResponse, error) {
	delete(f.resources, q.GetName())
	gone := f.dropGrants(func(g *operatorv1.Grant) bool { return resourceOf(g.GetCapability()) == q.GetName() })
	response := &operatorv1.RemoveResourceResponse{RevokedGrantIds: grantIDs(gone), Overwritten: q.GetPurge()}
	if q.GetPurge() {
		response.Backups = f.keys.backups
	}
	return response, nil
}

func (f *fakeOperator) dropGrants(match func(*operatorv1.Grant) bool) (gone []*operatorv1.Grant) {
	f.grants = slices.DeleteFunc(f.grants, func(g *operatorv1.Grant) bool {
		if match(g) {
			g.State = "revoked"
			gone = append(gone, g)
			return true
		}
		return false
	})
	return gone
}

func (f *fakeOperator) subject(name string) (*operatorv1.Subject, error) {
	if s, ok := f.subjects[name]; ok {
		return s, nil
	}
	return nil, invalid("UNKNOWN_SUBJECT", "no subject is named %s", name)
}

func (f *fakeOperator) AddSubject(_ context.Context, q *operatorv1.AddSubjectRequest) (*operatorv1.AddSubjectResponse, error) {
	tier := q.GetMinTier()
	if tier == "" {
		tier = "cooperative"
	}
	f.subjects[q.GetName()] = &operatorv1.Subject{Name: q.GetName(), Enabled: true, MinTier: tier, Created: fakeNow, Uid: q.Uid}
	return &operatorv1.AddSubjectResponse{Subject: f.subjects[q.GetName()]}, nil
}

func (f *fakeOperator) SetSubject(_ context.Context, q *operatorv1.SetSubjectRequest) (*operatorv1.SetSubjectResponse, error) {
	s, err := f.subject(q.GetName())
	if err != nil {
		return nil, err
	}
	if q.GetMinTier() != "" {
		s.MinTier = q.GetMinTier()
	}
	if q.Enabled != nil {
		s.Enabled = q.GetEnabled()
	}
	return &operatorv1.SetSubjectResponse{Subject: s}, nil
}

func (f *fakeOperator) ListSubjects(context.Context, *operatorv1.ListSubjectsRequest) (*operatorv1.ListSubjectsResponse, error) {
	response := &operatorv1.ListSubjectsResponse{}
	for _, name := range sortedKeys(f.subjects) {
		response.Subjects = append(response.Subjects, f.subjects[name])
	}
	return response, nil
}

func (f *fakeOperator) RemoveSubject(_ context.Context, q *operatorv1.RemoveSubjectRequest) (*operatorv1.RemoveSubjectResponse, error) {
	delete(f.subjects, q.GetName())
	gone := f.dropGrants(func(g *operatorv1.Grant) bool { return g.GetSubject() == q.GetName() })
	return &operatorv1.RemoveSubjectResponse{RevokedGrantIds: grantIDs(gone)}, nil
}

func (f *fakeOperator) CreateGrants(_ context.Context, q *operatorv1.CreateGrantsRequest) (*operatorv1.CreateGrantsResponse, error) {
	if _, err := f.subject(q.GetSubject()); err != nil {
		return nil, err
	}
	response := &operatorv1.CreateGrantsResponse{}
	for _, capability := range q.GetCapabilities() {
		name := resourceOf(capability)
		if !strings.HasSuffix(name, "*") {
			if _, err := f.resource(name); err != nil {
				return nil, err
			}
		}
		g := &operatorv1.Grant{
			GrantId: fmt.Sprintf("grant%c", 'a'+len(f.grants)), Subject: q.GetSubject(), Capability: capability, Effect: "allow",
			Until: q.GetUntil(), Uses: q.GetUses(), Tier: q.GetTier(), RequireApproval: q.GetRequireApproval(), Note: q.GetNote(),
			Created: fakeNow, State: "active", Disclose: q.GetDisclose(), GrantedBy: new(uint32(4_000_000_002)),
		}
		if q.GetDeny() {
			g.Effect = "deny"
		}
		if q.GetTtlMs() > 0 {
			g.Until = time.Now().UnixMilli() + q.GetTtlMs()
		}
		if q.GetDisclose() && g.GetUntil() == 0 && g.GetUses() == 0 && !q.GetNoLimit() {
			g.Until = time.Now().Add(time.Hour).UnixMilli()
			response.Warnings = append(response.Warnings, "it discloses a secret and had no limit: it got one hour")
		}
		f.grants = append(f.grants, g)
		response.Grants = append(response.Grants, g)
	}
	return response, nil
}

func (f *fakeOperator) RevokeGrants(_ context.Context, q *operatorv1.RevokeGrantsRequest) (*operatorv1.RevokeGrantsResponse, error) {
	gone := f.dropGrants(func(g *operatorv1.Grant) bool {
		return q.GetGrantId() != "" && strings.HasPrefix(g.GetGrantId(), q.GetGrantId()) ||
			g.GetSubject() == q.GetSubject() && (q.GetAll() || g.GetCapability() == q.GetCapability())
	})
	if len(gone) == 0 {
		return nil, invalid("", "there is no such grant")
	}
	return &operatorv1.RevokeGrantsResponse{Grants: gone}, nil
}

func (f *fakeOperator) ListGrants(_ context.Context, q *operatorv1.ListGrantsRequest) (*operatorv1.ListGrantsResponse, error) {
	response := &operatorv1.ListGrantsResponse{}
	for _, g := range f.grants {
		if q.GetSubject() == "" || g.GetSubject() == q.GetSubject() {
			response.Grants = append(response.Grants, g)
		}
	}
	return response, nil
}

func (f *fakeOperator) Explain(_ context.Context, q *operatorv1.ExplainRequest) (*operatorv1.ExplainResponse, error) {
	response := &operatorv1.ExplainResponse{
		Decision: "deny", ReasonCode: "ACCESS_DENIED", Cause: "NO_GRANT",
		Steps: []*operatorv1.TraceStep{{Check: "subject", Result: "pass", Detail: "enabled"}},
	}
	if q.GetProfile() != "" {
		response.Steps = append(response.Steps, &operatorv1.TraceStep{Check: "ceiling", Result: "fail", Detail: "no tool of " + q.GetProfile() + " requires it"})
		response.Cause = "TOOL_NOT_LISTED"
		return response, nil
	}
	for _, g := range f.grants {
		if g.GetSubject() == q.GetSubject() && matches(g.GetCapability(), q.GetCapability()) {
			response.GrantId, response.Decision, response.ReasonCode, response.Cause = g.GetGrantId(), "allow", "ALLOWED", ""
			if g.GetEffect() == "deny" {
				response.Decision, response.ReasonCode, response.Cause = "deny", "ACCESS_DENIED", "EXPLICIT_DENY"
			} else if g.GetTier() != q.GetTier() {
				response.Decision, response.ReasonCode, response.Cause = "deny", "ACCESS_DENIED", "TIER_TOO_LOW"
			}
			response.Steps = append(response.Steps, &operatorv1.TraceStep{Check: "grant", Result: "match", Detail: g.GetCapability(), GrantId: g.GetGrantId()})
		}
	}
	return response, nil
}

func (f *fakeOperator) ListRuns(context.Context, *operatorv1.ListRunsRequest) (*operatorv1.ListRunsResponse, error) {
	return &operatorv1.ListRunsResponse{Runs: f.runs, Launches: f.launches}, nil
}

func (f *fakeOperator) EndRun(_ context.Context, q *operatorv1.EndRunRequest) (*operatorv1.EndRunResponse, error) {
	for i, r := range f.runs {
		if strings.HasPrefix(r.GetRunId(), q.GetRunId()) {
			f.runs = slices.Delete(f.runs, i, i+1)
			r.Ended = fakeNow
			return &operatorv1.EndRunResponse{Run: r}, nil
		}
	}
	return f.endLaunch(q.GetRunId())
}

func (f *fakeOperator) Apply(_ context.Context, q *operatorv1.ApplyRequest) (*operatorv1.ApplyResponse, error) {
	if !bytes.HasPrefix(q.GetDocument(), []byte("version: 1\n")) {
		return nil, invalid("", "line 1: this is no document")
	}
	response := &operatorv1.ApplyResponse{}
	for line := range bytes.Lines(q.GetDocument()) {
		if name, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("# add ")); ok {
			response.Changes = append(response.Changes, &operatorv1.Change{Verb: "add", What: "resource", Name: string(name)})
			response.NeedContent = append(response.NeedContent, string(name))
		}
	}
	if q.GetPrune() {
		response.Changes = append(response.Changes, &operatorv1.Change{Verb: "remove", What: "subject", Name: "old"})
	}
	return response, nil
}

func (f *fakeOperator) Export(_ context.Context, q *operatorv1.ExportRequest) (*operatorv1.ExportResponse, error) {
	if len(f.document) > 0 {
		return &operatorv1.ExportResponse{Document: f.document}, nil
	}
	return &operatorv1.ExportResponse{Document: fmt.Appendf(nil, "version: 1\n# pins %v all %v\n", q.GetWithPins(), q.GetAll())}, nil
}

func (f *fakeOperator) AuditHead(context.Context, *operatorv1.AuditHeadRequest) (*operatorv1.AuditHeadResponse, error) {
	return &operatorv1.AuditHeadResponse{
		Genesis: strings.Repeat("ab", 32), Seq: uint64(len(f.lines)), Hash: strings.Repeat("cd", 32), Signature: "c2ln", Segment: 1,
		VaultId: "00112233445566778899aabbccddeeff", Dir: filepath.Join(f.home, "audit"),
	}, nil
}

func (f *fakeOperator) ReadAudit(q *operatorv1.ReadAuditRequest, stream grpc.ServerStreamingServer[operatorv1.ReadAuditResponse]) error {
	f.mu.Lock()
	if f.locked {
		f.mu.Unlock()
		return wire.Deny(wire.VaultLocked)
	}
	lines := slices.DeleteFunc(slices.Clone(f.lines), func(line []byte) bool {
		var e struct{ Kind string }
		return strings.HasPrefix(q.GetKind(), "call") && json.Unmarshal(line, &e) == nil && e.Kind != q.GetKind()
	})
	f.mu.Unlock()
	if last := int(q.GetLast()); last > 0 && len(lines) > last {
		lines = lines[len(lines)-last:]
	}
	for _, line := range lines {
		var e struct{ SubjectID, Decision string }
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		if q.GetSubject() != "" && e.SubjectID != q.GetSubject() || q.GetDecision() != "" && e.Decision != q.GetDecision() {
			continue
		}
		if err := stream.Send(&operatorv1.ReadAuditResponse{Lines: [][]byte{line}}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeOperator) WatchEvents(_ *operatorv1.WatchEventsRequest, stream grpc.ServerStreamingServer[operatorv1.WatchEventsResponse]) error {
	f.mu.Lock()
	lines, follow := slices.Clone(f.lines), f.follow
	f.mu.Unlock()
	for _, line := range lines {
		if err := stream.Send(&operatorv1.WatchEventsResponse{Line: line}); err != nil {
			return err
		}
	}
	if follow {
		<-stream.Context().Done()
	}
	return nil
}

func (f *fakeOperator) ListDenials(_ context.Context, q *operatorv1.ListDenialsRequest) (*operatorv1.ListDenialsResponse, error) {
	response := &operatorv1.ListDenialsResponse{}
	for _, d := range slices.Backward(f.denials) {
		if (q.GetSubject() == "" || d.GetSubject() == q.GetSubject()) && d.GetLast() >= q.GetSince() {
			response.Groups = append(response.Groups, d)
		}
	}
	return response, nil
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
