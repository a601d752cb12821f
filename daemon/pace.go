package daemon

import (
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"

	"subjectbroker/daemon/peer"
	"subjectbroker/proto/quick"
)

// A client that keeps a write waiting for readPause is not listened to until it
// has read, so that it cannot go on asking for what it does not take; after
// writeLimit it is hung up on. A process that has ended is too, when another one
// has gone on for that long with its connection.
const (
	readPause  = time.Second
	writeLimit = 30 * time.Second
	sweepPause = time.Second
	pausePoll  = 10 * time.Millisecond
)

// paced is a connection that knows how long its client lets it wait.
type paced struct {
	net.Conn
	peer  *peer.Peer
	epoch time.Time
	began atomic.Int64 // when the write that is under way began, after epoch; 0: none is
	ended time.Time    // when the peer was first seen dead; of the sweeper alone
}

// waiting is for how long the write that is under way has waited.
func (c *paced) waiting() time.Duration {
	began := c.began.Load()
	if began == 0 {
		return 0
	}
	return time.Since(c.epoch) - time.Duration(began)
}

// Write writes and lets waiting tell for how long.
func (c *paced) Write(p []byte) (int, error) {
	c.began.Store(int64(time.Since(c.epoch)) + 1)
	defer c.began.Store(0)
	return c.Conn.Write(p)
}

// Read reads, unless the client does not.
func (c *paced) Read(p []byte) (int, error) {
	for c.waiting() > readPause { // at most until the sweeper hangs up
		time.Sleep(pausePoll)
	}
	return c.Conn.Read(p)
}

// pacing are peer credentials that hand grpc a paced connection.
type pacing struct {
	peer.Credentials
	gate *gate
}

// ServerHandshake names the peer to grpc.
func (p pacing) ServerHandshake(accepted net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := p.Credentials.ServerHandshake(accepted)
	if err != nil {
		return nil, nil, err
	}
	c := &paced{Conn: quick.Conn(conn), peer: info.(*peer.Peer), epoch: time.Now()}
	p.gate.follow(c)
	return c, info, nil
}

// Clone returns a copy.
func (p pacing) Clone() credentials.TransportCredentials { return p }
