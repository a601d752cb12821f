// Package wrap puts one MCP server that the worker plane runs behind the broker:
// it starts the server and passes lines between it and the client, and has the
// daemon judge each call before the server sees it.
//
// It protects whoever is behind the server from an agent that calls what policy
// does not allow, or more often; what is passed on is written again from what was
// judged, so that the server cannot understand something else.
//
// It does not protect against an agent that starts the server itself: a wrapper
// guides, only a hosted server enforces. It gives the server no credential, and
// what the server does with a call that it was passed is not seen.
package wrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"time"

	"subjectbroker/mcpshim"
	"subjectbroker/mcpshim/strict"
	"subjectbroker/proto/quick"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// Longest lines that are read, in bytes, when the configuration does not say.
const (
	DefaultMaxLine       = 10 << 20
	DefaultMaxServerLine = 64 << 20
)

// Config says what to wrap, and for whom.
type Config struct {
	// Worker says which run to keep open.
	Worker worker.Config
	// Server is the name under which policy knows the server. Required.
	Server string
	// Command is the server's program and its arguments. Required.
	Command []string
	// Environ is its whole environment; see Environ.
	Environ []string
	// In and Out are the client's streams, one JSON-RPC message a line. Both are
	// required and stay open.
	In  io.Reader
	Out io.Writer
	// Stderr is the server's. Nil throws away what it says there.
	Stderr *os.File
	// Signals are passed on to the server. Nil: there are none.
	Signals <-chan os.Signal
	// MaxLine and MaxServerLine are the longest lines read from the client and from
	// the server, in bytes. Zero means DefaultMaxLine and DefaultMaxServerLine. Longer
	// ones are thrown away; a server that writes twice as much without an end of the
	// line is ended.
	MaxLine, MaxServerLine int
	// Trouble is told of what a person should know. Nil means that nobody is.
	Trouble func(text string)
}

// Serve starts the server and relays until the client's input ends, the server
// does, or policy ends the session. It returns the server's exit code, 128 and the
// signal's number when a signal ended it, and 1 after policy did. An error means
// that the server was not started.
func Serve(ctx context.Context, config Config) (code int, err error) {
	switch {
	case config.Server == "" || len(config.Command) == 0:
		return wire.ExitUsage, errors.New("wrap: Config.Server and Config.Command are required")
	case config.In == nil || config.Out == nil:
		return wire.ExitUsage, errors.New("wrap: Config.In and Config.Out are required")
	}
	return newSession(config).serve(ctx, config)
}

// serve is the life of a session.
func (s *session) serve(ctx context.Context, config Config) (code int, err error) {
	if s.keeper, err = worker.NewKeeper(config.Worker, s.hear); err != nil {
		return wire.ExitFailed, err
	}
	server, err := start(config)
	if err != nil {
		return wire.ExitFailed, err
	}
	defer server.stdout.Close()
	defer s.trimmer.Stop()
	s.server = newLineWriter(server.stdin)
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	kept, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(kept)
		s.keeper.Keep(working)
	}()
	go s.judgeAll(working)
	go s.passOn(working)
	go s.watchTools(working)
	go func() {
		defer close(read)
		limit := orDefault(config.MaxServerLine, DefaultMaxServerLine)
		s.readServer(working, strict.NewLineReader(&unending{in: quick.Reader(server.stdout), limit: limit, over: func() {
			s.noteDropped()
			s.trouble(fmt.Sprintf("the server was ended: it wrote more than %d bytes without an end of the line", 2*limit))
			server.signal(syscall.SIGKILL)
		}}, limit))
	}()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		s.readClient(working, strict.NewLineReader(config.In, orDefault(config.MaxLine, DefaultMaxLine)))
		s.drain(config.Out)
	}()
	s.watch(ctx, server, config.Signals, answered, read)
	awaitRead(ctx, config.Signals, read)
	s.end(working, serverGone)
	s.goodbye(working, stop, kept)
	if isClosed(s.killed) {
		return wire.ExitFailed, nil
	}
	return server.code, nil
}

// watch waits for the server's end, and sees to it when it is due.
func (s *session) watch(ctx context.Context, server *process, signals <-chan os.Signal, answered, read <-chan struct{}) {
	killed, lost, done := s.killed, s.lost, ctx.Done()
	for {
		select {
		case <-server.exited:
			return
		case <-answered: // and the client says no more
			answered = nil
			server.endAfterInput()
		case <-read: // it says no more; then it is of no use
			read = nil
			s.end(ctx, serverGone)
			server.endAfterInput()
		case <-lost:
			lost = nil
			server.endAfterInput()
		case <-killed:
			killed = nil
			server.end()
		case <-done:
			done = nil
			server.end()
		case received := <-signals:
			signal, ok := received.(syscall.Signal)
			if !ok {
				continue
			}
			server.signal(signal)
			if slices.Contains(ending, signal) {
				server.killAfter(askedGrace)
			}
		}
	}
}

// awaitRead waits until everything that the server wrote has been passed on. A
// client that does not read holds it up, until somebody wants an end.
func awaitRead(ctx context.Context, signals <-chan os.Signal, read <-chan struct{}) {
	for {
		select {
		case <-read:
			return
		case <-ctx.Done():
			return
		case received := <-signals:
			if signal, ok := received.(syscall.Signal); ok && slices.Contains(ending, signal) {
				return
			}
		}
	}
}

// ending are the signals that mean the end.
var ending = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// Waits of the end of a session.
const (
	drainPatience = 10 * time.Minute // for answers, after the client's last line
	goodbyeWait   = time.Second      // for the daemon to hear how the last calls ended
)

// drain waits until everything is answered, or nobody is there to read it.
func (s *session) drain(out io.Writer) {
	giveUp := make(chan struct{})
	defer time.AfterFunc(drainPatience, func() { close(giveUp) }).Stop()
	watching := make(chan struct{})
	defer close(watching)
	if file, ok := out.(*os.File); ok {
		go func() {
			for every := time.NewTicker(time.Second); ; {
				select {
				case <-watching:
					every.Stop()
					return
				case <-every.C:
				}
				if mcpshim.Unread(file) {
					s.lose()
				}
			}
		}()
	}
	s.waitAnswered(giveUp)
}

// goodbye lets the daemon hear how the last calls ended, and ends the run.
func (s *session) goodbye(ctx context.Context, stop func(), kept <-chan struct{}) {
	waiting, cancel := context.WithTimeout(ctx, goodbyeWait)
	defer cancel()
	if s.keeper.Current() != nil && !isClosed(s.killed) {
		if relay, err := s.keeper.Relay(waiting, s.relayTo); err == nil {
			relay.Finish(waiting)
		}
	}
	stop()
	select {
	case <-kept:
	case <-time.After(goodbyeWait):
	}
	s.mu.Lock()
	dropped := s.dropped
	s.mu.Unlock()
	if dropped > 0 {
		s.trouble(fmt.Sprintf("%d lines of the server were dropped: they were no JSON-RPC messages, or answered nothing", dropped))
	}
}

func orDefault(n, standard int) int {
	if n <= 0 {
		return standard
	}
	return n
}
