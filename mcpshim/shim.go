// Package mcpshim speaks MCP for exactly one subject, on top of worker.
//
// It protects an agent from its own client: whatever line comes in, the session
// goes on, every call is answered, and an id comes back as it was sent. It
// keeps a denial a plain result that tells nothing, and says nothing to the
// agent that the agent could run.
//
// It does not protect content: what the daemon released is given to the agent,
// and whoever can write to this process's input is the subject. It decides
// nothing; the daemon does.
package mcpshim

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// DefaultServerName is the MCP serverInfo.name when none is given.
const DefaultServerName = "subject-broker"

// A stop waits drainPatience for the daemon's answers, then drainRest for the
// client to read ours, then keeperRest for the daemon to hear that the run ends.
const (
	drainPatience = 3 * time.Second
	drainRest     = 750 * time.Millisecond
	keeperRest    = 750 * time.Millisecond
)

// askPatience is how long the start waits until the daemon was asked for a run, so that
// it does the rest while the daemon works. Where nobody listens it does not wait.
const askPatience = 20 * time.Millisecond

// A document of at least largeContent bytes leaves a heap behind that nobody
// needs while the agent thinks; trimAfter of quiet it is given back.
const (
	largeContent = 64 << 10
	trimAfter    = time.Second
)

// maxContents is how many documents are on their way to the client at once.
const maxContents = 16

// Config says whom to speak for, and over what.
type Config struct {
	// Worker says which run to keep open. Worker.Subject is the subject that
	// the texts name; Worker.Version is the version that the client sees.
	Worker worker.Config
	// ServerName is the MCP serverInfo.name. Empty means DefaultServerName.
	ServerName string
	// In and Out are the client's streams, one JSON-RPC message a line. Both
	// are required and stay open.
	In  io.Reader
	Out io.Writer
	// MaxLine is the longest line read, in bytes. Zero means DefaultMaxLine.
	MaxLine int
	// Shared says that this is one of many sessions of a process, which must not have
	// the memory of all given back for each.
	Shared bool
	// Repeated is what a header says, each value of it, that came with the request of
	// this id to repeat an argument. ok is false where none does: over streams, and in
	// sessions. Nil: nowhere.
	Repeated func(id []byte, header string) (values []string, ok bool)
	// Trouble is told, once for each reason, why no run could be opened, and of
	// what went wrong inside. Nil means nobody is. The text is for a person.
	Trouble func(reason wire.Reason, text string)
}

// Serve answers the client until its input ends or ctx does; both ways it
// answers what is in flight first, in at most five seconds after ctx ended. The
// error, if any, is that of writing to the client.
func Serve(ctx context.Context, config Config) error {
	s, err := newShim(config)
	if err != nil {
		return err
	}
	return s.serve(ctx, newStdio(config.In, config.Out, config.MaxLine, s.tickets))
}

// shim is one session of one subject.
type shim struct {
	claimed  string // the subject that the configuration names; see bound
	version  string
	shared   bool
	server   *mcp.Server
	own      []tool // our tools
	hosted   *hosted
	keeper   *worker.Keeper
	tickets  *tickets
	repeated func(id []byte, header string) (values []string, ok bool)
	contents chan struct{} // one token for each document on its way
	trimmer  *time.Timer
	trouble  func(wire.Reason, string)

	// hurry ends when what is in flight must be answered now.
	hurry context.Context
	rush  context.CancelFunc

	out io.Writer // the client's

	greeted atomic.Bool // the client can be told of changes

	mu         sync.Mutex
	told       map[wire.Reason]bool
	subscribed map[string]int // by URI
}

func newShim(config Config) (*shim, error) {
	if config.In == nil || config.Out == nil {
		return nil, errors.New("mcpshim: Config.In and Config.Out are required")
	}
	name := config.ServerName
	if name == "" {
		name = DefaultServerName
	}
	s := &shim{
		claimed: config.Worker.Subject, version: config.Worker.Version, shared: config.Shared, tickets: newTickets(),
		contents: make(chan struct{}, maxContents), trouble: config.Trouble, repeated: config.Repeated, out: config.Out,
		told: map[wire.Reason]bool{}, subscribed: map[string]int{},
	}
	if s.trouble == nil {
		s.trouble = func(wire.Reason, string) {}
	}
	if s.repeated == nil {
		s.repeated = func([]byte, string) ([]string, bool) { return nil, false }
	}
	s.hosted = newHosted(s)
	s.hurry, s.rush = context.WithCancel(context.Background())
	var err error
	if s.keeper, err = worker.NewKeeper(config.Worker, s.hear); err != nil {
		return nil, err
	}
	s.server = mcp.NewServer(&mcp.Implementation{Name: name, Version: s.version}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: true}, Resources: &mcp.ResourceCapabilities{ListChanged: true}},
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.CacheScope, c.TTLMs = "private", 0 // what one subject sees is nobody else's
		},
		SubscribeHandler:   s.subscribe,
		UnsubscribeHandler: s.unsubscribe,
	})
	s.own = s.tools()
	return s, nil
}

// register tells the SDK what there is.
func (s *shim) register() {
	for _, t := range s.own {
		runtime.Gosched() // whoever has something for the daemon goes first
		s.server.AddTool(t.describe(s.claimed), s.envelope(t))
	}
	s.touch()
	s.server.AddReceivingMiddleware(s.guard)
}

// bound is the subject that this session is bound to: the daemon's word, which
// inside a launch need not be what the configuration claims, and the claim as
// long as no run was opened.
func (s *shim) bound() string {
	if run := s.keeper.Current(); run != nil {
		return run.Subject
	}
	return s.claimed
}

// serve runs the session and, beside it, the keeper of the run. That comes first: what
// the client hears first has to wait for the daemon.
func (s *shim) serve(ctx context.Context, transport *stdio) error {
	s.trimmer = time.AfterFunc(trimAfter, s.trim) // the start leaves something behind too
	defer s.trimmer.Stop()
	keeping, stopKeeping := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	looking, enough := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looking)
		s.hosted.keep(keeping, enough)
	}()
	go func() {
		defer close(kept)
		defer func() { <-looking }()
		s.keeper.Keep(keeping)
	}()
	select {
	case <-s.keeper.Asking():
	case <-time.After(askPatience):
	}
	s.register()
	transport.divert = s.hosted.divert
	session, err := s.server.Connect(context.WithoutCancel(ctx), transport, nil)
	if err != nil {
		stopKeeping()
		<-kept
		return err
	}
	go s.abandon(transport, s.out, keeping.Done())
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		transport.stop()
		err = s.drain(transport, ended)
	}
	// What is asked for behind the end of the run is a denial: nothing is asked for any
	// more, and what was has its answer, before the run ends.
	close(enough)
	select {
	case <-looking:
	case <-time.After(keeperRest):
	}
	stopKeeping()
	select {
	case <-kept:
	case <-time.After(keeperRest): // it may be telling something to a client that does not read
	}
	if writeErr := transport.writeError(); writeErr != nil {
		return writeErr
	}
	return err
}

// drain waits for the answers that are on their way, a while for the daemon's
// and a moment more for ours.
func (s *shim) drain(transport *stdio, ended <-chan error) error {
	for _, step := range []struct {
		patience time.Duration
		then     func()
	}{
		{drainPatience, s.rush},
		{drainRest, transport.close},
	} {
		timer := time.NewTimer(step.patience)
		select {
		case err := <-ended:
			timer.Stop()
			return err
		case <-timer.C:
			step.then()
		}
	}
	return nil // the client does not read; nothing more can be done for it
}

// touchTools registers a tool of ours once more, which the SDK takes for a change
// of the list: see touch.
func (s *shim) touchTools() {
	s.server.AddTool(s.own[0].describe(s.claimed), s.envelope(s.own[0]))
}

// trim gives back the memory that is not in use, the libraries' pools included:
// those survive one collection.
func (s *shim) trim() {
	if s.shared {
		return
	}
	runtime.GC()
	debug.FreeOSMemory()
}

// hear is told what happens to the run, one event after the other.
func (s *shim) hear(event worker.Event) {
	if event.Kind == worker.ServersChanged || event.Kind == worker.Watching && event.Again {
		s.hosted.look(true)
	}
	switch {
	case event.Err != nil:
		s.once(event.Err.Reason, event.Err.Message)
	case !s.greeted.Load():
	case event.Kind == worker.ListChanged, event.Kind == worker.Watching && event.Again:
		s.touch()
	case event.Kind == worker.ResourceUpdated:
		_ = s.server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: resourceURI(event.Resource)})
	}
}

// once tells a person of a reason the first time that it comes up.
func (s *shim) once(reason wire.Reason, text string) {
	s.mu.Lock()
	told := s.told[reason]
	s.told[reason] = true
	s.mu.Unlock()
	if !told {
		s.trouble(reason, text)
	}
}
