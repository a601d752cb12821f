package daemon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/tap"

	"subjectbroker/daemon/peer"
	"subjectbroker/proto/wire"
)

// gate admits connections and follows them and their calls to the end.
type gate struct {
	d      *Daemon
	door   door
	unread *unread

	mu    sync.Mutex
	conns map[peer.ProcessKey]int
	total int
	calls map[peer.ProcessKey]int // that are under way, where they are counted
	paced map[*peer.Peer]*paced   // those that grpc has taken
	open  sync.WaitGroup          // connections that were admitted and have not left
}

func newGate(d *Daemon, at door) *gate {
	return &gate{
		d: d, door: at, unread: newUnread(unreadContents * int64(d.maxContent)),
		conns: map[peer.ProcessKey]int{}, calls: map[peer.ProcessKey]int{}, paced: map[*peer.Peer]*paced{},
	}
}

// admit refuses uids that have no right on the socket and more connections than
// there may be, before a byte is read. The last quarter is for processes that have
// none, so that those who take all they can keep nobody out.
func (g *gate) admit(p *peer.Peer) error {
	if err := g.d.mayEnter(g.door, p); err != nil {
		return err
	}
	g.d.classify(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	if own := g.conns[p.Key()]; g.total >= maxConnections || own > 0 && (own >= maxConnectionsPerPeer || g.total >= maxConnections*3/4) {
		return fmt.Errorf("too many connections")
	}
	g.total++
	g.conns[p.Key()]++
	g.open.Add(1)
	g.unread.enter(p)
	return nil
}

// leave forgets a connection that was closed and ends its runs.
func (g *gate) leave(p *peer.Peer) {
	p.Leave()
	g.mu.Lock()
	g.total--
	if g.conns[p.Key()]--; g.conns[p.Key()] == 0 {
		delete(g.conns, p.Key())
	}
	delete(g.paced, p)
	g.mu.Unlock()
	g.unread.leave(p)
	g.d.sessions.end(p)
	g.d.guard.leaves(p)
	go func() {
		defer g.open.Done()
		// Nobody waits for the answer; a failing log is reported by its own state.
		_ = g.d.endRuns(wire.RunEnded, "CONNECTION_CLOSED", func(r *run) bool { return r.peer == p })
		p.Close()
	}()
}

// follow lets the sweeper look after a connection.
func (g *gate) follow(c *paced) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paced[c.peer] = c
}

// sweep ends the runs of processes that are dead, whoever has their connections
// now, and hangs up on those and on clients that do not read.
func (g *gate) sweep(now time.Time) {
	g.mu.Lock()
	all := slices.Collect(maps.Values(g.paced))
	g.mu.Unlock()
	dead := map[*peer.Peer]bool{}
	for _, c := range all {
		if c.ended.IsZero() && !c.peer.Alive() {
			c.ended = now
			dead[c.peer] = true
		}
		if c.waiting() > writeLimit || !c.ended.IsZero() && now.Sub(c.ended) > writeLimit {
			_ = c.Close()
		}
	}
	if len(dead) > 0 {
		// Nobody waits for the answer; a failing log is reported by its own state.
		_ = g.d.endRuns(wire.RunEnded, causePeerChanged, func(r *run) bool { return dead[r.peer] })
	}
}

// admitCall refuses a call of a process that has too many under way, over all of its
// connections, before anything of it is read.
func (g *gate) admitCall(ctx context.Context, _ *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, wire.Deny(wire.InternalError)
	}
	key, limit := p.Key(), maxCallsPerProcess
	if g.d.runs.keyed(key) {
		limit = maxCallsPerGateway
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls[key] >= limit {
		g.d.budgets.suppress(key, g.d.clock.now())
		return nil, wire.Deny(wire.RateLimited)
	}
	g.calls[key]++
	context.AfterFunc(ctx, func() { // it ends with the call, however that ends
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.calls[key]--; g.calls[key] == 0 {
			delete(g.calls, key)
		}
	})
	return ctx, nil
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
	if !ok || a.done.Load() || a.peer == nil || !a.unknown && exempt(a.method) {
		return
	}
	g.d.flag(a)
}

// TagConn does nothing: the peer was fixed at accept.
func (g *gate) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing: grpc is silent about connections that never spoke, so
// the listener tells when one ends.
func (g *gate) HandleConn(context.Context, stats.ConnStats) {}
