package daemon

import (
	"context"
	"fmt"
	"os"
	"sync"

	"google.golang.org/grpc/stats"

	"subjectbroker/daemon/peer"
	"subjectbroker/proto/wire"
)

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
