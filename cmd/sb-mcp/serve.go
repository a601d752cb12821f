package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
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

// ownDescriptors is how many descriptors are needed beside those of clients: for the
// daemon, the listeners and the certificate.
const ownDescriptors = 128

// descriptors is how many this process may have open.
func descriptors() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return math.MaxUint64 // nobody knows of one
	}
	return limit.Cur
}

// connectionsWithin is how many connections there may be within so many descriptors;
// 0: as many as there may be anyway. Whoever could take the last one would cut the
// others off from the daemon.
func connectionsWithin(descriptors uint64) (int, error) {
	switch {
	case descriptors < 2*ownDescriptors:
		return 0, fmt.Errorf("a process may have %d files open here, and a gateway needs %d: see ulimit -n", descriptors, 2*ownDescriptors)
	case descriptors-ownDescriptors < gateway.DefaultConnections:
		return int(descriptors - ownDescriptors), nil
	}
	return 0, nil
}

// serveHTTP is the gateway: many agents over HTTP, each by the key that it presents.
// It ends when ctx does or with a signal, having answered what is in flight.
func serveHTTP(ctx context.Context, config worker.Config, opts options, stderr io.Writer) int {
	debug.SetMemoryLimit(heapAim)
	syscall.Umask(0o077) // a socket is nobody else's from its first moment
	ending := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if opts.tlsCert == "" && !signal.Ignored(syscall.SIGHUP) { // else it asks for the certificate to be read again, or means nothing under nohup
		ending = append(ending, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ending...)
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
		for _, doubt := range secure.doubts(opts.hosts) {
			say("%s", doubt)
		}
		if !opts.check {
			defer secure.watch(ctx, opts.hosts, say)()
		}
	}
	if opts.check {
		if opts.unix != "" {
			if err := checkUnix(opts.unix); err != nil {
				return fail(stderr, wire.ExitFailed, "listening: "+err.Error(), "")
			}
		}
		return wire.ExitDone
	}
	listeners, err := listen(ctx, opts)
	if err != nil {
		return fail(stderr, wire.ExitFailed, "listening: "+err.Error(), "")
	}
	connections, err := connectionsWithin(descriptors())
	if err != nil {
		return fail(stderr, wire.ExitFailed, err.Error(), "")
	}
	behind, hangUp := gateway.Behind(config, opts.serverName, func(reason wire.Reason, text string) {
		if reason != "" {
			text = string(reason) + ": " + text
		}
		say("%s", text)
	})
	defer hangUp()
	behind.Hosts = opts.hosts
	behind.Limits.Connections = connections
	g, err := gateway.New(behind)
	if err != nil {
		return fail(stderr, wire.ExitFailed, err.Error(), "")
	}
	var places []string
	for _, l := range listeners {
		places = append(places, reachedAt(l.Addr(), secure != nil, opts.hosts)...)
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
