package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"subjectbroker/mcpshim/gateway"
	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// heapAim is what the collector works harder for, in bytes: one process has the
// documents of many agents on their way, and keeps none.
const heapAim = 512 << 20

// serveHTTP is the gateway: many agents over HTTP, each by the key that it presents.
// It ends when ctx does or with SIGTERM, having answered what is in flight.
func serveHTTP(ctx context.Context, config worker.Config, opts options, stderr io.Writer) int {
	debug.SetMemoryLimit(heapAim)
	syscall.Umask(0o077) // a socket is nobody else's from its first moment
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a log that nobody reads any more is not the end of us
	say := func(format string, args ...any) {
		fmt.Fprintf(stderr, "sb-mcp: %s\n", oneLine(fmt.Sprintf(format, args...)))
	}
	var secure *certificates
	if opts.tlsCert != "" {
		var err error
		if secure, err = loadCertificates(opts.tlsCert, opts.tlsKey); err != nil {
			return fail(stderr, wire.ExitFailed, "loading the certificate: "+err.Error(), "")
		}
		if !opts.check {
			defer secure.watch(ctx, say)()
		}
	}
	if opts.check {
		return wire.ExitDone
	}
	listeners, err := listen(ctx, opts)
	if err != nil {
		return fail(stderr, wire.ExitFailed, "listening: "+err.Error(), "")
	}
	behind, hangUp := gateway.Behind(config, opts.serverName, func(reason wire.Reason, text string) { say("%s: %s", reason, text) })
	defer hangUp()
	behind.Hosts = opts.hosts
	g, err := gateway.New(behind)
	if err != nil {
		return fail(stderr, wire.ExitFailed, err.Error(), "")
	}
	var places []string
	for _, l := range listeners {
		switch {
		case l.Addr().Network() == "unix":
			places = append(places, "unix:"+l.Addr().String())
		case secure != nil:
			places = append(places, "https://"+l.Addr().String()+"/mcp")
		default:
			places = append(places, "http://"+l.Addr().String()+"/mcp")
		}
	}
	say("listening at %s", strings.Join(places, " and "))
	go func() {
		<-ctx.Done()
		stop() // the next signal ends us at once
	}()
	if err := g.Serve(ctx, secure.config(), listeners...); err != nil {
		return fail(stderr, wire.ExitFailed, err.Error(), "")
	}
	return wire.ExitDone
}
