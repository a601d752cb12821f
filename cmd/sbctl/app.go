package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
	"subjectbroker/proto/terminal"
	"subjectbroker/proto/wire"
	"subjectbroker/worker/client"
	"subjectbroker/worker/launch"
)

// patience bounds one call that has no person or key source in it. The daemon
// itself answers or refuses within a few seconds.
const patience = 30 * time.Second

// keyPatience bounds a call that may wait for a person at a keychain's prompt.
const keyPatience = 90 * time.Second

// app is what a command works with: its streams, its options, its connection.
type app struct {
	opts   globals
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	out    *ui.Printer
	now    func() time.Time
	model  *kong.Application
	tty    func() (*terminal.TTY, error)

	conn    *grpc.ClientConn
	fdRead  bool                              // what --passphrase-fd names was read
	asking  bool                              // for the operator's passphrase
	idle    time.Duration                     // how long the session that was opened here lasts without a call; 0 without one
	aside   func(question func() error) error // gives way to a question; nil where nothing is in its way
	console *console                          // that this runs in; nil outside of one
	die     func()                            // ends this process by the signal that ended what it ran, if one did; only main calls it
}

// say tells the person something; it is no data.
func (a *app) say(format string, args ...any) {
	_, _ = fmt.Fprintln(a.stderr, ui.Safe(fmt.Sprintf(format, args...)))
}

// done tells the person that something happened, unless a program is reading.
func (a *app) done(format string, args ...any) {
	if a.out.Format != ui.JSON && !a.out.Quiet {
		a.say(format, args...)
	}
}

// list prints several things, and tells a person when there are none.
func (a *app) list(list ui.List, none string) error {
	if len(list.Rows) == 0 {
		a.done("%s", none)
	}
	return a.out.List(list)
}

// places is where the daemon is expected.
func (a *app) places() (client.Places, error) {
	places, err := client.ResolvePlaces(a.opts.Home, a.opts.Socket)
	if err != nil {
		return places, refuse("finding the home", "%v", err)
	}
	return places, nil
}

// operator is the operator's side of the contract, over one connection that is
// made when it is first needed.
func (a *app) operator(ctx context.Context) (operatorv1.OperatorServiceClient, error) {
	if a.conn == nil {
		places, err := a.places()
		if err != nil {
			return nil, err
		}
		conn, err := client.Operator(ctx, places)
		if err != nil {
			return nil, notReached(err)
		}
		a.conn = conn
	}
	return operatorv1.NewOperatorServiceClient(a.conn), nil
}

// notReached is the failure to connect. In a launch the operator's socket is not
// there, and no service that is started mends that.
func notReached(err error) error {
	const doing = "reaching the daemon"
	if marker, inside := launch.Inside(); inside {
		where := "a launch of " + marker.Subject + ", and what the operator does cannot be done in one"
		if marker.Subject == "" {
			where = "a server that the broker runs, and what the operator does cannot be done there"
		}
		return &failure{
			code: wire.AccessDenied, doing: doing, exit: wire.ExitDenied, cause: err,
			what: "this is " + where,
		}
	}
	return fail(err, doing)
}

// close ends the connection; in a console it is not a line's to end.
func (a *app) close() {
	if a.conn != nil && !a.inConsole() {
		_ = a.conn.Close()
		a.conn = nil
	}
}

// call makes one call to the daemon within patience. Where the daemon wants the
// operator's passphrase for it a person is asked, and the call is made once more
// over the same connection. It is a function and not a method because methods have
// no type parameters.
func call[Q, R any](ctx context.Context, a *app, doing string, request *Q,
	method func(operatorv1.OperatorServiceClient, context.Context, *Q, ...grpc.CallOption) (*R, error)) (*R, error) {
	return callWithin(ctx, a, patience, doing, request, method)
}

func callWithin[Q, R any](ctx context.Context, a *app, limit time.Duration, doing string, request *Q,
	method func(operatorv1.OperatorServiceClient, context.Context, *Q, ...grpc.CallOption) (*R, error)) (*R, error) {
	operator, err := a.operator(ctx)
	if err != nil {
		return nil, err
	}
	once := func() (*R, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return method(operator, ctx, request)
	}
	response, err := once()
	if wantsPassphrase(err) && !a.asking {
		if err := a.authenticate(ctx, doing, err); err != nil {
			return nil, err
		}
		response, err = once()
	}
	if err != nil {
		return nil, fail(err, "%s", doing)
	}
	return response, nil
}

// confirm asks a person before something that cannot be undone. --yes answers
// beforehand; without a terminal and without --yes it refuses.
func (a *app) confirm(ctx context.Context, doing, question string) error {
	return a.consent(ctx, doing, "this cannot be undone and there is no terminal to ask on: add --yes", question)
}

// paste is a command of sbctl as it can be pasted into a shell: with the
// options that said which broker is meant.
func (a *app) paste(words ...string) string {
	quoted := []string{"sbctl"}
	for _, word := range words {
		quoted = append(quoted, shellQuote(word))
	}
	return a.located(strings.Join(quoted, " "))
}

// located is a command of ours, as a hint names it, with the options that said
// which broker is meant; where the environment said it, the reader's shell does
// so too. Any other command stays as it is, and so does help.
func (a *app) located(command string) string {
	program, rest, _ := strings.Cut(command, " ")
	socket := map[string]string{"sbctl": " --socket ", "sbd": " --socket-dir "}[program]
	if socket == "" || strings.HasSuffix(rest, "--help") {
		return command
	}
	ours, theirs, runs := strings.Cut(command, " -- ") // what comes after it is another program's
	if a.opts.Home != "" && !strings.Contains(ours, " --home") {
		ours += " --home " + shellQuote(a.opts.Home)
	}
	if a.opts.Socket != "" && !strings.Contains(ours, socket[:len(socket)-1]) {
		ours += socket + shellQuote(a.opts.Socket)
	}
	if runs {
		ours += " -- " + theirs
	}
	return ours
}

// shellQuote is word as a POSIX shell reads it back.
func shellQuote(word string) string {
	safe := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@%+=,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !safe(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
