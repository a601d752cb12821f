// Package worker is the worker plane's side of the broker socket: it opens a
// run for one subject, asks under it, and keeps one open as long as it is
// wanted.
//
// It protects nothing by itself: who may have what is decided by the daemon,
// and the subject that is named here is a claim. What it promises is to add
// nothing to what a subject can do: no key, no secret and no content is kept,
// and nothing from the environment can make the libraries below write what
// crosses the socket anywhere.
//
// A run is bound to its connection and dies with it. After a reconnect there is
// another run; nothing is carried over.
package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

// Config says which run to open, and where.
type Config struct {
	// Places is where the daemon is expected. Unused when Dial is set.
	Places client.Places
	// Subject is claimed for the run. Required; with Open it is whom the runs are of.
	Subject string
	// Profile to run under; empty means none, or, inside a launch, the launch's.
	Profile string
	// Version of this program, for the daemon's status and log. Sent are the
	// first 64 bytes of what is printable ASCII in it.
	Version string
	// Dial makes one connection for one run. Nil means client.Broker(Places).
	Dial func(context.Context) (*grpc.ClientConn, error)
	// Open gets a keeper its runs in place of a connection for each. Nil means Open.
	Open func(context.Context) (*Run, error)
}

func (c Config) check() error {
	if c.Subject == "" {
		return errors.New("worker: Config.Subject is required")
	}
	return nil
}

func (c Config) dial(ctx context.Context) (*grpc.ClientConn, error) {
	if c.Dial != nil {
		return c.Dial(ctx)
	}
	return client.Broker(ctx, c.Places)
}

// open opens the next run of a keeper. asks is called when nothing but the daemon's
// answer is missing.
func (c Config) open(ctx context.Context, asks func()) (*Run, error) {
	if c.Open != nil {
		asks()
		return c.Open(ctx)
	}
	return openRun(ctx, c, asks)
}

// maxVersion is the longest version that the daemon takes, in bytes.
const maxVersion = 64

// plainVersion is the version as the contract allows it.
func (c Config) plainVersion() string {
	plain := strings.Map(func(r rune) rune {
		if r < 0x20 || r > 0x7e {
			return -1
		}
		return r
	}, c.Version)
	return plain[:min(len(plain), maxVersion)]
}

// otherAPI is the error for a daemon that speaks another API number than this
// program does.
func otherAPI(theirs uint32) *wire.Error {
	who := "this program: the agent that started it must be restarted"
	if theirs < wire.MinAPI {
		who = "the daemon: it must be restarted"
	}
	return &wire.Error{
		Reason:  wire.PlatformUnsupported,
		Message: fmt.Sprintf("the daemon speaks API %d, this program %d to %d; the older one is %s", theirs, wire.MinAPI, wire.API, who),
	}
}
