package gateway

import (
	"cmp"
	"context"
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
	// many of one address; default 512. Beyond that a new one takes the place of one on
	// which no request is open, first of one that has shown no good key.
	Connections, AddressConnections int
	// Requests is how many requests may be open on all connections; default 8192.
	// AddressRequests is how many of one address may be on connections that have shown
	// no good key; default 1024. Beyond that the connection with most of them is closed,
	// of all first among those that have shown no good key.
	Requests, AddressRequests int
	// KeyRate is how many requests of one key are taken a second; default 100, with
	// twice that many at once. AddressRate is how many with keys that have not been
	// good within a day are taken of one address; default 400, with twice that many at
	// once. What is more of those waits, for a few seconds.
	KeyRate, AddressRate float64
	// Failures is how many failed authentications of one address are answered as such
	// a second; default 1, with ten at once. What is more is told to come later; a
	// key that is good goes on to be taken.
	Failures float64
	// Idle ends a session that nobody uses; default 30 minutes. SharedIdle does the
	// same for the run of requests without a session; default 60 seconds.
	Idle, SharedIdle time.Duration
	// Left is after how long without use a session makes room for another of its key,
	// where that has as many as it may; default 60 seconds.
	Left time.Duration
	// Slow is how long a client may take over sending a body, beside one second for
	// each 32 KiB, and over taking a piece of an answer; default 30 seconds.
	Slow time.Duration
	// SlowHeader is how long it may take over sending the headers of a request;
	// default 10 seconds.
	SlowHeader time.Duration
}

// DefaultConnections is the default of Limits.Connections.
const DefaultConnections = 4096

func (l Limits) withDefaults() Limits {
	return Limits{
		Body:               cmp.Or(l.Body, 10<<20+64<<10),
		Header:             cmp.Or(l.Header, 16<<10),
		Held:               cmp.Or(l.Held, 128<<20),
		Unsent:             cmp.Or(l.Unsent, 8<<20),
		Sessions:           cmp.Or(l.Sessions, 320),
		KeySessions:        cmp.Or(l.KeySessions, 64),
		Streams:            cmp.Or(l.Streams, 64),
		Connections:        cmp.Or(l.Connections, DefaultConnections),
		AddressConnections: cmp.Or(l.AddressConnections, 512),
		Requests:           cmp.Or(l.Requests, 8192),
		AddressRequests:    cmp.Or(l.AddressRequests, 1024),
		KeyRate:            cmp.Or(l.KeyRate, 100),
		AddressRate:        cmp.Or(l.AddressRate, 400),
		Failures:           cmp.Or(l.Failures, 1),
		Idle:               cmp.Or(l.Idle, 30*time.Minute),
		SharedIdle:         cmp.Or(l.SharedIdle, time.Minute),
		Left:               cmp.Or(l.Left, time.Minute),
		Slow:               cmp.Or(l.Slow, 30*time.Second),
		SlowHeader:         cmp.Or(l.SlowHeader, 10*time.Second),
	}
}

// maxAddresses is how many addresses and keys are told apart at once. What comes
// beyond shares one measure.
const maxAddresses = 10_000

// Keys of which nothing good is known. How long their requests wait until it is their
// address's turn; how many may wait, of all and of one address; and how many the
// daemon is asked about at once, of all and of one address.
const (
	longestWait       = 5 * time.Second
	maxWaiting        = 4096
	maxAddressWaiting = 1024
	strangersAtOnce   = 16
	strangersEach     = 8
)

// goodFor is how long a key that was good is remembered to have been.
const goodFor = 24 * time.Hour

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
	good      map[keyHash]time.Time            // keys that were, and when
	waiting   int                              // requests with other keys
	queues    map[string]*queue                // of those, by address
	turns     chan struct{}                    // those that the daemon is asked about
	conns     map[*countedConn]bool            // those that are open
	addresses map[string]map[*countedConn]bool // the same by address
	asking    int                              // requests that are open on them
	strangers map[string]int                   // those without a good key, by address
}

func newRates(limits Limits) *rates {
	return &rates{
		limits:    limits,
		requests:  measures{rate: rate.Limit(limits.AddressRate), burst: int(2*limits.AddressRate) + 1, by: map[string]*measure{}},
		failures:  measures{rate: rate.Limit(limits.Failures), burst: failuresAtOnce, by: map[string]*measure{}},
		keys:      measures{rate: rate.Limit(limits.KeyRate), burst: int(2*limits.KeyRate) + 1, by: map[string]*measure{}},
		good:      map[keyHash]time.Time{},
		queues:    map[string]*queue{},
		turns:     make(chan struct{}, strangersAtOnce),
		conns:     map[*countedConn]bool{},
		addresses: map[string]map[*countedConn]bool{},
		strangers: map[string]int{},
	}
}

// know notes that a key is good.
func (r *rates) know(hash keyHash, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.good[hash]; !ok && len(r.good) >= maxAddresses {
		for other := range r.good { // any
			delete(r.good, other)
			break
		}
	}
	r.good[hash] = now
}

// doubt notes that a key is not.
func (r *rates) doubt(hash keyHash) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.good, hash)
}

// known says whether a key has been good not long ago. It may not be any more.
func (r *rates) known(hash keyHash) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.good[hash]
	return ok
}

// queue are the requests of one address with keys of which nothing good is known.
type queue struct {
	waiting, users int
	turns          chan struct{}
}

// wait waits until a request with such a key is within the measure of its address: a
// flood of them then comes no faster, and one that is good has its turn among them.
// It returns how long to stay away when there is no waiting.
func (r *rates) wait(ctx context.Context, address string, now time.Time) time.Duration {
	r.mu.Lock()
	reserved := r.requests.of(address, now).ReserveN(now, 1)
	delay := reserved.DelayFrom(now)
	if delay == 0 {
		r.mu.Unlock()
		return 0
	}
	if delay > longestWait || !r.enterQueue(address) {
		reserved.CancelAt(now)
		r.mu.Unlock()
		return delay
	}
	r.mu.Unlock()
	defer r.leaveQueue(address)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done(): // who has gone has had his turn
	}
	return 0
}

// turn waits until the daemon may be asked about such a key. done ends that.
func (r *rates) turn(ctx context.Context, address string) (done func(), err error) {
	r.mu.Lock()
	if !r.enterQueue(address) {
		r.mu.Unlock()
		return nil, errFull
	}
	own := r.queues[address]
	own.users++
	r.mu.Unlock()
	defer r.leaveQueue(address)
	left := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		own.users--
		r.forgetQueue(address)
	}
	select {
	case own.turns <- struct{}{}:
	case <-ctx.Done():
		left()
		return nil, ctx.Err()
	}
	select {
	case r.turns <- struct{}{}:
	case <-ctx.Done():
		<-own.turns
		left()
		return nil, ctx.Err()
	}
	return func() {
		<-r.turns
		<-own.turns
		left()
	}, nil
}

// enterQueue counts a request that waits, if there is room. The caller holds mu.
func (r *rates) enterQueue(address string) bool {
	own := r.queues[address]
	if r.waiting >= maxWaiting || own != nil && own.waiting >= maxAddressWaiting {
		return false
	}
	if own == nil {
		own = &queue{turns: make(chan struct{}, strangersEach)}
		r.queues[address] = own
	}
	own.waiting++
	r.waiting++
	return true
}

func (r *rates) leaveQueue(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	r.queues[address].waiting--
	r.forgetQueue(address)
}

// forgetQueue lets go of a queue in which nobody is. The caller holds mu.
func (r *rates) forgetQueue(address string) {
	if own := r.queues[address]; own != nil && own.waiting == 0 && own.users == 0 {
		delete(r.queues, address)
	}
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

// of is whom's measure. The caller holds the mu of the rates.
func (m *measures) of(whom string, now time.Time) *rate.Limiter {
	one := m.by[whom]
	if one == nil && len(m.by) >= maxAddresses {
		whom = "" // the rest share one
		one = m.by[whom]
	}
	if one == nil {
		one = &measure{limiter: rate.NewLimiter(m.rate, m.burst)}
		m.by[whom] = one
	}
	one.used = now
	return one.limiter
}

// take takes one from whom's measure. It returns how long to wait when there is none.
func (r *rates) take(m *measures, whom string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	reserved := m.of(whom, now).ReserveN(now, 1)
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
		if now.Sub(used) > goodFor {
			delete(r.good, hash)
		}
	}
}
