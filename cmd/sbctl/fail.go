package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"google.golang.org/grpc/status"

	"subjectbroker/cmd/sbctl/internal/ui"
	"subjectbroker/proto/wire"
)

// failure is an error as the operator sees it: what was being done, what went
// wrong, and the command that mends it.
type failure struct {
	code  wire.Reason
	doing string // "storing design-doc"; empty only for what main itself does
	what  string
	hint  string // a sbctl command; empty where none mends it
	exit  int
	cause error
}

func (f *failure) Error() string {
	if f.doing == "" {
		return f.what
	}
	return f.doing + ": " + f.what
}

func (f *failure) Unwrap() error { return f.cause }

// exitCode is a result that is no error but has an exit code of its own, such
// as an explanation that ends in a denial. Nothing is printed for it.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// refuse is input that sbctl itself does not take.
func refuse(doing, format string, args ...any) *failure {
	return &failure{code: wire.InvalidArgument, doing: doing, what: fmt.Sprintf(format, args...), exit: wire.ExitUsage}
}

// withHint adds the command that mends f.
func (f *failure) withHint(format string, args ...any) *failure {
	f.hint = fmt.Sprintf(format, args...)
	return f
}

// fail makes the failure of doing out of what a call returned; nil stays nil.
func fail(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	doing := fmt.Sprintf(format, args...)
	if known, ok := errors.AsType[*failure](err); ok {
		return known
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return code
	}
	if crossed := fromSocket(err); crossed != nil {
		return &failure{
			code: crossed.Reason, doing: doing, what: words(crossed), hint: hintFor(crossed),
			exit: wire.Exit(crossed.Reason), cause: err,
		}
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		local := &failure{code: wire.InternalError, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
		if errors.Is(file, fs.ErrNotExist) {
			local.code, local.exit = wire.InvalidArgument, wire.ExitUsage
		}
		return local
	}
	return &failure{code: wire.InternalError, doing: doing, what: err.Error(), exit: wire.ExitFailed, cause: err}
}

// fromSocket is the typed error of a call, and nil when err came from elsewhere.
func fromSocket(err error) *wire.Error {
	if typed, ok := errors.AsType[*wire.Error](err); ok {
		return typed
	}
	if _, ok := status.FromError(err); ok {
		return wire.FromError(err)
	}
	return nil
}

// words is the sentence of e with its true cause, on one line.
func words(e *wire.Error) string {
	text := e.Message
	if e.Cause != "" && !strings.Contains(text, e.Cause) {
		text += " (" + e.Cause + ")"
	}
	if cause(e.Cause) == causeOperatorRefused {
		text += ": in a launch, or below an agent's process, nobody is the operator; use a terminal that no agent started"
	}
	return text
}

const startService = "sbctl service start"

// hintFor is the command that mends e: the daemon's word, or else what every
// failure of that kind needs.
func hintFor(e *wire.Error) string {
	if e.Hint != "" {
		return e.Hint
	}
	if cause(e.Cause) == causeOperatorRefused {
		return "sbctl operator status"
	}
	switch e.Reason {
	case wire.BrokerUnavailable:
		return startService
	case wire.VaultLocked:
		return "sbctl unlock"
	case wire.AuditFailed, wire.IntegrityFailed, wire.PolicyUnavailable:
		return "sbctl status"
	case wire.KeyUnavailable, wire.WrongKey, wire.KeyFileUnsafe, wire.SocketUnsafe, wire.HomeUnsafe:
		return "sbctl doctor"
	case wire.ResourceChanged:
		return "sbctl resource status"
	default:
		return ""
	}
}

// report prints err on stderr in the form that was asked for and returns the
// exit code.
func report(stderr io.Writer, format ui.Format, err error) int {
	if err == nil {
		return wire.ExitDone
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	known, ok := errors.AsType[*failure](err)
	if !ok {
		known = &failure{code: wire.InternalError, what: err.Error(), exit: wire.ExitFailed}
	}
	if format == ui.JSON {
		text, encodeErr := ui.Encode(failureView{failureBody{
			Code: string(known.code), Message: known.Error(), Hint: known.hint, Exit: known.exit,
		}})
		if encodeErr == nil {
			_, _ = stderr.Write(text)
		}
		return known.exit
	}
	fmt.Fprintf(stderr, "sbctl: %s\n", ui.Safe(oneLine(known.Error())))
	if known.hint != "" {
		fmt.Fprintf(stderr, "hint: %s\n", ui.Safe(known.hint))
	}
	return known.exit
}

// failureView is the JSON shape of an error.
type failureView struct {
	Error failureBody `json:"error"`
}

type failureBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	Exit    int    `json:"exit"`
}

// oneLine joins an error of several lines, as errors.Join makes them.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// interrupted says whether err only means that the person had seen enough. A
// result stays one, such as that of a command that was told to stop.
func interrupted(ctx context.Context, err error) bool {
	if _, result := errors.AsType[exitCode](err); result {
		return false
	}
	return err != nil && ctx.Err() != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
