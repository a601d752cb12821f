// Command sbd is SubjectBroker's daemon: it alone holds the root key, opens the
// vault, judges requests and writes the audit log. See usage.go for its manual.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"subjectbroker/daemon"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
)

// version is set by the linker.
var version = "dev"

// stopDeadline is when a stop that hangs is cut short: whatever start-up is
// blocked in, SIGTERM ends the process within 5 s.
const stopDeadline = 4500 * time.Millisecond

// keychild is the hidden first argument of the key-source child.
const keychild = "keysource-child"

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == keychild {
		return daemon.Keychild(stdin, stdout)
	}
	if environ, changed := daemon.CleanEnv(os.Environ()); changed {
		return flags{}.failed(stderr, fmt.Errorf("starting again with a clean environment: %w", daemon.Reexec(environ)))
	}
	if err := daemon.Harden(); err != nil {
		return flags{}.failed(stderr, err)
	}
	if err := daemon.CheckEnv(os.Environ()); err != nil {
		return flags{}.failed(stderr, err)
	}
	f, err := parse(args)
	switch {
	case err != nil:
		return misused(stderr, err)
	case f.help:
		fmt.Fprint(stdout, usage)
		return wire.ExitDone
	case f.version:
		fmt.Fprintf(stdout, "sbd %s (%s)\n", version, goVersion())
		return wire.ExitDone
	case f.verb != "":
		return offline(ctx, f, stdout, stderr)
	}
	return serve(ctx, f, stderr)
}

func serve(ctx context.Context, f flags, stderr io.Writer) int {
	daemon.KeepInherited()
	logs := &switchingHandler{}
	cfg, err := f.config(slog.New(logs))
	if err != nil {
		return f.failed(stderr, err)
	}
	cfg.UseLogFormat = func(format string) { logs.use(handler(format, stderr)) }
	cfg.UseLogFormat(f.logFormat)

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	deadline := func(reason error) {
		time.AfterFunc(stopDeadline, func() {
			if reason != nil {
				os.Exit(f.failed(stderr, reason))
			}
			os.Exit(wire.ExitDone)
		})
	}
	disarm := context.AfterFunc(ctx, func() { deadline(nil) })
	defer disarm()
	cfg.Stopping = deadline
	rotate := make(chan os.Signal, 1)
	signal.Notify(rotate, syscall.SIGHUP)
	defer signal.Stop(rotate)
	signal.Ignore(syscall.SIGPIPE)

	err = daemon.Run(ctx, cfg, rotate)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return wire.ExitDone // stopped while it was starting
	}
	if err != nil {
		return f.failed(stderr, err)
	}
	return wire.ExitDone
}

// handler is text for a terminal and JSON for everything else, unless told.
func handler(format string, stderr io.Writer) slog.Handler {
	if format == "" {
		format = "json"
		if terminal.Is(stderr) {
			format = "text"
		}
	}
	if format == "text" {
		return slog.NewTextHandler(stderr, nil)
	}
	return slog.NewJSONHandler(stderr, nil)
}

// failed prints one line, and a hint where there is one, and returns the exit
// code that belongs to it.
func (f flags) failed(stderr io.Writer, err error) int {
	line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "sbd: %s\n", line)
	fault, ok := errors.AsType[*daemon.Fault](err)
	if !ok {
		return wire.ExitFailed
	}
	if hint := f.hint(fault); hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", hint)
	}
	return wire.Exit(fault.Code)
}

// hint is a command that mends a fault, or says more; empty: there is none.
func (f flags) hint(fault *daemon.Fault) string {
	hint := fault.Hint
	switch {
	case hint != "":
	case f.expect != "": // what is expected need not be in the home at all
	case fault.Code == wire.AlreadyRunning:
		hint = "sbctl status"
	case fault.Code == wire.RollbackDetected, fault.Code == wire.AuditDamaged:
		hint = "sbd recover"
	}
	if hint != "" && f.home != "" {
		hint += " --home " + f.home
	}
	return hint
}

func misused(stderr io.Writer, err error) int {
	fmt.Fprintf(stderr, "sbd: reading the command line: %v\nhint: sbd --help\n", err)
	return wire.ExitUsage
}

// goVersion is what the program was built with.
func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "no build information"
}
