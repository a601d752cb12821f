package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"time"
)

// enter counts a connection. When there are too many, of its address or of all, one
// that nobody is known to need is closed for it; if there is none it is false.
func (r *rates) enter(c *countedConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var among map[*countedConn]bool
	switch {
	case len(r.addresses[c.address]) >= r.limits.AddressConnections:
		among = r.addresses[c.address]
	case len(r.conns) >= r.limits.Connections:
		among = r.conns
	}
	if among != nil {
		var spare *countedConn
		for other := range among {
			if other.spare() && (spare == nil || other.before(spare)) {
				spare = other
			}
		}
		if spare == nil {
			return false
		}
		r.drop(spare)
		go func() { _ = spare.Close() }() // it takes the mutex that is held here
	}
	if r.addresses[c.address] == nil {
		r.addresses[c.address] = map[*countedConn]bool{}
	}
	r.addresses[c.address][c] = true
	r.conns[c] = true
	return true
}

// drop counts a connection no longer. The caller holds mu.
func (r *rates) drop(c *countedConn) {
	if r.conns[c] {
		r.count(c, -c.asking)
	}
	delete(r.conns, c)
	delete(r.addresses[c.address], c)
	if len(r.addresses[c.address]) == 0 {
		delete(r.addresses, c.address)
	}
}

// listen returns l with its connections counted.
func (r *rates) listen(l net.Listener) net.Listener { return &countedListener{Listener: l, rates: r} }

type countedListener struct {
	net.Listener
	rates *rates
}

// Accept implements net.Listener. Who is one too many is closed at once.
func (l *countedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		counted := &countedConn{Conn: conn, rates: l.rates, address: addressOf(conn.RemoteAddr().String()), used: time.Now()}
		if !l.rates.enter(counted) {
			conn.Close()
			continue
		}
		return counted, nil
	}
}

// countedConn is a connection with what is known of its client. The mu of the rates
// guards what changes.
type countedConn struct {
	net.Conn
	rates   *rates
	address string

	asking int       // requests that are open
	good   bool      // one has come with a good key
	bad    bool      // the newest was refused for its key
	used   time.Time // when it was made, or a request on it ended
}

// spare says whether nobody is known to need the connection: no request is open on it
// but those of a client whose keys are bad. The caller holds mu.
func (c *countedConn) spare() bool { return c.asking == 0 || c.bad && !c.good }

// before says which of two that are spare goes first: one without a good key, and the
// one that has been quiet for longer. The caller holds mu.
func (c *countedConn) before(other *countedConn) bool {
	if c.good != other.good {
		return other.good
	}
	return c.used.Before(other.used)
}

// count counts requests on a connection that is counted. The caller holds mu.
func (r *rates) count(c *countedConn, n int) {
	r.asking += n
	if c.good {
		return
	}
	if r.strangers[c.address] += n; r.strangers[c.address] == 0 {
		delete(r.strangers, c.address)
	}
}

// ask counts a request on the connection as open until done.
func (c *countedConn) ask() (done func()) {
	r := c.rates
	r.mu.Lock()
	defer r.mu.Unlock()
	c.asking++
	if r.conns[c] {
		r.count(c, 1)
	}
	if busiest := r.tooBusy(c); busiest != nil {
		r.drop(busiest)
		go func() { _ = busiest.Close() }() // its requests end with it
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		c.asking--
		if r.conns[c] {
			r.count(c, -1)
		}
		c.used = time.Now()
	}
}

// tooBusy is the connection that has to go for a request on c; nil when there is room.
// A client of HTTP/2 has many requests on one connection, each with its headers, and
// keeps them all open by taking no answers. The caller holds mu.
func (r *rates) tooBusy(c *countedConn) *countedConn {
	if !c.good && r.strangers[c.address] > r.limits.AddressRequests {
		return busiest(r.addresses[c.address], false)
	}
	if r.asking <= r.limits.Requests {
		return nil
	}
	if stranger := busiest(r.conns, false); stranger != nil {
		return stranger
	}
	return busiest(r.conns, true)
}

// busiest is the connection on which most requests are open, and more than one: of
// those that have shown a good key, or of the others.
func busiest(among map[*countedConn]bool, good bool) (most *countedConn) {
	for c := range among {
		if c.good == good && c.asking > 1 && (most == nil || c.asking > most.asking) {
			most = c
		}
	}
	return most
}

// judged notes what came of a key.
func (c *countedConn) judged(good bool) {
	c.rates.mu.Lock()
	defer c.rates.mu.Unlock()
	if good && !c.good && c.rates.conns[c] { // its requests are no stranger's any more
		c.rates.count(c, -c.asking)
		c.good = true
		c.rates.count(c, c.asking)
	}
	c.good, c.bad = c.good || good, !good
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.rates.mu.Lock()
	c.rates.drop(c)
	c.rates.mu.Unlock()
	return c.Conn.Close()
}

type connKey struct{}

// withConn is the context of the requests on a connection of ours.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// connOf is the connection that a request came on.
func connOf(ctx context.Context) *countedConn { return ctx.Value(connKey{}).(*countedConn) }

// addressOf is the address of a peer without its port: who asks, for the measures.
// All peers of a Unix socket are one.
func addressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return "local"
	}
	ip := net.ParseIP(host)
	if ip == nil || ip.To4() != nil {
		return host
	}
	return ip.Mask(net.CIDRMask(64, 128)).String() // a machine has a whole network of those
}
