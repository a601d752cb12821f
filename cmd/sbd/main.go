// Command sbd is SubjectBroker's daemon: it alone holds the root key, opens the
// vault, judges requests and writes the audit log. See usage.go for its manual.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"subjectbroker/daemon"
	"subjectbroker/proto/place"
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
		return failed(stderr, fmt.Errorf("starting again with a clean environment: %w", daemon.Reexec(environ)))
	}
	if err := daemon.Harden(); err != nil {
		return failed(stderr, err)
	}
	if err := daemon.CheckEnv(os.Environ()); err != nil {
		return failed(stderr, err)
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
	case f.verb == "check":
		return check(ctx, f, stdout, stderr)
	}
	return serve(ctx, f, stderr)
}

// flags are the command line. Flags may stand before and after the verb.
type flags struct {
	verb                                  string // empty: serve
	home, socketDir, keySource, logFormat string
	waitKey, version, help                bool
}

// servingOnly are the flags that mean nothing to check.
var servingOnly = []string{"socket-dir", "key-source", "log", "wait-key"}

func parse(args []string) (flags, error) {
	var f flags
	set := flag.NewFlagSet("sbd", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.home, "home", "", "")
	set.BoolVar(&f.version, "version", false, "")
	set.BoolVar(&f.help, "help", false, "")
	set.BoolVar(&f.help, "h", false, "")
	set.StringVar(&f.socketDir, "socket-dir", "", "")
	set.StringVar(&f.keySource, "key-source", "", "")
	set.StringVar(&f.logFormat, "log", "", "")
	set.BoolVar(&f.waitKey, "wait-key", false, "")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		f.verb = set.Arg(0)
		switch f.verb {
		case "check":
		case "help":
			f.help = true
		default:
			return f, fmt.Errorf("unknown command %q", f.verb)
		}
		if err := set.Parse(set.Args()[1:]); err != nil {
			return f, err
		}
		if set.NArg() > 0 {
			return f, fmt.Errorf("unexpected argument %q", set.Arg(0))
		}
	}
	var misplaced error
	set.Visit(func(given *flag.Flag) {
		if f.verb == "check" && slices.Contains(servingOnly, given.Name) {
			misplaced = fmt.Errorf("--%s does not go with check", given.Name)
		}
	})
	return f, errors.Join(misplaced,
		oneOf("--key-source", f.keySource, "auto", "keychain", "file"),
		oneOf("--log", f.logFormat, "text", "json"))
}

func (f flags) config(logger *slog.Logger) (daemon.Config, error) {
	home, err := place.Home(f.home)
	if err != nil {
		return daemon.Config{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return daemon.Config{}, err
	}
	cfg := daemon.Config{
		Home: home, KeySource: f.keySource, WaitKey: f.waitKey, Version: version, Logger: logger, LogFormat: f.logFormat,
		Self: self, KeychildArg: keychild,
	}
	if dir := f.socketDir; dir != "" {
		if cfg.SocketDir, err = filepath.Abs(dir); err != nil {
			return daemon.Config{}, err
		}
	} else if dir := os.Getenv(place.EnvSocket); dir != "" {
		if cfg.SocketDir, err = filepath.Abs(dir); err != nil {
			return daemon.Config{}, err
		}
	}
	return cfg, nil
}

func serve(ctx context.Context, f flags, stderr io.Writer) int {
	logs := &switchingHandler{}
	cfg, err := f.config(slog.New(logs))
	if err != nil {
		return failed(stderr, err)
	}
	cfg.UseLogFormat = func(format string) { logs.use(handler(format, stderr)) }
	cfg.UseLogFormat(f.logFormat)

	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	deadline := func(reason error) {
		time.AfterFunc(stopDeadline, func() {
			if reason != nil {
				os.Exit(failed(stderr, reason))
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
		return failed(stderr, err)
	}
	return wire.ExitDone
}

func oneOf(name, value string, allowed ...string) error {
	for _, a := range append(allowed, "") {
		if value == a {
			return nil
		}
	}
	return fmt.Errorf("%s: want one of %s", name, strings.Join(allowed, ", "))
}

// handler is text for a terminal and JSON for everything else, unless told.
func handler(format string, stderr io.Writer) slog.Handler {
	if format == "" {
		format = "json"
		if file, ok := stderr.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
			format = "text"
		}
	}
	if format == "text" {
		return slog.NewTextHandler(stderr, nil)
	}
	return slog.NewJSONHandler(stderr, nil)
}

func check(ctx context.Context, f flags, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, os.Interrupt)
	defer stop()
	cfg, err := f.config(slog.New(slog.DiscardHandler))
	if err != nil {
		return failed(stderr, err)
	}
	lines, err := daemon.Check(ctx, cfg)
	for _, line := range lines {
		fmt.Fprintln(stdout, line)
	}
	if err != nil {
		return failed(stderr, err)
	}
	return wire.ExitDone
}

// failed prints one line and returns the exit code that belongs to it.
func failed(stderr io.Writer, err error) int {
	line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	fmt.Fprintf(stderr, "sbd: %s\n", line)
	if f, ok := errors.AsType[*daemon.Fault](err); ok {
		if f.Code == wire.AlreadyRunning {
			fmt.Fprintln(stderr, "hint: sbctl status")
		}
		return wire.Exit(f.Code)
	}
	return wire.ExitFailed
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
