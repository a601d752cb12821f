// Package peer knows who is at the other end of a Unix socket, from the kernel
// and at the moment of accept, never from what the other end says.
//
// It protects the daemon from a connection that outlives the process that made
// it: a pidfd taken at accept tells a later process with the same pid apart. It
// does not protect against a process that hands its open connection to another
// one and stays alive.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Class says what can be said of a peer. It is fixed at accept.
type Class string

// Classes of peers.
const (
	Plain        Class = "plain"        // same pid namespace, nothing special
	Launch       Class = "launch"       // in the tree of a launch
	Mapped       Class = "mapped"       // its uid belongs to a subject
	Hosted       Class = "hosted"       // under a process that runs a server: no right on either socket
	Unattributed Class = "unattributed" // foreign pid namespace of no launch, or inconsistent facts
)

// Errors of looking at processes.
var (
	ErrChanged  = errors.New("the process changed while it was looked at")
	ErrEnded    = errors.New("the process has ended")
	ErrPlatform = errors.New("processes cannot be looked up on this platform")
)

// Peer is the OS facts of one connection.
type Peer struct {
	UID   uint32
	PID   int32
	Start uint64 // start time in clock ticks since boot, field 22 of /proc/PID/stat; 0 where the platform has none
	Class Class  // Plain or Unattributed, until whoever admits it knows better; fixed from then on
	Conn  uint64 // number of the connection, unique in this process

	// Foreign is true when it lives in another pid namespace than ours.
	Foreign bool
	// Namespaces are the pid namespaces that it lives in, its own first, ours left
	// out. Empty unless it is foreign, and when they cannot be read.
	Namespaces []Namespace
	// Launch is the id of the launch that it is in, empty otherwise.
	Launch string

	first ProcessKey // of that launch

	left atomic.Bool

	mu      sync.RWMutex // a descriptor must not be closed, and its number taken again, under a reader
	process process      // how liveness is told
	closed  bool
}

var connections atomic.Uint64

// Accept reads the facts of conn's peer. It fails when the peer is gone already.
func Accept(conn *net.UnixConn) (*Peer, error) { return Listener{}.accept(conn) }

func (l Listener) accept(conn *net.UnixConn) (*Peer, error) {
	p := &Peer{Conn: connections.Add(1)}
	if err := p.identify(conn, l.pidfdOpen); err != nil {
		return nil, fmt.Errorf("identifying the peer: %w", err)
	}
	return p, nil
}

// Join puts the peer into a launch, whose first process has that key. Only who
// admits the peer may call it.
func (p *Peer) Join(launch string, first ProcessKey) {
	p.Class, p.Launch, p.first = Launch, launch, first
}

// Key names the unit of denial budgets: the peer's process, or the first process
// of its launch, so that a tree has no more than one process has.
func (p *Peer) Key() ProcessKey {
	if p.Class == Launch {
		return p.first
	}
	return p.Process()
}

// Process names the peer's process.
func (p *Peer) Process() ProcessKey { return ProcessKey{p.UID, p.PID, p.Start} }

// ProcessKey tells one process from another over the life of a boot.
type ProcessKey struct {
	UID   uint32
	PID   int32
	Start uint64
}

// Leave says that the connection has ended. Whoever forgets a peer then says so
// first, and whoever remembers one asks Left under the lock that guards what is
// remembered: so nothing is remembered that nobody will forget.
func (p *Peer) Leave() { p.left.Store(true) }

// Left reports whether the connection has ended.
func (p *Peer) Left() bool { return p.left.Load() }

// Alive reports whether the process that connected still runs. It is false
// after Close.
func (p *Peer) Alive() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return !p.closed && p.process.alive()
}

// Command is the peer's command line with control characters escaped, at most
// 256 bytes; empty when it cannot be read. It is for people: a process chooses it.
func (p *Peer) Command() string { return command(p.PID) }

// Close gives back what liveness needed.
func (p *Peer) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.process.close()
	}
}

// AuthType names the security protocol for grpc.
func (*Peer) AuthType() string { return "unix-peer" }

// FromContext returns the peer of the connection that a call came on.
func FromContext(ctx context.Context) (*Peer, bool) {
	info, ok := peer.FromContext(ctx)
	if !ok {
		return nil, false
	}
	p, ok := info.AuthInfo.(*Peer)
	return p, ok
}

// Listener identifies the peer of each connection as it accepts it, before a
// byte is read.
type Listener struct {
	net.Listener
	// Admit may refuse a peer; the connection is closed then. Required.
	Admit func(*Peer) error
	// Leave is called once when the connection of an admitted peer is closed,
	// whether or not it ever sent anything. Required.
	Leave func(*Peer)

	pidfdOpen bool // as on kernels that do not say which process connected
}

// Accept returns the next connection that is admitted.
func (l Listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		unixConn, ok := accepted.(*net.UnixConn)
		if !ok {
			return nil, errors.Join(fmt.Errorf("identifying the peer: %T is not a Unix connection", accepted), accepted.Close())
		}
		p, err := l.accept(unixConn)
		if err != nil { // it is gone already
			_ = unixConn.Close()
			continue
		}
		if err := l.Admit(p); err != nil {
			p.Close()
			_ = unixConn.Close()
			continue
		}
		return &conn{UnixConn: unixConn, peer: p, leave: sync.OnceFunc(func() { l.Leave(p) })}, nil
	}
}

// conn is a connection whose peer is known.
type conn struct {
	*net.UnixConn
	peer  *Peer
	leave func()
}

// Close closes the connection and says that its peer has left.
func (c *conn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// Credentials are transport credentials for connections of a Listener: they
// hand the peer to grpc.
type Credentials struct{}

// ServerHandshake leaves the connection as it is.
func (Credentials) ServerHandshake(accepted net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := accepted.(*conn)
	if !ok {
		return nil, nil, fmt.Errorf("identifying the peer: %T does not come from our listener", accepted)
	}
	return c, c.peer, nil
}

// ClientHandshake is not for clients.
func (Credentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("peer credentials are for servers only")
}

// Info describes the protocol.
func (Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer"}
}

// Clone returns a copy.
func (c Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName does nothing: there is no name.
func (Credentials) OverrideServerName(string) error { return nil }
