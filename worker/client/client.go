// Package client opens the one connection that the worker plane or the
// operator's command has to the daemon, and makes sure first that it is the
// daemon who answers.
//
// It protects its caller from talking to somebody else: a socket that another
// account could have put there is refused, so is a peer of another uid, and,
// where the home's lock and the peer's pid can be seen, a peer that does not
// hold the home. A daemon under an account of its own is believed where nobody
// but that account and root can have put its sockets in their place; its pid and
// lock cannot be compared then. Nothing is sent before these checks have passed.
//
// It does not protect from a hostile process of the same uid, which can write
// the lock as well as we can read it: on one uid the last check stops accidents
// and nothing more.
//
// A connection made here is used once. When it breaks, it stays broken: gRPC
// would reconnect silently, and a run does not outlive its connection. Whoever
// wants to go on asks for a new one.
package client

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"subjectbroker/proto/place"
	"subjectbroker/proto/quick"
	"subjectbroker/proto/wire"
)

// window is the HTTP/2 flow-control window of stream and connection, in bytes:
// one message of the largest size travels without waiting for an update.
const window = 2 * wire.MaxMessage

// Places says where a daemon is expected.
type Places struct {
	// Home is the absolute home, whose lock names the daemon's pid.
	Home string
	// SocketDir is the absolute directory that holds broker/ and operator/.
	SocketDir string
	// HomeUnknown says that somebody named the sockets without the home they
	// belong to; then Home is a default, and its lock is no evidence.
	HomeUnknown bool
}

// ResolvePlaces finds home and socket directory from the values of --home and
// --socket, either of which may be empty, and from SB_HOME and SB_SOCKET.
func ResolvePlaces(homeFlag, socketFlag string) (Places, error) {
	home, err := place.Home(homeFlag)
	if err != nil {
		return Places{}, err
	}
	sockets, err := place.SocketDir(socketFlag, home)
	if err != nil {
		return Places{}, err
	}
	homeNamed := homeFlag != "" || os.Getenv(place.EnvHome) != ""
	return Places{Home: home, SocketDir: sockets, HomeUnknown: !homeNamed && !below(sockets, home)}, nil
}

// Broker connects to the worker plane's socket. Errors are *wire.Error:
// BROKER_UNAVAILABLE when nobody listens there, SOCKET_UNSAFE when it is not
// the daemon of this home, CONFIG_INVALID when the path cannot be a socket's.
func Broker(ctx context.Context, places Places) (*grpc.ClientConn, error) {
	return connect(ctx, places, place.BrokerSocket(places.SocketDir))
}

// Operator connects to the operator's socket, with the errors of Broker.
func Operator(ctx context.Context, places Places) (*grpc.ClientConn, error) {
	return connect(ctx, places, place.OperatorSocket(places.SocketDir))
}

func connect(ctx context.Context, places Places, socket string) (*grpc.ClientConn, error) {
	checked, err := dial(ctx, places, socket)
	if err != nil {
		return nil, err
	}
	once := &single{conn: checked, taken: make(chan struct{})}
	conn, err := grpc.NewClient("passthrough:///subject-broker",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the kernel keeps others off a Unix socket
		grpc.WithContextDialer(once.dial),
		grpc.WithAuthority("subject-broker"),
		grpc.WithIdleTimeout(0), // an idle channel would drop the connection, and the run with it
		grpc.WithNoProxy(),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessage), grpc.MaxCallSendMsgSize(wire.MaxMessage)),
	)
	if err != nil {
		checked.Close()
		return nil, &wire.Error{Reason: wire.InternalError, Message: err.Error()}
	}
	conn.Connect()
	select {
	case <-once.taken: // from here on it is closed with conn
		return conn, nil
	case <-ctx.Done():
		conn.Close()
		once.close()
		return nil, unavailable(socket, ctx.Err())
	}
}

// single is a dialer that has one connection to give.
type single struct {
	mu    sync.Mutex
	conn  net.Conn
	taken chan struct{} // closed when the connection was given
}

func (s *single) dial(context.Context, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil, &wire.Error{Reason: wire.BrokerUnavailable, Message: "the connection to the daemon has ended", Hint: startHint}
	}
	conn := quick.Conn(s.conn)
	s.conn = nil
	close(s.taken)
	return conn, nil
}

// close closes the connection if nobody has taken it.
func (s *single) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// below says whether path lies in dir or under it; both are absolute and clean.
func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, string(filepath.Separator))+string(filepath.Separator))
}
