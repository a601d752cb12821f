package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
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
	"google.golang.org/grpc/status"

	"subjectbroker/daemon/peer"
	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/wire"
)

// Limits that keep overload bounded. The operator's socket has its own server,
// connections and answers, so that the operator always gets in. What clients
// that do not read can make the daemon hold is bounded in unread.go, pace.go and relay.go.
//
// What one process can have it hold on the worker plane, over all of its
// connections, beside contents: maxCallsPerProcess calls, each with a request of
// maxAsked and as much before it in its window, and with an answer of a piece and
// grpc's 64 KiB (under 44 MiB together), and what the relays count (maxUnjudged and
// maxUntaken, 20 MiB): under 64 MiB. A gateway, to which somebody's good key is bound,
// speaks for many: its calls come to under 256 MiB.
const (
	maxConnections        = 256
	maxConnectionsPerPeer = 96
	maxStreamsPerConn     = 128       // one for each call and for each hosted server, of the runs of one key
	handshakeLimit        = stopLimit // a stop waits for handshakes
	maxHeaderList         = 8 << 10
	maxAsked              = wire.MaxAsked // bytes of a request of the worker plane
	maxCallsPerProcess    = 176           // of the worker plane, at once; streams count
	maxCallsPerGateway    = 1024          // the same of one that has runs of agent keys: as many clients are behind it
)

// server is one socket's server with its gate.
type server struct {
	*grpc.Server
	gate *gate
}

// run serves until the server is stopped.
func (s *server) run(listener net.Listener, failed chan<- error) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(sweepPause)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				s.gate.sweep(now)
			}
		}
	}()
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
	g := newGate(d, brokerDoor)
	s := grpc.NewServer(append(d.serverOptions(g, maxAsked,
		[]grpc.UnaryServerInterceptor{d.recoverUnary, d.meterUnary(g.unread)},
		[]grpc.StreamServerInterceptor{d.recoverStream}),
		grpc.InTapHandle(g.admitCall), grpc.InitialWindowSize(maxAsked))...)
	brokerv1.RegisterBrokerServiceServer(s, broker{d: d})
	return &server{s, g}
}

// newOperatorServer serves the operator. Health and reflection are here only.
func (d *Daemon) newOperatorServer() *server {
	g := newGate(d, operatorDoor)
	s := grpc.NewServer(d.serverOptions(g, wire.MaxMessage,
		[]grpc.UnaryServerInterceptor{d.recoverUnary, wipeRequest, d.meterUnary(g.unread), d.authoriseUnary, d.accountUnary, d.needUnary, d.untilStop},
		[]grpc.StreamServerInterceptor{d.recoverStream, d.authoriseStream, d.accountStream})...)
	operatorv1.RegisterOperatorServiceServer(s, operator{d: d})
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	reflection.Register(s)
	return &server{s, g}
}

func (d *Daemon) serverOptions(g *gate, maxAsked int, unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(pacing{gate: g}),
		grpc.StatsHandler(g),
		grpc.UnknownServiceHandler(unknownMethod),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.ForceServerCodecV2(wipingCodec{encoding.GetCodecV2(proto.Name)}),
		experimental.BufferPool(wipingPool{mem.DefaultBufferPool()}),
		grpc.MaxRecvMsgSize(maxAsked),
		grpc.MaxSendMsgSize(wire.MaxMessage),
		grpc.InitialWindowSize(window), // windows are fixed: to find them out grpc asks back after each message
		grpc.InitialConnWindowSize(4 * window),
		grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	}
}

// window is how much of one stream a client may send before it is read, in bytes.
const window = 256 << 10

// asking are the operator's calls that may wait for a key source, or for the
// person whom that asks.
var asking = map[string]bool{
	operatorv1.OperatorService_Unlock_FullMethodName:     true,
	operatorv1.OperatorService_Rekey_FullMethodName:      true,
	operatorv1.OperatorService_AddSlot_FullMethodName:    true,
	operatorv1.OperatorService_TestSlot_FullMethodName:   true,
	operatorv1.OperatorService_RemoveSlot_FullMethodName: true,
}

// untilStop lets a stop cut calls short that wait for a key source: nobody who
// stops the daemon wants to answer its prompts.
func (d *Daemon) untilStop(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if !asking[info.FullMethod] {
		return handler(ctx, req)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.life, cancel)()
	return handler(ctx, req)
}

// unknownMethod answers calls of methods that are not on this socket.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	if a, ok := stream.Context().Value(accountKey{}).(*account); ok {
		a.unknown = true
	}
	return &wire.Error{Reason: wire.PlatformUnsupported, Message: "there is no such method on this socket"}
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
	if exempt(method) {
		return
	}
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
