// Package host is the sandbox plane: one process that runs one MCP server for
// one subject, or speaks to one over HTTP, and parses what the server says. The
// daemon starts it with a socket of its own and an empty environment, tells it
// what to run, and reads only our own frames from it: see
// proto/subjectbroker/host/v1.
//
// What it protects: the daemon, from everything that a server or a stranger on
// the network writes; the secrets that the server was given, from what is on the
// server's host beside it; and this machine, from what a server leaves behind:
// where the kernel gives namespaces nothing of the server's tree outlives this
// process, however it ends, and the broker's home and sockets are covered.
//
// What it does not do: it judges nothing. It has no right on either socket of the
// broker. A server may still write what its uid may write, and use the network.
package host

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"subjectbroker/mcpshim/stateless"
	"subjectbroker/proto/frame"
	hostv1 "subjectbroker/proto/subjectbroker/host/v1"
)

// controlFD is where the daemon's end is.
const controlFD = 3

// DefaultMaxLine is the longest line or event that is taken from a server, in
// bytes, where the daemon does not say.
const DefaultMaxLine = 64 << 20

// How long a server's tree may take to be there, and then the server to say what it
// offers: some fetch themselves from the network first. Together they are less than
// the minute after which the daemon gives up, so that it hears why.
const (
	startPatience = 10 * time.Second
	greetPatience = 45 * time.Second
)

// relistPause is how long a server's word that its tools are other ones waits after
// the one before: it can say so all the time.
const relistPause = time.Second

// Config says who serves. The zero value is usable.
type Config struct {
	// Version of this program, which the server is told.
	Version string

	alone   bool           // this process is there for nothing else
	roots   *x509.CertPool // nil: the system's
	silence time.Duration  // zero: silencePatience
	rest    time.Duration  // zero: relistPause
}

// Main is `sb-mcp host`: Run on descriptor 3, from the root directory. It returns
// the exit code, and an error for a person where nobody else is told.
func Main(ctx context.Context, config Config) (code int, refused error) {
	file := os.NewFile(controlFD, "control")
	if file == nil {
		return 2, errStarted
	}
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return 2, errStarted
	}
	// What else was inherited is not for the server.
	if err := closeOnExec(); err != nil {
		return 1, fmt.Errorf("closing inherited descriptors: %w", err)
	}
	if err := limitFiles(); err != nil {
		return 1, fmt.Errorf("limiting open files: %w", err)
	}
	if err := os.Chdir("/"); err != nil { // whatever the daemon stands in is no place for a server
		return 1, err
	}
	debug.SetGCPercent(gcPercent)
	config.alone = true
	return Run(ctx, conn, config), nil
}

// gcPercent keeps the heap of a process small that mostly waits.
const gcPercent = 50

var errStarted = errors.New("this is started by sbd only")

// Run does what the daemon says over conn until it says Stop or hangs up, ctx
// ends, or the server is gone; then nothing of the server is left, and conn is
// closed. The result is the exit code: 0 after a Stop or the end of ctx, else 1.
//
// A line, or an event, of up to Start.MaxLine bytes is held once, and of a remote
// server one such at a time beside small ones; answers leave in pieces as they are
// written again. At its largest the process takes about twice MaxLine, and gives it
// back after the line. The arguments of a call are held until the server has read
// them, at most 32 MiB in all.
func Run(ctx context.Context, conn io.ReadWriteCloser, config Config) int {
	defer conn.Close()
	first := &hostv1.HostRequest{}
	unhook := context.AfterFunc(ctx, func() { conn.Close() })
	err := frame.ReadMessage(conn, first)
	if !unhook() || err != nil || first.GetStart() == nil {
		return 1
	}
	h := &host{conn: conn, out: frame.NewWriter(conn), config: config, stops: make(chan time.Duration, 1)}
	return h.serve(ctx, first.GetStart())
}

// host is one server for one subject.
type host struct {
	conn    io.ReadWriteCloser
	out     *frame.Writer
	config  Config
	start   *hostv1.Start
	session atomic.Pointer[session]
	stops   chan time.Duration // the daemon said Stop, with its grace
}

// errHungUp: the daemon is not there any more.
var errHungUp = errors.New("the daemon hung up")

func (h *host) serve(ctx context.Context, start *hostv1.Start) int {
	limit := int(min(start.GetMaxLine(), 1<<30))
	if limit == 0 {
		limit = DefaultMaxLine
	}
	h.start = start
	defer wipe(start)
	way, confinement, err := h.connect(ctx, start, limit)
	if err != nil {
		h.end(ending{why: whyRefused, detail: wordsOf(err), code: -1}, 0)
		return 1
	}
	alive, hangUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer hangUp(nil)
	h.open(way, hangUp)
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		h.read(hangUp)
	}()
	ended, code := h.follow(ctx, alive, way, confinement)
	if p, ok := way.(*process); ok && code != 0 && ctx.Err() == nil && alive.Err() == nil && h.endedAtInitialize(p) {
		ended, code = h.onceMore(ctx, alive, start, limit, hangUp, ended)
	}
	h.session.Load().end()
	h.end(ended, h.session.Load().oddLines())
	h.conn.Close()
	<-reading
	return code
}

// open begins a session over a link.
func (h *host) open(way link, hangUp context.CancelCauseFunc) {
	s := newSession(h.out, way, h.config.Version, hangUp)
	if h.config.silence > 0 {
		s.patience = h.config.silence
	}
	h.session.Store(s)
	way.begin(s)
}

// endedAtInitialize reports whether a server read initialize, and ended without a
// word: it may not know it, and end at what it does not know.
func (h *host) endedAtInitialize(p *process) bool {
	return p.tookAll() && h.session.Load().heardNothing()
}

// onceMore starts a server that ended at initialize again, and greets it in the era
// without sessions. Where that does not help, it ended as it did before.
func (h *host) onceMore(ctx, alive context.Context, start *hostv1.Start, limit int, hangUp context.CancelCauseFunc, before ending) (ended ending, code int) {
	way, confinement, err := h.connect(ctx, start, limit)
	if err != nil {
		return before, 1
	}
	h.open(way, hangUp)
	s := h.session.Load()
	s.newerOnly = true
	s.say("[it ended at initialize, and is started once more without it]")
	ended, code = h.follow(ctx, alive, way, confinement)
	if !s.isModern() && code != 0 {
		return before, code
	}
	return ended, code
}

// wipe forgets the environment, which may hold secrets.
func wipe(start *hostv1.Start) {
	for _, pair := range start.GetEnv() {
		clear(pair)
	}
}

// connect starts the server, or finds the way to it.
func (h *host) connect(ctx context.Context, start *hostv1.Start, limit int) (link, []string, error) {
	switch {
	case start.GetUrl() != "" && len(start.GetCommand()) > 0 || start.GetUrl() == "" && len(start.GetCommand()) == 0:
		return nil, nil, errors.New("a server is either a command or a URL")
	case start.GetUrl() != "":
		way, err := newRemote(start, limit, h.config.roots)
		if err != nil {
			return nil, nil, err
		}
		return way, h.held(nil), nil
	}
	way, confinement, err := startProcess(ctx, start, limit, h.config.alone)
	if err != nil {
		return nil, nil, err
	}
	return way, h.held(confinement), nil
}

// held is what holds for the server, and for this process.
func (h *host) held(confinement []string) []string {
	if undumpable() {
		return append(confinement, "undumpable")
	}
	return confinement
}

// follow greets the server and stays with it to its end.
func (h *host) follow(ctx, alive context.Context, way link, confinement []string) (ended ending, code int) {
	session := h.session.Load()
	greeting, done := context.WithTimeout(alive, greetPatience)
	greeted := make(chan error, 1)
	listing := make(chan struct{})
	serving, unserved := context.WithCancel(alive)
	go func() {
		defer close(listing)
		g, err := h.greet(greeting, session, confinement)
		greeted <- err
		if err != nil {
			return
		}
		var hearing sync.WaitGroup
		defer hearing.Wait()
		if g.tells && g.revision == stateless.Revision {
			hearing.Go(func() { session.listen(serving) })
		}
		h.relist(serving, session, way, g)
	}()
	defer func() {
		done()
		unserved()
		session.end()
		<-listing
	}()
	stopped := ending{why: whyStopped, detail: "the daemon stopped it", code: -1}
	for {
		select {
		case err := <-greeted:
			if err == nil {
				wipe(h.start) // it is not started again
				continue
			}
			select {
			case <-way.gone(): // which says more
				return way.end(false), 1
			default:
			}
			why := whyProtocol
			if _, far := way.(*remote); far && !errors.Is(err, errFailed) {
				why = whyUnreachable
			}
			way.end(true)
			return ending{why: why, detail: err.Error(), code: -1}, 1
		case <-way.gone():
			return way.end(false), 1
		case grace := <-h.stops:
			waiting, cancel := context.WithTimeout(alive, grace)
			go func() {
				select {
				case <-way.gone(): // and answers nothing
					cancel()
				case <-waiting.Done():
				}
			}()
			session.drain(waiting)
			cancel()
			stopped.code = way.end(alive.Err() == nil).code
			return stopped, 0
		case <-ctx.Done():
			stopped.code = way.end(true).code
			return stopped, 0
		case <-alive.Done(): // nobody is left who could be told
			way.end(false)
			return stopped, 1
		}
	}
}

// greet opens the session and tells the daemon what there is.
func (h *host) greet(ctx context.Context, session *session, confinement []string) (greeting, error) {
	g, err := session.greet(ctx)
	if err != nil {
		return g, err
	}
	var tools []*hostv1.Tool
	if g.tools {
		if tools, err = session.list(ctx); err != nil {
			return g, err
		}
	}
	session.tell(&hostv1.HostResponse{Message: &hostv1.HostResponse_Started{Started: &hostv1.Started{Revision: g.revision, Confinement: confinement}}})
	session.listed(tools, g.instructions)
	return g, nil
}

// relist says what there is whenever somebody asks or it changes.
func (h *host) relist(ctx context.Context, session *session, way link, g greeting) {
	var rested <-chan time.Time // nil: it has rested
	for {
		changes := session.relist
		if rested != nil {
			changes = nil
		}
		select {
		case <-changes:
			rested = time.After(cmp.Or(h.config.rest, relistPause))
		case <-session.look:
		case <-rested:
			rested = nil
			continue
		case <-way.gone():
			return
		case <-ctx.Done():
			return
		}
		var tools []*hostv1.Tool
		if g.tools {
			patient, done := context.WithTimeout(ctx, greetPatience)
			var err error
			tools, err = session.list(patient)
			done()
			if err != nil {
				session.say("[its tools could not be listed again: " + err.Error() + "]")
				continue
			}
		}
		session.listed(tools, g.instructions)
	}
}

// read does what the daemon says until it hangs up.
func (h *host) read(hangUp context.CancelCauseFunc) {
	for {
		m := &hostv1.HostRequest{}
		if err := frame.ReadMessage(h.conn, m); err != nil {
			hangUp(errHungUp)
			return
		}
		switch said := m.GetMessage().(type) {
		case *hostv1.HostRequest_Call:
			h.session.Load().call(said.Call)
		case *hostv1.HostRequest_Cancel:
			h.session.Load().cancel(said.Cancel.GetId(), said.Cancel.GetSaid())
		case *hostv1.HostRequest_List:
			soon(h.session.Load().look)
		case *hostv1.HostRequest_Stop:
			select {
			case h.stops <- time.Duration(said.Stop.GetGraceMs()) * time.Millisecond:
			default: // it was said before
			}
		}
	}
}

// end is the last word.
func (h *host) end(e ending, odd int) {
	if odd > 0 {
		e.detail += fmt.Sprintf("; %d lines of what it wrote were no messages", odd)
	}
	// A daemon that is gone needs no last word.
	_ = h.out.Write(&hostv1.HostResponse{Message: &hostv1.HostResponse_Ended{Ended: &hostv1.Ended{Why: e.why, Detail: e.detail, Code: int32(e.code)}}})
}
