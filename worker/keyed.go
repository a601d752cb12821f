package worker

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	brokerv1 "subjectbroker/proto/subjectbroker/broker/v1"
	"subjectbroker/proto/wire"
)

// Runs of a gateway share connections. Each run has its own stream of changes there,
// one for each server whose tools it calls, and its calls: the daemon takes 128
// streams on a connection, and 96 connections of a process. While there are few
// connections each is one key's, so that no key waits for the calls of another.
const (
	runsPerConnection = 4
	ownConnections    = 64
)

// Presented is what comes along with an agent key.
type Presented struct {
	// Route is stateful or stateless.
	Route string
	// Flags are names of headers that claimed to say who asks and were taken out, as
	// package agentkey lists them; at most 16.
	Flags []string
}

// Keys opens runs for whom agent keys speak: many runs on few connections. It asserts
// nothing but the key that was presented, and keeps none. Its methods are safe for
// concurrent use. Their errors are *wire.Error; where the key is not good, Auth says
// what is wrong with it.
type Keys struct {
	config Config
	seed   maphash.Seed

	mu     sync.Mutex
	conns  []*keyedConn
	closed bool
}

// keyedConn is a connection with the number of those that are, or are about to be, on
// it. One is for judging keys of which no run is wanted, and has no runs: however many
// of those come, there is as much room for runs.
type keyedConn struct {
	judges bool
	key    uint64        // of the first run here
	users  int           // runs, or questions
	made   chan struct{} // closed when it was made, or could not be
	err    error         // why it could not be
	conn   *grpc.ClientConn
	broker brokerv1.BrokerServiceClient
}

// NewKeys returns a Keys that has no connection yet. Of config it uses Places, Version
// and Dial.
func NewKeys(config Config) *Keys { return &Keys{config: config, seed: maphash.MakeSeed()} }

// Open opens a run for whom the key speaks. The key is not kept. The run ends with its
// key: revoked, expired or of a disabled subject, and Over is closed then without
// anybody having to watch it.
func (ks *Keys) Open(ctx context.Context, key []byte, p Presented) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, openDeadline)
	defer cancel()
	c, err := ks.take(ctx, purpose{key: maphash.Bytes(ks.seed, key)})
	if err != nil {
		return nil, err
	}
	opened, err := c.broker.OpenRun(ctx, &brokerv1.OpenRunRequest{
		Api: wire.API, ShimVersion: ks.config.plainVersion(),
		Claim: &brokerv1.OpenRunRequest_AgentKey{AgentKey: &brokerv1.AgentKeyClaim{Key: key, Route: p.Route, Flags: p.Flags}},
	})
	if err == nil && opened.GetKeyId() == "" { // a daemon that does not know keys, and opened something else
		err = otherAPI(opened.GetApi())
	}
	if err != nil {
		ks.give(c)
		return nil, wire.FromError(err)
	}
	run := newRun(opened, c.conn, c.broker)
	run.release = sync.OnceFunc(func() { ks.give(c) })
	run.feed = &feed{}
	go func() {
		run.feed.end(run.watch(run.life, run.feed.tell))
		run.watchConnection()
	}()
	return run, nil
}

// Check judges a key of which no run is wanted: nil when it is good.
func (ks *Keys) Check(ctx context.Context, key []byte, p Presented) error {
	return ks.authenticate(ctx, &brokerv1.AuthenticateRequest{Key: key, Route: p.Route, Flags: p.Flags})
}

// Report records a request that was refused before anybody was asked, for
// wire.MissingToken or wire.MalformedToken.
func (ks *Keys) Report(ctx context.Context, auth wire.Auth, p Presented) error {
	return ks.authenticate(ctx, &brokerv1.AuthenticateRequest{Refused: string(auth), Route: p.Route, Flags: p.Flags})
}

func (ks *Keys) authenticate(ctx context.Context, req *brokerv1.AuthenticateRequest) error {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	c, err := ks.take(ctx, purpose{judges: true})
	if err != nil {
		return err
	}
	defer ks.give(c)
	if _, err := c.broker.Authenticate(ctx, req); err != nil {
		return wire.FromError(err)
	}
	return nil
}

// Authenticate judges the key of a further request under a run of Keys: nil when it is
// good. A good key that is not the run's own is RUN_ENDED, as is any when the run has
// ended.
func (r *Run) Authenticate(ctx context.Context, key []byte, p Presented) error {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	_, err := r.broker.Authenticate(ctx, &brokerv1.AuthenticateRequest{RunId: r.ID, Key: key, Route: p.Route, Flags: p.Flags})
	if err != nil {
		return wire.FromError(err) // and not fail: another one's key does not end the run
	}
	return nil
}

// purpose is what a place on a connection is for: judging keys, or a run of the key
// that is told apart by this number.
type purpose struct {
	judges bool
	key    uint64
}

// take takes a place on a connection that stands, once it was made.
func (ks *Keys) take(ctx context.Context, p purpose) (*keyedConn, error) {
	c, first, err := ks.reserve(p)
	if err != nil {
		return nil, err
	}
	if first {
		ks.connect(ctx, c)
	}
	select {
	case <-c.made:
		err = c.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		ks.give(c)
		return nil, wire.FromError(err)
	}
	return c, nil
}

// reserve counts one more on a connection that stands or is being made. The first one
// on a connection has to make it.
func (ks *Keys) reserve(p purpose) (c *keyedConn, first bool, err error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if ks.closed {
		return nil, false, wire.Deny(wire.BrokerUnavailable)
	}
	if c = ks.fitting(p); c == nil {
		c, first = &keyedConn{judges: p.judges, made: make(chan struct{})}, true
		ks.conns = append(ks.conns, c)
	}
	if c.users == 0 {
		c.key = p.key
	}
	c.users++
	return c, first, nil
}

// fitting is the connection to share; nil when there is to be another one. The caller
// holds mu.
func (ks *Keys) fitting(p purpose) (spare *keyedConn) {
	for _, c := range ks.conns {
		switch {
		case c.judges != p.judges, !c.usable(), !c.judges && c.users >= runsPerConnection:
		case c.judges, c.users == 0, c.key == p.key:
			return c
		case spare == nil:
			spare = c
		}
	}
	if len(ks.conns) <= ownConnections {
		return nil
	}
	return spare
}

// connect makes a connection, for everybody who has a place on it: it does not end
// with the one who came first.
func (ks *Keys) connect(ctx context.Context, c *keyedConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), openDeadline)
	defer cancel()
	conn, err := ks.config.dial(ctx)
	ks.mu.Lock()
	defer ks.mu.Unlock()
	defer close(c.made)
	switch {
	case err != nil:
		c.err = err
	case ks.closed:
		conn.Close()
		c.err = wire.Deny(wire.BrokerUnavailable)
	default:
		c.conn, c.broker = conn, brokerv1.NewBrokerServiceClient(conn)
		return
	}
	ks.drop(c)
}

// stands reports whether a connection was made and has not broken. The caller holds mu.
func (c *keyedConn) stands() bool { return c.conn != nil && c.conn.GetState() == connectivity.Ready }

// usable reports whether a connection stands or is being made. The caller holds mu.
func (c *keyedConn) usable() bool { return c.conn == nil || c.stands() }

// drop forgets a connection. The caller holds mu.
func (ks *Keys) drop(c *keyedConn) {
	ks.conns = slices.DeleteFunc(ks.conns, func(other *keyedConn) bool { return other == c })
	if c.conn != nil {
		c.conn.Close()
	}
}

// give gives a place back. A connection that nothing is on is closed, unless it is
// the only one of its kind and stands.
func (ks *Keys) give(c *keyedConn) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if c.users--; c.users > 0 {
		return
	}
	spare := func(other *keyedConn) bool { return other != c && other.judges == c.judges && other.stands() }
	if !ks.closed && c.stands() && !slices.ContainsFunc(ks.conns, spare) {
		return
	}
	ks.drop(c)
}

// Close closes every connection, and with them all runs.
func (ks *Keys) Close() {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	ks.closed = true
	for _, c := range ks.conns {
		if c.conn != nil {
			c.conn.Close()
		}
	}
	ks.conns = nil
}
