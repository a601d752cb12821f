package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"subjectbroker/mcpshim/wrap"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// wrapServer runs the server behind the broker. The exit code is the server's.
func wrapServer(ctx context.Context, config worker.Config, opts options, stdin io.Reader, stdout, stderr io.Writer) int {
	debug.SetGCPercent(gcPercent)
	runtime.GOMAXPROCS(processors)
	stdin, restore := waiting(stdin)
	defer restore()
	stdout, restoreOut := ready(stdout)
	defer restoreOut()
	// Signals are caught, none is ignored: what is ignored stays so in the server.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	broken := make(chan os.Signal, 1) // a client that has gone is an error of write
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	errors, _ := stderr.(*os.File)
	code, err := wrap.Serve(ctx, wrap.Config{
		Worker: config, Server: opts.server, Command: opts.program, Environ: wrap.Environ(os.Environ(), opts.env),
		In: stdin, Out: stdout, Stderr: errors, Signals: signals, MaxLine: opts.maxLine, MaxServerLine: opts.maxServerLine,
		Trouble: func(text string) { fmt.Fprintf(stderr, "sb-mcp: %s\n", oneLine(text)) },
	})
	if err != nil {
		return fail(stderr, wire.ExitFailed, "starting the server: "+err.Error(), "")
	}
	return code
}
