// Package workertest is a broker for tests of the worker plane: the Broker
// service on a real socket in a home of its own, with a policy of one line.
// It is a fake with setters, not a daemon: nothing is sealed, judged by grants
// or recorded in a log.
package workertest

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/proto/place"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// Broker is a running fake. Its methods are safe for concurrent use.
type Broker struct {
	client.Places
	t testing.TB

	mu        sync.Mutex
	server    *grpc.Server
	documents map[string]Document
	readable  map[string]map[string]bool // subject → names
	profiles  map[string]string          // name → subject
	may       map[string]string          // subject + capability → decision
	launched  *brokerv1.SubjectClaim     // who every peer is; nil: whoever it claims to be
	runs      map[string]*run
	opened    int
	refusal   *wire.Error
	api       uint32
	onAcquire func(ctx context.Context, subject, name string) error
	asked     []string
	relaying  relaying
	unwatched chan struct{} // streams of changes begin when it is closed; nil: at once
}

// Document is the content of one resource.
type Document struct {
	Kind    string
	Content []byte
}

// maxRequest is the largest request that a daemon reads, in bytes.
const maxRequest = 512 << 10

type run struct {
	subject string
	profile string
	changes chan *brokerv1.WatchResponse
	over    chan struct{}
}

// New makes a home whose lock names this process, without a listener: see
// Start. Everything is gone when the test ends.
func New(t testing.TB) *Broker {
	t.Helper()
	home, err := os.MkdirTemp("", "sb") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	b := &Broker{
		Places: client.Places{Home: home, SocketDir: filepath.Join(home, "run")}, t: t,
		documents: map[string]Document{}, readable: map[string]map[string]bool{},
		profiles: map[string]string{}, may: map[string]string{}, runs: map[string]*run{}, api: wire.API,
	}
	t.Cleanup(func() {
		b.Stop()
		os.RemoveAll(home)
	})
	if err := os.WriteFile(place.LockFile(home), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

// Start is New, listening.
func Start(t testing.TB) *Broker {
	t.Helper()
	b := New(t)
	b.Start()
	return b
}

// Start listens and serves.
func (b *Broker) Start() {
	b.t.Helper()
	socket := place.BrokerSocket(b.SocketDir)
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		b.t.Fatal(err)
	}
	os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		b.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(wire.MaxMessage))
	brokerv1.RegisterBrokerServiceServer(server, service{b: b})
	b.mu.Lock()
	b.server = server
	b.mu.Unlock()
	go server.Serve(listener)
}

// Stop ends the listener, every connection and every run.
func (b *Broker) Stop() {
	b.mu.Lock()
	server := b.server
	b.server = nil
	for _, r := range b.runs {
		close(r.over)
	}
	clear(b.runs)
	b.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// Put stores a document, and tells the runs that may read it.
func (b *Broker) Put(name, kind string, content []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.documents[name] = Document{Kind: kind, Content: content}
	for _, r := range b.runs {
		if b.readable[r.subject][name] {
			r.changes <- &brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ResourceUpdated{ResourceUpdated: &brokerv1.ResourceUpdated{ResourceId: name}}}
		}
	}
}

// Allow lets subject read names, and tells its runs. A subject exists once it
// was named here.
func (b *Broker) Allow(subject string, names ...string) { b.change(subject, true, names) }

// AddProfile adds a profile of subject.
func (b *Broker) AddProfile(subject, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.profiles[name] = subject
}

// May sets what Can answers to subject: allow, deny or pending. Without a word it
// is deny.
func (b *Broker) May(subject, capability, decision string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.may[subject+" "+capability] = decision
}

// Launch makes every peer from now on one of a launch of subject under profile,
// whatever it claims.
func (b *Broker) Launch(subject, profile string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.launched = &brokerv1.SubjectClaim{Subject: subject, Profile: profile}
}

// Revoke takes names from subject, and tells its runs.
func (b *Broker) Revoke(subject string, names ...string) { b.change(subject, false, names) }

func (b *Broker) change(subject string, allow bool, names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.readable[subject] == nil {
		b.readable[subject] = map[string]bool{}
	}
	for _, name := range names {
		b.readable[subject][name] = allow
	}
	for _, r := range b.runs {
		if r.subject == subject {
			r.changes <- &brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_ListChanged{ListChanged: &brokerv1.ListChanged{}}}
		}
	}
}

// EndRuns ends every run with reason.
func (b *Broker) EndRuns(reason wire.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.runs {
		r.changes <- &brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_RunEnded{RunEnded: &brokerv1.RunEnded{ReasonCode: string(reason)}}}
	}
	clear(b.runs)
}

// Refuse makes every request but Report and Watch end with reason; the empty
// reason ends that.
func (b *Broker) Refuse(reason wire.Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refusal = nil
	if reason != "" {
		b.refusal = wire.Deny(reason)
	}
}

// SpeakAPI sets the API number that OpenRun answers.
func (b *Broker) SpeakAPI(api uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.api = api
}

// HoldWatches keeps back the streams of changes until release is called.
func (b *Broker) HoldWatches() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := make(chan struct{})
	b.unwatched = held
	return sync.OnceFunc(func() { close(held) })
}

// OnAcquire is called before each release; its error is the answer.
func (b *Broker) OnAcquire(fn func(ctx context.Context, subject, name string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onAcquire = fn
}

// Opened is how many runs were opened so far.
func (b *Broker) Opened() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened
}

// Runs is how many runs are open.
func (b *Broker) Runs() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.runs)
}

// Asked lists the requests under runs so far, as "subject method name".
func (b *Broker) Asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked)
}

// service is the fake's side of the contract.
type service struct {
	brokerv1.UnimplementedBrokerServiceServer
	b *Broker
}

func (s service) OpenRun(_ context.Context, req *brokerv1.OpenRunRequest) (*brokerv1.OpenRunResponse, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusal != nil {
		return nil, b.refusal
	}
	claim := req.GetSubject()
	if b.launched != nil {
		claim = b.launched
	}
	subject, profile := claim.GetSubject(), claim.GetProfile()
	if b.readable[subject] == nil || profile != "" && b.profiles[profile] != subject {
		return nil, wire.Deny(wire.AccessDenied)
	}
	b.opened++
	id := "run" + strconv.Itoa(b.opened)
	b.runs[id] = &run{subject: subject, profile: profile, changes: make(chan *brokerv1.WatchResponse, 1000), over: make(chan struct{})}
	opened := &brokerv1.OpenRunResponse{
		RunId: id, Subject: subject, Profile: profile, Tier: "cooperative", Api: b.api, DaemonVersion: "test", MaxContent: wire.DefaultMaxContent,
	}
	if !b.relaying.silent {
		opened.Offered = &brokerv1.ListServersResponse{Servers: b.relaying.servers}
	}
	return opened, nil
}

func (s service) CloseRun(_ context.Context, req *brokerv1.CloseRunRequest) (*brokerv1.CloseRunResponse, error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	delete(s.b.runs, req.GetRunId())
	return &brokerv1.CloseRunResponse{}, nil
}

// under returns the subject of a run, with the fake's lock held on success.
func (s service) under(id, method, name string) (subject string, err error) {
	s.b.mu.Lock()
	r, ok := s.b.runs[id]
	switch {
	case s.b.refusal != nil:
		err = s.b.refusal
	case !ok:
		err = wire.Deny(wire.RunEnded)
	default:
		s.b.asked = append(s.b.asked, r.subject+" "+method+" "+name)
		return r.subject, nil
	}
	s.b.mu.Unlock()
	return "", err
}

func (s service) ListResources(_ context.Context, req *brokerv1.ListResourcesRequest) (*brokerv1.ListResourcesResponse, error) {
	subject, err := s.under(req.GetRunId(), "list", "")
	if err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	response := &brokerv1.ListResourcesResponse{}
	for _, name := range slices.Sorted(maps.Keys(s.b.readable[subject])) {
		if document, ok := s.b.documents[name]; ok && s.b.readable[subject][name] {
			response.Resources = append(response.Resources, &brokerv1.Resource{Name: name, Kind: document.Kind, Size: uint64(len(document.Content))})
		}
	}
	return response, nil
}

func (s service) Acquire(ctx context.Context, req *brokerv1.AcquireRequest) (*brokerv1.AcquireResponse, error) {
	subject, err := s.under(req.GetRunId(), "acquire", req.GetResourceId())
	if err != nil {
		return nil, err
	}
	document, ok := s.b.documents[req.GetResourceId()]
	may := ok && s.b.readable[subject][req.GetResourceId()]
	hook := s.b.onAcquire
	s.b.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, subject, req.GetResourceId()); err != nil {
			return nil, err
		}
	}
	if !may {
		return nil, wire.Deny(wire.AccessDenied)
	}
	return &brokerv1.AcquireResponse{ResourceId: req.GetResourceId(), Content: document.Content, Kind: document.Kind, Version: 1, AuditSeq: 1}, nil
}

func (s service) Explain(_ context.Context, req *brokerv1.ExplainRequest) (*brokerv1.ExplainResponse, error) {
	subject, err := s.under(req.GetRunId(), "explain", req.GetAction()+":"+req.GetResourceId())
	if err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	_, exists := s.b.documents[req.GetResourceId()]
	if exists && req.GetAction() == "read" && s.b.readable[subject][req.GetResourceId()] {
		return &brokerv1.ExplainResponse{Decision: "allow", ReasonCode: string(wire.Allowed)}, nil
	}
	return &brokerv1.ExplainResponse{Decision: "deny", ReasonCode: string(wire.AccessDenied)}, nil
}

func (s service) Can(_ context.Context, req *brokerv1.CanRequest) (*brokerv1.CanResponse, error) {
	subject, err := s.under(req.GetRunId(), "can", req.GetCapability())
	if err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	switch s.b.may[subject+" "+req.GetCapability()] {
	case "allow":
		return &brokerv1.CanResponse{Decision: "allow", ReasonCode: string(wire.Allowed)}, nil
	case "pending":
		return &brokerv1.CanResponse{Decision: "pending", ReasonCode: string(wire.ApprovalPending)}, nil
	}
	return &brokerv1.CanResponse{Decision: "deny", ReasonCode: string(wire.AccessDenied)}, nil
}

func (s service) Report(_ context.Context, req *brokerv1.ReportRequest) (*brokerv1.ReportResponse, error) {
	subject, err := s.under(req.GetRunId(), "report", "")
	if err != nil {
		return nil, err
	}
	defer s.b.mu.Unlock()
	return &brokerv1.ReportResponse{
		DaemonVersion: "test", Platform: "linux/amd64", Api: s.b.api, Subject: subject, RunId: req.GetRunId(), Tier: "cooperative", KeySource: "file", AuditState: "ok",
		Profile: s.b.runs[req.GetRunId()].profile, Covered: []string{"reads through this connection"}, NotProvided: []string{"separation from processes of the same account"},
	}, nil
}

func (s service) Watch(req *brokerv1.WatchRequest, stream grpc.ServerStreamingServer[brokerv1.WatchResponse]) error {
	s.b.mu.Lock()
	r, ok := s.b.runs[req.GetRunId()]
	unwatched := s.b.unwatched
	s.b.mu.Unlock()
	if !ok {
		return wire.Deny(wire.RunEnded)
	}
	if unwatched != nil {
		select {
		case <-unwatched:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	if err := stream.Send(&brokerv1.WatchResponse{Event: &brokerv1.WatchResponse_Ready{Ready: &brokerv1.Ready{}}}); err != nil {
		return err
	}
	for {
		select {
		case change := <-r.changes:
			if err := stream.Send(change); err != nil || change.GetRunEnded() != nil {
				return err
			}
		case <-r.over:
			return wire.Deny(wire.BrokerUnavailable)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Eventually waits until ok holds, for as long as a loaded machine may need.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// WriteProgram writes a program that every uid may run, and that can be run at once:
// a process that another goroutine starts while the file is open has it open, too, for
// a moment, and whoever runs it then is told "text file busy".
func WriteProgram(path string, content []byte) error {
	syscall.ForkLock.RLock() // nothing is started meanwhile
	defer syscall.ForkLock.RUnlock()
	return errors.Join(os.WriteFile(path, content, 0o755), os.Chmod(path, 0o755))
}
