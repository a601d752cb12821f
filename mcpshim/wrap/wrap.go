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
	"io"
	"os"

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
	// the server, in bytes. Zero means DefaultMaxLine and DefaultMaxServerLine.
	MaxLine, MaxServerLine int
	// Trouble is told of what a person should know. Nil means that nobody is.
	Trouble func(text string)
}

// Serve starts the server and relays until the client's input ends, the server
// does, or policy ends the session. It returns the server's exit code, 128 and the
// signal's number when a signal ended it, and 1 after policy did. An error means
// that the server was not started.
func Serve(ctx context.Context, config Config) (code int, err error) {
	return wire.ExitFailed, errors.New("not here yet")
}
