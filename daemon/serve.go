package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"subjectbroker/audit"
	"subjectbroker/daemon/peer"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Limits that keep overload bounded. The operator's socket has its own server
// and its own connections, so that the operator always gets in.
const (
	maxConnections        = 1024
	maxConnectionsPerPeer = 128
	maxStreamsPerConn     = 256
	handshakeLimit        = stopLimit // a stop waits for handshakes
	maxHeaderList         = 8 << 10
)

// server is one socket's server with its gate.
type server struct {
	*grpc.Server
	gate *gate
}

// run serves until the server is stopped.
func (s *server) run(listener net.Listener, failed chan<- error) {
	if err := s.Serve(peer.Listener{Listener: listener, Admit: s.gate.admit, Leave: s.gate.leave}); err != nil {
		failed <- err
	}
}

// stop answers what is in flight, and returns when every connection has left.
func (s *server) stop() {
	timer := time.AfterFunc(stopLimit, s.Stop)
	defer timer.Stop()
	s.GracefulStop()
	s.gate.open.Wait()
}

// newBrokerServer serves the worker plane.
func (d *Daemon) newBrokerServer() *server {
	g := newGate(d)
	s := grpc.NewServer(d.serverOptions(g,
		[]grpc.UnaryServerInterceptor{d.recoverUnary},
		[]grpc.StreamServerInterceptor{d.recoverStream})...)
	brokerv1.RegisterBrokerServiceServer(s, broker{d: d})
	return &server{s, g}
}

// newOperatorServer serves the operator. Health and reflection are here only.
func (d *Daemon) newOperatorServer() *server {
	g := newGate(d)
	s := grpc.NewServer(d.serverOptions(g,
		[]grpc.UnaryServerInterceptor{d.recoverUnary, d.authoriseUnary, d.accountUnary},
		[]grpc.StreamServerInterceptor{d.recoverStream, d.authoriseStream, d.accountStream})...)
	operatorv1.RegisterOperatorServiceServer(s, operator{d: d})
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	return &server{s, g}
}

func (d *Daemon) serverOptions(g *gate, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(peer.Credentials{}),
		grpc.StatsHandler(g),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.ForceServerCodecV2(wipingCodec{encoding.GetCodecV2(proto.Name)}),
		experimental.BufferPool(wipingPool{mem.DefaultBufferPool()}),
		grpc.MaxRecvMsgSize(wire.MaxMessage),
		grpc.MaxSendMsgSize(wire.MaxMessage),
		grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// gate admits connections and follows them and their calls to the end.
type gate struct {
	d *Daemon

	mu    sync.Mutex
	conns map[peer.ProcessKey]int
	total int
	open  sync.WaitGroup // connections that were admitted and have not left
}

func newGate(d *Daemon) *gate { return &gate{d: d, conns: map[peer.ProcessKey]int{}} }

// admit refuses foreign uids and more connections than there may be, before a
// byte is read.
func (g *gate) admit(p *peer.Peer) error {
	if int(p.UID) != os.Geteuid() {
		return fmt.Errorf("uid %d has no right on this socket", p.UID)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= maxConnections || g.conns[p.Key()] >= maxConnectionsPerPeer {
		return fmt.Errorf("too many connections")
	}
	g.total++
	g.conns[p.Key()]++
	g.open.Add(1)
	return nil
}

// leave forgets a connection that was closed and ends its runs.
func (g *gate) leave(p *peer.Peer) {
	g.mu.Lock()
	g.total--
	if g.conns[p.Key()]--; g.conns[p.Key()] == 0 {
		delete(g.conns, p.Key())
	}
	g.mu.Unlock()
	go func() {
		defer g.open.Done()
		// Nobody waits for the answer; a failing log is reported by its own state.
		_ = g.d.endRuns(wire.RunEnded, "CONNECTION_CLOSED", func(r *run) bool { return r.peer == p })
		p.Close()
	}()
}

// unknownMethod answers calls of methods that are not on this socket.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	if a, ok := stream.Context().Value(accountKey{}).(*account); ok {
		a.unknown = true
	}
	return &wire.Error{Reason: wire.PlatformUnsupported, Message: "there is no such method on this socket"}
}

// account follows one call: whether an entry was written for it.
type account struct {
	method  string
	peer    *peer.Peer
	unknown bool // there is no such method
	done    bool
}

type accountKey struct{}

// accountFor says that this call is accounted for: its entry is written, or it
// is over budget and counted.
func accountFor(ctx context.Context) {
	if a, ok := ctx.Value(accountKey{}).(*account); ok {
		a.done = true
	}
}

func accounted(ctx context.Context) bool {
	a, ok := ctx.Value(accountKey{}).(*account)
	return ok && a.done
}

// TagRPC starts the account of a call.
func (g *gate) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	p, _ := peer.FromContext(ctx)
	return context.WithValue(ctx, accountKey{}, &account{method: info.FullMethodName, peer: p})
}

// HandleRPC catches calls that never reached a handler: an unknown method, a
// message that is too large or does not parse.
func (g *gate) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok || end.Error == nil {
		return
	}
	a, ok := ctx.Value(accountKey{}).(*account)
	if !ok || a.done || a.peer == nil || !a.unknown && exempt(a.method) {
		return
	}
	g.d.flag(a)
}

// TagConn does nothing: the peer was fixed at accept.
func (g *gate) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing: grpc is silent about connections that never spoke, so
// the listener tells when one ends.
func (g *gate) HandleConn(context.Context, stats.ConnStats) {}

// flag records a call that no handler saw, within its peer's budget.
func (d *Daemon) flag(a *account) {
	now := d.clock.now()
	if !d.budgets.admit(a.peer.Key(), "", now) {
		return
	}
	d.budgets.spend(a.peer.Key(), now)
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

// recoverUnary turns a panic into an internal error. Its type and stack are
// logged; its value may hold content and never is.
func (d *Daemon) recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer d.caught(ctx, info.FullMethod, &err)
	resp, err = handler(ctx, req)
	return resp, public(err)
}

func (d *Daemon) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer d.caught(stream.Context(), info.FullMethod, &err)
	return public(handler(srv, stream))
}

func (d *Daemon) caught(ctx context.Context, method string, err *error) {
	value := recover()
	if value == nil {
		return
	}
	d.logger.Error("panic in a handler", "method", method, "type", fmt.Sprintf("%T", value), "stack", string(debug.Stack()))
	*err = wire.Deny(wire.InternalError)
	if recordErr := d.account(ctx, method, *err); recordErr != nil {
		*err = recordErr
	}
}

// public makes sure that only typed errors cross the socket, and those of grpc
// itself about a message that it could not take.
func public(err error) error {
	if err == nil {
		return nil
	}
	if _, typed := errors.AsType[*wire.Error](err); !typed {
		if _, own := status.FromError(err); own {
			return err
		}
	}
	return refusal(err)
}

// wipingCodec clears released content as soon as it has been marshalled.
type wipingCodec struct{ encoding.CodecV2 }

func (c wipingCodec) Marshal(v any) (mem.BufferSlice, error) {
	out, err := c.CodecV2.Marshal(v)
	switch m := v.(type) {
	case *brokerv1.AcquireResponse:
		clear(m.Content)
	case *operatorv1.GetSecretResponse:
		clear(m.Content)
	}
	return out, err
}

// wipingPool clears buffers when they come back, not when they are handed out
// again: grpc's own pools keep old content in memory meanwhile.
type wipingPool struct{ mem.BufferPool }

func (p wipingPool) Put(buffer *[]byte) {
	clear((*buffer)[:cap(*buffer)])
	p.BufferPool.Put(buffer)
}
