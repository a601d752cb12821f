package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"subjectbroker/mcpshim"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/client"
)

// What /healthz was told holds for upFor: who asks all the time must not keep the
// daemon busy. A daemon that is not there within upPatience is not there.
const (
	upFor      = time.Second
	upPatience = 2 * time.Second
)

// maxLine is the longest line that a shim is sent, in bytes. A message is written
// again for it, and may be longer then.
const maxLine = 2 * mcpshim.DefaultMaxLine

// Behind returns the configuration of a gateway in front of the daemon that config
// names: its keys are the daemon's, and each session is one of our shims, with runs
// of its key. Of config it uses Places, Version and Dial. trouble is told once for
// each reason, in words for a person, why nobody could be asked, and without a reason
// what only looks as if it had to be set up in another way; nil means that nobody is. close ends every connection to the daemon.
func Behind(config worker.Config, serverName string, trouble func(reason wire.Reason, text string)) (made Config, close func()) {
	b := &behind{config: config, keys: worker.NewKeys(config), name: serverName, trouble: trouble, told: map[wire.Reason]bool{}}
	return Config{
		Keys: b, Session: b.session, Up: b.up,
		Log:  func(text string) { b.tell(wire.InternalError, text) },
		Note: func(text string) { b.tell("", text) },
	}, b.keys.Close
}

type behind struct {
	config  worker.Config
	keys    *worker.Keys
	name    string
	trouble func(wire.Reason, string)

	mu   sync.Mutex
	told map[wire.Reason]bool

	asking  sync.Mutex // who asks whether the daemon is there
	asked   time.Time
	present bool
}

// tell tells a person of a reason, once.
func (b *behind) tell(reason wire.Reason, text string) {
	if b.trouble == nil {
		return
	}
	b.mu.Lock()
	told := b.told[reason]
	b.told[reason] = true
	b.mu.Unlock()
	if !told {
		b.trouble(reason, text)
	}
}

// judged is the daemon's word on a key as this package has it.
func (b *behind) judged(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	typed := wire.FromError(err)
	switch {
	case typed.Auth != "":
		return &Refused{typed.Auth}
	case ctx.Err() == nil && typed.Reason != wire.RateLimited: // who has gone away is no trouble
		b.tell(typed.Reason, typed.Message)
	}
	return typed
}

// Open implements Keys. Keys are copied: what is sent is wiped.
func (b *behind) Open(ctx context.Context, key []byte, p Presented) (Run, error) {
	run, err := b.keys.Open(ctx, bytes.Clone(key), p)
	if err != nil {
		return nil, b.judged(ctx, err)
	}
	return &keyedRun{run, b}, nil
}

// Check implements Keys.
func (b *behind) Check(ctx context.Context, key []byte, p Presented) error {
	return b.judged(ctx, b.keys.Check(ctx, bytes.Clone(key), p))
}

// Report implements Keys.
func (b *behind) Report(ctx context.Context, reason Reason, p Presented) error {
	return b.judged(ctx, b.keys.Report(ctx, reason, p))
}

// keyedRun is a run of the daemon's.
type keyedRun struct {
	*worker.Run
	b *behind
}

// KeyID implements Run.
func (r *keyedRun) KeyID() string { return r.Run.KeyID }

// Authenticate implements Run.
func (r *keyedRun) Authenticate(ctx context.Context, key []byte, p Presented) error {
	err := r.Run.Authenticate(ctx, bytes.Clone(key), p)
	if err != nil && wire.FromError(err).Reason == wire.RunEnded {
		return ErrOtherKey
	}
	if err != nil && isOver(r) { // its connection may have gone with it, which is no trouble
		return wire.FromError(err)
	}
	return r.b.judged(ctx, err)
}

// session is one shim. The first run is there already, and says whom it is for.
func (b *behind) session(ctx context.Context, open func(context.Context) (Run, error), repeated Repeated, in io.Reader, out io.Writer) error {
	next := func(ctx context.Context) (*worker.Run, error) {
		run, err := open(ctx)
		if err != nil {
			return nil, err
		}
		keyed, ok := run.(*keyedRun)
		if !ok {
			return nil, errors.New("a run of somebody else")
		}
		return keyed.Run, nil
	}
	run, err := next(ctx)
	if err != nil {
		return err
	}
	var first atomic.Pointer[worker.Run]
	first.Store(run)
	return mcpshim.Serve(ctx, mcpshim.Config{
		Worker: worker.Config{
			Subject: run.Subject, Version: b.config.Version,
			Dial: func(context.Context) (*grpc.ClientConn, error) { return nil, wire.Deny(wire.BrokerUnavailable) }, // never without a key
			Open: func(ctx context.Context) (*worker.Run, error) {
				if run := first.Swap(nil); run != nil {
					return run, nil
				}
				return next(ctx)
			},
		},
		ServerName: b.name, In: in, Out: out, MaxLine: maxLine, Shared: true, Repeated: repeated,
		Trouble: func(reason wire.Reason, text string) {
			if reason != wire.BrokerUnavailable { // its run is over; requests say why there is no other
				b.tell(reason, text)
			}
		},
	})
}

// up says whether the daemon answers.
func (b *behind) up(ctx context.Context) bool {
	b.asking.Lock()
	defer b.asking.Unlock()
	if time.Since(b.asked) < upFor {
		return b.present
	}
	dial := b.config.Dial
	if dial == nil {
		dial = func(ctx context.Context) (*grpc.ClientConn, error) { return client.Broker(ctx, b.config.Places) }
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), upPatience) // others wait for the answer
	defer cancel()
	conn, err := dial(ctx)
	if err == nil {
		conn.Close()
	}
	b.asked, b.present = time.Now(), err == nil
	return b.present
}
