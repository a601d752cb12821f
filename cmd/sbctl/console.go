package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc/connectivity"

	"subjectbroker/cmd/sbctl/internal/complete"
	"subjectbroker/cmd/sbctl/internal/shellwords"
	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
)

type consoleCmd struct{}

// Help is the manual of console.
func (consoleCmd) Help() string {
	return `A prompt that runs commands of sbctl, with or without the word sbctl before them,
over one connection to the daemon. With an operator's passphrase set it is asked
for once, at the beginning; the session ends with the console, with "operator lock",
or by itself after some time without a command, and is then asked for again when
it is needed.

It is no shell: quotes and backslashes work, pipes, variables and redirection are
refused. Tab completes; lines are not remembered. The options of the console
itself hold for every line; --home and --socket cannot differ. "exit", "quit" and
Ctrl-D leave, Ctrl-C takes a line back or interrupts the command that runs.

When standard input is no terminal, each line of it is a command, # begins a
comment, and nothing is prompted for; the passphrase comes from --passphrase-fd, or
is asked for on the terminal when it is needed. In a console no command reads
standard input: it is given a file. A line that fails does not end the console. The
exit code is 0, or that of the last line that failed.

Examples:
  sbctl console
  sbctl console --passphrase-fd 3 < commands.txt`
}

// console is what the lines of a console share.
type console struct {
	opts   globals
	places client.Places
	home   string // of the person, for ~/
}

// inConsole says whether a runs a line of a console.
func (a *app) inConsole() bool { return a.console != nil }

// inherit adds the console's own options to those of a line.
func (c *console) inherit(line *globals) error {
	if line.Home != "" || line.Socket != "" {
		asked, err := client.ResolvePlaces(line.Home, line.Socket)
		if err != nil {
			return refuse("finding the home", "%v", err)
		}
		if asked.SocketDir != c.places.SocketDir {
			return refuse("reading the line", "a console speaks with one daemon, at %s: leave --home and --socket out", c.places.SocketDir)
		}
	}
	line.Home, line.Socket = c.opts.Home, c.opts.Socket
	if c.opts.Output == ui.JSON {
		line.Output = ui.JSON
	}
	line.Quiet = line.Quiet || c.opts.Quiet
	line.Yes = line.Yes || c.opts.Yes
	return nil
}

// lines is where a console reads from.
type lines interface {
	// next returns the next line without its end; io.EOF after the last. It ends
	// with ctx.
	next(ctx context.Context) (string, error)
	close()
}

// Run runs lines.
func (consoleCmd) Run(ctx context.Context, a *app) error {
	const doing = "opening a console"
	if a.inConsole() {
		return refuse(doing, "this is one already")
	}
	places, err := a.places()
	if err != nil {
		return err
	}
	home, _ := os.UserHomeDir() // without one ~ stays as it is
	c := &console{opts: a.opts, places: places, home: home}
	var from lines = &script{in: a.stdin}
	interactive := terminal.Is(a.stdin)
	if interactive {
		tty, err := a.tty()
		if err != nil {
			return fail(err, doing)
		}
		from = newPrompt(tty, func(typed []string) []complete.Candidate { return c.finish(ctx, a, typed) })
		// An interrupt is for the line that runs, and only the end of the process is
		// for the console.
		ending, stop := signal.NotifyContext(context.WithoutCancel(ctx), syscall.SIGTERM)
		defer stop()
		ctx = ending
	}
	defer from.close()
	if err := c.begin(ctx, a, doing, interactive); err != nil {
		return err
	}
	return c.run(ctx, a, from, interactive)
}

// begin connects and, where there is a passphrase to ask for, opens a session.
func (c *console) begin(ctx context.Context, a *app, doing string, interactive bool) error {
	if _, err := a.operator(ctx); err != nil {
		return err
	}
	state, err := a.operatorState(ctx, doing)
	if failed, ok := errors.AsType[*failure](err); ok && failed.exit == wire.ExitDenied {
		return err // no operator: no line would be answered either
	}
	wanted := state.GetPassphrase() && !state.GetAuthenticated() // nothing is known of a locked vault
	if !wanted || !interactive && a.passphraseFD() == nil {
		if interactive {
			a.done("commands of sbctl, without the word; \"exit\" leaves")
		}
		return nil
	}
	given := a.passphraseFD() != nil
	_, err = a.openSession(ctx, doing)
	if err == nil {
		a.done("a session is open, for this console only; \"exit\" ends it")
		return nil
	}
	if given || wrongPassphrase(err) || ctx.Err() != nil {
		return err
	}
	a.say("no session is open: a command that needs one asks again")
	return nil
}

// run runs lines until there are no more.
func (c *console) run(ctx context.Context, a *app, from lines, interactive bool) error {
	code := wire.ExitDone
	for number := 1; ; number++ {
		line, err := from.next(ctx)
		if err != nil && ctx.Err() != nil {
			return &failure{code: wire.InternalError, what: "interrupted", exit: wire.ExitFailed, cause: ctx.Err()}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fail(err, "reading a line")
		}
		typed, err := shellwords.Split(line, c.home)
		if err != nil {
			code = report(a.stderr, c.opts.Output, refuse(fmt.Sprintf("reading line %d", number), "%v", err))
			continue
		}
		typed, leaves := meant(typed)
		if leaves {
			break
		}
		if len(typed) == 0 {
			continue
		}
		if got := c.line(ctx, a, typed, interactive); got != wire.ExitDone {
			code = got
			if !interactive {
				a.done("line %d ended with exit code %d", number, got)
			}
		}
		if !interactive && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if code != wire.ExitDone {
		return exitCode(code)
	}
	return nil
}

// meant is what a line means: arguments of sbctl, nothing, or to leave.
func meant(typed []string) (args []string, leaves bool) {
	named := len(typed) > 0 && typed[0] == "sbctl"
	if named {
		typed = typed[1:]
	}
	switch {
	case named && len(typed) == 0, len(typed) == 1 && typed[0] == "help":
		return []string{"--help"}, false
	case len(typed) == 1 && (typed[0] == "exit" || typed[0] == "quit"):
		return nil, true
	}
	return typed, false
}

// line runs one line in this process, over the connection of a, and returns its
// exit code.
func (c *console) line(ctx context.Context, a *app, typed []string, interactive bool) int {
	if interactive {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
	}
	verb := &app{stdin: taken{}, stdout: a.stdout, stderr: a.stderr, now: a.now, tty: a.tty, conn: a.conn, console: c}
	code := verb.perform(ctx, typed)
	if verb.conn != nil { // some lines let go of it when they need it no more
		a.conn = verb.conn
	}
	if a.conn != nil && a.conn.GetState() != connectivity.Ready {
		a.close() // the next line makes a new one
		a.done("the connection to the daemon has ended, and the session with it")
	}
	return code
}

// finish are the candidates for the last of the words that were typed: as in a
// shell, from the grammar and from the daemon when it answers soon.
func (c *console) finish(ctx context.Context, a *app, typed []string) []complete.Candidate {
	ctx, cancel := context.WithTimeout(ctx, completePatience)
	defer cancel()
	asks := &app{
		opts: globals{Home: c.opts.Home, Socket: c.opts.Socket}, stdin: taken{}, stdout: io.Discard, stderr: io.Discard, now: a.now,
		conn: a.conn, console: c, tty: func() (*terminal.TTY, error) { return nil, terminal.ErrNone },
	}
	parser, err := newParser(asks, &grammar{})
	if err != nil {
		return nil
	}
	found := complete.Words(parser.Model.Node, typed, asks.names(ctx))
	if asks.conn != nil {
		a.conn = asks.conn
	}
	return found
}

// taken is the standard input of a line: what comes there are the lines.
type taken struct{}

func (taken) Read([]byte) (int, error) {
	return 0, errors.New("standard input is the console's own: use a file")
}

// script reads lines that a program gives.
type script struct {
	in    io.Reader
	found chan scanned
}

type scanned struct {
	line string
	err  error
}

// maxLine is the longest line of a script, in bytes.
const maxLine = 64 << 10

func (s *script) next(ctx context.Context) (string, error) {
	if s.found == nil {
		s.found = make(chan scanned)
		go s.scan(ctx)
	}
	select {
	case next, ok := <-s.found:
		if !ok {
			return "", io.EOF
		}
		return next.line, next.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// scan hands lines over; a read that waits when ctx ends ends with the process.
func (s *script) scan(ctx context.Context) {
	defer close(s.found)
	scanner := bufio.NewScanner(s.in)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		select {
		case s.found <- scanned{line: scanner.Text()}:
		case <-ctx.Done():
			return
		}
	}
	err := scanner.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = refuse("reading a line", "it is longer than %d bytes", maxLine)
	}
	if err != nil {
		select {
		case s.found <- scanned{err: err}:
		case <-ctx.Done():
		}
	}
}

func (s *script) close() {}
