package daemontest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"subjectbroker/daemon"
	"subjectbroker/proto/wire"
)

// Version is what daemons started by Start call themselves.
const Version = "test"

// inside is a daemon in this process.
type inside struct {
	d      *Daemon
	cancel context.CancelFunc
	hup    chan os.Signal
	done   chan struct{}
	err    error // set before done is closed
}

func startInside(d *Daemon) engine {
	d.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e := &inside{d: d, cancel: cancel, hup: make(chan os.Signal, 1), done: make(chan struct{})}
	ready := make(chan struct{})
	keychild := d.options.Keychild
	if keychild == "" {
		keychild = "/nonexistent/sbd"
	}
	config := daemon.Config{
		Home: d.Home, SocketDir: d.options.SocketDir, KeySource: d.options.KeySource, WaitKey: d.options.WaitKey,
		Self: keychild, KeychildArg: "keysource-child", Version: Version, HostProgram: d.options.HostProgram,
		Logger: slog.New(slog.NewJSONHandler(d.messages, nil)), Now: d.options.Now, Boot: d.options.Boot,
		ApprovalWait: d.options.ApprovalWait, AuditWait: cmp.Or(d.options.AuditWait, Patience), Ready: func() { close(ready) },
	}
	alive.Add(1)
	go func() {
		defer close(e.done)
		defer alive.Add(-1)
		e.err = daemon.Run(ctx, config, e.hup)
	}()
	select {
	case <-ready:
	case <-e.done:
		cancel()
		d.t.Fatalf("starting: %v", e.err)
	case <-time.After(Patience):
		cancel()
		d.t.Fatal("starting: the daemon does not get ready")
	}
	return e
}

func (e *inside) stop() int {
	e.cancel()
	<-e.done
	e.d.leaks()
	return e.code()
}

func (e *inside) kill() { e.d.t.Fatal("only a daemon of its own process can be killed: use Launch") }

func (e *inside) ended() <-chan struct{} { return e.done }

func (e *inside) code() int {
	if e.err == nil {
		return wire.ExitDone
	}
	if f, ok := errors.AsType[*daemon.Fault](e.err); ok {
		return wire.Exit(f.Code)
	}
	return wire.ExitFailed
}

func (e *inside) fault() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// alive counts the daemons that run in this process: while another one does,
// nobody can tell whose a goroutine is.
var alive atomic.Int32

// leaks fails the test when goroutines of the daemon go on after it has ended.
// Those that are on their way out get the time to go.
func (d *Daemon) leaks() {
	d.t.Helper()
	var left []string
	for pause := time.Millisecond; pause < Patience/2; pause *= 2 {
		left = goroutines("subjectbroker/daemon.", "grpc.(*Server)", "subjectbroker/audit.", "subjectbroker/vault.")
		if len(left) == 0 || alive.Load() > 0 {
			return
		}
		time.Sleep(pause)
	}
	d.t.Errorf("%d goroutines are left after the stop:\n%s", len(left), strings.Join(left, "\n\n"))
}

// goroutines returns the stacks that mention any of the words.
func goroutines(words ...string) []string {
	buffer := make([]byte, 1<<20)
	buffer = buffer[:runtime.Stack(buffer, true)]
	return slices.DeleteFunc(strings.Split(string(buffer), "\n\n"), func(stack string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return strings.Contains(stack, word) })
	})
}
