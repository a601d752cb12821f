// Command sbctl is the operator's command: it puts content into the broker,
// says who may have it, and shows what happened.
//
// It holds nothing: no key, no content longer than one command, no session.
// Everything it knows it asks from sbd over the operator socket, after it has
// made sure who answers. It reads audit log files itself only to verify them,
// with code that shares nothing with the writer.
//
// It does not decide anything. A hostile process of the same uid can do all
// that sbctl can.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/worker"
	"subjectbroker/worker/launch"
)

// version is set by the linker.
var version = "dev"

func main() {
	// As the first process of a launch this program is nothing else.
	if handled, code := launch.Main(os.Args); handled {
		os.Exit(code)
	}
	// Debugging switches of the libraries below us print what crosses the socket.
	if err := worker.Harden(); err != nil {
		os.Exit(report(os.Stderr, ui.Table, err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends even what cannot be cancelled
	a := newApp(os.Stdin, os.Stdout, os.Stderr)
	code := a.run(ctx, os.Args[1:])
	stop()
	a.die()
	os.Exit(code)
}
