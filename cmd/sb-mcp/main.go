// Command sb-mcp is the worker plane's shim: an agent's configuration starts
// one for each subject, and it speaks MCP to the agent and a small gRPC
// contract to the daemon. It holds no key and no secret, and decides nothing.
// With serve it is a gateway instead: one process for many agents, over HTTP.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"subjectbroker/mcpshim"
	"subjectbroker/proto/place"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
	"subjectbroker/worker/client"
	"subjectbroker/worker/launch"
)

// A process that is started once for each subject and mostly waits should be
// small: a little heap (a document in flight is allocated and gone) and one
// processor, so that a call passes from one goroutine to the next without
// waking threads.
// The heap is small from when the agent has its first answer: what the start leaves
// behind would be collected while it waits for that.
const (
	gcPercent  = 50
	settled    = time.Second
	processors = 1
)

func main() {
	// As the first process of the tree that a hosted server runs in, this program is
	// nothing else.
	if handled, code := launch.Main(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program but for the process: arguments and streams in, exit code out.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if err := worker.Harden(); err != nil {
		return fail(stderr, wire.ExitFailed, err.Error(), "")
	}
	opts, err := parse(args)
	if err != nil {
		return fail(stderr, wire.ExitUsage, err.Error(), helpOf(opts.command))
	}
	switch {
	case opts.help:
		fmt.Fprint(stdout, manualOf(opts.command))
		return wire.ExitDone
	case opts.version:
		fmt.Fprintln(stdout, "sb-mcp", versionLine())
		return wire.ExitDone
	case opts.command == commandHost:
		return hostServer(ctx, stderr)
	}
	places, err := client.ResolvePlaces(opts.home, opts.socket)
	if err == nil {
		err = place.CheckSocketPath(place.BrokerSocket(places.SocketDir))
	}
	if err != nil {
		return fail(stderr, wire.ExitUsage, err.Error(), "")
	}
	config := worker.Config{Places: places, Subject: opts.subject, Profile: opts.profile, Version: version}
	switch opts.command {
	case commandCheck:
		return check(ctx, config, stdout, stderr)
	case commandCan:
		return can(ctx, config, opts.capability, stdout, stderr)
	case commandWrap:
		return wrapServer(ctx, config, opts, stdin, stdout, stderr)
	case commandServe:
		return serveHTTP(ctx, config, opts, stderr)
	}
	return serve(ctx, config, opts.serverName, stdin, stdout, stderr)
}

// serve speaks MCP until the input ends or a signal comes; both are a good end.
func serve(ctx context.Context, config worker.Config, name string, stdin io.Reader, stdout, stderr io.Writer) int {
	defer time.AfterFunc(settled, func() { debug.SetGCPercent(gcPercent) }).Stop()
	runtime.GOMAXPROCS(processors)
	stdin, restore := waiting(stdin)
	defer restore()
	stdout, restoreOut := ready(stdout)
	defer restoreOut()
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a client that has gone is an error of write, not the end of us in the middle
	err := mcpshim.Serve(ctx, mcpshim.Config{
		Worker: config, ServerName: name, In: stdin, Out: stdout,
		Trouble: func(reason wire.Reason, text string) {
			fmt.Fprintf(stderr, "sb-mcp: %s: %s\n", reason, oneLine(text))
		},
	})
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		return fail(stderr, wire.ExitFailed, "serving: "+err.Error(), "")
	}
	return wire.ExitDone
}

// fail prints one line and, where there is one, a command that helps.
func fail(stderr io.Writer, code int, text, hint string) int {
	fmt.Fprintf(stderr, "sb-mcp: %s\n", oneLine(text))
	if hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return code
}

// oneLine keeps a line a line, whatever a path or a flag's value holds.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}
