package worker

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Deadlines of the calls. An acquire may wait for a person; the daemon answers
// before this one passes, and agents wait longer than it.
const (
	openDeadline    = 10 * time.Second
	askDeadline     = 10 * time.Second
	acquireDeadline = 30 * time.Second
	closeDeadline   = 500 * time.Millisecond
)

// Run is one open run, on a connection of its own unless Keys opened it. It is safe
// for concurrent use. Every error of its methods is a *wire.Error.
type Run struct {
	// ID is the run's handle, Subject whom the daemon bound it to, Tier what it
	// probed, Profile what the run is under, empty when under none,
	// DaemonVersion its version. They do not change. Subject and Profile need not
	// be those of the Config: inside a launch the launch decides.
	ID, Subject, Tier, Profile, DaemonVersion string
	// KeyID is the agent key that it was opened with: no secret. Empty: with none.
	KeyID string
	// API is the number that both sides speak.
	API uint32
	// MaxContent is the largest content that Acquire returns, in bytes.
	MaxContent uint64

	conn    *grpc.ClientConn
	broker  brokerv1.BrokerServiceClient
	offered *brokerv1.ListServersResponse // as of its start; nil: the daemon did not say
	over    chan struct{}
	end     func()
	// life ends with the run.
	life context.Context //nolint:containedctx // of a goroutine that follows the run
	// release gives its place on a shared connection back; nil: it has its own.
	release func()
	// dismissed says that the daemon ended it, and not because it locked or went away.
	dismissed atomic.Bool
	// feed is a stream of changes that is open already; nil: there is none.
	feed *feed

	unjudged budget // arguments of calls, over all relays
	answers  budget // answers of hosted servers, over all relays
}

// Resource is the name of something that the subject may read now.
type Resource struct {
	Name string
	Kind string // text, secret, binary or file
	Size uint64 // bytes; 0 when it is not known beforehand
}

// Content is what the daemon released.
type Content struct {
	Bytes    []byte
	Kind     string // text, secret, binary or file
	Version  uint32 // 0 for a registered file
	AuditSeq uint64 // the entry that vouches for the release
}

// Verdict is how a request would be judged.
type Verdict struct {
	Decision string // allow, deny or pending
	Reason   wire.Reason
}

// Report is what the daemon probed about a run and about itself.
type Report struct {
	DaemonVersion, Platform, Subject, RunID, Tier, KeySource, AuditState string

	// Profile is what the run is under; empty: none.
	Profile string
	// Covered is what holds for the run and NotProvided what does not, one
	// sentence each.
	Covered, NotProvided []string
}

// Open connects and opens a run. Errors are *wire.Error: those of client.Broker
// when there is no daemon to talk to, the daemon's own reason when it refuses,
// PLATFORM_UNSUPPORTED when the two speak different API numbers.
func Open(ctx context.Context, config Config) (*Run, error) {
	return openRun(ctx, config, func() {})
}

// openRun is Open. It calls asks when it has only to ask.
func openRun(ctx context.Context, config Config, asks func()) (*Run, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openDeadline)
	defer cancel()
	conn, err := config.dial(ctx)
	if err != nil {
		return nil, wire.FromError(err)
	}
	conn.Connect() // who dials need not have
	for state := conn.GetState(); state == connectivity.Idle || state == connectivity.Connecting; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			break // the call says why
		}
	}
	asks()
	broker := brokerv1.NewBrokerServiceClient(conn)
	request := &brokerv1.OpenRunRequest{
		Api:         wire.API,
		ShimVersion: config.plainVersion(),
		Claim:       &brokerv1.OpenRunRequest_Subject{Subject: &brokerv1.SubjectClaim{Subject: config.Subject, Profile: config.Profile}},
	}
	opened, err := broker.OpenRun(ctx, request)
	if err != nil && wire.MinAPI < wire.API && wire.FromError(err).Reason == wire.PlatformUnsupported {
		// A daemon that was not restarted since the update still serves what it knew.
		request.Api = wire.MinAPI
		if older, again := broker.OpenRun(ctx, request); again == nil {
			opened, err = older, nil
		}
	}
	if err == nil && (opened.GetApi() < wire.MinAPI || opened.GetApi() > wire.API) {
		err = otherAPI(opened.GetApi())
	}
	if err != nil {
		conn.Close()
		return nil, wire.FromError(err)
	}
	run := newRun(opened, conn, broker)
	go run.watchConnection()
	return run, nil
}

// newRun is a run that was opened.
func newRun(opened *brokerv1.OpenRunResponse, conn *grpc.ClientConn, broker brokerv1.BrokerServiceClient) *Run {
	over := make(chan struct{})
	life, done := context.WithCancel(context.Background())
	run := &Run{
		ID: opened.GetRunId(), Subject: opened.GetSubject(), Tier: opened.GetTier(), DaemonVersion: opened.GetDaemonVersion(),
		Profile: opened.GetProfile(), KeyID: opened.GetKeyId(), API: opened.GetApi(), MaxContent: opened.GetMaxContent(),
		conn: conn, broker: broker, offered: opened.GetOffered(), over: over, end: sync.OnceFunc(func() { close(over); done() }), life: life,
	}
	return run
}

// watchConnection ends the run when its connection has broken. The channel may
// still call itself connecting when its first answer is already here.
func (r *Run) watchConnection() {
	state := r.conn.GetState()
	for state == connectivity.Ready || state == connectivity.Connecting {
		if !r.conn.WaitForStateChange(r.life, state) { // ends at the latest with the run
			return
		}
		state = r.conn.GetState()
	}
	r.end()
}

// Over is closed when the run has ended, whoever ended it.
func (r *Run) Over() <-chan struct{} { return r.over }

// Dismissed says of a run that is over whether the daemon ended it for good: with its
// key, with its subject, or by an operator's word. Of one that was lost with the
// connection, or while the vault locked, it says false. It is known of runs that are
// watched.
func (r *Run) Dismissed() bool { return r.dismissed.Load() }

func (r *Run) isOver() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// Close ends the run and its connection. A daemon that does not answer at once
// learns of it from the connection.
func (r *Run) Close() {
	if !r.isOver() {
		ctx, cancel := context.WithTimeout(context.Background(), closeDeadline)
		defer cancel()
		_, _ = r.broker.CloseRun(ctx, &brokerv1.CloseRunRequest{RunId: r.ID})
	}
	r.end()
	if r.release != nil {
		r.release()
		return
	}
	r.conn.Close()
}

// List names what the subject may read now, sorted by name.
func (r *Run) List(ctx context.Context) ([]Resource, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	listed, err := r.broker.ListResources(ctx, &brokerv1.ListResourcesRequest{RunId: r.ID})
	if err != nil {
		return nil, r.fail(err)
	}
	resources := make([]Resource, len(listed.GetResources()))
	for i, one := range listed.GetResources() {
		resources[i] = Resource{Name: one.GetName(), Kind: one.GetKind(), Size: one.GetSize()}
	}
	return resources, nil
}

// Servers names the hosted servers of which the subject may call a tool now,
// sorted, and the tools of the governed memory that it may use. A daemon without
// relays has none.
func (r *Run) Servers(ctx context.Context) (servers, knowledge []string, err error) {
	if r.API < relayAPI {
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	listed, err := r.broker.ListServers(ctx, &brokerv1.ListServersRequest{RunId: r.ID})
	if err != nil {
		return nil, nil, r.fail(err)
	}
	return listed.GetServers(), listed.GetKnowledge(), nil
}

// OfferedAtStart is what Servers would have answered when the run was opened. known is
// false when the daemon did not say: it has to be asked.
func (r *Run) OfferedAtStart() (servers, knowledge []string, known bool) {
	return r.offered.GetServers(), r.offered.GetKnowledge(), r.offered != nil || r.API < relayAPI
}

// Acquire asks for the content of one resource.
func (r *Run) Acquire(ctx context.Context, name string) (Content, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireDeadline)
	defer cancel()
	got, err := r.broker.Acquire(ctx, &brokerv1.AcquireRequest{RunId: r.ID, ResourceId: name})
	if err != nil {
		return Content{}, r.fail(err)
	}
	return Content{Bytes: got.GetContent(), Kind: got.GetKind(), Version: got.GetVersion(), AuditSeq: got.GetAuditSeq()}, nil
}

// Explain asks how action on name would be judged now.
func (r *Run) Explain(ctx context.Context, name, action string) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	got, err := r.broker.Explain(ctx, &brokerv1.ExplainRequest{RunId: r.ID, ResourceId: name, Action: action})
	if err != nil {
		return Verdict{}, r.fail(err)
	}
	return Verdict{Decision: got.GetDecision(), Reason: wire.Reason(got.GetReasonCode())}, nil
}

// Can asks whether the subject may do by itself what capability names, such as
// reach:HOST: nothing is released and nothing used up, and the answer is
// recorded.
func (r *Run) Can(ctx context.Context, capability string) (Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	got, err := r.broker.Can(ctx, &brokerv1.CanRequest{RunId: r.ID, Capability: capability})
	if err != nil {
		return Verdict{}, r.fail(err)
	}
	return Verdict{Decision: got.GetDecision(), Reason: wire.Reason(got.GetReasonCode())}, nil
}

// Report asks what was probed about this run.
func (r *Run) Report(ctx context.Context) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	got, err := r.broker.Report(ctx, &brokerv1.ReportRequest{RunId: r.ID})
	if err != nil {
		return Report{}, r.fail(err)
	}
	return Report{
		DaemonVersion: got.GetDaemonVersion(), Platform: got.GetPlatform(), Subject: got.GetSubject(), RunID: got.GetRunId(), Tier: got.GetTier(),
		KeySource: got.GetKeySource(), AuditState: got.GetAuditState(),
		Profile: got.GetProfile(), Covered: got.GetCovered(), NotProvided: got.GetNotProvided(),
	}, nil
}

// Change is one thing that a watched run is told.
type Change struct {
	Kind     ChangeKind
	Resource string      // for ResourceUpdated
	Reason   wire.Reason // for RunEnded
}

// ChangeKind says what happened.
type ChangeKind int

// The kinds of Change.
const (
	Watching        ChangeKind = iota + 1 // changes from here on are told
	ListChanged                           // what the subject may read is different now
	ResourceUpdated                       // the content of one readable resource is different now
	RunEnded                              // the run has ended; nothing follows
	ServersChanged                        // which hosted servers or tools may be called is different now
)

// Watch tells each change to fn, from this goroutine, until the run or ctx ends
// or the stream breaks. It never returns nil.
func (r *Run) Watch(ctx context.Context, fn func(Change)) error {
	if r.feed != nil {
		if changes := r.feed.join(); changes != nil {
			return r.feed.follow(ctx, changes, fn)
		}
	}
	return r.watch(ctx, fn)
}

// watch is Watch with a stream of its own.
func (r *Run) watch(ctx context.Context, fn func(Change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.broker.Watch(ctx, &brokerv1.WatchRequest{RunId: r.ID})
	if err != nil {
		return r.fail(err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return wire.Deny(wire.RunEnded)
		}
		if err != nil {
			return r.fail(err)
		}
		switch event := message.GetEvent().(type) {
		case *brokerv1.WatchResponse_Ready:
			fn(Change{Kind: Watching})
		case *brokerv1.WatchResponse_ListChanged:
			fn(Change{Kind: ListChanged})
		case *brokerv1.WatchResponse_ServersChanged:
			fn(Change{Kind: ServersChanged})
		case *brokerv1.WatchResponse_ResourceUpdated:
			fn(Change{Kind: ResourceUpdated, Resource: event.ResourceUpdated.GetResourceId()})
		case *brokerv1.WatchResponse_RunEnded:
			if event.RunEnded.GetReasonCode() == string(wire.RunEnded) {
				r.dismissed.Store(true)
			}
			r.end()
			fn(Change{Kind: RunEnded, Reason: wire.Reason(event.RunEnded.GetReasonCode())})
			return wire.Deny(wire.RunEnded)
		}
	}
}

// fail reads the typed error, and notes when it says that the run is over.
func (r *Run) fail(err error) error {
	typed := wire.FromError(err)
	if typed.Reason == wire.RunEnded {
		r.end()
	}
	return typed
}
