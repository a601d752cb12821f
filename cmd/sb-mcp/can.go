package main

import (
	"context"
	"fmt"
	"io"

	"subjectbroker/proto/wire"
	"subjectbroker/worker"
)

// can asks whether the subject may do something by itself, prints the answer,
// and ends the run that it asked under. Whatever is not allowed is a denial.
func can(ctx context.Context, config worker.Config, capability string, stdout, stderr io.Writer) int {
	run, err := worker.Open(ctx, config)
	if err != nil {
		return failAsking(stderr, capability, err, config.Subject)
	}
	defer run.Close()
	verdict, err := run.Can(ctx, capability)
	if err != nil {
		return failAsking(stderr, capability, err, config.Subject)
	}
	fmt.Fprintf(stdout, "%s  %s\n", verdict.Decision, verdict.Reason)
	if verdict.Decision != "allow" {
		return wire.ExitDenied
	}
	return wire.ExitDone
}

func failAsking(stderr io.Writer, capability string, err error, subject string) int {
	typed := wire.FromError(err)
	text := fmt.Sprintf("asking for %s: %s: %s", capability, typed.Reason, typed.Message)
	if typed.Reason == wire.InvalidArgument {
		return fail(stderr, wire.ExitUsage, text, "sb-mcp --help")
	}
	return fail(stderr, wire.Exit(typed.Reason), text, hint(typed, subject))
}
