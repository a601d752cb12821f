// Package gateway speaks MCP over HTTP for everybody who presents an agent key.
//
// It protects the sessions from each other and the daemon from what strangers
// send: who a request is from is decided by the key that it presents, judged by
// the daemon anew for each request, and by nothing else that it says of itself. A
// session belongs to the key and the run that it was opened with. What is not good
// is refused by one piece of code, which says which of five things was wrong with
// the key and nothing else; where the daemon cannot be asked, nobody gets in.
//
// It holds no key longer than a request, decides nothing about content, and
// cannot open a run without a key. It does not protect a key from whoever can
// read the traffic: beyond this machine it wants TLS.
//
// Each session is one of the shims that also speak over a pair of streams; this
// package writes the lines of those and hands their answers to the requests that
// wait for them.
//
//	gateway.go   configuration, listening, draining     auth.go      keys, 401 and 503, who may ask at all
//	serve.go     one HTTP request                       judge.go     its key, and the session that it belongs to
//	limit.go     how often, how much, how many          conn.go      connections, and which of them make room
//	session.go   one session, from its run to its end   exchange.go  the requests that are open in it
//	lines.go     what its shim writes, and to whom      answer.go    JSON and event streams out
//	message.go   messages, read and written again       daemon.go    the daemon and the shims behind it
package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/proto/agentkey"
	"subjectbroker/worker"
)

// Presented is what the daemon is told of a request beside the key: its route,
// Stateful or Stateless, and names of headers that claimed to say who asks and were
// taken out, from the closed list agentkey.Principals.
type Presented = worker.Presented

// The two ways of using the gateway: with a session that was opened by initialize,
// and without.
const (
	Stateful  = agentkey.Stateful
	Stateless = agentkey.Stateless
)

// Keys is who knows the agent keys. All methods are called concurrently, do not
// keep the key and return *Refused for a key that is not good. Any other error means
// that the key could not be judged, and nobody gets in.
type Keys interface {
	// Open opens a run for whom the key stands for.
	Open(ctx context.Context, key []byte, p Presented) (Run, error)
	// Check judges a key of which no run is wanted.
	Check(ctx context.Context, key []byte, p Presented) error
	// Report tells of a request that was refused for MissingToken or MalformedToken.
	Report(ctx context.Context, reason Reason, p Presented) error
}

// Run is one open run of a key.
type Run interface {
	// KeyID is the key that it was opened with: no secret.
	KeyID() string
	// Authenticate judges the key of a further request of this run: *Refused when it
	// is not good, ErrOtherKey when it is, but is not the one of the run.
	Authenticate(ctx context.Context, key []byte, p Presented) error
	// Over is closed when the run has ended, whoever ended it.
	Over() <-chan struct{}
	// Dismissed says, when it is over, whether the daemon ended it for good: with its
	// key or by a person's word. Else the key may bring another one.
	Dismissed() bool
	// Close ends it.
	Close()
}

// ErrOtherKey says that a key is good, but not the one that a run was opened with.
var ErrOtherKey = errors.New("the run is another key's")

// Config says whom to serve, and with what.
type Config struct {
	// Keys is required.
	Keys Keys
	// Session speaks MCP over a pair of streams, one message a line, until the input
	// ends or ctx does. It gets its runs from open, which returns one that is not
	// taken yet, or an error at once. repeated is what a header says that came with the
	// request of this id to repeat an argument; ok is false in a session, where none
	// does. Required.
	Session func(ctx context.Context, open func(context.Context) (Run, error), repeated Repeated, in io.Reader, out io.Writer) error
	// Up says whether the daemon answers, for /healthz. Nil: always.
	Up func(context.Context) bool
	// Hosts are names, without port, under which the gateway is reached beside those
	// of loopback and the address that it listens on.
	Hosts []string
	// Limits; zero values mean their defaults.
	Limits Limits
	// Log is told, in words for a person, what went wrong inside. Nil: nobody is.
	Log func(text string)
	// Note is told, in words for a person, what looks as if it had to be set up in
	// another way, though nothing went wrong. Nil: nobody is.
	Note func(text string)
}

// Repeated returns the values of a header of the request with this id. ok is false for
// a request that repeats nothing there.
type Repeated func(id []byte, header string) (values []string, ok bool)

// Gateway serves HTTP. See New.
type Gateway struct {
	config Config
	limits Limits
	rates  *rates
	held   atomic.Int64 // bytes of bodies and answers
	hosts  sync.Once    // says that somebody named another one

	mu       sync.Mutex
	sessions map[string]*session // by their id
	shared   map[keyHash]*slot   // those of requests without a session, by key
	perKey   map[keyHash]int     // sessions that are open or about to be, by key
	places   int                 // all of those
	draining bool
	work     sync.WaitGroup // sessions
}

// New returns a gateway that listens to nobody yet.
func New(config Config) (*Gateway, error) {
	switch {
	case config.Keys == nil:
		return nil, errors.New("gateway: Config.Keys is required")
	case config.Session == nil:
		return nil, errors.New("gateway: Config.Session is required")
	}
	if config.Up == nil {
		config.Up = func(context.Context) bool { return true }
	}
	if config.Log == nil {
		config.Log = func(string) {}
	}
	if config.Note == nil {
		config.Note = func(string) {}
	}
	limits := config.Limits.withDefaults()
	return &Gateway{
		config: config, limits: limits, rates: newRates(limits),
		sessions: map[string]*session{}, shared: map[keyHash]*slot{}, perKey: map[keyHash]int{},
	}, nil
}

// Times of one connection.
const (
	idleConnection = 2 * time.Minute
	drainPatience  = 4 * time.Second
	reapEvery      = 5 * time.Second
)

// Serve answers what comes in on the listeners until ctx ends; what is in flight
// then is answered first, in at most five seconds. secure is how it speaks TLS; nil
// means that it does not. It closes the listeners. The error is that of listening.
func (g *Gateway) Serve(ctx context.Context, secure *tls.Config, listeners ...net.Listener) error {
	handler := g.handler(newHosts(g.config.Hosts, listeners))
	reaping, stopReaping := context.WithCancel(context.Background())
	defer stopReaping()
	go g.reap(reaping)
	ended := make(chan error, len(listeners))
	var servers []*http.Server
	for _, l := range listeners {
		// One each: whether a server speaks HTTP/2 is decided by the first listener that it gets.
		server := &http.Server{
			Handler:           handler,
			ConnContext:       withConn,
			ReadHeaderTimeout: g.limits.SlowHeader,
			IdleTimeout:       idleConnection,
			MaxHeaderBytes:    g.limits.Header,
			HTTP2:             g.http2(),
			// OPTIONS * is nothing that we answer either.
			DisableGeneralOptionsHandler: true,
			// The library would write what clients send.
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		}
		servers = append(servers, server)
		guarded := g.rates.listen(l)
		if secure == nil || l.Addr().Network() != "tcp" {
			go func() { ended <- server.Serve(guarded) }()
			continue
		}
		server.TLSConfig = secure
		go func() { ended <- server.ServeTLS(guarded, "", "") }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
		err = fmt.Errorf("listening: %w", err)
	}
	g.drain(servers)
	return err
}

// Bounds of one connection of HTTP/2, whatever its client is.
const (
	streamsOfConnection = 128
	unreadOfConnection  = 256 << 10 // bytes of bodies that nobody has read yet
	frameSize           = 16 << 10  // bytes; the smallest that there may be
)

// http2 is what holds for HTTP/2 alone. The library has no bound on the time for
// headers there, but asks whether a client is there that has sent nothing whole for
// long: one in the middle of its headers cannot answer.
func (g *Gateway) http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          streamsOfConnection,
		MaxReadFrameSize:              frameSize,
		MaxReceiveBufferPerConnection: unreadOfConnection,
		MaxReceiveBufferPerStream:     unreadOfConnection,
		SendPingTimeout:               g.limits.SlowHeader,
		PingTimeout:                   g.limits.SlowHeader,
		WriteByteTimeout:              g.limits.Slow,
	}
}

// drain ends the sessions, which answer what is in flight, then the connections.
func (g *Gateway) drain(servers []*http.Server) {
	g.mu.Lock()
	g.draining = true
	all := g.all()
	g.mu.Unlock()
	for _, s := range all {
		s.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
	defer cancel()
	var ending sync.WaitGroup
	for _, server := range servers {
		ending.Go(func() {
			_ = server.Shutdown(ctx) // who does not take his answer in time loses it
			_ = server.Close()
		})
	}
	ending.Wait()
	gone := make(chan struct{})
	go func() {
		g.work.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}

// all are the open sessions. The caller holds mu.
func (g *Gateway) all() []*session {
	var all []*session
	for _, s := range g.sessions {
		all = append(all, s)
	}
	for _, one := range g.shared {
		if s := one.session; s != nil {
			all = append(all, s)
		}
	}
	return all
}

// reap ends what nobody has used for long.
func (g *Gateway) reap(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			g.mu.Lock()
			all := g.all()
			g.mu.Unlock()
			for _, s := range all {
				if s.idle(now) {
					s.stop()
				}
			}
			g.rates.forget(now)
		}
	}
}
