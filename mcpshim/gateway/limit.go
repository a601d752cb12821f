package gateway

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limits of a gateway. Zero means the default.
type Limits struct {
	// Body is the largest body of a request, in bytes; default 10 MiB and 64 KiB.
	Body int64
	// Header is the largest size of a request's headers, in bytes; default 16 KiB.
	Header int
	// Held bounds bodies and answers that are in memory at once, in bytes; default
	// 128 MiB. Unsent bounds the answers of one session that nobody has taken; default
	// 8 MiB, and one answer more.
	Held, Unsent int64
	// Sessions is how many may be open; default 320, since the daemon takes 96
	// connections of a process, with four of them on each. KeySessions is how many of
	// one key; default 64.
	Sessions, KeySessions int
	// Streams is how many requests and event streams of one session may be open;
	// default 64.
	Streams int
	// Connections is how many may be open; default 4096. AddressConnections is how
	// many of one address; default 512.
	Connections, AddressConnections int
	// KeyRate is how many requests of one key are taken a second; default 100, with
	// twice that many at once. AddressRate is the same of one address; default 400,
	// and does not hold for keys that have been good within two minutes.
	KeyRate, AddressRate float64
	// Failures is how many failed authentications of one address are answered as such
	// a second; default 1, with ten at once. What is more is told to come later; a
	// key that is good goes on to be taken.
	Failures float64
	// Idle ends a session that nobody uses; default 30 minutes. SharedIdle does the
	// same for the run of requests without a session; default 60 seconds.
	Idle, SharedIdle time.Duration
	// Slow is how long a client may take over sending a body, beside one second for
	// each 32 KiB, and over taking a piece of an answer; default 30 seconds.
	Slow time.Duration
}

func (l Limits) withDefaults() Limits {
	or(&l.Body, 10<<20+64<<10)
	or(&l.Header, 16<<10)
	or(&l.Held, 128<<20)
	or(&l.Unsent, 8<<20)
	or(&l.Sessions, 320)
	or(&l.KeySessions, 64)
	or(&l.Streams, 64)
	or(&l.Connections, 4096)
	or(&l.AddressConnections, 512)
	or(&l.KeyRate, 100)
	or(&l.AddressRate, 400)
	or(&l.Failures, 1)
	or(&l.Idle, 30*time.Minute)
	or(&l.SharedIdle, time.Minute)
	or(&l.Slow, 30*time.Second)
	return l
}

func or[T int | int64 | float64 | time.Duration](value *T, fallback T) {
	if *value == 0 {
		*value = fallback
	}
}

// maxAddresses is how many addresses and keys are told apart at once. What comes
// beyond shares one measure.
const maxAddresses = 10_000

// forgetAfter is when who has been quiet starts anew. Every measure is full by then.
const forgetAfter = 2 * time.Minute

// failuresAtOnce is how many failed authentications of an address are answered as
// such before their rate counts.
const failuresAtOnce = 10

// rates measures how often addresses and keys ask.
type rates struct {
	limits Limits

	mu        sync.Mutex
	requests  measures
	failures  measures
	keys      measures
	good      map[keyHash]time.Time // keys that were, and when
	open      int
	addresses map[string]int // open connections
}

func newRates(limits Limits) *rates {
	return &rates{
		limits:    limits,
		requests:  measures{rate: rate.Limit(limits.AddressRate), burst: int(2*limits.AddressRate) + 1, by: map[string]*measure{}},
		failures:  measures{rate: rate.Limit(limits.Failures), burst: failuresAtOnce, by: map[string]*measure{}},
		keys:      measures{rate: rate.Limit(limits.KeyRate), burst: int(2*limits.KeyRate) + 1, by: map[string]*measure{}},
		good:      map[keyHash]time.Time{},
		addresses: map[string]int{},
	}
}

// know notes that a key is good.
func (r *rates) know(hash keyHash, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.good[hash]; ok || len(r.good) < maxAddresses {
		r.good[hash] = now
	}
}

// known says whether a key has been good not long ago. It may not be any more.
func (r *rates) known(hash keyHash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.good[hash]
	return ok
}

// measures are the rates of one kind.
type measures struct {
	rate  rate.Limit
	burst int
	by    map[string]*measure
}

type measure struct {
	limiter *rate.Limiter
	used    time.Time
}

// take takes one from whom's measure. It returns how long to wait when there is none.
func (r *rates) take(m *measures, whom string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := m.by[whom]
	if one == nil {
		if len(m.by) >= maxAddresses {
			whom = "" // the rest share one
			one = m.by[whom]
		}
		if one == nil {
			one = &measure{limiter: rate.NewLimiter(m.rate, m.burst)}
			m.by[whom] = one
		}
	}
	one.used = now
	reserved := one.limiter.ReserveN(now, 1)
	wait := reserved.DelayFrom(now)
	if wait > 0 {
		reserved.CancelAt(now)
	}
	return wait
}

// forget lets go of who has been quiet.
func (r *rates) forget(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range []*measures{&r.requests, &r.failures, &r.keys} {
		for whom, one := range m.by {
			if now.Sub(one.used) > forgetAfter {
				delete(m.by, whom)
			}
		}
	}
	for hash, used := range r.good {
		if now.Sub(used) > forgetAfter {
			delete(r.good, hash)
		}
	}
}

// errCrowded is told to nobody: the connection is closed.
var errCrowded = errors.New("too many connections")

// enter counts a connection.
func (r *rates) enter(address string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open >= r.limits.Connections || r.addresses[address] >= r.limits.AddressConnections {
		return errCrowded
	}
	r.open++
	r.addresses[address]++
	return nil
}

func (r *rates) leave(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.addresses[address]--; r.addresses[address] == 0 {
		delete(r.addresses, address)
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
		address := addressOf(conn.RemoteAddr().String())
		if l.rates.enter(address) != nil {
			conn.Close()
			continue
		}
		return &countedConn{Conn: conn, left: sync.OnceFunc(func() { l.rates.leave(address) })}, nil
	}
}

type countedConn struct {
	net.Conn
	left func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.left()
	return c.Conn.Close()
}

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
