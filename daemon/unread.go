package daemon

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"subjectbroker/daemon/peer"
	"subjectbroker/proto/wire"
)

// unreadContents is how many contents of the largest size the answers of one
// socket may come to that are made and not yet taken by their clients.
const unreadContents = 64

// unread bounds the answers that are in memory until their clients take them.
//
// A process may hold as much as is left for all others: one alone gets half,
// two get a third each, and there always is room for the next. Whoever holds
// nothing is given one answer in any case, so that those who do not read keep
// nobody out. The bound in all is therefore the limit and, beyond it, one answer
// for each connection that there may be.
type unread struct {
	limit int64 // bytes

	mu    sync.Mutex
	total int64
	by    map[peer.ProcessKey]int64
	conns map[*peer.Peer]int64 // every connection that is open
}

func newUnread(limit int64) *unread {
	return &unread{limit: limit, by: map[peer.ProcessKey]int64{}, conns: map[*peer.Peer]int64{}}
}

// enter and leave follow a connection. When it has left nothing of it is
// unread: grpc drops what it had queued without saying so.
func (u *unread) enter(p *peer.Peer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.conns[p] = 0
}

func (u *unread) leave(p *peer.Peer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(p, -u.conns[p])
	delete(u.conns, p)
}

// add changes what a connection holds, if it is open. The caller holds mu.
func (u *unread) add(p *peer.Peer, n int64) {
	if _, open := u.conns[p]; !open {
		return
	}
	u.conns[p] += n
	u.total += n
	if u.by[p.Key()] += n; u.by[p.Key()] == 0 {
		delete(u.by, p.Key())
	}
}

// take reserves n bytes more for an answer that has some already, or reports
// that there is no room for them.
func (u *unread) take(p *peer.Peer, has, n int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if held := u.by[p.Key()]; held > has && held+n > u.limit-u.total {
		return false
	}
	u.add(p, n)
	return true
}

// put changes what is held, whether there is room or not.
func (u *unread) put(p *peer.Peer, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(p, n)
}

// share is what one answer holds. One goroutine at a time uses it: the handler,
// then the codec, then the transport.
type share struct {
	of *unread
	p  *peer.Peer
	n  int64
}

// grow makes room for n bytes, at first the smallest answer's.
func (s *share) grow(n int64) bool {
	if s == nil || n <= s.n {
		return true
	}
	if !s.of.take(s.p, s.n, n-s.n) {
		return false
	}
	s.n = n
	return true
}

// settle says how large the answer is; it is made, and so counts in any case.
func (s *share) settle(n int64) {
	s.of.put(s.p, n-s.n)
	s.n = n
}

// Get is not called: buffers only come back here.
func (s *share) Get(int) *[]byte { panic("an answer is no pool") }

// Put takes back the answer's buffer, written or dropped, and wipes it.
func (s *share) Put(buffer *[]byte) {
	wipingPool{mem.DefaultBufferPool()}.Put(buffer)
	s.settle(0)
}

// smallestAnswer is what an answer counts at least, in bytes: a buffer that is
// smaller is not given back by grpc, and there are headers and a stream.
const smallestAnswer = 2 << 10

// answered is an answer with its share, on its way to the codec.
type answered struct {
	message proto.Message
	share   *share
}

// marshal makes the answer's bytes, which give back its share when they are
// written or dropped.
func (a answered) marshal() (mem.BufferSlice, error) {
	size := max(proto.Size(a.message), smallestAnswer)
	a.share.settle(int64(size))
	buffer := mem.DefaultBufferPool().Get(size)
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend((*buffer)[:0], a.message)
	if err != nil {
		a.share.Put(buffer)
		return nil, err
	}
	*buffer = out
	return mem.BufferSlice{mem.NewBuffer(buffer, a.share)}, nil
}

// errUnread: the process has too many answers that it has not taken.
var errUnread = errors.New("too many answers of the process are unread")

// meterUnary gives each call the share of its answer. A process without room is
// refused before anything is looked up.
func (d *Daemon) meterUnary(u *unread) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		a, ok := ctx.Value(accountKey{}).(*account)
		if !ok {
			return handler(ctx, req)
		}
		a.share = share{of: u, p: a.peer}
		s := &a.share
		if !s.grow(smallestAnswer) {
			accountFor(ctx)
			d.budgets.suppress(a.peer.Key(), d.clock.now())
			return nil, wire.Deny(wire.RateLimited)
		}
		sent := false
		defer func() { // also when the handler panics
			if !sent {
				s.settle(0)
			}
		}()
		resp, err := handler(ctx, req)
		message, ok := resp.(proto.Message)
		if err != nil || !ok {
			return resp, err
		}
		sent = true
		return answered{message, s}, nil
	}
}

// shareOf is the share of the call's answer; nil outside of a call.
func shareOf(ctx context.Context) *share {
	if a, ok := ctx.Value(accountKey{}).(*account); ok && a.share.of != nil {
		return &a.share
	}
	return nil
}
