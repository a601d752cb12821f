package main

import (
	"context"
	"io"
	"os/signal"
	"runtime/debug"
	"syscall"

	"subjectbroker/mcpshim/host"
)

// hostServer runs one server for the daemon, which started this process for it.
func hostServer(ctx context.Context, stderr io.Writer) int {
	debug.SetGCPercent(gcPercent)
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	code, refused := host.Main(ctx, host.Config{Version: version})
	if refused != nil {
		return fail(stderr, code, "host: "+refused.Error(), "")
	}
	return code
}
